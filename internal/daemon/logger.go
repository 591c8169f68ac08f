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

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/internal/child"
	"github.com/scopefs/scopefs/internal/descriptors"
	"github.com/scopefs/scopefs/internal/view"
)

// startLogger starts scopefs-log, which writes the audit log, and returns the connections to it. Closing them ends the process. Only
// that process waits for the disk, because a process that waits for a frozen disk cannot be killed.
func startLogger(stderr io.Writer) (log audit.Process, err error) {
	ours, theirs, err := descriptors.Pair(unix.SOCK_STREAM)
	if err != nil {
		return log, err
	}
	defer theirs.Close()
	control, channels, err := descriptors.Pair(unix.SOCK_SEQPACKET)
	if err != nil {
		ours.Close()
		return log, err
	}
	defer channels.Close()
	p := &logProcess{File: ours, ended: make(chan struct{})}
	if p.cmd, err = child.Command(child.Log); err == nil {
		// With GOMAXPROCS the runtime does not look for the limits of a control group at its start.
		p.cmd.Env, p.cmd.Stderr = []string{"GOMAXPROCS=2"}, stderr
		p.cmd.ExtraFiles = []*os.File{theirs, channels}
		p.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		err = p.cmd.Start()
	}
	if err != nil {
		ours.Close()
		control.Close()
		return log, fmt.Errorf("start the process that writes the log: %w", err)
	}
	go func() { _ = p.cmd.Wait(); close(p.ended) }()
	return audit.Process{Conn: p, Control: control}, nil
}

// logProcess is a process of scopefs-log, and the daemon's end of its connection.
type logProcess struct {
	*os.File
	cmd   *exec.Cmd
	ended chan struct{}
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
func firstLogger(l *slog.Logger) (process func() (audit.Process, error), unused func()) {
	stderr := &view.LogWriter{Logger: l.With("process", child.Log)}
	start := func() (audit.Process, error) { return startLogger(stderr) }
	first := sync.OnceValues(start)
	go func() { _, _ = first() }() // process and unused have the result
	used := false
	process = func() (audit.Process, error) {
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
		if p, err := first(); err == nil {
			p.Control.Close()
			p.Conn.Close()
		}
	}
	return process, unused
}
