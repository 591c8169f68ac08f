package tunnels

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/child"
	"github.com/scopefs/scopefs/internal/descriptors"
	"github.com/scopefs/scopefs/internal/heart"
	"github.com/scopefs/scopefs/internal/holder"
	holding "github.com/scopefs/scopefs/internal/holder/wire"
	"github.com/scopefs/scopefs/internal/liveness"
	"github.com/scopefs/scopefs/internal/packets"
	"github.com/scopefs/scopefs/internal/pidfd"
	"github.com/scopefs/scopefs/internal/tunnels/relay"
	"github.com/scopefs/scopefs/tools/egress"
	"github.com/scopefs/scopefs/tools/egress/tunnel"
)

// process is one process.
type process struct {
	set    *Set
	wire   *packets.Wire
	place  *holder.Place // with its pidfd, heartbeat and control socket
	cancel context.CancelFunc
	ended  <-chan struct{} // closed when it is gone

	mu         sync.Mutex
	last       uint64
	all        map[uint64]*moving // that have not ended
	unrecorded map[uint64]bool    // that have
	done       []uint64           // whose end is recorded, for the next relay.OpRecorded
	owners     map[string]*share
	over       bool // it is ended or left, or has died
	leaving    bool // it is left
}

// share is the process's knowledge of an owner.
type share struct {
	*Owner        // nil: an earlier daemon's
	known   bool  // the process has its pidfd
	asking  bool  // relay.OpMore has no answer yet
	wanted  bool  // there was an relay.OpMore without an Owner
	refused error // why the process last got no bytes, whoever is the Owner now
}

// The descriptors of its place, after those of holder.
const (
	controlFile = holding.Files
	files       = holding.Files + 1
)

// held is what the next daemon needs of the process.
type held struct {
	Protocol int `json:"protocol"`
	PID      int `json:"pid"`
}

func newProcess(s *Set, last uint64) *process {
	return &process{set: s, last: last, all: map[uint64]*moving{}, unrecorded: map[uint64]bool{}, owners: map[string]*share{}}
}

// start starts a process.
func (s *Set) start() (_ *process, err error) {
	var own []*os.File
	defer func() {
		if err != nil {
			for _, f := range own {
				f.Close()
			}
			err = fmt.Errorf("start the process of tunnels: %w", err)
		}
	}()
	control, controls, err := descriptors.Pair(unix.SOCK_SEQPACKET)
	if err != nil {
		return nil, err
	}
	own = append(own, control)
	defer controls.Close()
	beats, heartbeats, err := descriptors.Pair(unix.SOCK_SEQPACKET)
	if err != nil {
		return nil, err
	}
	own = append(own, beats)
	defer heartbeats.Close()
	p := newProcess(s, 0)
	cmd, err := child.Command(child.Tunnels)
	if err != nil {
		return nil, err
	}
	// With GOMAXPROCS the runtime does not look for the limits of a control group, which the process may not read.
	cmd.Env = []string{"GOMAXPROCS=1"}
	cmd.ExtraFiles = []*os.File{controls, heartbeats}
	pidfd := -1
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, PidFD: &pidfd}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	go func() { _ = cmd.Wait() }()
	if pidfd < 0 {
		_ = cmd.Process.Kill()
		return nil, errors.New("the kernel has no pidfd")
	}
	own = append(own, os.NewFile(uintptr(pidfd), "tunnels"))
	if err = unix.SetNonblock(pidfd, true); err == nil {
		p.wire, err = openWire(control)
	}
	if err != nil {
		_ = cmd.Process.Kill()
		return nil, err
	}
	meta, err := json.Marshal(held{relay.Protocol, cmd.Process.Pid})
	if err != nil {
		return nil, err
	}
	p.place = s.Holder.Keep(holding.Tunnels, cmd.Process.Pid, meta, []*os.File{own[2], beats, control})
	p.watch(cmd.Process.Pid)
	return p, nil
}

// openWire returns a Wire on a duplicate of a socket.
func openWire(f *os.File) (*packets.Wire, error) {
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("fcntl", err)
	}
	return packets.Open(fd, relay.MaxMessage)
}

// watch kills a process that is stopped or deadlocked while a tunnel is open.
func (p *process) watch(pid int) {
	ctx, cancel := context.WithCancel(context.Background())
	p.cancel, p.ended = cancel, pidfd.Ended(p.place.Files[holding.PIDFD])
	beats := heart.NewHeart(p.place.Files[holding.Heart])
	busy := func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return len(p.all) > 0
	}
	go func() {
		if err := liveness.Watch(ctx, liveness.Process{PID: pid, Ended: p.ended}, beats, busy); err != nil {
			p.set.Logger.Error("tunnels", "err", fmt.Errorf("the process is killed: %w", err))
			p.kill()
		}
	}()
}

func (p *process) kill() { pidfd.Kill(p.place.Files[holding.PIDFD]) }

// serve handles the messages of the process until it is gone.
func (p *process) serve() {
	go func() {
		err := error(nil)
		for err == nil {
			var msg relay.Message
			var files []*os.File
			if files, err = p.wire.Receive(&msg); err != nil {
				break
			}
			if descriptors.Close(files); len(files) > 0 {
				err = errNonsense
			} else {
				err = p.handle(msg)
			}
		}
		p.gone(err)
	}()
}

var errNonsense = errors.New("its answer makes no sense")

// handle does what a message says.
func (p *process) handle(msg relay.Message) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch msg.Op {
	case relay.OpFailed:
		return fmt.Errorf("it cannot be confined: %.300s", msg.Error)
	case relay.OpEnded:
		return p.finish(msg)
	case relay.OpMore:
		o := p.owners[msg.Owner]
		switch {
		case o == nil || o.asking:
			return errNonsense
		case o.Owner == nil:
			o.wanted = true
		default:
			p.answer(o)
		}
		return nil
	case relay.OpGone:
		delete(p.owners, msg.Owner)
		return nil
	}
	return errNonsense
}

// errLimit is the error of a tunnel that its owner's limit has ended.
var errLimit = errors.New("limit")

// finish notes the end of a tunnel. The caller holds mu.
func (p *process) finish(msg relay.Message) error {
	m := p.all[msg.ID]
	if m == nil || msg.Sent < m.sent || msg.Got < 0 || msg.Took < 0 {
		return errNonsense
	}
	delete(p.all, m.id)
	p.unrecorded[m.id] = true
	m.moved = tunnel.Moved{Sent: msg.Sent, Got: msg.Got, Took: msg.Took}
	switch {
	case msg.Limit:
		m.err = cmp.Or(m.of.refused, errLimit)
	case msg.Error != "":
		m.err = errors.New(msg.Error)
	}
	close(m.ended)
	return nil
}

// The process does not wait for relay.OpRecorded: many ends in one message wake it less often.
const (
	recordedDelay = 100 * time.Millisecond
	maxRecorded   = 100 // ends in a message
)

// recorded says that the end of a tunnel is in the log, soon.
func (p *process) recorded(id uint64) {
	p.mu.Lock()
	delete(p.unrecorded, id)
	p.done = append(p.done, id)
	n := len(p.done)
	p.mu.Unlock()
	switch n {
	case 1:
		time.AfterFunc(recordedDelay, p.flush)
	case maxRecorded:
		p.flush()
	}
}

// flush sends what recorded has noted.
func (p *process) flush() {
	p.mu.Lock()
	done := p.done
	p.done = nil
	p.mu.Unlock()
	for some := range slices.Chunk(done, maxRecorded) {
		p.send(relay.Message{Op: relay.OpRecorded, IDs: some})
	}
}

// answer answers relay.OpMore. The caller holds mu.
func (p *process) answer(o *share) {
	o.asking = true
	owner := o.Owner
	go func() {
		msg, err := owner.answer() // waits for a disk
		p.mu.Lock()
		if o.asking = false; err != nil {
			o.refused = err
		}
		p.mu.Unlock()
		p.send(msg)
	}()
}

// limit sends the limit of an owner, if the process knows it.
func (p *process) limit(o *Owner) {
	p.mu.Lock()
	of := p.owners[o.name]
	if of == nil {
		p.mu.Unlock()
		return
	}
	if of.Owner = o; of.wanted {
		of.wanted = false
		p.answer(of)
	}
	p.mu.Unlock()
	p.send(relay.Message{Op: relay.OpLimit, Owner: o.name, Free: o.free()})
}

// send sends a message. A process that does not take it is killed.
func (p *process) send(msg relay.Message, fds ...int) {
	if err := p.wire.Send(msg, fds...); errors.Is(err, os.ErrDeadlineExceeded) {
		p.kill()
	}
}

// carry sends a tunnel to the process.
func (p *process) carry(o *Owner, load egress.Load) (egress.Moving, error) {
	if len(load.Meta) > relay.MaxMeta || len(o.name) > relay.MaxOwner {
		return nil, errors.New("its rule is too long")
	}
	m := &moving{process: p, began: load.Began, sent: load.Sent, ended: make(chan struct{}), left: make(chan struct{})}
	p.mu.Lock()
	if p.over {
		p.mu.Unlock()
		return nil, errDied
	}
	of := p.owners[o.name]
	if of == nil {
		of = &share{}
		p.owners[o.name] = of
	}
	of.Owner, m.of = o, of
	known := of.known
	p.last++
	m.id = p.last
	p.all[m.id] = m
	p.mu.Unlock()
	err := p.open(o, m.id, load, known)
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil {
		delete(p.all, m.id)
		return nil, err
	}
	of.known = true
	return m, nil
}

// open sends relay.OpOpen.
func (p *process) open(o *Owner, id uint64, load egress.Load, known bool) error {
	msg := relay.Message{Op: relay.OpOpen, ID: id, Owner: o.name, Idle: load.Idle, Sent: load.Sent, Began: load.Began,
		Meta: load.Meta, Free: o.free()}
	var more []int
	if !known {
		init, err := o.init()
		if err != nil {
			return err
		}
		defer init.Close()
		more = append(more, int(init.Fd()))
	}
	in, err := load.In.SyscallConn()
	if err != nil {
		return err
	}
	up, err := load.Up.SyscallConn()
	if err != nil {
		return err
	}
	var sent error
	err = in.Control(func(in uintptr) {
		err := up.Control(func(up uintptr) {
			sent = p.wire.Send(msg, append([]int{int(in), int(up)}, more...)...)
		})
		sent = errors.Join(sent, err)
	})
	if errors.Is(sent, os.ErrDeadlineExceeded) {
		p.kill()
	}
	return errors.Join(sent, err)
}

var errDied = errors.New("the process of tunnels has ended: what has moved is unknown")

// gone fails the tunnels of a process that has died, or answers nonsense.
func (p *process) gone(err error) {
	p.mu.Lock()
	expected := p.over
	p.over = true
	if !p.leaving {
		for id, m := range p.all {
			delete(p.all, id)
			m.moved, m.err = tunnel.Moved{Sent: m.sent, Took: time.Since(m.began)}, errDied
			close(m.ended)
		}
	}
	p.mu.Unlock()
	p.cancel()
	p.wire.Close()
	if expected {
		return
	}
	p.set.Logger.Error("tunnels: open connections of agents have ended", "err", fmt.Errorf("the process has ended: %w", err))
	p.set.mu.Lock()
	if p.set.now == p {
		p.set.now = nil
	}
	p.set.mu.Unlock()
	p.place.End()
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
	p.place.Remove()
}
