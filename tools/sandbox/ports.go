package sandbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/fs/echo"
	"github.com/scopefs/scopefs/internal/descriptors"
	"github.com/scopefs/scopefs/internal/packets"
	"github.com/scopefs/scopefs/internal/peer"
	"github.com/scopefs/scopefs/tools/sandbox/pid1"
	"github.com/scopefs/scopefs/tools/sandbox/ports"
)

// Ports makes sockets of a session's network, and repeats what the host has changed, by a process in the sandbox: see package ports. The first use starts the process, and a use
// after its death starts another one. The process ends with the session, or with Close.
type Ports struct {
	session *Session
	program []string // a command that is FileWorker

	starting sync.Mutex // held while a process starts; whoever waits for it needs that process

	mu     sync.Mutex
	now    *portsProcess // nil: there is none
	closed bool
}

// portsProcess is one process. A goroutine reads its replies until it is gone.
type portsProcess struct {
	command *Process
	wire    *packets.Wire
	calls   *peer.Requests[made]
}

// made is a reply.
type made struct {
	socket *os.File    // nil with an error
	echo   *echo.Reply // instead of socket
	err    error
}

// Ports returns what makes sockets of the session's network.
func (s *Session) Ports() *Ports { return &Ports{session: s, program: []string{FileWorker, ports.Arg}} }

// Listen returns a socket that listens at a port of 127.0.0.1 in the sandbox.
func (p *Ports) Listen(ctx context.Context, port uint16) (net.Listener, error) {
	f, err := p.socket(ctx, ports.Request{Listen: port}, 2*ports.ConnectTime)
	if err != nil {
		return nil, fmt.Errorf("listen at port %d of the sandbox: %w", port, err)
	}
	defer f.Close()
	at := unix.SockaddrInet4{Port: int(port), Addr: [4]byte{127, 0, 0, 1}}
	if err := control(f, func(fd int) error { return isListener(fd, at) }); err != nil {
		return nil, fmt.Errorf("listen at port %d of the sandbox: no listening socket: %w", port, err)
	}
	return net.FileListener(f)
}

// Connect returns a connection to a port of 127.0.0.1, or else of ::1, in the sandbox. The error wraps unix.ECONNREFUSED when nothing
// listens there.
func (p *Ports) Connect(ctx context.Context, port uint16) (net.Conn, error) {
	f, err := p.socket(ctx, ports.Request{Connect: port}, 2*ports.ConnectTime) // two addresses
	if err != nil {
		return nil, fmt.Errorf("connect to port %d of the sandbox: %w", port, err)
	}
	defer f.Close()
	if err := control(f, func(fd int) error { return isConnected(fd, int(port)) }); err != nil {
		return nil, fmt.Errorf("connect to port %d of the sandbox: no connected socket: %w", port, err)
	}
	return net.FileConn(f)
}

// isConnected returns an error unless fd is a TCP socket whose peer is a port of loopback.
func isConnected(fd, port int) error {
	if err := isTCP(fd, 0); err != nil {
		return err
	}
	at, err := unix.Getpeername(fd)
	if err != nil {
		return err
	}
	switch at := at.(type) {
	case *unix.SockaddrInet4:
		if at.Port == port && at.Addr == [4]byte{127, 0, 0, 1} {
			return nil
		}
	case *unix.SockaddrInet6:
		if at.Port == port && at.Addr == [16]byte{15: 1} {
			return nil
		}
	}
	return errors.New("wrong address")
}

// echoTime bounds a request of a view. It takes milliseconds, unless a program holds the lock of a directory for long.
const echoTime = 2 * time.Second

// Echo sends a view's request to the process: see package echo. at is where the view is mounted in the sandbox. An error about a Request
// with Acts says that a thread may be at them still.
func (p *Ports) Echo(ctx context.Context, at string, r echo.Request) (echo.Reply, error) {
	of, err := p.process(ctx)
	if err != nil {
		return echo.Reply{}, fmt.Errorf("repeat a change in the sandbox: %w", err)
	}
	m, err := of.request(ctx, ports.Request{Echo: &r, View: at}, echoTime)
	switch {
	case err == nil && m.echo != nil:
		return *m.echo, nil
	case err == nil:
		err = errNoAnswer
	}
	if len(r.Acts) > 0 {
		if of.end(err); of.gone(ctx) {
			return echo.Reply{Ended: true}, nil
		}
	}
	return echo.Reply{}, fmt.Errorf("repeat a change in the sandbox: %w", err)
}

var errNoAnswer = errors.New("the process of ports has sent something else")

// socket requests a socket.
func (p *Ports) socket(ctx context.Context, r ports.Request, wait time.Duration) (*os.File, error) {
	m, err := p.request(ctx, r, wait)
	if err == nil && m.socket == nil {
		err = errNoAnswer
	}
	return m.socket, err
}

// request sends a request to the process, and once more to another one if the process has died.
func (p *Ports) request(ctx context.Context, r ports.Request, wait time.Duration) (made, error) {
	for again := true; ; again = false {
		of, err := p.process(ctx)
		if err != nil {
			return made{}, err
		}
		m, err := of.request(ctx, r, wait)
		if died := of.calls.Err(); died == nil || !again || ctx.Err() != nil {
			return m, err
		}
		m.socket.Close() // of nil is an error and no more
	}
}

func (of *portsProcess) request(ctx context.Context, r ports.Request, wait time.Duration) (made, error) {
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	call, err := of.calls.Begin(ctx)
	if err != nil {
		return made{}, err
	}
	defer call.End()
	r.ID = call.ID
	if err := of.wire.Send(r); err != nil {
		of.end(err)
		return made{}, err
	}
	reply, err := call.Wait(ctx, func() {}, time.Second)
	if errors.Is(err, peer.ErrStuck) { // a process of the sandbox may have stopped it
		of.end(errors.New("the process of ports does not answer"))
	}
	return reply, cmp.Or(err, reply.err)
}

// process returns the process, and starts one if need be.
func (p *Ports) process(ctx context.Context) (*portsProcess, error) {
	p.starting.Lock()
	defer p.starting.Unlock()
	p.mu.Lock()
	now, closed := p.now, p.closed
	p.mu.Unlock()
	switch {
	case closed:
		return nil, ErrEnded
	case now != nil && now.calls.Err() == nil:
		return now, nil
	case now != nil && !now.gone(ctx): // it was killed, and the kernel has not ended it: another one would wait for the same lock
		return nil, now.calls.Err()
	}
	life := context.WithoutCancel(ctx)
	c, err := p.session.Exec(life, Command{Argv: p.program, Dir: "/", Tag: FileTag, Lasting: true, socket: true})
	if err != nil {
		return nil, err
	}
	of := &portsProcess{command: c, calls: peer.NewRequests[made](ports.MaxRequests)}
	if err = control(c.Stdin, isPackets); err != nil {
		err = fmt.Errorf("process 1 of the sandbox is of the last release: start the sandbox again: %w", err)
	} else {
		of.wire, err = wireOf(c.Stdin)
	}
	if err != nil {
		c.Close()
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		of.end(ErrEnded)
		return nil, ErrEnded
	}
	p.now = of
	go of.read()
	return of, nil
}

// wireOf returns a Wire on a duplicate of a socket.
func wireOf(f *os.File) (wire *packets.Wire, err error) {
	err = control(f, func(fd int) error {
		own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		if err == nil {
			wire, err = packets.Open(own, ports.MaxMessage)
		}
		return err
	})
	return wire, err
}

// read delivers replies until the process is gone, or answers what it was not asked.
func (of *portsProcess) read() {
	for {
		var r ports.Reply
		files, err := of.wire.Receive(&r)
		m := made{err: r.Errno, echo: r.Echo}
		if err == nil && r.Errno == 0 {
			if m.err = nil; len(files) == 1 {
				m.socket = files[0]
			}
		}
		if err == nil && (len(files) > 1 || (len(files) == 1) == (r.Errno != 0 || r.Echo != nil) || !of.calls.Deliver(r.ID, m)) {
			err = errors.New("the process of ports has sent an answer to nothing")
			descriptors.Close(files)
		}
		if err != nil {
			of.end(err)
			return
		}
	}
}

// goneTime is how long a process may take to end once it was killed.
const goneTime = time.Second

// gone reports whether a process that was killed has ended.
func (of *portsProcess) gone(ctx context.Context) bool {
	select {
	case <-of.command.exited:
		return true
	case <-ctx.Done():
	case <-time.After(goneTime):
	}
	return false
}

// end kills the process. Its requests have the error.
func (of *portsProcess) end(err error) {
	of.calls.Close(err)
	of.wire.Close()
	go of.command.Close() // it may wait for the session's socket
}

// Close ends the process. Sockets that it has made stay.
func (p *Ports) Close() {
	p.mu.Lock()
	now := p.now
	p.now, p.closed = nil, true
	p.mu.Unlock()
	if now != nil {
		now.end(ErrEnded)
	}
}

// isTCP returns an error unless fd is a TCP socket; listens is SO_ACCEPTCONN.
func isTCP(fd, listens int) error {
	for option, want := range map[int][]int{
		unix.SO_DOMAIN: {unix.AF_INET, unix.AF_INET6}, unix.SO_PROTOCOL: {unix.IPPROTO_TCP}, unix.SO_ACCEPTCONN: {listens},
	} {
		got, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, option)
		if err != nil {
			return err
		}
		if got != want[0] && got != want[len(want)-1] {
			return errors.New("wrong socket")
		}
	}
	return nil
}

// isListener returns an error unless fd is a TCP socket that listens at an address.
func isListener(fd int, want unix.SockaddrInet4) error {
	if err := isTCP(fd, 1); err != nil {
		return err
	}
	at, err := unix.Getsockname(fd)
	if err != nil {
		return err
	}
	if in4, ok := at.(*unix.SockaddrInet4); !ok || in4.Port != want.Port || in4.Addr != want.Addr {
		return errors.New("wrong address")
	}
	return nil
}

// isProxy returns an error unless fd listens at ProxyAddress.
func isProxy(fd int) error { return isListener(fd, *pid1.ProxyAddr()) }
