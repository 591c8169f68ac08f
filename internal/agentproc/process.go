package agentproc

import (
	"context"
	random "crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/agentproc/wire"
	"github.com/scopefs/scopefs/internal/child"
	"github.com/scopefs/scopefs/internal/descriptors"
	"github.com/scopefs/scopefs/internal/heart"
	"github.com/scopefs/scopefs/internal/holder"
	holding "github.com/scopefs/scopefs/internal/holder/wire"
	"github.com/scopefs/scopefs/internal/liveness"
	"github.com/scopefs/scopefs/internal/packets"
	"github.com/scopefs/scopefs/internal/pidfd"
	"github.com/scopefs/scopefs/tools/egress"
)

// process is one process.
type process struct {
	set     *Set
	of      string
	key     []byte        // by which the next daemon knows what was admitted; see egress.Monitor.Seal
	started chan struct{} // closed when it runs, or err is set
	err     error

	wire   *packets.Wire
	place  *holder.Place // with its pidfd, heartbeat and control socket
	cancel context.CancelFunc
	ended  <-chan struct{} // closed when it is gone
	gone   chan struct{}   // closed when it is gone, is left, or makes no sense

	mu      sync.Mutex
	boxes   map[string]*Door
	left    map[string]*remnant // of an earlier daemon, that no Door has yet
	flying  map[uint64]context.CancelFunc
	handled sync.WaitGroup // requests
	waiting map[uint64]chan struct{}
	last    uint64
	over    bool // it is ended or left, or has died
	idle    *time.Timer
}

// remnant is what an earlier daemon has left of a sandbox.
type remnant struct {
	items   []egress.Item
	claimed chan struct{} // closed when a Door has it, or nobody will
}

// The descriptors of its place, after those of holder.
const (
	controlFile = holding.Files
	files       = holding.Files + 1
)

// held is what the next daemon needs of the process.
type held struct {
	Protocol int    `json:"protocol"`
	PID      int    `json:"pid"`
	Of       string `json:"of"`
	Key      []byte `json:"key"`
}

func newProcess(s *Set, of string) *process {
	return &process{set: s, of: of, key: []byte(random.Text()), started: make(chan struct{}), gone: make(chan struct{}),
		boxes: map[string]*Door{}, left: map[string]*remnant{},
		flying: map[uint64]context.CancelFunc{}, waiting: map[uint64]chan struct{}{}}
}

// processors bounds the threads of a process that run Go code.
const processors = 4

// start starts the process, and calls started while it gets ready.
func (p *process) start(started func(pid int)) (err error) {
	var own []*os.File
	defer func() {
		if err != nil {
			descriptors.Close(own)
			err = fmt.Errorf("start the process of %s: %w", p.of, err)
		}
	}()
	control, controls, err := descriptors.Pair(unix.SOCK_SEQPACKET)
	if err != nil {
		return err
	}
	own = append(own, control)
	defer controls.Close()
	beats, heartbeats, err := descriptors.Pair(unix.SOCK_SEQPACKET)
	if err != nil {
		return err
	}
	own = append(own, beats)
	defer heartbeats.Close()
	cmd, err := child.Command(child.Agent)
	if err != nil {
		return err
	}
	// With GOMAXPROCS the runtime does not look for the limits of a control group, which the process may not read.
	cmd.Env = []string{fmt.Sprint("GOMAXPROCS=", min(runtime.NumCPU(), processors))}
	cmd.ExtraFiles = []*os.File{controls, heartbeats}
	fd := -1
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, PidFD: &fd}
	if err := cmd.Start(); err != nil {
		return err
	}
	go func() { _ = cmd.Wait() }()
	if started != nil {
		started(cmd.Process.Pid)
	}
	if fd < 0 {
		_ = cmd.Process.Kill()
		return errors.New("the kernel has no pidfd")
	}
	own = append(own, os.NewFile(uintptr(fd), "agent"))
	if err = unix.SetNonblock(fd, true); err == nil {
		p.wire, err = openWire(control)
	}
	if err != nil {
		_ = cmd.Process.Kill()
		return err
	}
	meta, err := json.Marshal(held{wire.Protocol, cmd.Process.Pid, p.of, p.key})
	if err != nil {
		return err
	}
	p.place = p.set.Holder.Keep(holding.Agent, cmd.Process.Pid, meta, []*os.File{own[2], beats, control})
	p.watch(cmd.Process.Pid)
	go p.serve()
	return nil
}

// openWire returns a Wire on a duplicate of a socket.
func openWire(f *os.File) (*packets.Wire, error) {
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("fcntl", err)
	}
	return packets.Open(fd, wire.MaxMessage)
}

// watch kills a process that is stopped or deadlocked while a client may wait for it.
func (p *process) watch(pid int) {
	ctx, cancel := context.WithCancel(context.Background())
	p.cancel, p.ended = cancel, pidfd.Ended(p.place.Files[holding.PIDFD])
	beats := heart.NewHeart(p.place.Files[holding.Heart])
	go func() {
		if err := liveness.Watch(ctx, liveness.Process{PID: pid, Ended: p.ended}, beats, p.busy); err != nil {
			p.set.Logger.Error("network", "of", p.of, "err", fmt.Errorf("the agent's process is killed: %w", err))
			p.kill()
		}
	}()
}

// busy reports whether something is under way, or a connection waits to be accepted.
func (p *process) busy() bool {
	p.mu.Lock()
	all := slices.Collect(maps.Values(p.boxes))
	p.mu.Unlock()
	return slices.ContainsFunc(all, func(d *Door) bool { return d.monitor.Open() > 0 || d.waited() })
}

// waited reports whether a connection waits at a listening socket of the door.
func (d *Door) waited() bool {
	d.mu.Lock()
	l := d.listener
	d.mu.Unlock()
	some := false
	if s, ok := l.(syscall.Conn); ok {
		if raw, err := s.SyscallConn(); err == nil {
			_ = raw.Control(func(fd uintptr) { some = waits(fd) }) // an error: it has ended
		}
	}
	return some
}

func (p *process) kill() { pidfd.Kill(p.place.Files[holding.PIDFD]) }

var errNonsense = errors.New("its answer makes no sense")

// nonsense kills a process that says what none of ours says.
func (p *process) nonsense(err error) {
	p.set.Logger.Error("network", "of", p.of, "err", fmt.Errorf("the agent's process is killed: %w", err))
	p.kill()
}

// serve handles the messages of the process until it is gone.
func (p *process) serve() {
	for {
		var msg wire.Message
		received, err := p.wire.Receive(&msg)
		if err == nil {
			err = p.handle(msg, received)
		}
		if err != nil {
			p.lost(err)
			return
		}
	}
}

// discard closes what a process has passed. Close(2) of a socket with SO_LINGER waits, also of one that does not block.
func discard(received []*os.File) {
	for _, f := range received {
		if raw, err := f.SyscallConn(); err == nil {
			_ = raw.Control(func(fd uintptr) { _ = unix.SetsockoptLinger(int(fd), unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{}) }) // of no socket there is none
		}
	}
	descriptors.Close(received)
}

// maxFlying bounds the requests that have no reply: of each connection and request under way there is one at most.
const maxFlying = 8192

// handle does what a message says.
func (p *process) handle(msg wire.Message, received []*os.File) error {
	if msg.Op == wire.OpRequest && msg.Request != nil {
		return p.request(msg, received)
	}
	discard(received)
	p.mu.Lock()
	defer p.mu.Unlock()
	switch msg.Op {
	case wire.OpFailed:
		return fmt.Errorf("it cannot be confined: %.300s", msg.Text)
	case wire.OpCancel:
		if cancel := p.flying[msg.ID]; cancel != nil {
			cancel()
		}
		return nil
	case wire.OpDone:
		if done := p.waiting[msg.ID]; done != nil {
			delete(p.waiting, msg.ID)
			close(done)
		}
		return nil
	case wire.OpGone: // the sandbox's end closes the door
		return nil
	}
	return errNonsense
}

// request answers a request in a goroutine of its own.
func (p *process) request(msg wire.Message, received []*os.File) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	given := len(received) // of a request that does not wait
	if p.flying[msg.ID] != nil || len(p.flying) >= maxFlying || given > 1 || given == 1 && msg.Request.Op != egress.OpPeer ||
		msg.Request.Check() != nil {
		discard(received)
		return errNonsense
	}
	if p.over {
		discard(received)
		return nil
	}
	ctx, cancel := context.WithCancel(context.Background())
	p.flying[msg.ID] = cancel
	p.handled.Go(func() {
		defer cancel()
		p.answer(ctx, msg, received)
	})
	return nil
}

func (p *process) answer(ctx context.Context, msg wire.Message, received []*os.File) {
	defer discard(received)
	var given, made net.Conn
	var reply egress.Reply
	var err error
	if len(received) > 0 {
		if given, err = net.FileConn(received[0]); err == nil {
			defer given.Close()
		}
	}
	if d := p.door(ctx, msg.Box, msg.Request.Op); d != nil && d.turn(ctx, msg.Request.Op) {
		reply, made, err = d.monitor.Answer(ctx, *msg.Request, given)
	} else {
		reply.Refusal = &egress.Refusal{Message: "the sandbox has ended"}
	}
	if made != nil {
		defer made.Close()
	}
	defer func() { // once the reply is sent: a process that reads no replies can make no more requests
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.flying, msg.ID)
	}()
	if err != nil {
		p.nonsense(err)
		return
	}
	var fds []int
	if c, ok := made.(syscall.Conn); ok {
		fds, _ = descriptors.Numbers(c) // a connection that was closed meanwhile is none
	}
	p.send(wire.Message{Op: wire.OpReply, ID: msg.ID, Reply: &reply}, fds...)
}

// door returns the door of a sandbox, and waits until it takes such a request; nil: there is none any more.
func (p *process) door(ctx context.Context, box string, op egress.Op) *Door {
	for {
		p.mu.Lock()
		d, left := p.boxes[box], p.left[box]
		p.mu.Unlock()
		switch {
		case d != nil && (op == egress.OpAdmit || op == egress.OpSecret):
			select {
			case <-d.ready: // of an earlier daemon's: its client has returned
				return d
			case <-d.ctx.Done(): // the reply is a refusal
				return d
			case <-ctx.Done():
				return d
			}
		case d != nil || left == nil:
			return d
		case op == egress.OpPeer: // no port listens before Door.Serve, and nobody keeps its descriptor
			return nil
		}
		select {
		case <-left.claimed:
		case <-ctx.Done():
			return nil
		}
	}
}

// decideTime is what a decision takes of a processor, with its record.
const decideTime = 100 * time.Microsecond

// turn waits until the agent has earned the time for a decision. It is false when nobody waits for it any more.
func (d *Door) turn(ctx context.Context, op egress.Op) bool {
	switch op {
	case egress.OpAdmit, egress.OpJudge, egress.OpDeny, egress.OpLeaf, egress.OpSecret:
		return d.o.Share.Wait(ctx, decideTime) == nil
	}
	return true
}

// send sends a message. A process that does not take it is killed.
func (p *process) send(msg wire.Message, fds ...int) {
	if err := p.wire.Send(msg, fds...); errors.Is(err, os.ErrDeadlineExceeded) {
		p.kill()
	}
}

// doneTime bounds the wait for the answer to a message, which takes as long as the records of what it ends.
const doneTime = 10 * time.Second

// wait sends a message, and waits for OpDone.
func (p *process) wait(ctx context.Context, msg wire.Message) {
	done := make(chan struct{})
	p.mu.Lock()
	p.last++
	msg.ID = p.last
	p.waiting[msg.ID] = done
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.waiting, msg.ID)
	}()
	p.send(msg)
	late := time.NewTimer(doneTime)
	defer late.Stop()
	select {
	case <-done:
	case <-p.gone:
	case <-ctx.Done():
	case <-late.C:
		p.nonsense(errors.New("it does not end a sandbox's network"))
	}
}

// rootsPart is how many bytes of Opening.Roots a message has.
const rootsPart = 64 << 10

// open has the process serve a door.
func (p *process) open(d *Door) error {
	init, err := d.o.Init()
	if err != nil {
		return err
	}
	defer init.Close()
	listens, err := fileOf(d.o.Listener)
	if err != nil {
		return err
	}
	defer listens.Close()
	fds, err := descriptors.Numbers(init, listens)
	if err != nil {
		return err
	}
	if !p.attach(d) {
		return errEnded
	}
	d.monitor.Seal(p.key)
	d.attach(p) // before the rules are read: a change of them follows
	for part := range slices.Chunk([]byte(d.o.Roots), rootsPart) {
		p.send(wire.Message{Op: wire.OpRoots, Box: d.o.Box, Text: string(part)})
	}
	p.send(wire.Message{Op: wire.OpOpen, Box: d.o.Box, Opening: d.opening()}, fds...)
	d.update(p) // one that came before OpOpen was for no sandbox
	d.mu.Lock()
	ports := d.ports
	d.mu.Unlock()
	for _, port := range ports {
		p.lead(d, port)
	}
	return nil
}

// lead has the process serve a port of a door.
func (p *process) lead(d *Door, port egress.Port) {
	l, err := fileOf(port.Listener)
	if err != nil {
		return // it was closed
	}
	defer l.Close()
	if fds, err := descriptors.Numbers(l); err == nil {
		p.send(wire.Message{Op: wire.OpPort, Box: d.o.Box, Port: &wire.Port{Way: port.Way, At: port.At, Number: port.Number}}, fds...)
	}
}

// attach makes the process serve a door. It is false for one that has ended.
func (p *process) attach(d *Door) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.over {
		return false
	}
	if p.idle != nil {
		p.idle.Stop()
	}
	p.boxes[d.o.Box] = d
	if left := p.left[d.o.Box]; left != nil {
		delete(p.left, d.o.Box)
		close(left.claimed)
	}
	return true
}

// idleTime is how long a process outlives the last sandbox that it serves.
const idleTime = time.Minute

// close ends a door, and returns when the ends of its cases are recorded.
func (p *process) close(d *Door) {
	p.wait(context.Background(), wire.Message{Op: wire.OpClose, Box: d.o.Box})
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.boxes[d.o.Box] == d {
		delete(p.boxes, d.o.Box)
	}
	if len(p.boxes)+len(p.left) == 0 && !p.over {
		p.idle = time.AfterFunc(idleTime, p.rest)
	}
}

// rest ends a process that serves nothing.
func (p *process) rest() {
	p.mu.Lock()
	idle := len(p.boxes)+len(p.left) == 0 && !p.over
	p.over = p.over || idle
	p.mu.Unlock()
	if idle {
		p.set.forget(p)
		p.end()
	}
}

// lost ends the doors of a process that has died, or makes no sense.
func (p *process) lost(err error) {
	p.mu.Lock()
	expected := p.over
	p.over = true
	for _, cancel := range p.flying {
		cancel()
	}
	p.mu.Unlock()
	p.cancel()
	p.wire.Close()
	if !expected {
		p.kill()
		p.set.Logger.Error("network: open connections of an agent have ended", "of", p.of, "err", fmt.Errorf("its process has ended: %w", err))
		p.set.forget(p)
		p.place.End()
	}
	p.handled.Wait() // a case of the next process may have the number of one of this
	close(p.gone)
}

// endTime bounds the wait for the end of the process.
const endTime = 2 * time.Second

// end ends the process.
func (p *process) end() {
	p.mu.Lock()
	p.over = true
	p.mu.Unlock()
	p.kill()
	select {
	case <-p.ended:
	case <-time.After(endTime):
	}
	p.recordLeft()
	p.place.Remove()
}

// recordLeft records the ends of connections that were to be left to the next daemon, and are not.
func (p *process) recordLeft() {
	p.mu.Lock()
	all := slices.Collect(maps.Values(p.boxes))
	p.mu.Unlock()
	for _, d := range all {
		if d.left() {
			d.monitor.Died(context.Background(), died)
		}
	}
}

// leaveTime bounds the wait for the answers to requests, before the process is left to the next daemon.
const leaveTime = time.Second

// leave leaves the process to the next daemon, if it serves something. Otherwise it ends the process.
func (p *process) leave() {
	p.mu.Lock()
	empty := len(p.boxes)+len(p.left) == 0
	p.over = true
	p.mu.Unlock()
	if empty {
		p.end()
		return
	}
	answered := make(chan struct{})
	go func() {
		p.handled.Wait()
		close(answered)
	}()
	select {
	case <-answered:
	case <-time.After(leaveTime):
	}
	p.wire.Close()
}

// takeTime bounds the wait for the list of a process.
const takeTime = 2 * time.Second

// Take continues with the process that an earlier daemon has left in a place. Until Adopt or Settle what is under way goes on, and
// what has to be decided waits.
func (s *Set) Take(place *holder.Place) {
	p, err := s.take(place)
	if err != nil {
		s.Logger.Error("network: open connections of an agent have ended", "err", fmt.Errorf("the process of the last daemon: %w", err))
		place.End()
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all == nil {
		s.all = map[string]*process{}
	}
	s.all[p.of] = p
}

func (s *Set) take(place *holder.Place) (*process, error) {
	var was held
	if err := json.Unmarshal(place.Meta, &was); err != nil {
		return nil, err
	}
	if was.Protocol != wire.Protocol || len(place.Files) != files {
		return nil, fmt.Errorf("its protocol is number %d, this daemon's %d", was.Protocol, wire.Protocol)
	}
	p := newProcess(s, was.Of)
	p.place, p.key = place, was.Key
	var err error
	if p.wire, err = openWire(place.Files[controlFile]); err != nil {
		return nil, err
	}
	late := time.AfterFunc(takeTime, p.kill)
	defer late.Stop()
	if err := p.list(); err != nil {
		p.wire.Close()
		return nil, err
	}
	p.watch(was.PID)
	close(p.started)
	go p.serve()
	return p, nil
}

// maxListed bounds what a process has under way.
const maxListed = 1 << 16

// list receives what the process has under way. After an error its requests end.
func (p *process) list() (err error) {
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if err == nil {
			return
		}
		p.over = true
		for _, cancel := range p.flying {
			cancel()
		}
	}()
	hello := wire.Message{Op: wire.OpHello, ID: rand.Uint64()}
	if err := p.wire.Send(hello); err != nil {
		return err
	}
	n := 0
	for answered := false; ; {
		var msg wire.Message
		received, err := p.wire.Receive(&msg)
		if err != nil {
			return err
		}
		of := p.left[msg.Box]
		switch n++; {
		case !answered:
			answered = msg.Op == hello.Op && msg.ID == hello.ID // what comes before is the last daemon's
		case msg.Op == wire.OpRequest && msg.Request != nil:
			if err := p.request(msg, received); err != nil {
				return err
			}
			continue // the files are the request's
		case msg.Op == wire.OpListed:
			discard(received)
			return nil
		case msg.Op == wire.OpBox && of == nil:
			p.left[msg.Box] = &remnant{claimed: make(chan struct{})}
		case msg.Op == wire.OpItem && of != nil && msg.Item != nil:
			of.items = append(of.items, *msg.Item)
		case msg.Op == wire.OpCancel, msg.Op == wire.OpDone, msg.Op == wire.OpGone:
		default:
			err = errNonsense
		}
		discard(received)
		if err != nil || n > maxListed {
			return errNonsense
		}
	}
}

// claim returns what is left of a sandbox. The caller attaches a door.
func (p *process) claim(box string) (items []egress.Item, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	left := p.left[box]
	if left == nil || p.over {
		return nil, false
	}
	return left.items, true
}

// unclaimed returns the sandboxes that nobody has claimed.
func (p *process) unclaimed() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Sorted(maps.Keys(p.left))
}

// settle ends a process that serves nothing, soon.
func (p *process) settle() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.boxes)+len(p.left) == 0 && !p.over && p.idle == nil {
		p.idle = time.AfterFunc(idleTime, p.rest)
	}
}
