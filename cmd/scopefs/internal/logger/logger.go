// Package logger is the process that writes the audit log for the daemon. It alone waits for the disk: a process that
// waits for a frozen one cannot be ended.
package logger

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/audit"
)

// Name is the argv[0] that makes scopefs the process that writes the log.
const Name = "scopefs-log"

// Main is that process. It returns the exit status. It ends with the daemon, never before: a signal for all processes of
// a service or a terminal must not take the log from what still runs.
func Main() int {
	signal.Ignore(unix.SIGTERM, unix.SIGINT, unix.SIGHUP, unix.SIGQUIT)
	if err := audit.Serve(os.NewFile(3, "daemon")); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// Start starts the process. Closing the connection ends it.
func Start(stderr io.Writer) (io.ReadWriteCloser, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socketpair", err)
	}
	theirs := os.NewFile(uintptr(pair[1]), "log")
	defer theirs.Close()
	_ = unix.SetNonblock(pair[0], true) // so that writes have deadlines
	p := &process{File: os.NewFile(uintptr(pair[0]), "log"), ended: make(chan struct{})}
	p.cmd = exec.Command("/proc/self/exe")
	p.cmd.Args, p.cmd.Dir, p.cmd.Env, p.cmd.Stderr = []string{Name}, "/", []string{}, stderr
	p.cmd.ExtraFiles = []*os.File{theirs}
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := p.cmd.Start(); err != nil {
		p.File.Close()
		return nil, fmt.Errorf("start the process that writes the log: %w", err)
	}
	go func() { _ = p.cmd.Wait(); close(p.ended) }()
	return p, nil
}

type process struct {
	*os.File
	cmd   *exec.Cmd
	ended chan struct{}
}

// writeTime is how long the process may take to read a group.
const writeTime = 5 * time.Second

func (p *process) Write(b []byte) (int, error) {
	_ = p.SetWriteDeadline(time.Now().Add(writeTime))
	return p.File.Write(b)
}

// killTime is how long Close waits for the process. One that waits for a frozen disk ends when that thaws.
const killTime = time.Second

// Close ends the process.
func (p *process) Close() error {
	err := p.File.Close()
	_ = p.cmd.Process.Kill()
	select {
	case <-p.ended:
	case <-time.After(killTime):
	}
	return err
}
