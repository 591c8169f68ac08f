// Package serve is the process that outlives a daemon: see package holder, which starts it.
package serve

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/fs/fusemount"
	"github.com/scopefs/scopefs/internal/descriptors"
	"github.com/scopefs/scopefs/internal/heart"
	"github.com/scopefs/scopefs/internal/holder/wire"
	"github.com/scopefs/scopefs/internal/liveness"
	"github.com/scopefs/scopefs/internal/pidfd"
)

// item is what the holder keeps for one FUSE connection or sandbox.
type item struct {
	msg   wire.Message
	files []*os.File
	ended <-chan struct{} // with Hold: closed when the process is gone
}

// held returns the descriptors of Place.Hold.
func (i *item) held() []*os.File {
	if i.msg.Abort && len(i.files) > 0 {
		return i.files[1:]
	}
	return i.files
}

// keeper is the state of the holder process.
type keeper struct {
	mu       sync.Mutex
	items    map[uint64]*item
	daemon   int           // the socket of the present daemon; -1: there is none
	lost     chan struct{} // closed when that daemon is gone
	watching context.CancelFunc
	watcher  liveness.Watcher
	ended    chan struct{}
	over     bool
	start    wire.Message // OpStart of the first daemon; Grace is the last daemon's
	settled  bool         // the present daemon has taken over everything
	deadline time.Time    // without a daemon: when everything ends
	dead     []string     // mount points of views that have ended since the last daemon
}

// Main runs the holder process and returns its exit status.
func Main() int {
	// A service manager or a terminal signals all processes of the daemon at once. The holder exits last.
	signal.Ignore(unix.SIGTERM, unix.SIGINT, unix.SIGHUP, unix.SIGQUIT, unix.SIGPIPE)
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return 1
	}
	first, files, err := wire.Receive(wire.SocketFD)
	descriptors.Close(files)
	if err != nil || first.Op != wire.OpStart {
		return 0 // the daemon has ended
	}
	k := &keeper{
		items:    map[uint64]*item{},
		daemon:   wire.SocketFD,
		lost:     make(chan struct{}),
		watching: func() {},
		ended:    make(chan struct{}),
		start:    first,
	}
	if first.Socket != "" {
		// Here, so that SO_PEERCRED of a daemon's connection is this process: unix(7).
		if err := unix.Listen(wire.ListenFD, 8); err != nil {
			return 1
		}
		go k.accept()
	}
	go k.serve(wire.SocketFD)
	<-k.ended
	return 0
}

// serve handles the messages of a daemon until it is gone.
func (k *keeper) serve(fd int) {
	for {
		msg, files, err := wire.Receive(fd)
		if err != nil {
			k.mu.Lock()
			k.gone(fd)
			k.mu.Unlock()
			return
		}
		k.mu.Lock()
		k.handle(msg, files)
		k.mu.Unlock()
	}
}

// handle does what a message of the daemon says. The caller holds mu.
func (k *keeper) handle(msg wire.Message, files []*os.File) {
	switch msg.Op {
	case wire.OpAdd:
		k.remove(msg.ID)
		i := &item{msg: msg, files: files}
		if i.msg.Hold = i.msg.Hold && len(i.held()) >= msg.Kind.Files(); i.msg.Hold && msg.Kind.Files() > 0 {
			i.ended = pidfd.Ended(i.held()[wire.PIDFD])
		}
		k.items[msg.ID] = i
		return
	case wire.OpRemove:
		k.remove(msg.ID)
	case wire.OpSettled:
		k.settled, k.start.Grace = true, msg.Grace
	case wire.OpEnd:
		k.end()
	}
	descriptors.Close(files)
}

func (k *keeper) remove(id uint64) {
	if old := k.items[id]; old != nil {
		descriptors.Close(old.files)
		delete(k.items, id)
	}
}

// gone notes that the daemon has ended. The caller holds mu.
func (k *keeper) gone(fd int) {
	unix.Close(fd)
	k.daemon = -1
	close(k.lost)
	k.dead = nil
	for id, i := range k.items {
		if !i.msg.Hold {
			k.endItem(id, i)
		}
	}
	if k.settled { // a daemon that dies before it has taken over everything prolongs nothing
		k.settled, k.deadline = false, time.Now().Add(k.start.Grace)
	}
	if !k.needed() {
		k.end()
	}
	ctx, cancel := context.WithCancel(context.Background())
	k.watching = cancel
	for id, i := range k.items {
		if i.msg.Kind.Beats() {
			go k.watch(ctx, id, i)
		}
	}
	time.AfterFunc(time.Until(k.deadline), func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		if k.daemon < 0 && !time.Now().Before(k.deadline) {
			k.end()
		}
	})
}

// watch ends an item whose process does not answer, until ctx ends: see liveness.Watcher.
func (k *keeper) watch(ctx context.Context, id uint64, i *item) {
	always := func() bool { return true } // it cannot count the requests that wait
	_ = k.watcher.Watch(ctx, liveness.Process{PID: i.msg.PID, Ended: i.ended}, heart.NewHeart(i.held()[wire.Heart]), always)
	k.mu.Lock()
	defer k.mu.Unlock()
	if ctx.Err() != nil || k.items[id] != i {
		return
	}
	k.endItem(id, i)
	if !k.needed() {
		k.end()
	}
}

// needed reports whether something is left beside what is of sandboxes. The caller holds mu.
func (k *keeper) needed() bool {
	for _, i := range k.items {
		if i.msg.Kind != wire.Agent && i.msg.Kind != wire.Context {
			return true
		}
	}
	return false
}

// endItem ends an item and keeps it no longer. The caller holds mu.
func (k *keeper) endItem(id uint64, i *item) {
	i.end()
	if i.msg.Kind == wire.View {
		k.dead = append(k.dead, i.msg.Dir)
	}
	k.remove(id)
}

// end ends everything that is kept, and makes Main return. Without a daemon it unmounts the views, before the next daemon gets an answer
// and mounts its own. The caller holds mu.
func (k *keeper) end() {
	if k.over {
		return
	}
	k.over = true
	for id, i := range k.items {
		k.endItem(id, i)
	}
	if k.daemon < 0 {
		for _, dir := range k.dead {
			detach(dir)
		}
	}
	if k.start.Socket != "" {
		os.Remove(k.start.Socket)
	}
	close(k.ended)
}

// detach unmounts the views that are on top at a directory. It sends no request to a view.
func detach(dir string) {
	here := func(m *mountinfo.Info) (skip, stop bool) { return m.Mountpoint != dir, false }
	for {
		all, err := mountinfo.GetMounts(here)
		if err != nil || len(all) == 0 || all[len(all)-1].FSType != "fuse.scopefs" || fusemount.Detach(dir) != nil {
			return
		}
	}
}

// end aborts the connection, and kills the process of a view.
func (i *item) end() {
	conn := fusemount.Connection{Dir: i.msg.Dir}
	if i.msg.Abort && len(i.files) > 0 {
		conn.File = i.files[0]
	}
	_ = conn.Abort()
	if i.msg.Hold && i.msg.Kind.Files() > 0 {
		pidfd.Kill(i.held()[wire.PIDFD])
	}
}

// accept answers processes that connect, one after the other.
func (k *keeper) accept() {
	for {
		fd, _, err := unix.Accept4(wire.ListenFD, unix.SOCK_CLOEXEC)
		switch err {
		case nil:
		case unix.EINTR, unix.ECONNABORTED:
			continue
		default:
			time.Sleep(wire.FirstTime) // no descriptor is free, say
			continue
		}
		if err := k.answer(fd); err != nil {
			_ = wire.Send(fd, wire.Message{Op: wire.OpRefused, Text: err.Error()}, nil, unix.MSG_DONTWAIT)
			unix.Close(fd)
		}
	}
}

// answer handles the first message of a process that has connected. After an error the caller closes the socket.
func (k *keeper) answer(fd int) error {
	if err := wire.Limit(fd, wire.FirstTime); err != nil {
		return err
	}
	peer, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return err
	}
	if int(peer.Uid) != os.Geteuid() {
		return fmt.Errorf("user %d is not the daemon's", peer.Uid)
	}
	msg, files, err := wire.Receive(fd)
	if err != nil {
		return err
	}
	defer descriptors.Close(files)
	switch msg.Op {
	case wire.OpStop:
		k.mu.Lock()
		defer k.mu.Unlock()
		if k.daemon < 0 {
			k.end()
			return nil
		}
		// The process waits for the end of its connection, which is ours.
		return wire.Send(k.daemon, wire.Message{Op: wire.OpStop}, nil, unix.MSG_DONTWAIT)
	case wire.OpHello:
		if err := trusted(int(peer.Pid)); err != nil {
			return err
		}
		return k.hello(fd, msg, files)
	}
	return fmt.Errorf("no message %q", msg.Op)
}

// hello hands everything over to the next daemon.
func (k *keeper) hello(fd int, msg wire.Message, files []*os.File) error {
	if msg.Protocol < wire.Protocol {
		text := fmt.Sprintf("protocol %d: views run by protocol %d", msg.Protocol, wire.Protocol)
		_ = wire.Send(fd, wire.Message{Op: wire.OpRefused, Older: true, Text: text}, nil, unix.MSG_DONTWAIT)
		unix.Close(fd)
		return nil
	}
	if msg.Oldest > wire.Protocol {
		return fmt.Errorf("the holder's protocol is number %d, the oldest of this daemon %d", wire.Protocol, msg.Oldest)
	}
	if len(files) != 1 {
		return fmt.Errorf("%d descriptors: want that of the lock", len(files))
	}
	lock := int(files[0].Fd())
	if id, err := wire.IDOf(lock); err != nil || id != k.start.Lock {
		return fmt.Errorf("the descriptor is not that of the run directory's lock")
	}
	// It succeeds for the open file description that has the lock. flock(2)
	if err := unix.Flock(lock, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return fmt.Errorf("another daemon has the run directory's lock: %w", err)
	}
	// The kernel closes the descriptors of a process that was killed one after the other: perhaps the lock first.
	select {
	case <-k.present():
	case <-time.After(wire.FirstTime):
		return fmt.Errorf("another daemon is connected")
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.daemon >= 0 || k.over {
		return fmt.Errorf("another daemon is connected")
	}
	for id, i := range k.items {
		out := i.msg
		out.Op, out.ID = wire.OpItem, id
		if err := wire.Send(fd, out, i.files, 0); err != nil {
			return err
		}
	}
	if err := wire.Send(fd, wire.Message{Op: wire.OpItems}, nil, 0); err != nil {
		return err
	}
	if err := wire.Forever(fd); err != nil {
		return err
	}
	k.watching()
	k.daemon, k.lost = fd, make(chan struct{})
	go k.serve(fd)
	return nil
}

// present returns a channel that is closed when the present daemon is gone.
func (k *keeper) present() <-chan struct{} {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.lost
}

// trusted returns an error if others than root and this user may write to the program of a process.
func trusted(pid int) error {
	var st unix.Stat_t
	if err := unix.Stat(fmt.Sprintf("/proc/%d/exe", pid), &st); err != nil {
		return fmt.Errorf("program of process %d: %w", pid, err)
	}
	if owner := int(st.Uid); st.Mode&0o022 != 0 || owner != 0 && owner != os.Geteuid() {
		return fmt.Errorf("others may write to the program of process %d", pid)
	}
	return nil
}
