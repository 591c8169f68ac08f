package daemon

import (
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/child"
	"github.com/scopefs/scopefs/internal/view"
)

// startLogger starts scopefs-log, which writes the audit log, and returns a connection to it. Closing the connection ends the process. Only
// that process waits for the disk, because a process that waits for a frozen disk cannot be killed.
func startLogger(stderr io.Writer) (io.ReadWriteCloser, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socketpair", err)
	}
	theirs := os.NewFile(uintptr(pair[1]), "log")
	defer theirs.Close()
	_ = unix.SetNonblock(pair[0], true) // so that writes can have deadlines
	p := &logProcess{File: os.NewFile(uintptr(pair[0]), "log"), ended: make(chan struct{})}
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

// logProcess is a process of scopefs-log, and the daemon's end of its connection.
type logProcess struct {
	*os.File
	cmd   *exec.Cmd
	ended chan struct{}
}

// logWriteTime limits how long the process may take to read a group.
const logWriteTime = 5 * time.Second

func (p *logProcess) Write(b []byte) (int, error) {
	_ = p.SetWriteDeadline(time.Now().Add(logWriteTime))
	return p.File.Write(b)
}

// logKillTime limits how long Close waits for the process. A process that waits for a frozen disk exits when the disk
// thaws.
const logKillTime = time.Second

// Close closes the connection, kills the process and waits up to logKillTime for its exit.
func (p *logProcess) Close() error {
	err := p.File.Close()
	_ = p.cmd.Process.Kill()
	select {
	case <-p.ended:
	case <-time.After(logKillTime):
	}
	return err
}

// firstLogger starts the process that writes the log. process returns it, and another one at each later call. unused ends it
// unless process was called.
func firstLogger(l *slog.Logger) (process func() (io.ReadWriteCloser, error), unused func()) {
	stderr := &view.LogWriter{Logger: l.With("process", child.Log)}
	start := func() (io.ReadWriteCloser, error) { return startLogger(stderr) }
	first := sync.OnceValues(start)
	go func() { _, _ = first() }() // process and unused have the result
	used := false
	process = func() (io.ReadWriteCloser, error) {
		if used {
			return start()
		}
		used = true
		return first()
	}
	unused = func() {
		if used {
			return
		}
		if conn, err := first(); err == nil {
			conn.Close()
		}
	}
	return process, unused
}
