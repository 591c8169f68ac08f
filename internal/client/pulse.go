package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/proc"
)

// A client that waits for a daemon checks from time to time whether the daemon is
// alive. It opens a second connection and closes its writing side: a daemon that
// works closes such a connection. So the check needs no request, and bounds no
// command.
const (
	aliveEvery   = 400 * time.Millisecond
	aliveWait    = 800 * time.Millisecond // for one answer
	alivePatient = 15 * time.Second       // with a daemon that is not stopped, only slow
)

// Pulse checks the daemon of one socket. It is not safe for concurrent use.
type Pulse struct {
	socket string
	silent time.Time // since when it has not answered; zero: it answers
}

// NewPulse returns the pulse of a control socket or of an agent's.
func NewPulse(socket string) *Pulse { return &Pulse{socket: socket} }

// Check returns an error when a client should stop waiting for the daemon: the daemon
// is stopped (SIGSTOP), which Check notices within a second, or has not answered for
// 15 seconds. It returns nil for a daemon that has ended: the client's own connection
// reports that.
func (p *Pulse) Check(ctx context.Context) error {
	limited, cancel := context.WithTimeout(ctx, aliveWait)
	defer cancel()
	pid, answered := knock(limited, p.socket)
	if answered || ctx.Err() != nil {
		p.silent = time.Time{}
		return nil
	}
	if p.silent.IsZero() {
		p.silent = time.Now()
	}
	switch {
	case stopped(pid):
		return fmt.Errorf("the daemon (process %d) is stopped: kill -CONT %d", pid, pid)
	case time.Since(p.silent) > alivePatient:
		return fmt.Errorf("the daemon (process %d) does not answer: see its log, or restart it", pid)
	}
	return nil
}

// knock connects and reports whether the other end noticed, or has ended; pid is
// its process, if known.
func knock(ctx context.Context, socket string) (pid int, answered bool) {
	conn, err := Connect(ctx, socket)
	if err != nil {
		return 0, !errors.Is(err, unix.EAGAIN) && ctx.Err() == nil // EAGAIN: its queue is full
	}
	defer conn.Close()
	if cred := Peer(conn); cred != nil {
		pid = int(cred.Pid)
	}
	_ = conn.CloseWrite()
	if end, ok := ctx.Deadline(); ok {
		_ = conn.SetReadDeadline(end)
	}
	_, err = conn.Read(make([]byte, 1))
	return pid, err == nil || errors.Is(err, io.EOF) || errors.Is(err, unix.ECONNRESET)
}

// stopped reports whether a signal or a debugger has stopped a process;
// proc_pid_stat(5). It is false for a process that cannot be seen.
func stopped(pid int) bool {
	s, err := proc.ReadStat(pid)
	return err == nil && (s.State == 'T' || s.State == 't')
}

// Watch calls dead once, with the reason, when the daemon does not answer. It
// returns when ctx ends.
func (p *Pulse) Watch(ctx context.Context, dead func(error)) {
	ticks := time.NewTicker(aliveEvery)
	defer ticks.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticks.C:
		}
		if err := p.Check(ctx); err != nil {
			dead(err)
			return
		}
	}
}
