package pid1

import (
	"errors"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/packets"
	"github.com/scopefs/scopefs/internal/sigaction"
)

// argLead as an argument makes Main a leader.
const argLead = "lead"

// startLeader starts a leader on a terminal, which starts the command.
func startLeader(r *Request, tty int) (session, group int, err error) {
	wire, theirs, err := packets.Pair(MaxReply)
	if err != nil {
		return 0, 0, err
	}
	defer wire.Close()
	fd := uintptr(tty)
	// The environment of a command could hold settings of the Go runtime.
	session, err = syscall.ForkExec("/proc/self/exe", []string{"scopefs-init", argLead}, &syscall.ProcAttr{
		Env:   []string{"GOMAXPROCS=1"},
		Files: []uintptr{fd, fd, fd, theirs.Fd()},
		Sys:   &syscall.SysProcAttr{Setsid: true, Setctty: true, Ctty: 0},
	})
	theirs.Close()
	if err != nil {
		return 0, 0, err
	}
	var reply Reply
	err = wire.Send(r)
	if err == nil {
		_, err = wire.Receive(&reply)
	}
	return session, reply.PID, errors.Join(err, reply.Err())
}

// lead is a process that leads the session of a command on a terminal. The command is in the foreground, in a process group of its
// own with a parent outside it: a group without one is orphaned, and the kernel drops its SIGTSTP (setpgid(2), credentials(7)).
//
// The leader stops when the command stops, and ends as the command ends. So process 1 waits for the leader alone.
func lead(wire *packets.Wire) int {
	// It outlives a command that signals all processes. What has a handler is the command's by default: see syscall.ForkExec.
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM)
	var r Request
	if _, err := wire.Receive(&r); err != nil {
		return 1
	}
	pid, err := execute(&r, nil, []int{0, 1, 2}, &syscall.SysProcAttr{Foreground: true, Ctty: 0})
	reply := Reply{Op: OpStarted, ID: r.ID, PID: pid}
	if err != nil {
		reply = failed(r.ID, err)
	}
	if wire.Send(reply) != nil || err != nil {
		return 1
	}
	wire.Close()
	go func() {
		for sig := range signals {
			if sig == unix.SIGHUP { // the terminal's end: the kernel signals the leader alone
				unix.Kill(pid, unix.SIGHUP)
				unix.Kill(-pid, unix.SIGCONT)
			}
		}
	}()
	return follow(pid)
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
