package sandbox

import (
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestForeignArchitecture enters the kernel by int 0x80, with numbers of i386.
func TestForeignArchitecture(t *testing.T) {
	s := newTestSession(t)
	elf := filepath.Join(s.spec.View.Name(), "int80")
	require.NoError(t, os.WriteFile(elf, int80(), 0o755))
	_, exit := run(t, s, "./int80")
	if exec.Command(elf).Run() == nil {
		assert.Equal(t, unix.SIGSYS, exit.Signal)
	} else { // a kernel without a 32-bit entry: nobody gets in by it
		assert.NotEqual(t, Exit{}, exit)
	}
}

// int80 is a static program that calls getpid by int 0x80 and, if it lives,
// exits with 0.
func int80() []byte {
	code := []byte{
		0xb8, 20, 0, 0, 0, // mov eax, 20 (getpid of i386)
		0xcd, 0x80, // int 0x80
		0x31, 0xff, // xor edi, edi
		0xb8, 231, 0, 0, 0, // mov eax, 231 (exit_group)
		0x0f, 0x05, // syscall
	}
	le := binary.LittleEndian
	b := append([]byte("\x7fELF\x02\x01\x01"), make([]byte, 9)...)
	b = le.AppendUint16(b, 2)  // ET_EXEC
	b = le.AppendUint16(b, 62) // EM_X86_64
	b = le.AppendUint32(b, 1)
	b = le.AppendUint64(b, 0x400000+120) // entry, after the two headers
	b = le.AppendUint64(b, 64)           // program headers
	b = le.AppendUint64(b, 0)
	b = le.AppendUint32(b, 0)
	for _, v := range []uint16{64, 56, 1, 0, 0, 0} {
		b = le.AppendUint16(b, v)
	}
	b = le.AppendUint32(b, 1) // PT_LOAD
	b = le.AppendUint32(b, 5) // r-x
	for _, v := range []uint64{0, 0x400000, 0x400000, 120 + uint64(len(code)), 120 + uint64(len(code)), 0x1000} {
		b = le.AppendUint64(b, v)
	}
	return append(b, code...)
}
