// Package logger starts the process that writes the audit log for the daemon, scopefs-log. Only this process waits for the disk,
// because a process that waits for a frozen disk cannot be killed.
package logger

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/child"
)

// Start starts the logger process and returns a connection to it. Closing the connection ends the process.
func Start(stderr io.Writer) (io.ReadWriteCloser, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socketpair", err)
	}
	theirs := os.NewFile(uintptr(pair[1]), "log")
	defer theirs.Close()
	_ = unix.SetNonblock(pair[0], true) // so that writes can have deadlines
	p := &process{File: os.NewFile(uintptr(pair[0]), "log"), ended: make(chan struct{})}
	if p.cmd, err = child.Command(child.Log); err != nil {
		p.File.Close()
		return nil, err
	}
	// With GOMAXPROCS the runtime does not look for the limits of a control group at its start.
	p.cmd.Env, p.cmd.Stderr = []string{"GOMAXPROCS=2"}, stderr
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

// writeTime limits how long the process may take to read a group.
const writeTime = 5 * time.Second

func (p *process) Write(b []byte) (int, error) {
	_ = p.SetWriteDeadline(time.Now().Add(writeTime))
	return p.File.Write(b)
}

// killTime limits how long Close waits for the process. A process that waits for a frozen disk exits when the disk
// thaws.
const killTime = time.Second

// Close closes the connection, kills the process and waits up to killTime for its exit.
func (p *process) Close() error {
	err := p.File.Close()
	_ = p.cmd.Process.Kill()
	select {
	case <-p.ended:
	case <-time.After(killTime):
	}
	return err
}
