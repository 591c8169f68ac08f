package sandbox

import (
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/child"
)

// initProgram returns what init is executed from. The caller closes it. Where the file of the program has no mount of its own, or
// where a user may not execute it, that is a sealed copy. Init makes itself undumpable before another process is in the sandbox.
func initProgram(c Config) (*os.File, error) {
	path, err := program(c.Init, child.Init)
	if err != nil {
		return nil, err
	}
	if f := readOnly(path); f != nil {
		return f, nil
	}
	s, err := newSealed(path, child.Init)
	if err != nil {
		return nil, err
	}
	f, err := s.file()
	if err != nil {
		s.Close()
	}
	return f, err
}

// readOnly returns the file of a program through a mount that is read-only and attached nowhere. A process that gets hold of its
// /proc/PID/exe cannot write to the file (CVE-2019-5736) and learns no path of it. It is nil where there is no such mount, or where
// a user may not execute the file.
func readOnly(path string) *os.File {
	running, err := os.OpenFile(path, unix.O_PATH, 0)
	if err != nil {
		return nil
	}
	defer running.Close()
	// The mount of /proc/self/exe is of the mount namespace of our parent, and open_tree(2) clones those of ours only.
	name, err := os.Readlink(procPath(running))
	if err != nil {
		return nil
	}
	here, err := os.OpenFile(name, unix.O_PATH|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil
	}
	defer here.Close()
	var meant, found unix.Stat_t
	err = errors.Join(unix.Fstat(int(running.Fd()), &meant), unix.Fstat(int(here.Fd()), &found))
	if err != nil || found.Dev != meant.Dev || found.Ino != meant.Ino || found.Mode&0o111 != 0o111 {
		return nil
	}
	mount, err := detached(here, unix.MOUNT_ATTR_RDONLY)
	if err != nil {
		return nil
	}
	return mount
}

// sealed is a copy of a program in memory that nobody can change (memfd_create(2), F_SEAL_WRITE). Commands that are
// FileWorker are executed from it, beside the agent's: one that gets hold of /proc/PID/exe has no way to the file on the host
// (CVE-2019-5736), and the text is shared by all sessions. Nobody can read it either: so the kernel makes what is executed
// from it undumpable at once (would_dump in fs/exec.c), not when it gets to say so itself. In between, other processes of
// the same user could open its streams in /proc/PID/fd.
type sealed struct {
	path   string // of the program
	memory *os.File

	mu   sync.Mutex // held while file fills the copy; for nothing else
	full bool
}

// newSealed makes the file of a copy: of the program that is given, else of the role's. file fills it.
func newSealed(given, role string) (*sealed, error) {
	path, err := program(given, role)
	if err != nil {
		return nil, err
	}
	const flags = unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	fd, err := unix.MemfdCreate(role, flags|unix.MFD_EXEC)
	if errors.Is(err, unix.EINVAL) { // before Linux 6.3, where every memfd is executable
		fd, err = unix.MemfdCreate(role, flags)
	}
	if err != nil {
		return nil, noMemfd(err)
	}
	return &sealed{path: path, memory: os.NewFile(uintptr(fd), role)}, nil
}

// file returns the copy. After an error, as of memory, the next call tries again.
func (s *sealed) file() (*os.File, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.full {
		if err := s.fill(); err != nil {
			return nil, fmt.Errorf("program of the sandbox: %w", err)
		}
		s.full = true
	}
	return s.memory, nil
}

// Close frees the copy. Nobody may use it then.
func (s *sealed) Close() error { return s.memory.Close() }

// fill copies what the kernel loads of a program, and seals it. The rest, a third of the file, is for debuggers.
func (s *sealed) fill() error {
	src, err := os.Open(s.path)
	if err != nil {
		return err
	}
	defer src.Close()
	size, err := loaded(src)
	if err == nil { // of an earlier try
		_, err = s.memory.Seek(0, io.SeekStart)
	}
	for err == nil && size > 0 { // io.Copy would read and write 32 KiB at a time
		n := 0
		if n, err = unix.Sendfile(int(s.memory.Fd()), int(src.Fd()), nil, int(size)); err == nil && n == 0 {
			err = io.ErrUnexpectedEOF
		}
		size -= int64(n)
	}
	if err == nil {
		err = s.memory.Chmod(0o111)
	}
	if err == nil {
		_, err = unix.FcntlInt(s.memory.Fd(), unix.F_ADD_SEALS,
			unix.F_SEAL_SEAL|unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_WRITE)
	}
	return err
}

// loaded returns the length of the part of a program that the kernel loads: elf(5).
func loaded(program io.ReaderAt) (end int64, err error) {
	file, err := elf.NewFile(program)
	if err != nil {
		return 0, err
	}
	for _, segment := range file.Progs {
		end = max(end, int64(segment.Off+segment.Filesz))
	}
	return end, nil
}

// noMemfd says why there is no executable memfd.
func noMemfd(err error) error {
	what := fmt.Sprintf("the program of the sandbox cannot be in memory (memfd_create: %v)", err)
	if value, _ := os.ReadFile("/proc/sys/vm/memfd_noexec"); strings.TrimSpace(string(value)) == "2" {
		return &MissingError{what, "sysctl vm.memfd_noexec is 2, which forbids it: set it to 0 or 1 in /etc/sysctl.d, and start again"}
	}
	return &MissingError{what, "need Linux 3.17 or newer; in a container, a seccomp profile that allows memfd_create"}
}
