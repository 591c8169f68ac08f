package sandbox

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"strconv"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// helpers are the programs that tests run, in the sandbox by FileWorker.
var helpers = map[string]func(args []string) int{
	"attack": attack, "eat": eat, "fork": forkMany, "daemon": daemon, "wait": wait, "connect": connect,
}

// connect connects to the unix socket args[0] and prints the error.
func connect(args []string) int {
	conn, err := net.Dial("unix", args[0])
	if err == nil {
		conn.Close()
	}
	fmt.Println(err)
	return 0
}

// attempt is a system call that must be refused.
type attempt struct {
	Name  string
	nr    uintptr
	args  [6]uintptr
	Want  unix.Errno
	Errno unix.Errno
}

const garbage = 0x5a5a_5a5a << 32 // in the high word, which the kernel does not look at

func attempts() []attempt {
	a := []attempt{
		{"clone user namespace", unix.SYS_CLONE, [6]uintptr{unix.CLONE_NEWUSER | uintptr(unix.SIGCHLD)}, unix.EPERM, 0},
		{"clone mount namespace", unix.SYS_CLONE, [6]uintptr{unix.CLONE_NEWNS | uintptr(unix.SIGCHLD) | garbage}, unix.EPERM, 0},
		{"unshare user namespace", unix.SYS_UNSHARE, [6]uintptr{unix.CLONE_NEWUSER}, unix.EPERM, 0},
		{"unshare time namespace", unix.SYS_UNSHARE, [6]uintptr{unix.CLONE_NEWTIME | garbage}, unix.EPERM, 0},
		{"TIOCSTI", unix.SYS_IOCTL, [6]uintptr{0, unix.TIOCSTI}, unix.EPERM, 0},
		{"TIOCSTI with garbage", unix.SYS_IOCTL, [6]uintptr{0, unix.TIOCSTI | garbage}, unix.EPERM, 0},
		{"TIOCLINUX with garbage", unix.SYS_IOCTL, [6]uintptr{0, unix.TIOCLINUX | garbage}, unix.EPERM, 0},
		{"personality", unix.SYS_PERSONALITY, [6]uintptr{0x0400000}, unix.EPERM, 0},
		{"AF_VSOCK", unix.SYS_SOCKET, [6]uintptr{unix.AF_VSOCK, unix.SOCK_STREAM}, unix.EAFNOSUPPORT, 0},
		{"AF_ALG", unix.SYS_SOCKET, [6]uintptr{unix.AF_ALG | garbage, unix.SOCK_SEQPACKET}, unix.EAFNOSUPPORT, 0},
		{"AF_PACKET", unix.SYS_SOCKET, [6]uintptr{unix.AF_PACKET, unix.SOCK_RAW}, unix.EAFNOSUPPORT, 0},
		{"netlink audit", unix.SYS_SOCKET, [6]uintptr{unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_AUDIT}, unix.EAFNOSUPPORT, 0},
		{"netfilter", unix.SYS_SOCKET, [6]uintptr{unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_NETFILTER}, unix.EAFNOSUPPORT, 0},
		{"raw ip", unix.SYS_SOCKET, [6]uintptr{unix.AF_INET, unix.SOCK_RAW, 1}, unix.EPERM, 0},
		{"socketpair", unix.SYS_SOCKETPAIR, [6]uintptr{unix.AF_TIPC, unix.SOCK_STREAM}, unix.EAFNOSUPPORT, 0},
		{"limits of init", unix.SYS_PRLIMIT64, [6]uintptr{1, unix.RLIMIT_NOFILE, noLimits()}, unix.EPERM, 0},
		{"limits of init, with garbage", unix.SYS_PRLIMIT64, [6]uintptr{1 | garbage, unix.RLIMIT_NPROC, noLimits()}, unix.EPERM, 0},
		{"limits of another", unix.SYS_PRLIMIT64, [6]uintptr{2, unix.RLIMIT_NOFILE, noLimits()}, unix.EPERM, 0},
		{"limits at a low address", unix.SYS_PRLIMIT64, [6]uintptr{1, unix.RLIMIT_NOFILE, 0x1000}, unix.EPERM, 0},
		{"limits at a high address", unix.SYS_PRLIMIT64, [6]uintptr{1, unix.RLIMIT_NOFILE, 1 << 32}, unix.EPERM, 0},
		{"scheduler of init", unix.SYS_SCHED_SETSCHEDULER, [6]uintptr{1, 5, noLimits()}, unix.EPERM, 0},
		{"processors of init", unix.SYS_SCHED_SETAFFINITY, [6]uintptr{1, 8, noLimits()}, unix.EPERM, 0},
		{"priority of init", unix.SYS_SETPRIORITY, [6]uintptr{unix.PRIO_PROCESS, 1, 19}, unix.EPERM, 0},
		{"priority of all", unix.SYS_SETPRIORITY, [6]uintptr{unix.PRIO_USER, 0, 19}, unix.EPERM, 0},
		{"newer than we know", lastKnown + 1, [6]uintptr{}, unix.ENOSYS, 0},
		{"x32 getpid", 0x40000000 | unix.SYS_GETPID, [6]uintptr{}, unix.ENOSYS, 0},
	}
	return append(a, listed()...)
}

// noLimits is the address of a struct rlimit64 that allows nothing.
func noLimits() uintptr { return uintptr(unsafe.Pointer(&nothing)) }

var nothing [2]uint64

// attack makes the attempts and prints their errors.
func attack([]string) int {
	list := attempts()
	for i := range list {
		a := &list[i]
		pid, _, errno := syscall.RawSyscall6(a.nr, a.args[0], a.args[1], a.args[2], a.args[3], a.args[4], a.args[5])
		if a.nr == unix.SYS_CLONE && errno == 0 && pid == 0 {
			syscall.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
		}
		a.Errno = errno
	}
	if err := json.NewEncoder(os.Stdout).Encode(list); err != nil {
		return 1
	}
	return 0
}

// eat uses memory until it has args[0] MiB.
func eat(args []string) int {
	n, _ := strconv.Atoi(args[0])
	b := make([]byte, n<<20)
	for i := 0; i < len(b); i += 4096 {
		b[i] = 1
	}
	fmt.Println("ate", n)
	return 0
}

// forkMany starts processes until it may not, prints why, and stays. It makes system calls
// alone: the runtime ends a program when it cannot start a thread.
func forkMany([]string) int {
	errno := syscall.Errno(0)
	for range 5000 {
		var pid uintptr
		if pid, _, errno = syscall.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0); errno != 0 || pid == 0 {
			break
		}
	}
	if errno != 0 {
		fmt.Println(errno)
	}
	for {
		syscall.RawSyscall6(unix.SYS_PPOLL, 0, 0, 0, 0, 0, 0)
	}
}

// daemon is a whole daemon, for the tests that kill it: it starts a session in
// the view args[0], and in it the script args[1].
func daemon(args []string) int {
	view, err := os.Open(args[0])
	if err == nil {
		err = runDaemon(view, args[1])
	}
	fmt.Fprintln(os.Stderr, err)
	return 1
}

func runDaemon(view *os.File, script string) error {
	h, err := Open(Config{})
	if err != nil {
		return err
	}
	s, err := h.Start(context.Background(), Spec{Agent: "tester", UID: agentUID, GID: agentUID, View: view,
		Limits: Limits{PIDs: 2000}})
	if err != nil {
		return err
	}
	if _, err := s.Exec(context.Background(), Command{Argv: []string{"bash", "-c", script}}); err != nil {
		return err
	}
	fmt.Println(s.PID())
	time.Sleep(time.Minute)
	return s.Err()
}
