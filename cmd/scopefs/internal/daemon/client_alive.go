package daemon

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// A client that waits for a daemon looks from time to time whether it is alive.
// It connects a second time and says nothing: a daemon that works ends such a
// connection. So the check needs no request, and bounds no command.
const (
	aliveEvery   = 400 * time.Millisecond
	aliveWait    = 800 * time.Millisecond // for one answer
	alivePatient = 15 * time.Second       // with a daemon that is not stopped, only slow
)

// Pulse checks the daemon of one socket. It is not for several goroutines.
type Pulse struct {
	socket string
	silent time.Time // since when it does not answer; zero: it does
}

// NewPulse returns the pulse of a control socket or of an agent's.
func NewPulse(socket string) *Pulse { return &Pulse{socket: socket} }

// Check returns why nobody should wait for the daemon any longer: it is stopped
// (SIGSTOP), which takes a second to find out, or has not answered for 15 seconds.
// That a daemon has ended, the client's own connection says.
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

// knock connects and reports whether the other end noticed, or is gone; pid is
// its process, if known.
func knock(ctx context.Context, socket string) (pid int, answered bool) {
	conn, err := connect(ctx, socket)
	if err != nil {
		return 0, !errors.Is(err, unix.EAGAIN) && ctx.Err() == nil // EAGAIN: its queue is full
	}
	defer conn.Close()
	if raw, err := conn.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) {
			if cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
				pid = int(cred.Pid)
			}
		})
	}
	_ = conn.CloseWrite()
	if end, ok := ctx.Deadline(); ok {
		_ = conn.SetReadDeadline(end)
	}
	_, err = conn.Read(make([]byte, 1))
	return pid, err == nil || errors.Is(err, io.EOF) || errors.Is(err, unix.ECONNRESET)
}

// connect connects with a socket.
func connect(ctx context.Context, socket string) (*net.UnixConn, error) {
	name, release := shortName(socket)
	defer release()
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", name)
	if err != nil {
		return nil, err
	}
	return conn.(*net.UnixConn), nil
}

// stopped reports whether a process is, by a signal or a debugger;
// proc_pid_stat(5). Of a process that cannot be seen it is not known.
func stopped(pid int) bool {
	if pid <= 0 {
		return false
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	i := bytes.LastIndexByte(text, ')')
	return err == nil && i >= 0 && i+2 < len(text) && (text[i+2] == 'T' || text[i+2] == 't')
}

// Watch calls dead once, with the reason, when the daemon does not answer. It
// ends with ctx.
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
