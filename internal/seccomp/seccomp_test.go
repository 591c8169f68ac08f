package seccomp

import (
	"encoding/binary"
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// run returns a function that runs a filter on a call, without a kernel.
func run(t *testing.T, f Filter) func(architecture, call uint32, args ...uint64) Answer {
	var raw []bpf.RawInstruction
	for _, in := range f.Program() {
		raw = append(raw, bpf.RawInstruction{Op: in.Code, Jt: in.Jt, Jf: in.Jf, K: in.K})
	}
	program, ok := bpf.Disassemble(raw)
	require.True(t, ok)
	vm, err := bpf.NewVM(program)
	require.NoError(t, err)
	return func(architecture, call uint32, args ...uint64) Answer {
		data := make([]byte, 64)
		put := binary.BigEndian.PutUint32 // what bpf.VM reads
		put(data, call)
		put(data[4:], architecture)
		for i, v := range args {
			put(data[low(i):], uint32(v))
			put(data[low(i)+4:], uint32(v>>32))
		}
		answer, err := vm.Run(data)
		require.NoError(t, err)
		return Answer(answer)
	}
}

// TestFilter: the first rule that matches answers, whatever is in the upper half of an argument that has 32 bits.
func TestFilter(t *testing.T) {
	const garbage = 0x5a5a_5a5a << 32
	denied, missing := Fail(unix.EPERM), Fail(unix.ENOSYS)
	many := Rule{unix.SYS_IOCTL, Allow, nil}
	for i := range uint32(300) { // more than one conditional jump passes over
		many.Uses = append(many.Uses, Use{Is(1, i)})
	}
	ask := run(t, Filter{Else: denied, Foreign: Kill, Last: 400, Rules: append(Calls(Allow, unix.SYS_READ, unix.SYS_WRITE),
		Rule{unix.SYS_FCNTL, denied, One(0, 7)},
		Fcntl(unix.F_GETFD, unix.F_SETFD),
		many,
		Rule{unix.SYS_SOCKET, Fail(unix.EAFNOSUPPORT), append(None(0, unix.AF_UNIX, unix.AF_INET), Use{Is(0, unix.AF_INET), IsNot(2, 0)})},
		Rule{unix.SYS_SOCKET, Allow, nil},
		Rule{unix.SYS_CLONE, denied, []Use{{Has(0, unix.CLONE_NEWUSER|unix.CLONE_NEWNS)}}},
		Rule{unix.SYS_CLONE, Allow, nil},
		Rule{unix.SYS_PRLIMIT64, denied, []Use{{IsNot(0, 0), IsNot(2, 0)}, {IsNot(0, 0), HighIsNot(2, 0)}}},
		Rule{unix.SYS_PRLIMIT64, Allow, nil},
		Rule{unix.SYS_CLOSE, Allow, nil},
	)})
	for name, row := range map[string]struct {
		want Answer
		call uint32
		args []uint64
	}{
		"allowed":                      {Allow, unix.SYS_READ, nil},
		"allowed, the second":          {Allow, unix.SYS_WRITE, nil},
		"after rules with uses":        {Allow, unix.SYS_CLOSE, nil},
		"no rule":                      {denied, unix.SYS_EXECVE, nil},
		"the last known":               {denied, 400, nil},
		"newer":                        {missing, 401, nil},
		"x32":                          {missing, 1<<30 | unix.SYS_READ, nil},
		"a command":                    {Allow, unix.SYS_FCNTL, []uint64{3, unix.F_SETFD}},
		"another command":              {denied, unix.SYS_FCNTL, []uint64{3, unix.F_SETOWN}},
		"on a descriptor":              {denied, unix.SYS_FCNTL, []uint64{7, unix.F_SETFD}},
		"on a descriptor with garbage": {denied, unix.SYS_FCNTL, []uint64{7 | garbage, unix.F_SETFD}},
		"the first of many":            {Allow, unix.SYS_IOCTL, []uint64{0, 0}},
		"the last of many":             {Allow, unix.SYS_IOCTL, []uint64{0, 299}},
		"none of many":                 {denied, unix.SYS_IOCTL, []uint64{0, 300}},
		"one of two":                   {Allow, unix.SYS_SOCKET, []uint64{unix.AF_UNIX, 0, 5}},
		"none of two":                  {Fail(unix.EAFNOSUPPORT), unix.SYS_SOCKET, []uint64{unix.AF_VSOCK | garbage}},
		"two arguments":                {Fail(unix.EAFNOSUPPORT), unix.SYS_SOCKET, []uint64{unix.AF_INET, 0, 5}},
		"one of two arguments":         {Allow, unix.SYS_SOCKET, []uint64{unix.AF_INET, 0, 0}},
		"a bit":                        {denied, unix.SYS_CLONE, []uint64{unix.CLONE_NEWNS | unix.CLONE_VM | garbage}},
		"no bit":                       {Allow, unix.SYS_CLONE, []uint64{unix.CLONE_VM | garbage}},
		"a pointer":                    {denied, unix.SYS_PRLIMIT64, []uint64{1, 0, 0x1000}},
		"a high pointer":               {denied, unix.SYS_PRLIMIT64, []uint64{1, 0, 1 << 32}},
		"no pointer":                   {Allow, unix.SYS_PRLIMIT64, []uint64{1, 0, 0}},
		"a pointer, and no other":      {Allow, unix.SYS_PRLIMIT64, []uint64{0, 0, 0x1000}},
	} {
		assert.Equal(t, row.want, ask(Architecture, row.call, row.args...), name)
		assert.Equal(t, Kill, ask(unix.AUDIT_ARCH_I386, row.call, row.args...), name)
	}
}

const confinedEnv = "SECCOMP_TEST_CONFINED"

// TestOnly: a filter holds on each thread, and a refused call fails without the end of the process.
func TestOnly(t *testing.T) {
	if os.Getenv(confinedEnv) != "" {
		confined(t)
		return
	}
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.Command(self, "-test.run=^TestOnly$", "-test.v")
	cmd.Env = append(os.Environ(), confinedEnv+"=1")
	out, err := cmd.CombinedOutput()
	assert.NoError(t, err, "%s", out)
	assert.Contains(t, string(out), "--- PASS: TestOnly")
}

// confined runs in a process of its own, with threads that were there before the filter.
func confined(t *testing.T) {
	loaded, tried := make(chan struct{}), make(chan error)
	for range 8 {
		go func() {
			_, _ = unix.Poll(nil, 1) // so that each has a thread
			<-loaded
			_, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
			tried <- err
		}()
	}
	require.NoError(t, Only(Calls(Allow, unix.SYS_GETUID), []Rule{Fcntl(unix.F_GETPIPE_SZ)}))
	close(loaded)
	for range 8 {
		assert.ErrorIs(t, <-tried, unix.EPERM)
	}
	for _, wrong := range []error{
		unix.Mkdir("/", 0), unix.Exec("/bin/true", nil, nil), unix.Kill(os.Getpid(), 0), unix.Prctl(unix.PR_SET_DUMPABLE, 1, 0, 0, 0),
	} {
		assert.ErrorIs(t, wrong, unix.EPERM)
	}
	_, err := unix.FcntlInt(0, unix.F_GETFL, 0)
	assert.NoError(t, err)
	_, err = unix.FcntlInt(0, unix.F_SETOWN, os.Getpid())
	assert.ErrorIs(t, err, unix.EPERM)
}
