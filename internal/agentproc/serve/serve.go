// Package serve is the program scopefs-agent, an agent's process: it has what the agent's sandboxes, and the hosts that they reach,
// send. Package agentproc starts it. It has no path, no capability and no network of its own: the daemon decides about each connection
// and request, records it, and passes the socket.
package serve

import (
	"context"
	"crypto/x509"
	"errors"
	"maps"
	"net"
	"os"
	"os/signal"
	"slices"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/agentproc/wire"
	"github.com/scopefs/scopefs/internal/confine"
	"github.com/scopefs/scopefs/internal/descriptors"
	"github.com/scopefs/scopefs/internal/heart"
	"github.com/scopefs/scopefs/internal/packets"
	"github.com/scopefs/scopefs/internal/pidfd"
	"github.com/scopefs/scopefs/internal/seccomp"
	"github.com/scopefs/scopefs/tools/egress"
)

// memory bounds the data of the process, in bytes: the connections of egress.Bounds take a tenth of it.
const memory = 2 << 30

// calls are the system calls of the process beside those of the Go runtime.
func calls() []seccomp.Rule {
	return append(seccomp.Calls(seccomp.Allow,
		unix.SYS_RECVMSG, unix.SYS_SENDMSG, unix.SYS_RECVFROM, unix.SYS_ACCEPT4, unix.SYS_READV, unix.SYS_WRITEV, unix.SYS_SPLICE, unix.SYS_PIPE2,
		unix.SYS_GETSOCKOPT, unix.SYS_SETSOCKOPT, unix.SYS_SHUTDOWN, unix.SYS_GETSOCKNAME, unix.SYS_GETPEERNAME, unix.SYS_UNAME,
	),
		seccomp.Fcntl(unix.F_SETPIPE_SZ))
}

// Main runs the process and returns its exit status.
func Main() int {
	// A service manager or a terminal signals all processes of the daemon at once.
	signal.Ignore(unix.SIGTERM, unix.SIGINT, unix.SIGHUP, unix.SIGQUIT, unix.SIGPIPE)
	socket, err := packets.Open(wire.ControlFD, wire.MaxMessage)
	if err != nil {
		return 1
	}
	beats := os.NewFile(wire.HeartFD, "heart")
	roots, err := x509.SystemCertPool() // of files
	if err != nil {
		roots = x509.NewCertPool() // no host's certificate is valid
	}
	if err := confine.Descriptors(memory, calls()); err != nil {
		_ = socket.Send(wire.Message{Op: wire.OpFailed, Text: err.Error()})
		return 1
	}
	s := &server{wire: socket, roots: roots, bounds: egress.NewBounds(egress.Limits{}, nil), boxes: map[string]*box{}, pending: map[uint64]*pending{},
		further: map[string][]byte{}}
	go heart.NewHeart(beats).Serve(func() {})
	for { // until no daemon and no holder has the other end
		var msg wire.Message
		files, err := socket.Receive(&msg)
		if err != nil || !s.handle(msg, files) {
			return 0
		}
	}
}

// server is the state of the process.
type server struct {
	wire   *packets.Wire
	roots  *x509.CertPool
	bounds *egress.Bounds

	greeting sync.RWMutex // held for writing while the list is sent: no request is made meanwhile

	mu      sync.Mutex
	boxes   map[string]*box
	pending map[uint64]*pending
	last    uint64

	further map[string][]byte // what OpRoots has said of a sandbox that is not open yet; of the goroutine that receives
}

// box is the network of one sandbox.
type box struct {
	remote *egress.Remote
	ctx    context.Context
	cancel context.CancelFunc
	served chan struct{} // closed when nothing is under way any more

	mu    sync.Mutex
	ports []net.Listener
}

// pending is a request without a reply.
type pending struct {
	message wire.Message
	give    syscall.Conn // nil: none
	reply   chan answer
}

type answer struct {
	reply egress.Reply
	file  *os.File
}

// handle does what a message of the daemon says. It is false for a message that cannot be.
func (s *server) handle(msg wire.Message, files []*os.File) bool {
	if msg.Op == wire.OpReply && msg.Reply != nil {
		s.answer(msg, files)
		return true
	}
	s.mu.Lock()
	b := s.boxes[msg.Box]
	s.mu.Unlock()
	switch {
	case msg.Op == wire.OpOpen && b == nil && msg.Opening != nil && len(files) == 2:
		return s.open(msg, files)
	case msg.Op == wire.OpPort && b != nil && msg.Port != nil && len(files) == 1:
		return b.lead(*msg.Port, files[0])
	}
	descriptors.Close(files)
	switch {
	case msg.Op == wire.OpHello:
		go s.hello(msg.ID)
	case msg.Op == wire.OpRoots:
		s.further[msg.Box] = append(s.further[msg.Box], msg.Text...)
	case msg.Op == wire.OpUnport:
		if b != nil {
			b.unport()
		}
		go s.send(wire.Message{Op: wire.OpDone, ID: msg.ID})
	case msg.Op == wire.OpClose:
		go func() {
			s.end(msg.Box, b)
			s.send(wire.Message{Op: wire.OpDone, ID: msg.ID})
		}()
	case b == nil: // it has ended meanwhile
	case msg.Op == wire.OpStop:
		go b.remote.Stop(msg.Case) // it may wait for a lock of a connection
	case msg.Op == wire.OpUpdate && msg.Opening != nil:
		b.remote.Update(msg.Opening.Credentials, msg.Opening.Limited)
	default:
		return false
	}
	return true
}

// open serves a sandbox until its end, or OpClose.
func (s *server) open(msg wire.Message, files []*os.File) bool {
	init := files[0]
	defer files[1].Close()
	l, err := net.FileListener(files[1])
	if err != nil {
		init.Close()
		return false
	}
	o := egress.Options{Roots: s.roots, Bounds: s.bounds}
	if msg.Opening.Connections > 0 {
		o.Limits = egress.Limits{Connections: msg.Opening.Connections, Requests: msg.Opening.Connections}
		o.Bounds = nil
	}
	if msg.Opening.Upstream != "" {
		o.Dialer.Upstream = &egress.Upstream{Address: msg.Opening.Upstream}
	}
	if further := s.further[msg.Box]; further != nil {
		o.Roots = s.roots.Clone()
		o.Roots.AppendCertsFromPEM(further)
		delete(s.further, msg.Box)
	}
	name := msg.Box
	remote, err := egress.NewRemote(o, func(ctx context.Context, q egress.Request, give syscall.Conn) (egress.Reply, *os.File, error) {
		return s.call(ctx, name, q, give)
	}, msg.Opening.Secure)
	if err != nil {
		l.Close()
		init.Close()
		return false
	}
	remote.Update(msg.Opening.Credentials, msg.Opening.Limited)
	b := &box{remote: remote, served: make(chan struct{})}
	b.ctx, b.cancel = context.WithCancel(context.Background())
	s.mu.Lock()
	s.boxes[name] = b
	s.mu.Unlock()
	go func() {
		defer close(b.served)
		_ = remote.Serve(b.ctx, l) // a listener that fails ends with its sandbox
	}()
	go func() {
		defer init.Close()
		select {
		case <-pidfd.Ended(init):
			s.end(name, b)
			s.send(wire.Message{Op: wire.OpGone, Box: name})
		case <-b.served:
		}
	}()
	return true
}

// end ends a sandbox's network, and returns when the ends of its cases are recorded.
func (s *server) end(name string, b *box) {
	if b == nil {
		return
	}
	b.remote.Closing()
	b.cancel()
	b.unport()
	<-b.served
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.boxes[name] == b {
		delete(s.boxes, name)
	}
}

// lead serves a port.
func (b *box) lead(port wire.Port, file *os.File) bool {
	defer file.Close()
	l, err := net.FileListener(file)
	if err != nil {
		return false
	}
	b.mu.Lock()
	b.ports = append(b.ports, l)
	b.mu.Unlock()
	b.remote.Lead(b.ctx, b.remote.PortOf(port.Way, port.At, port.Number, l))
	return true
}

// unport ends the listening at all ports.
func (b *box) unport() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, l := range b.ports {
		l.Close()
	}
	b.ports = nil
}

// call sends a request, and waits for the reply, also when nobody wants it any more: without it nobody knows what was done.
func (s *server) call(ctx context.Context, box string, q egress.Request, give syscall.Conn) (egress.Reply, *os.File, error) {
	p := &pending{message: wire.Message{Op: wire.OpRequest, Box: box, Request: &q}, give: give, reply: make(chan answer, 1)}
	if err := s.request(p); err != nil {
		return egress.Reply{}, nil, err
	}
	select {
	case a := <-p.reply:
		return a.reply, a.file, nil
	case <-ctx.Done():
		s.send(wire.Message{Op: wire.OpCancel, ID: p.message.ID})
	}
	a := <-p.reply
	return a.reply, a.file, nil
}

// request sends a request: before the greeting of the next daemon, to which hello repeats it, or after the list.
func (s *server) request(p *pending) error {
	s.greeting.RLock()
	defer s.greeting.RUnlock()
	s.mu.Lock()
	s.last++
	p.message.ID = s.last
	s.pending[s.last] = p
	s.mu.Unlock()
	err := s.ask(p.message, p.give)
	if err != nil {
		s.mu.Lock()
		delete(s.pending, p.message.ID)
		s.mu.Unlock()
	}
	return err
}

// ask sends a request. Without a daemon it waits in the socket, or for the next daemon's OpHello.
func (s *server) ask(msg wire.Message, give syscall.Conn) error {
	var fds []int
	if give != nil {
		var err error
		if fds, err = descriptors.Numbers(give); err != nil {
			return err
		}
	}
	err := s.wire.Send(msg, fds...)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return nil
	}
	return err
}

// send sends a message that the next daemon does not need.
func (s *server) send(msg wire.Message) { _ = s.wire.Send(msg) }

// answer passes a reply on to whoever waits for it.
func (s *server) answer(msg wire.Message, files []*os.File) {
	s.mu.Lock()
	p := s.pending[msg.ID]
	delete(s.pending, msg.ID)
	s.mu.Unlock()
	a := answer{reply: *msg.Reply}
	if len(files) > 0 && p != nil {
		a.file, files = files[0], files[1:]
	}
	descriptors.Close(files)
	if p != nil {
		p.reply <- a
	}
}

// hello answers the next daemon with what is under way, and sends it the requests that have no reply: the last daemon may have had them.
func (s *server) hello(id uint64) {
	s.greeting.Lock()
	defer s.greeting.Unlock()
	s.send(wire.Message{Op: wire.OpHello, ID: id})
	s.mu.Lock()
	boxes := maps.Clone(s.boxes)
	s.mu.Unlock()
	for name, b := range boxes {
		s.send(wire.Message{Op: wire.OpBox, Box: name})
		for _, item := range b.remote.Items() {
			s.send(wire.Message{Op: wire.OpItem, Box: name, Item: &item})
		}
	}
	s.send(wire.Message{Op: wire.OpListed})
	s.mu.Lock()
	all := slices.Collect(maps.Values(s.pending))
	s.mu.Unlock()
	for _, p := range all {
		msg, again := p.message, *p.message.Request
		again.Again, msg.Request = true, &again
		_ = s.ask(msg, p.give)
	}
}
