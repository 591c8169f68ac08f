// Package relay is the program scopefs-tunnels: it passes the bytes of agents' tunnels, and has the messages between it and the daemon.
// Package tunnels starts it. It has no path, no capability and no network of its own.
package relay

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/confine"
	"github.com/scopefs/scopefs/internal/descriptors"
	"github.com/scopefs/scopefs/internal/heart"
	"github.com/scopefs/scopefs/internal/packets"
	"github.com/scopefs/scopefs/internal/pidfd"
	"github.com/scopefs/scopefs/internal/seccomp"
	"github.com/scopefs/scopefs/tools/egress/tunnel"
)

// keeper is the state of the process.
type keeper struct {
	wire  *packets.Wire
	wake  chan struct{} // of one element: there is something to send
	pipes tunnel.Pipes

	mu      sync.Mutex
	tunnels map[uint64]*carried
	owners  map[string]*owner
	due     []Message  // to send first
	ended   []*carried // whose end the present daemon does not have yet
	wanting []*owner
}

// owner has what the tunnels of one sandbox share.
type owner struct {
	name  string
	purse *tunnel.Purse
	wants bool // it is in keeper.wanting
}

// carried is a tunnel, until its end is recorded.
type carried struct {
	*tunnel.Tunnel
	open  Message // OpOpen
	end   Message // OpEnded; without an op: it has not ended
	owner *owner
	seen  bool // a daemon had end
}

// errLimit is the error of a tunnel that OpRefuse has ended.
var errLimit = errors.New("limit")

// calls are the system calls of the process beside those of the Go runtime.
func calls() []seccomp.Rule {
	return append(seccomp.Calls(seccomp.Allow,
		unix.SYS_RECVMSG, unix.SYS_SENDMSG, unix.SYS_RECVFROM, unix.SYS_SPLICE, unix.SYS_PIPE2, unix.SYS_GETSOCKOPT, unix.SYS_SHUTDOWN,
	),
		seccomp.Fcntl(unix.F_SETPIPE_SZ))
}

// Main runs the process and returns its exit status.
func Main() int {
	// A service manager or a terminal signals all processes of the daemon at once.
	signal.Ignore(unix.SIGTERM, unix.SIGINT, unix.SIGHUP, unix.SIGQUIT, unix.SIGPIPE)
	wire, err := packets.Open(controlFD, MaxMessage)
	if err != nil {
		return 1
	}
	beats := os.NewFile(heartFD, "heart")
	if err := confine.Descriptors(memory, calls()); err != nil {
		_ = wire.Send(Message{Op: OpFailed, Error: err.Error()})
		return 1
	}
	k := &keeper{wire: wire, wake: make(chan struct{}, 1), tunnels: map[uint64]*carried{}, owners: map[string]*owner{}}
	go heart.NewHeart(beats).Serve(func() {})
	go k.write()
	for { // until no daemon and no holder has the other end
		var msg Message
		files, err := wire.Receive(&msg)
		if err != nil || !k.handle(msg, files) {
			return 0
		}
	}
}

// handle does what a message of the daemon says. It is false for a message that cannot be.
func (k *keeper) handle(msg Message, files []*os.File) bool {
	if msg.Op == OpOpen {
		return k.open(msg, files)
	}
	descriptors.Close(files)
	k.mu.Lock()
	t, o := k.tunnels[msg.ID], k.owners[msg.Owner]
	k.mu.Unlock()
	switch {
	case msg.Op == OpHello:
		k.hello(msg)
	case msg.Op == OpEnd && t != nil && t.Tunnel != nil:
		t.End()
	case msg.Op == OpRecorded:
		k.mu.Lock()
		for _, id := range msg.IDs {
			delete(k.tunnels, id)
		}
		k.mu.Unlock()
	case o == nil: // its sandbox has ended meanwhile
	case msg.Op == OpLimit:
		o.purse.Free(msg.Free)
	case msg.Op == OpGive:
		o.purse.Give(msg.Bytes)
	case msg.Op == OpRefuse:
		o.purse.Refuse(errLimit)
	}
	return true
}

// open begins a tunnel.
func (k *keeper) open(msg Message, files []*os.File) bool {
	defer descriptors.Close(files)
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.tunnels[msg.ID] != nil || len(files) < 2 {
		return false
	}
	t := &carried{open: msg, owner: k.owners[msg.Owner]}
	k.tunnels[msg.ID] = t
	if t.owner == nil && len(files) > 2 {
		t.owner = k.own(msg, files[2])
		files[2] = nil // the owner's; Close of nil is an error and no more
	}
	var err error
	switch {
	case !stream(files[0]) || !stream(files[1]):
		err = errors.New("not a stream")
	case t.owner == nil:
		err = errors.New("its sandbox has ended")
	case len(k.tunnels) > MaxTunnels:
		err = fmt.Errorf("more than %d tunnels at a time", MaxTunnels)
	}
	if err != nil {
		k.finish(t, tunnel.Moved{Sent: msg.Sent}, err)
		return true
	}
	t.Tunnel = tunnel.New(files[0], files[1], msg.Idle, t.owner.purse, &k.pipes)
	files[0], files[1] = nil, nil // the tunnel's
	t.Sent.Store(msg.Sent)
	go func() {
		err := t.Run()
		k.mu.Lock()
		defer k.mu.Unlock()
		k.finish(t, tunnel.Moved{Sent: t.Sent.Load(), Got: t.Got.Load(), Took: time.Since(msg.Began)}, err)
	}()
	return true
}

// stream reports whether a descriptor is a socket of a stream.
func stream(f *os.File) (is bool) {
	raw, err := f.SyscallConn()
	if err != nil {
		return false
	}
	err = raw.Control(func(fd uintptr) {
		kind, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_TYPE)
		is = err == nil && kind == unix.SOCK_STREAM
	})
	return is && err == nil
}

// own makes an owner, whose tunnels end with the process of a pidfd. The caller holds mu.
func (k *keeper) own(msg Message, process *os.File) *owner {
	o := &owner{name: msg.Owner}
	o.purse = tunnel.NewPurse(func() { k.want(o) })
	o.purse.Free(msg.Free)
	k.owners[o.name] = o
	go func() {
		<-pidfd.Ended(process)
		process.Close()
		k.mu.Lock()
		defer k.mu.Unlock()
		delete(k.owners, o.name)
		k.wanting = slices.DeleteFunc(k.wanting, func(w *owner) bool { return w == o })
		for _, t := range k.tunnels {
			if t.owner == o && t.Tunnel != nil {
				go t.End()
			}
		}
		k.due = append(k.due, Message{Op: OpGone, Owner: o.name})
		k.stir()
	}()
	return o
}

// want requests bytes for an owner.
func (k *keeper) want(o *owner) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !o.wants && k.owners[o.name] == o {
		o.wants = true
		k.wanting = append(k.wanting, o)
		k.stir()
	}
}

// finish notes the end of a tunnel. The caller holds mu.
func (k *keeper) finish(t *carried, moved tunnel.Moved, err error) {
	t.end = Message{Op: OpEnded, ID: t.open.ID, Sent: moved.Sent, Got: moved.Got, Took: moved.Took}
	switch {
	case errors.Is(err, errLimit):
		t.end.Limit = true
	case err != nil:
		text := err.Error()
		t.end.Error = text[:min(len(text), maxError)]
	}
	k.ended = append(k.ended, t)
	k.stir()
}

// stir wakes write.
func (k *keeper) stir() {
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

// hello answers the next daemon with all tunnels. What was sent before is the last daemon's.
func (k *keeper) hello(msg Message) {
	k.mu.Lock()
	k.due, k.ended = []Message{{Op: OpHello, ID: msg.ID}}, nil
	var purses []*tunnel.Purse
	for _, o := range k.owners {
		k.due = append(k.due, Message{Op: OpOwner, Owner: o.name})
		purses = append(purses, o.purse)
	}
	for _, t := range k.tunnels {
		item := Message{Op: OpItem, ID: t.open.ID, Owner: t.open.Owner, Began: t.open.Began, Meta: t.open.Meta, Sent: t.open.Sent, Seen: t.seen}
		if t.end.Op != "" {
			item.Ended, item.Sent, item.Got, item.Took, item.Error, item.Limit = true, t.end.Sent, t.end.Got, t.end.Took, t.end.Error, t.end.Limit
			t.seen = true
		}
		k.due = append(k.due, item)
	}
	k.due = append(k.due, Message{Op: OpListed})
	k.stir()
	k.mu.Unlock()
	for _, p := range purses {
		p.Again()
	}
}

// next returns the next message to the daemon.
func (k *keeper) next() (msg Message, ok bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case len(k.due) > 0:
		msg, k.due = k.due[0], k.due[1:]
	case len(k.ended) > 0:
		t := k.ended[0]
		k.ended = k.ended[1:]
		msg, t.seen = t.end, true
	case len(k.wanting) > 0:
		o := k.wanting[0]
		k.wanting = k.wanting[1:]
		o.wants, msg = false, Message{Op: OpMore, Owner: o.name}
	default:
		return msg, false
	}
	return msg, true
}

// write sends messages. Without a daemon it waits for the next one when the socket is full.
func (k *keeper) write() {
	for range k.wake {
		for msg, ok := k.next(); ok; msg, ok = k.next() {
			err := k.wire.Send(msg)
			for errors.Is(err, os.ErrDeadlineExceeded) {
				err = k.wire.Send(msg)
			}
			if err != nil {
				return // Receive fails, too
			}
		}
	}
}
