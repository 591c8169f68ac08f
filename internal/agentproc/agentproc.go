// Package agentproc is the daemon's side of an agent's process: package serve, the program scopefs-agent.
//
// What an agent's sandboxes and the hosts that they reach send is parsed in that process alone: TLS, HTTP, SOCKS, and the bytes of
// tunnels. The daemon decides about each connection and request, records it, connects and signs: see egress.Monitor. It passes sockets.
// The process has no path, no capability and no network of its own, and gets the credentials of its agent, no other's.
//
// A process starts with the first connection of one of its agent's sandboxes, and ends a minute after the last sandbox. It outlives a
// daemon as views do, by the holder: connections go on, and what has to be decided waits for the next daemon, which receives the
// process's socket and a list of what is under way. What ends without a daemon is recorded by the next one.
//
// A process that answers nonsense, or not at all, is killed. Its agent's connections end with it, and the next connection starts another.
package agentproc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/agentproc/wire"
	"github.com/scopefs/scopefs/internal/descriptors"
	"github.com/scopefs/scopefs/internal/holder"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/tools/egress"
	"github.com/scopefs/scopefs/tools/limit"
)

// Set has the processes of a daemon's agents.
type Set struct {
	Holder *holder.Holder
	Logger *slog.Logger

	mu   sync.Mutex
	all  map[string]*process // by the name of what they are of
	over bool                // none starts any more
}

// Opening says what a Door is for.
type Opening struct {
	Of  string // whose process serves it: that of an agent, or of a store
	Box string // the name of the sandbox, of no other of the process

	Init     func() (*os.File, error) // returns a pidfd of process 1 of the sandbox, which does not block
	Listener net.Listener             // of the sandbox's proxy
	Ports    []egress.Port            // their listeners are the Door's

	Started     func(pid int)  // of a process that has started for the sandbox: it is to be in its agent's control group; nil: it has none
	Options     egress.Options // Dialer, CA, and Limits.Approve
	Roots       string         // PEM certificates that sign hosts', beside the system's
	Connections int            // at a time, of this sandbox alone; 0: the bounds of the agent
	Share       *limit.Share   // what the decisions take of a processor; nil: as much as there is
	Tenant      egress.Tenant
}

// Door is the network of a sandbox. Of nil it is none.
type Door struct {
	set     *Set
	o       Opening
	monitor *egress.Monitor
	ctx     context.Context
	cancel  context.CancelFunc
	done    chan struct{} // closed when it has ended, or was left

	updating sync.Mutex // is held while an update is sent: for as long as the process is not killed
	mu       sync.Mutex
	process  *process      // that serves it; nil: none yet
	ready    chan struct{} // closed when new connections are decided about
	isReady  bool
	isLeft   bool // to the next daemon
	listener net.Listener
	ports    []egress.Port
}

// Open serves the network of a sandbox until Close.
func (s *Set) Open(o Opening) *Door {
	d := s.newDoor(o)
	d.serve(o)
	go d.run(nil)
	return d
}

func (s *Set) newDoor(o Opening) *Door {
	d := &Door{set: s, o: o, done: make(chan struct{}), ready: make(chan struct{})}
	d.ctx, d.cancel = context.WithCancel(context.Background())
	d.monitor = egress.NewMonitor(o.Options, o.Tenant, d.stopped, o.Ports...)
	return d
}

// serve makes the door decide about new connections, also at ports.
func (d *Door) serve(o Opening) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.listener, d.ports = o.Listener, o.Ports
	if !d.isReady {
		d.isReady = true
		close(d.ready)
	}
}

// Serve makes a Door of Adopt decide about new connections, for the client that has returned.
func (d *Door) Serve(o Opening) {
	d.monitor.Serve(o.Tenant, o.Ports...)
	d.mu.Lock()
	p := d.process
	d.mu.Unlock()
	d.serve(o)
	if p == nil {
		return
	}
	for _, port := range o.Ports {
		p.lead(d, port)
	}
	d.update(p)
}

// stopped tells the process that a case is not allowed any more.
func (d *Door) stopped(id uint64) {
	d.mu.Lock()
	p := d.process
	d.mu.Unlock()
	if p != nil {
		go p.send(wire.Message{Op: wire.OpStop, Box: d.o.Box, Case: id})
	}
}

// Recheck applies the current rules to what is under way.
func (d *Door) Recheck() {
	if d == nil {
		return
	}
	d.monitor.Recheck()
	d.mu.Lock()
	p := d.process
	d.mu.Unlock()
	if p == nil {
		return
	}
	sent := make(chan struct{})
	go func() { d.update(p); close(sent) }()
	late := time.NewTimer(updateTime)
	defer late.Stop()
	select {
	case <-sent:
	case <-late.C: // the daemon decides by the current rules already; send kills a process that reads nothing
	}
}

// updateTime bounds the wait for a process to have the current rules: a reload is for all agents.
const updateTime = time.Second

// update sends the process what the rules are. Under updating, so that the last one is that of the current rules.
func (d *Door) update(p *process) {
	d.updating.Lock()
	defer d.updating.Unlock()
	p.send(wire.Message{Op: wire.OpUpdate, Box: d.o.Box, Opening: d.opening()})
}

func (d *Door) opening() *wire.Opening {
	o := &wire.Opening{Connections: d.o.Connections, Secure: d.o.Options.CA != nil,
		Limited: d.monitor.Limited(), Credentials: d.monitor.Credentials()}
	if up := d.o.Options.Dialer.Upstream; up != nil {
		o.Upstream = up.Address
	}
	return o
}

// Leave leaves what is under way to the next daemon. Close follows.
func (d *Door) Leave() {
	if d == nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.isLeft = true
}

func (d *Door) left() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.isLeft
}

// Close ends the network of the sandbox, and returns when the ends of its connections are recorded. Of a Door that is left it does nothing.
func (d *Door) Close() {
	if d == nil {
		return
	}
	d.cancel()
	<-d.done
}

// died is the cause of the ends of connections whose process has died.
const died = "the agent's process has ended: what has moved is unknown"

// refuse closes the connections that wait, and those of the next moment: a client of a network without a process gets an error.
func (d *Door) refuse() {
	end := time.Now().Add(retryTime)
	var all sync.WaitGroup
	for _, l := range d.listening() {
		if l, ok := l.(*net.TCPListener); ok {
			all.Go(func() { d.refuseAt(l, end) })
		}
	}
	all.Wait()
	select { // the listeners may have ended with the sandbox
	case <-d.ctx.Done():
	case <-time.After(time.Until(end)):
	}
}

func (d *Door) refuseAt(l *net.TCPListener, end time.Time) {
	if l.SetDeadline(end) != nil {
		return
	}
	defer context.AfterFunc(d.ctx, func() { _ = l.SetDeadline(time.Unix(1, 0)) })() // it fails on a closed socket alone
	for c, err := l.Accept(); err == nil; c, err = l.Accept() {
		c.Close()
	}
	_ = l.SetDeadline(time.Time{})
}

// listening returns the listening sockets.
func (d *Door) listening() []net.Listener {
	d.mu.Lock()
	defer d.mu.Unlock()
	all := []net.Listener{d.listener}
	for _, p := range d.ports {
		all = append(all, p.Listener)
	}
	return all
}

// retryTime is the time between two starts of a process that fail.
const retryTime = time.Second

// run serves the door, by the process p or from the first connection on, until its end.
func (d *Door) run(p *process) {
	defer close(d.done)
	said := "" // of the last error
	for {
		var err error
		if p == nil {
			if !d.await() {
				d.closePorts()
				return
			}
			if p, err = d.set.process(d.o); err == nil {
				err = p.open(d)
			}
		}
		if err != nil {
			if errors.Is(err, errEnded) { // it is idle, or has died: another one starts
				select {
				case <-d.ctx.Done():
				case <-p.gone:
				}
				p = nil
				continue
			}
			if text := err.Error(); !errors.Is(err, errOver) && d.ctx.Err() == nil && text != said {
				d.set.Logger.Error("network", "sandbox", d.o.Box, "err", err)
				said = text
			}
			d.refuse()
			p = nil
			continue
		}
		select {
		case <-p.gone:
			if d.left() {
				return
			}
			d.attach(nil)
			d.monitor.Died(context.Background(), died)
			p = nil
		case <-d.ctx.Done():
			if !d.left() {
				p.close(d)
				d.monitor.Died(context.Background(), died) // if it has not said how they ended
			}
			d.closePorts()
			return
		}
	}
}

func (d *Door) attach(p *process) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.process = p
}

func (d *Door) closePorts() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, port := range d.ports {
		port.Listener.Close()
	}
}

// await returns true when a connection waits, and false when the door is closed.
func (d *Door) await() bool {
	all := d.listening()
	some := make(chan struct{}, len(all))
	var watching sync.WaitGroup
	var files []*os.File
	for _, l := range all {
		f, err := fileOf(l)
		if err != nil { // it has ended with the sandbox
			continue
		}
		files = append(files, f)
		watching.Go(func() {
			if acceptable(f) == nil {
				some <- struct{}{}
			}
		})
	}
	defer watching.Wait()
	defer descriptors.Close(files)
	select {
	case <-some:
		return d.ctx.Err() == nil
	case <-d.ctx.Done():
		return false
	}
}

// fileOf returns a duplicate of a listening socket.
func fileOf(l net.Listener) (*os.File, error) {
	if f, ok := l.(interface{ File() (*os.File, error) }); ok {
		return f.File()
	}
	return nil, fmt.Errorf("a listener of type %T", l)
}

// acceptable returns nil when a connection waits at a listening socket, and an error when the file is closed before.
func acceptable(f *os.File) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	return raw.Read(func(fd uintptr) bool { return waits(fd) })
}

func waits(fd uintptr) bool {
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
	return err == nil && n > 0
}

var (
	errOver  = errors.New("the daemon ends")
	errEnded = errors.New("the agent's process has ended")
)

// process returns the process for a sandbox, and starts it if need be.
func (s *Set) process(o Opening) (*process, error) {
	s.mu.Lock()
	if s.over {
		s.mu.Unlock()
		return nil, errOver
	}
	p := s.all[o.Of]
	first := p == nil
	if first {
		p = newProcess(s, o.Of)
		if s.all == nil {
			s.all = map[string]*process{}
		}
		s.all[o.Of] = p
	}
	s.mu.Unlock()
	if first {
		p.err = p.start(o.Started)
		close(p.started)
		if p.err != nil {
			s.forget(p)
		}
	}
	<-p.started
	return p, p.err
}

func (s *Set) forget(p *process) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all[p.of] == p {
		delete(s.all, p.of)
	}
}

// stop returns the processes. None starts any more.
func (s *Set) stop() []*process {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.over = true
	return slices.Collect(maps.Values(s.all))
}

// each calls do for the processes that run, and waits.
func each(all []*process, do func(*process)) {
	var wait sync.WaitGroup
	for _, p := range all {
		wait.Go(func() {
			if <-p.started; p.err == nil {
				do(p)
			}
		})
	}
	wait.Wait()
}

// Rest ends a process that serves nothing, if it is there, and has not waited its minute.
func (s *Set) Rest(of string) {
	s.mu.Lock()
	p := s.all[of]
	s.mu.Unlock()
	if p == nil {
		return
	}
	if <-p.started; p.err == nil {
		p.rest()
	}
}

// Close ends all processes. The doors are closed.
func (s *Set) Close() { each(s.stop(), (*process).end) }

// Leave leaves the processes to the next daemon, with the doors that were left.
func (s *Set) Leave() { each(s.stop(), (*process).leave) }

// Settle ends what an earlier daemon has left of sandboxes that nobody has adopted. The tenant records the ends.
func (s *Set) Settle(tenant egress.Tenant) {
	s.mu.Lock()
	all := slices.Collect(maps.Values(s.all))
	s.mu.Unlock()
	tenant.Rules = func() egress.Rules { return nil }
	each(all, func(p *process) {
		for _, box := range p.unclaimed() {
			gone := tenant
			gone.Session = box // the process's word
			if id, err := scope.ParseID(p.of); err == nil {
				gone.Agent = id
			} else {
				gone.Session = p.of
			}
			if d := s.Adopt(Opening{Of: p.of, Box: box, Tenant: gone}); d != nil {
				d.Close()
			}
		}
		p.settle()
	})
}

// Adopt continues with what an earlier daemon has left of a sandbox: what the current rules do not allow ends, the rest goes on. New
// connections wait for Serve. It returns nil if there is nothing.
func (s *Set) Adopt(o Opening) *Door {
	s.mu.Lock()
	p := s.all[o.Of]
	s.mu.Unlock()
	if p == nil {
		return nil
	}
	items, ok := p.claim(o.Box)
	if !ok {
		return nil
	}
	d := s.newDoor(o)
	d.listener = o.Listener
	d.process = p
	d.monitor.Seal(p.key)
	if err := d.monitor.Continue(items); err != nil {
		p.nonsense(err)
	}
	p.attach(d)
	p.wait(d.ctx, wire.Message{Op: wire.OpUnport, Box: o.Box})
	d.update(p)
	go d.run(p)
	return d
}
