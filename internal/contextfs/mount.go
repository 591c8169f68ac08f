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
	"github.com/scopefs/scopefs/internal/heart"
	"github.com/scopefs/scopefs/internal/holder"
	"github.com/scopefs/scopefs/internal/peer"
	"github.com/scopefs/scopefs/internal/view"
	"github.com/scopefs/scopefs/tools/limit"
	"github.com/scopefs/scopefs/tools/sandbox"
)

const (
	readyTime = 10 * time.Second // for the process to confine itself
	writeTime = 10 * time.Second // for the process to read a message: a late look at its heart finds out before
	ownerTime = time.Second      // that Options.Owner may take
	endTime   = time.Second      // for a process to be gone whose connection has ended
	idleTime  = time.Minute      // between beats that no client waits for

	maxAsking = fusedev.MaxRequests // requests of the process that have no answer

	// rate bounds what a compromised process makes the daemon do, in requests a second. An honest one sends no more: two
	// at most for each request of a client, of which package callfs serves 4,000 a second.
	rate = 8000
)

// Options describes the /context of a sandbox.
type Options struct {
	UID, GID uint32 // the agent's user: the process runs as it, and the kernel admits no other
	Root     bool   // the daemon is root: it becomes the user

	// Owner returns the files of the call of this sandbox that a thread works for; nil: none, or not of this sandbox. It
	// runs on several goroutines. The process makes up the number, if it is compromised.
	Owner func(tid uint32) *Files

	// Refused is called for a request for a file of another call, or of one that has ended; see callfs.Options.
	Refused func(tid uint32)

	// Ready is called when the process is confined, with its pid.
	Ready func(pid int)

	// Died is called when the process ends or is killed while the mount is there. It must not call Close.
	Died func(why error)

	// Program calls Main when its argv[0] is Name; "": this program.
	Program string

	Control fusedev.Control
	Holder  *holder.Holder // nil: none
	Logger  *slog.Logger
}

// Mount is a /context and the process that serves it.
type Mount struct {
	// Root is the mount, for move_mount(2). The caller closes it: if the mount is
	// attached nowhere by then, the process ends.
	Root *os.File

	opt     Options
	conn    fusedev.Connection // opened while the mount is there: its number is reused later
	unguard func()
	cmd     *exec.Cmd
	wire    *os.File
	heart   *os.File
	out     *peer.Writer
	closing atomic.Bool

	watching sync.WaitGroup
	ended    chan struct{} // closed when the process is gone and was waited for
	done     chan struct{} // closed when nothing is left of it

	asking chan struct{} // a slot for each request that has no answer

	sending sync.Mutex        // held while files are sent, so that a request that follows finds them there
	ids     map[*Files]uint64 // of the files that the process has
	last    uint64
}

// Open makes a mount that is attached nowhere, and starts the process that serves it. It does not wait for the process: a
// client's first request does. It needs CAP_SYS_ADMIN in its user namespace. The caller closes the mount.
func Open(opt Options) (*Mount, error) {
	dev, err := fusedev.Open(callfs.MountOptions(opt.UID, opt.GID))
	if err != nil {
		return nil, err
	}
	defer dev.Close()
	m := &Mount{
		opt: opt, conn: opt.Control.Connection(dev.Minor(), ""), unguard: func() {},
		ended: make(chan struct{}), done: make(chan struct{}), asking: make(chan struct{}, maxAsking), ids: map[*Files]uint64{},
	}
	if opt.Holder != nil {
		m.unguard = opt.Holder.Add(m.conn).Remove
	}
	if err := m.start(dev.File()); err != nil {
		m.unguard()
		m.conn.Close()
		return nil, err
	}
	m.Root = dev.Mount()
	go m.run()
	return m, nil
}

// start starts the process.
func (m *Mount) start(fuse *os.File) error {
	defer fuse.Close() // the daemon has none: a second one would keep the clients of a dead process waiting
	wire, theirWire, err := view.SocketPair("context")
	if err != nil {
		return err
	}
	defer theirWire.Close()
	_ = unix.SetNonblock(int(theirWire.Fd()), false)
	beats, theirBeats, err := view.SocketPair("heart")
	if err != nil {
		wire.Close()
		return err
	}
	defer theirBeats.Close()
	cmd := exec.Command(cmp.Or(m.opt.Program, "/proc/self/exe"))
	cmd.Args, cmd.Dir, cmd.ExtraFiles = []string{Name}, "/", []*os.File{fuse, theirWire, theirBeats}
	// With one, a goroutine that waits in a system call would keep the others waiting: see server.ask.
	cmd.Env = []string{"GOMAXPROCS=2"}
	cmd.Stderr = &view.LogWriter{Logger: m.opt.Logger.With("process", Name)}
	cmd.WaitDelay = endTime
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Setsid:     true, // the terminal's signals are the daemon's
		Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS | unix.CLONE_NEWPID,
	}
	if m.opt.Root {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: m.opt.UID, Gid: m.opt.GID}
	}
	if err := cmd.Start(); err != nil {
		wire.Close()
		beats.Close()
		return fmt.Errorf("start the process of /context: %w", err)
	}
	m.cmd, m.wire, m.heart, m.out = cmd, wire, beats, peer.NewWriter(wire, maxToServer, writeTime)
	go func() {
		defer close(m.ended)
		_ = cmd.Wait()
	}()
	return nil
}

// PID returns the id of the process.
func (m *Mount) PID() int { return m.cmd.Process.Pid }

// Close aborts the connection and ends the process. Clients get ENOTCONN.
func (m *Mount) Close() error {
	m.closing.Store(true)
	err := m.conn.Abort()
	_ = m.cmd.Process.Kill() // without fusectl this is what ends the connection
	m.Root.Close()
	<-m.done
	return err
}

// run serves the process until it ends, and then leaves nothing of it.
func (m *Mount) run() {
	defer close(m.done)
	alive, dead := context.WithCancelCause(context.Background())
	err := m.listen(alive, dead)
	if cause := context.Cause(alive); cause != nil {
		err = cause
	}
	dead(nil)
	m.watching.Wait()
	_ = m.conn.Abort()
	if !errors.Is(err, io.EOF) {
		_ = m.cmd.Process.Kill()
	}
	ended := m.wait()
	m.unguard()
	m.conn.Close()
	m.heart.Close()
	m.wire.Close()
	if m.closing.Load() || errors.Is(err, io.EOF) && ended == "exit status 0" { // its mount is gone
		return
	}
	m.opt.Died(fmt.Errorf("process of /context ended: %w: %s", err, ended))
}

// wait ends the process and returns how it has ended.
func (m *Mount) wait() string {
	for range 2 {
		select {
		case <-m.ended:
			return m.cmd.ProcessState.String()
		case <-time.After(endTime):
			_ = m.cmd.Process.Kill()
		}
	}
	return "it was killed and is not gone yet"
}

// listen handles the messages of the process until the connection ends.
func (m *Mount) listen(alive context.Context, dead context.CancelCauseFunc) error {
	in := peer.NewReader(m.wire, maxFromServer)
	if err := send(m.out, toServer{Config: &config{m.opt.UID, m.opt.GID}}, nil); err != nil {
		return err
	}
	_ = m.wire.SetReadDeadline(time.Now().Add(readyTime))
	var first fromServer
	if _, err := receive(in, &first); err != nil {
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
	process := heart.Process{PID: m.PID(), Ended: m.ended}
	m.watching.Go(func() {
		if err := heart.Watch(alive, process, heart.NewHeart(m.heart), m.busy, func() time.Duration { return idleTime }); err != nil {
			dead(err)
			_ = m.conn.Abort() // before anybody waits for the process
			m.wire.Close()
		}
	})
	pace := limit.NewPace(rate, rate, nil)
	for {
		var msg fromServer
		if _, err := receive(in, &msg); err != nil {
			return err
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
			m.reply(toServer{ID: msg.ID, Late: true}, nil) // Owner hangs for all of them
		}
	}
}

// busy reports whether a client may wait for the process.
func (m *Mount) busy() bool {
	waiting, err := m.conn.Waiting()
	return err != nil || waiting > 0
}

// answer answers a request within ownerTime, whatever Owner does. It takes a slot of asking until Owner has returned and the
// process has read the answer.
func (m *Mount) answer(msg fromServer) {
	defer func() { <-m.asking }()
	found := make(chan *Files, 1)
	go func() {
		if msg.Refused {
			m.opt.Refused(msg.TID)
			found <- nil
			return
		}
		found <- m.opt.Owner(msg.TID)
	}()
	select {
	case f := <-found:
		m.give(msg.ID, f)
	case <-time.After(ownerTime):
		m.reply(toServer{ID: msg.ID, Late: true}, nil)
		<-found
	}
}

// give answers a request with files, and sends the files if the process does not have them.
func (m *Mount) give(id uint64, f *Files) {
	if f == nil {
		m.reply(toServer{ID: id}, nil)
		return
	}
	m.sending.Lock()
	defer m.sending.Unlock()
	msg, content := toServer{ID: id, Files: m.ids[f]}, []byte(nil)
	if msg.Files == 0 && f.hold(m) {
		m.last++
		m.ids[f], msg.Files = m.last, m.last
		msg.New, content = f.message()
	}
	m.reply(msg, content)
}

// drop makes the process drop files.
func (m *Mount) drop(f *Files) {
	m.sending.Lock()
	defer m.sending.Unlock()
	m.reply(toServer{Drop: m.ids[f]}, nil)
	delete(m.ids, f)
}

// reply sends a message. A process that does not read it is ended: run finds the connection closed.
func (m *Mount) reply(msg toServer, content []byte) {
	if err := send(m.out, msg, content); err != nil {
		m.wire.Close()
	}
}
