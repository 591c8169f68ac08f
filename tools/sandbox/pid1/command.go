package pid1

import (
	"cmp"
	"fmt"
	"os"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/slack"
)

// ends are the descriptors of a command. Init makes both ends inside the sandbox.
type ends struct {
	inner []int // 0, 1 and 2 of the command, or a terminal
	outer []int // the daemon's: of three pipes, or a terminal's master
}

// pipes makes three pipes. In place of the first one it makes a socket that passes descriptors, if socket is set.
func (e *ends) pipes(socket bool) (err error) {
	for i := range 3 {
		var p [2]int // reading, writing
		if socket && i == 0 {
			p, err = unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
		} else {
			err = unix.Pipe2(p[:], unix.O_CLOEXEC)
		}
		if err != nil {
			return err
		}
		if i > 0 {
			p[0], p[1] = p[1], p[0]
		}
		e.inner, e.outer = append(e.inner, p[0]), append(e.outer, p[1])
	}
	return nil
}

// terminal opens a new terminal of the sandbox's own devpts, and its slave without
// a path (ioctl_tty(2), TIOCGPTPEER).
func (e *ends) terminal(size *Size) error {
	master, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	e.outer = []int{master}
	if err := unix.IoctlSetPointerInt(master, unix.TIOCSPTLCK, 0); err != nil {
		return err
	}
	slave, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(master), unix.TIOCGPTPEER,
		unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC)
	if errno != 0 {
		return errno
	}
	e.inner = []int{int(slave)}
	return unix.IoctlSetWinsize(master, unix.TIOCSWINSZ, &unix.Winsize{Row: size.Rows, Col: size.Cols})
}

// start makes three pipes, or a terminal, and executes the command with them as the leader of a new session; on a terminal, below
// such a leader. given has the program of FileWorker. start returns the session and the process group of the command.
func (e *ends) start(r *Request, given []*os.File) (session, group int, err error) {
	if r.TTY != nil {
		if err := e.terminal(r.TTY); err != nil {
			return 0, 0, err
		}
		return startLeader(r, e.inner[0])
	}
	if err := e.pipes(r.Socket); err != nil {
		return 0, 0, err
	}
	session, err = execute(r, given, e.inner, &syscall.SysProcAttr{Setsid: true})
	return session, session, err
}

// execute executes a command. given has the program of FileWorker.
func execute(r *Request, given []*os.File, files []int, sys *syscall.SysProcAttr) (pid int, err error) {
	argv, env, program := stringsOf(r.Argv), stringsOf(r.Env), ""
	fork := func() {
		pid, err = syscall.ForkExec(program, argv, &syscall.ProcAttr{
			Dir: string(r.Dir), Env: env,
			Files: []uintptr{uintptr(files[0]), uintptr(files[1]), uintptr(files[2])},
			Sys:   sys,
		})
	}
	if argv[0] == FileWorker {
		if len(given) != 1 {
			return 0, unix.EINVAL
		}
		argv[0], program = "scopefs-files", fmt.Sprintf("/proc/self/fd/%d", given[0].Fd())
		fork() // with our timer slack
		return pid, err
	}
	if dir := string(r.Dir); dir != "" {
		if errno, _ := unix.Access(dir+"/.", unix.X_OK).(unix.Errno); errno != 0 {
			return 0, DirError{errno}
		}
	}
	if program, err = lookPath(argv[0], env); err != nil {
		return 0, err
	}
	slack.Fine(fork)
	return pid, err
}

func (e *ends) close() {
	for _, fd := range append(e.inner, e.outer...) {
		unix.Close(fd)
	}
}

// lookPath finds a program as execvp(3) does, in the PATH of env. The file may
// change before it is executed; no decision depends on it.
func lookPath(name string, env []string) (string, error) {
	if strings.Contains(name, "/") {
		return name, nil
	}
	var found error = unix.ENOENT
	for _, kv := range env {
		if dirs, ok := strings.CutPrefix(kv, "PATH="); ok {
			for _, dir := range strings.Split(dirs, ":") {
				file := cmp.Or(dir, ".") + "/" + name
				if info, err := os.Stat(file); err != nil || info.IsDir() {
					continue
				}
				if unix.Access(file, unix.X_OK) == nil {
					return file, nil
				}
				found = unix.EACCES
			}
		}
	}
	return "", found
}
