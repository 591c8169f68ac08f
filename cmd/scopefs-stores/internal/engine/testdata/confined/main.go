// Confined is an engine process that an attacker has taken over: it confines itself as
// an engine does, and then tries what it likes. It prints a line for each attempt.
package main

import (
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/cmd/scopefs-stores/internal/engine"
	wire "github.com/scopefs/scopefs/tools/sql/engine"
)

func main() {
	means, err := engine.Confine(wire.Config{FileBytes: 1 << 20, Memory: 1 << 30})
	if err != nil {
		fmt.Println("refused:", err)
		os.Exit(1)
	}
	fmt.Println("confined:", means)
	try := func(what string, err error) {
		if errno, ok := err.(unix.Errno); ok {
			fmt.Println(what+":", unix.ErrnoName(errno))
			return
		}
		fmt.Println(what+":", err)
	}
	open := func(path string, flags int) error {
		fd, err := unix.Open(path, flags|unix.O_CLOEXEC, 0o600)
		if err == nil {
			unix.Close(fd)
		}
		return err
	}
	raw := func(nr, a, b, c uintptr) error {
		if _, _, errno := unix.RawSyscall(nr, a, b, c); errno != 0 {
			return errno
		}
		return nil
	}
	text := func(s string) uintptr {
		p, _ := unix.BytePtrFromString(s)
		return uintptr(unsafe.Pointer(p))
	}
	// Controls: its own.
	try("own: database", open("/agent.db", unix.O_RDWR))
	try("own: journal", open("/agent.db-journal", unix.O_RDWR|unix.O_CREAT))
	// What is elsewhere.
	try("passwd", open("/etc/passwd", unix.O_RDONLY))
	try("proc", open("/proc/self/environ", unix.O_RDONLY))
	try("up", open("/../../etc/passwd", unix.O_RDONLY))
	try("list", open("/", unix.O_RDONLY|unix.O_DIRECTORY))
	try("create", open("/new", unix.O_RDWR|unix.O_CREAT))
	try("wal", open("/agent.db-wal", unix.O_RDWR|unix.O_CREAT))
	try("unlink", unix.Unlinkat(unix.AT_FDCWD, "/agent.db-journal", 0))
	try("rename", unix.Renameat2(unix.AT_FDCWD, "/agent.db", unix.AT_FDCWD, "/x", 0))
	try("chmod", unix.Fchmodat(unix.AT_FDCWD, "/agent.db", 0o666, 0))
	// What is not a file.
	_, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	try("socket", err)
	_, err = unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	try("unix socket", err)
	try("exec", raw(unix.SYS_EXECVE, text("/agent.db"), 0, 0))
	try("clone", raw(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0))
	try("ptrace", raw(unix.SYS_PTRACE, unix.PTRACE_TRACEME, 0, 0))
	try("kill", unix.Kill(1, 0))
	try("mount", unix.Mount("tmpfs", "/", "tmpfs", 0, ""))
	try("unshare", unix.Unshare(unix.CLONE_NEWUSER))
	try("setuid", raw(unix.SYS_SETUID, 0, 0, 0))
	try("memfd", raw(unix.SYS_MEMFD_CREATE, text("x"), 0, 0))
	try("io_uring", raw(unix.SYS_IO_URING_SETUP, 1, text(string(make([]byte, 256))), 0))
	try("bpf", raw(unix.SYS_BPF, 0, 0, 0))
	try("rlimit", raw(unix.SYS_PRLIMIT64, 0, unix.RLIMIT_FSIZE, 0))
	for _, call := range []uintptr{unix.SYS_OPENAT2, unix.SYS_OPEN_BY_HANDLE_AT, unix.SYS_PIDFD_OPEN,
		unix.SYS_PROCESS_VM_READV, unix.SYS_KEYCTL, unix.SYS_USERFAULTFD, unix.SYS_FSOPEN, unix.SYS_MOVE_MOUNT} {
		try(fmt.Sprint("call ", call), raw(call, 0, 0, 0))
	}
}
