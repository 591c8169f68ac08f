// Package contextfs is the daemon's end of the /context of one sandbox. Package serve is the process that serves it, and package
// wire has their messages.
//
// The process parses the FUSE requests of an agent's processes. It runs as the agent's user, and confines itself before it
// reads the first one: it has a few descriptors and no other file, no network, no capability. For each request it asks the
// daemon whose thread has sent it. The daemon answers with the files of a call of this sandbox, or with none; it sends their
// content the first time. When the call ends, the process drops them.
//
// A process that dies or does not answer is not replaced: its sandbox has no /context from then on, and a client gets an
// error within seconds. Only a client that returns to the next daemon gets another one.
//
// The process outlives the daemon as the view of its sandbox does, by the holder: see package view. Each request then waits for the
// next daemon, and fails with EIO after reconnect.GapTime. That daemon says first which calls go on. Their files stay, so that
// descriptors stay valid, and are used when the daemon has sent their content again.
package contextfs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/fs/callfs"
	"github.com/scopefs/scopefs/fs/fusedev"
	"github.com/scopefs/scopefs/fs/fusemount"
	"github.com/scopefs/scopefs/internal/child"
	"github.com/scopefs/scopefs/internal/contextfs/wire"
	"github.com/scopefs/scopefs/internal/descriptors"
	"github.com/scopefs/scopefs/internal/heart"
	"github.com/scopefs/scopefs/internal/holder"
	holding "github.com/scopefs/scopefs/internal/holder/wire"
	"github.com/scopefs/scopefs/internal/liveness"
	"github.com/scopefs/scopefs/internal/peer"
	"github.com/scopefs/scopefs/internal/view"
	"github.com/scopefs/scopefs/tools/limit"
	"github.com/scopefs/scopefs/tools/sandbox"
)

const (
	readyTime = 10 * time.Second // for the process to confine itself
	writeTime = 10 * time.Second // for the process to read a message: a late look at its heart finds out before
	ownerTime = time.Second      // that the owner of Answer may take
	endTime   = time.Second      // for a process to be gone whose connection has ended

	maxAsking = fusedev.MaxRequests // requests of the process that have no answer

	// rate bounds what a compromised process makes the daemon do, in requests a second. An honest one sends no more: two
	// at most for each request of a client, of which package callfs serves 4,000 a second.
	rate = 8000
)

// Options describes the /context of a sandbox.
type Options struct {
	UID, GID uint32 // the agent's user: the process runs as it, and the kernel admits no other
	Root     bool   // the daemon is root: it becomes the user

	// Refused is called for a request for a file of another call, or of one that has ended; see callfs.Options.
	Refused func(tid uint32)

	// Ready is called when the process is confined, with its pid.
	Ready func(pid int)

	// Gone is called when Refused is called no more. Nil: nothing is.
	Gone func()

	// Died is called when the process ends or is killed while the mount is there, with the sandbox of Show; nil: none. It must
	// not call Close.
	Died func(s *sandbox.Session, why error)

	Program string // for tests; "": that of child.Context

	Control fusemount.Control
	Watcher *liveness.Watcher // nil: one for this process alone
	Holder  *holder.Holder    // nil: none
	Grace   time.Duration     // how long it may live on without the daemon: see Mount.Keep; 0: it ends with the daemon
	Logger  *slog.Logger
}

// Mount is a /context and the process that serves it. The methods that a sandbox needs do nothing with nil.
type Mount struct {
	// Root is the mount, for move_mount(2). The caller closes it: if the mount is
	// attached nowhere by then, the process ends.
	Root *os.File

	opt     Options
	minor   uint32               // of its device number
	conn    fusemount.Connection // opened while the mount is there: its number is reused later
	place   *holder.Place        // nil: none
	process view.Process
	config  wire.Config
	started bool // by this daemon
	wire    *os.File
	heart   *os.File
	out     *peer.Writer
	closing atomic.Bool
	leaving atomic.Bool

	sandbox atomic.Pointer[sandbox.Session] // see Show

	owner atomic.Pointer[func(tid uint32) *Files] // see Answer
	known chan struct{}                           // closed when owner is set, or the mount ends
	know  func()                                  // closes known

	watching sync.WaitGroup
	done     chan struct{} // closed when nothing is left of it, or it is left to the next daemon

	asking chan struct{} // a slot for each request that has no answer

	sending sync.Mutex          // held while files are sent, so that a request that follows finds them there
	has     map[*Files]struct{} // what the process has
}

// Open makes a mount that is attached nowhere, and starts the process that serves it. It does not wait for the process: a
// client's first request does. It needs CAP_SYS_ADMIN in its user namespace. The caller closes the mount.
func Open(opt Options) (*Mount, error) {
	dev, err := fusemount.Open(callfs.MountOptions(opt.UID, opt.GID))
	if err != nil {
		return nil, err
	}
	defer dev.Close()
	m := newMount(opt, dev.Minor())
	if opt.Holder != nil {
		m.place = opt.Holder.Add(holding.Context, m.conn)
	}
	m.started = true
	if err := m.start(dev.File()); err != nil {
		m.remove()
		return nil, err
	}
	m.Root = dev.Mount()
	go m.run()
	return m, nil
}

func newMount(opt Options, minor uint32) *Mount {
	known := make(chan struct{})
	return &Mount{
		known: known, know: sync.OnceFunc(func() { close(known) }),
		opt: opt, minor: minor, conn: opt.Control.Connection(minor, ""), config: wire.Config{UID: opt.UID, GID: opt.GID, Grace: opt.Grace},
		done: make(chan struct{}), asking: make(chan struct{}, maxAsking), has: map[*Files]struct{}{},
	}
}

// start starts the process.
func (m *Mount) start(fuse *os.File) error {
	defer fuse.Close() // the daemon has none: a second one would keep the clients of a dead process waiting
	theirs, err := m.sockets()
	if err != nil {
		return err
	}
	defer closeFiles(theirs)
	cmd := exec.Command(m.opt.Program)
	if m.opt.Program == "" {
		if cmd, err = child.Command(child.Context); err != nil {
			return err
		}
	}
	cmd.ExtraFiles = append([]*os.File{fuse}, theirs...)
	// With one, a goroutine that waits in a system call would keep the others waiting: see server.askOf.
	cmd.Env = []string{"GOMAXPROCS=2"}
	cmd.WaitDelay = endTime
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Setsid:     true, // the terminal's signals are the daemon's
		Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS | unix.CLONE_NEWPID,
	}
	if m.opt.Root {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: m.opt.UID, Gid: m.opt.GID}
	}
	if m.opt.Grace > 0 {
		kept, err := m.process.Hold(cmd)
		if err != nil {
			return err
		}
		defer closeFiles(kept)
	}
	if err := m.process.Start(cmd, m.says()); err != nil {
		return fmt.Errorf("start the process of /context: %w", err)
	}
	return nil
}

// sockets makes the wire and the heart, and returns the process's ends.
func (m *Mount) sockets() (theirs []*os.File, err error) {
	theirs = make([]*os.File, 2)
	if m.wire, theirs[0], err = descriptors.Pair(unix.SOCK_STREAM); err == nil {
		m.heart, theirs[1], err = descriptors.Pair(unix.SOCK_STREAM)
	}
	if err != nil {
		closeFiles(theirs)
		return nil, err
	}
	_ = unix.SetNonblock(int(theirs[0].Fd()), false) // see server.askOf
	m.out = peer.NewWriter(m.wire, wire.MaxToServer, writeTime)
	return theirs, nil
}

func (m *Mount) says() *view.LogWriter {
	return &view.LogWriter{Logger: m.opt.Logger.With("process", child.Context)}
}

func closeFiles(files []*os.File) {
	for _, f := range files {
		f.Close() // of nil is an error and no more
	}
}

// remove closes all that the daemon has of the process.
func (m *Mount) remove() {
	closeFiles(append([]*os.File{m.wire, m.heart}, m.process.Held()...))
	if m.place != nil {
		m.place.Remove()
	}
	m.conn.Close()
}

// PID returns the id of the process.
func (m *Mount) PID() int { return m.process.PID() }

// Answer makes the process answer requests, once: owner returns the files of the call of this sandbox that a thread works for; nil:
// none, or not of this sandbox. It runs on several goroutines. A compromised process makes up the number. Requests wait for
// Answer, and fail with EIO.
func (m *Mount) Answer(owner func(tid uint32) *Files) {
	m.owner.Store(&owner)
	m.know()
}

// Show makes the mount answer for a sandbox that has started on it, or that a client has: a process sees the files of its command's
// tag, and none in another sandbox.
func (m *Mount) Show(s *sandbox.Session, of func(tag string) *Files) {
	if m == nil {
		return
	}
	m.Root.Close() // the sandbox holds the mount
	m.sandbox.Store(s)
	m.Answer(func(tid uint32) *Files {
		if tag, _, ours := s.TagOf(int(tid)); ours {
			return of(tag)
		}
		return nil
	})
}

// Close aborts the connection and ends the process. Clients get ENOTCONN.
func (m *Mount) Close() {
	if m == nil {
		return
	}
	m.closing.Store(true)
	_ = m.conn.Abort()
	m.process.Kill() // without fusectl this is what ends the connection
	m.Root.Close()
	<-m.done
	if m.leaving.Load() {
		m.remove()
	}
	m.gone()
}

// Ended reports whether no process serves the mount any more. There is none for nil.
func (m *Mount) Ended() bool {
	if m == nil {
		return true
	}
	select {
	case <-m.done:
		return true
	default:
		return false
	}
}

func (m *Mount) gone() {
	if m.opt.Gone != nil {
		m.opt.Gone()
	}
}

// run serves the process until it ends, and then leaves nothing of it.
func (m *Mount) run() {
	defer close(m.done)
	defer m.know()
	alive, dead := context.WithCancelCause(context.Background())
	err := m.listen(alive, dead)
	if cause := context.Cause(alive); cause != nil {
		err = cause
	}
	dead(nil)
	m.watching.Wait()
	if m.leaving.Load() {
		m.wire.Close()
		m.heart.Close()
		return
	}
	_ = m.conn.Abort()
	if errors.Is(err, io.EOF) || errors.Is(err, errOver) { // it ends
		select {
		case <-m.process.Ended():
		case <-time.After(endTime):
		}
	}
	m.process.Kill()
	ended := m.process.How()
	m.remove()
	if !m.closing.Load() && !errors.Is(err, errOver) {
		m.opt.Died(m.sandbox.Load(), fmt.Errorf("process of /context ended: %w: %s", err, ended))
	}
}

// errOver is the end of a mount that is attached nowhere any more.
var errOver = errors.New("its mount is gone")

// listen handles the messages of the process until the connection ends.
func (m *Mount) listen(alive context.Context, dead context.CancelCauseFunc) error {
	in := peer.NewReader(m.wire, wire.MaxFromServer)
	if err := wire.Send(m.out, wire.ToServer{Config: &m.config}, nil); err != nil {
		return err
	}
	if m.started {
		if err := m.ready(in); err != nil {
			return err
		}
	}
	process := liveness.Process{PID: m.PID(), Ended: m.process.Ended()}
	m.watching.Go(func() {
		if err := cmp.Or(m.opt.Watcher, new(liveness.Watcher)).Watch(alive, process, heart.NewHeart(m.heart), m.busy); err != nil {
			dead(err)
			_ = m.conn.Abort() // before anybody waits for the process
			m.wire.Close()
		}
	})
	pace := limit.NewPace(rate, rate, nil)
	for {
		var msg wire.FromServer
		if _, err := wire.Receive(in, &msg); err != nil {
			return err
		}
		if msg.Over {
			return errOver
		}
		if msg.ID == 0 {
			return errors.New("it sent a message that is no request")
		}
		if err := pace.Wait(alive, nil, 1); err != nil {
			return err
		}
		select {
		case m.asking <- struct{}{}:
			go m.answer(msg)
		default:
			m.reply(wire.ToServer{ID: msg.ID, Late: true}, nil) // owner hangs for all of them
		}
	}
}

// ready waits until the process has confined itself.
func (m *Mount) ready(in *peer.Reader) error {
	_ = m.wire.SetReadDeadline(time.Now().Add(readyTime))
	var first wire.FromServer
	if _, err := wire.Receive(in, &first); err != nil {
		return err
	}
	if first.Failed != "" || len(first.Ready) == 0 {
		return fmt.Errorf("it refuses to serve: %s", first.Failed)
	}
	_ = m.wire.SetReadDeadline(time.Time{})
	if err := sandbox.Expendable(m.PID()); err != nil {
		m.opt.Logger.Warn("the process of /context is spared when memory runs out", "err", err)
	}
	m.opt.Ready(m.PID())
	return nil
}

// busy reports whether a client may wait for the process.
func (m *Mount) busy() bool {
	waiting, err := m.conn.Waiting()
	return err != nil || waiting > 0
}

// answer answers a request within ownerTime, whatever owner does. It takes a slot of asking until owner has returned and the
// process has read the answer.
func (m *Mount) answer(msg wire.FromServer) {
	defer func() { <-m.asking }()
	found := make(chan *Files, 1)
	go func() {
		if msg.Refused {
			m.opt.Refused(msg.TID)
			found <- nil
			return
		}
		<-m.known
		owner := m.owner.Load()
		if owner == nil {
			found <- nil
			return
		}
		found <- (*owner)(msg.TID)
	}()
	select {
	case f := <-found:
		m.give(msg.ID, f)
	case <-time.After(ownerTime):
		m.reply(wire.ToServer{ID: msg.ID, Late: true}, nil)
		<-found
	}
}

// give answers a request with files, and sends the files if the process does not have them.
func (m *Mount) give(id uint64, f *Files) {
	if f == nil {
		m.reply(wire.ToServer{ID: id}, nil)
		return
	}
	m.sending.Lock()
	defer m.sending.Unlock()
	msg, content := wire.ToServer{ID: id}, []byte(nil)
	if _, has := m.has[f]; has {
		msg.Files = f.call
	} else if f.hold(m) {
		m.has[f], msg.Files = struct{}{}, f.call
		msg.New, content = f.message()
	}
	m.reply(msg, content)
}

// drop makes the process drop files.
func (m *Mount) drop(f *Files) {
	m.sending.Lock()
	defer m.sending.Unlock()
	m.reply(wire.ToServer{Drop: f.call}, nil)
	delete(m.has, f)
}

// reply sends a message. A process that does not read it is ended: run finds the connection closed.
func (m *Mount) reply(msg wire.ToServer, content []byte) {
	if err := wire.Send(m.out, msg, content); err != nil {
		m.wire.Close()
	}
}
