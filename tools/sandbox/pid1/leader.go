package pid1

import (
	"os"
	"os/signal"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/sigaction"
	"github.com/scopefs/scopefs/internal/thread"
)

// argLead as an argument makes Main a leader.
const argLead = "lead"

// startLeader starts a leader on a terminal, which starts the command.
func startLeader(r *Request, tty int) (session, group int, err error) {
	theirs, ours, err := NewPair()
	if err != nil {
		return 0, 0, err
	}
	defer ours.Close()
	fd := uintptr(tty)
	// The environment of a command could hold settings of the Go runtime.
	session, err = syscall.ForkExec("/proc/self/exe", []string{"scopefs-init", argLead}, &syscall.ProcAttr{
		Env:   []string{"GOMAXPROCS=1"},
		Files: []uintptr{fd, fd, fd, theirs.Fd()},
		Sys:   &syscall.SysProcAttr{Setsid: true, Setctty: true, Ctty: 0},
	})
	theirs.Close()
	var reply Reply
	if err == nil {
		err = ours.Send(r)
	}
	if err == nil {
		_, err = ours.Receive(&reply)
	}
	if err == nil {
		err = reply.Err()
	}
	return session, reply.PID, err
}

// lead is a process that leads the session of a command on a terminal. The command is in the foreground, in a process group of its
// own with a parent outside it: a group without one is orphaned, and the kernel drops its SIGTSTP (setpgid(2), credentials(7)).
//
// The leader stops when the command stops, and ends as the command ends. So process 1 waits for the leader alone.
func lead() int {
	runtime.LockOSThread()
	thread.Name("scopefs-init")
	// It outlives a command that signals all processes. What has a handler is the command's by default: see syscall.ForkExec.
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM)
	// Other commands may open no stream of it, and the kernel dumps no core if it ends by the signal of one.
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return 1
	}
	w, err := newWire(os.NewFile(ControlFD, "init"), maxRequest)
	if err != nil {
		return 1
	}
	var r Request
	if _, err := w.Receive(&r); err != nil {
		return 1
	}
	reply := Reply{Op: OpStarted, ID: r.ID}
	if reply.PID, err = execute(&r, nil, []int{0, 1, 2}, &syscall.SysProcAttr{Foreground: true, Ctty: 0}); err != nil {
		reply = failed(r.ID, err)
	}
	if w.Send(reply) != nil || err != nil {
		return 1
	}
	w.Close()
	go func() {
		for sig := range signals {
			if sig == unix.SIGHUP { // the terminal's end: the kernel signals the leader alone
				unix.Kill(reply.PID, unix.SIGHUP)
				unix.Kill(-reply.PID, unix.SIGCONT)
			}
		}
	}()
	return follow(reply.PID)
}

// follow stops and ends as a process does. The goroutine is locked to its thread: a signal to the process may reach another one
// first, and this one would go on for a while.
func follow(pid int) int {
	raise := func(sig unix.Signal) { _ = unix.Tgkill(unix.Getpid(), unix.Gettid(), sig) }
	for {
		var status unix.WaitStatus
		_, err := unix.Wait4(pid, &status, unix.WUNTRACED, nil)
		switch {
		case err == unix.EINTR:
		case err != nil:
			return 1
		case status.Stopped():
			raise(unix.SIGSTOP)
		case status.Signaled():
			_ = sigaction.Set(status.Signal(), &sigaction.Action{}, nil) // of SIGKILL it is an error and no more
			raise(status.Signal())
			return 128 + int(status.Signal())
		default:
			return status.ExitStatus()
		}
	}
}
