package sandbox

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/tools/sandbox/pid1"
)

// killTimeout bounds the end of a command after SIGKILL. A command that takes longer
// ends the session.
const killTimeout = 10 * time.Second

// Process is a command of a session. The caller closes the files. They are
// non-blocking: Close and deadlines end a Read.
type Process struct {
	Stdin  *os.File // nil on a terminal
	Stdout *os.File // nil on a terminal; EOF when the last process that has it open ends
	Stderr *os.File // nil on a terminal
	TTY    *os.File // the master of the terminal, or nil; Read returns EIO at its end (pty(7))

	session *Session
	id      uint64
	tty     bool
	socket  bool // standard input is a socket
	tag     string
	began   time.Time
	running bool          // guarded by session.mu
	tagged  *tagged       // nil until it runs; guarded by session.mu
	started chan struct{} // closed when the files are set
	stopped chan uint64   // see Stopped; one stop waits
	exited  chan struct{} // closed when exit and err are final
	exit    Exit
	err     error
	expired bool // the timeout ended it; guarded by session.mu
}

// Wait waits for the end of the command's own process. The error wraps ErrEnded when
// the session ended first.
func (p *Process) Wait() (Exit, error) {
	<-p.exited
	if p.err != nil {
		return p.exit, errors.Join(p.err, p.session.Err())
	}
	return p.exit, nil
}

// Unread reports whether the command's output pipes hold unread bytes (FIONREAD,
// ioctl_pipe(2)).
func (p *Process) Unread() bool {
	unread := 0
	for _, f := range []*os.File{p.Stdout, p.Stderr} {
		if f == nil {
			continue
		}
		if raw, err := f.SyscallConn(); err == nil {
			_ = raw.Control(func(fd uintptr) {
				n, _ := unix.IoctlGetInt(int(fd), unix.TIOCINQ) // FIONREAD
				unread += n
			})
		}
	}
	return unread > 0
}

// Close kills the command if it runs, and closes the files.
func (p *Process) Close() error {
	err := p.Signal(unix.SIGKILL)
	if errors.Is(err, os.ErrProcessDone) {
		err = nil
	}
	for _, f := range []*os.File{p.Stdin, p.Stdout, p.Stderr, p.TTY} {
		if f != nil {
			f.Close() // may be closed already
		}
	}
	return err
}

// Signal sends a signal to the command's process group; on a terminal to the
// foreground group. SIGKILL goes to every process of the command's session
// (credentials(7)) in any group. A command that has ended returns os.ErrProcessDone.
func (p *Process) Signal(sig unix.Signal) error {
	select {
	case <-p.exited:
		return os.ErrProcessDone
	default:
	}
	if sig <= 0 || sig > 64 {
		return fmt.Errorf("%w: signal %d", ErrInvalid, sig)
	}
	return p.session.wire.Send(pid1.Request{Op: pid1.OpSignal, ID: p.id, Signal: sig})
}

// Stopped returns a channel that receives when a signal has stopped the command on a terminal, such as that of Ctrl-Z: the turn of
// the last Continue before, 0 without one. A caller that counts them ignores a stop that it has ended meanwhile.
func (p *Process) Stopped() <-chan uint64 { return p.stopped }

// Continue continues a command that has stopped. Turns do not decrease.
func (p *Process) Continue(turn uint64) error {
	return p.session.wire.Send(pid1.Request{Op: pid1.OpSignal, ID: p.id, Signal: unix.SIGCONT, Turn: turn})
}

// stop keeps a stop for Stopped, in place of an earlier one. The goroutine that reads init's messages calls it.
func (p *Process) stop(turn uint64) {
	select {
	case <-p.stopped:
	default:
	}
	p.stopped <- turn
}

// watch kills the command when ctx ends or its timeout expires.
func (p *Process) watch(ctx context.Context, timeout time.Duration) {
	var expire <-chan time.Time
	if timeout > 0 {
		timer := time.NewTimer(timeout)
		defer timer.Stop()
		expire = timer.C
	}
	select {
	case <-p.exited:
		return
	case <-ctx.Done():
	case <-expire:
		p.session.mu.Lock()
		p.expired = true
		p.session.mu.Unlock()
	}
	err := p.Signal(unix.SIGKILL)
	if err == nil {
		select {
		case <-p.exited:
			return
		case <-time.After(killTimeout):
		}
	}
	if !errors.Is(err, os.ErrProcessDone) {
		p.session.kill()
	}
}

// take checks and stores the outer ends of the command's descriptors: pipes of the
// right direction, or the master of a terminal. Any other descriptor could block or
// lie to the daemon. The caller holds session.mu.
func (p *Process) take(files []*os.File) error {
	if p.tty {
		if len(files) != 1 {
			return fmt.Errorf("init sent %d descriptors for a terminal", len(files))
		}
		err := control(files[0], func(fd int) error {
			_, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
			return err
		})
		if err != nil {
			return fmt.Errorf("init sent no terminal: %w", err)
		}
		p.TTY = files[0]
	} else {
		if len(files) != 3 {
			return fmt.Errorf("init sent %d descriptors for pipes", len(files))
		}
		for i, mode := range []int{unix.O_WRONLY, unix.O_RDONLY, unix.O_RDONLY} {
			is := func(fd int) error { return isPipe(fd, mode) }
			if p.socket && i == 0 {
				is = func(fd int) error { // process 1 of the last release makes a pipe
					if isPipe(fd, mode) == nil {
						return nil
					}
					return isPackets(fd)
				}
			}
			if err := control(files[i], is); err != nil {
				return fmt.Errorf("init sent no pipe: %w", err)
			}
		}
		p.Stdin, p.Stdout, p.Stderr = files[0], files[1], files[2]
	}
	p.running = true
	close(p.started)
	return nil
}

func isPipe(fd, mode int) error {
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_GETPIPE_SZ, 0); err != nil {
		return err
	}
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	if err == nil && flags&unix.O_ACCMODE != mode {
		err = errors.New("wrong end")
	}
	return err
}

// isPackets returns an error unless fd is a unix socket of packets.
func isPackets(fd int) error {
	for option, want := range map[int]int{unix.SO_DOMAIN: unix.AF_UNIX, unix.SO_TYPE: unix.SOCK_SEQPACKET} {
		if got, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, option); err != nil || got != want {
			return errors.Join(err, errors.New("wrong socket"))
		}
	}
	return nil
}

// finish sets the result and closes exited. The caller holds session.mu and has
// removed p from the session's commands, so that finish runs once.
func (p *Process) finish(exit Exit, err error) {
	exit.TimedOut = p.expired && exit.Signal == unix.SIGKILL && err == nil
	if exit.Signal != 0 {
		exit.Code = -1
	}
	p.exit, p.err = exit, err
	close(p.exited)
}

// control calls f with the descriptor of a file. File.Fd would make it blocking.
func control(file *os.File, f func(fd int) error) error {
	raw, err := file.SyscallConn()
	if err != nil {
		return err
	}
	var ferr error
	if err := raw.Control(func(fd uintptr) { ferr = f(int(fd)) }); err != nil {
		return err
	}
	return ferr
}
