// Package holder starts the process that outlives a daemon, and is the daemon's side of it. Package serve is the process.
//
// The holder keeps descriptors: for each FUSE connection the one that aborts it, and for a view that may live on also its
// control socket, its pidfd and its standard error. When the daemon is gone, however it ended, the holder aborts at once what
// is only guarded. A view killed together with the daemon may not exit by itself: if one of its threads is in write(2) and waits
// for a directory lock, it keeps /dev/fuse open, and the client that holds the lock waits for the view's response. Neither
// reacts to SIGKILL; only an abort of the connection frees them (Documentation/filesystems/fuse.rst, "Aborting a filesystem
// connection").
//
// What is held lives on for the grace time of scopefs.yaml. Meanwhile the holder has a heartbeat with each view, and
// ends one that is killed, stopped or deadlocked: a client gets an answer or an error within two seconds. Nobody waits for
// process 1 of a sandbox, which has no heartbeat; the next daemon records the end of one that has ended meanwhile. That
// daemon connects to the socket of the run directory, proves that it has the lock of that directory, and receives the
// descriptors. Without a next daemon the holder ends all.
//
// The holder opens no path and decides nothing about views. A daemon whose holder dies starts another one and sends it all
// descriptors again. If both die, the control sockets close, and views exit.
package holder

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/fs/fusemount"
	"github.com/scopefs/scopefs/internal/child"
	"github.com/scopefs/scopefs/internal/descriptors"
	"github.com/scopefs/scopefs/internal/holder/wire"
	"github.com/scopefs/scopefs/internal/paths"
	"github.com/scopefs/scopefs/internal/pidfd"
)

// Options says what a holder does.
type Options struct {
	// Lock is the locked file of the run directory, and Socket the path where the holder listens. Without a socket nothing
	// outlives the daemon.
	Lock   *os.File
	Socket string

	Failed func(error) // called when a process that has died cannot be replaced
	Stop   func()      // called when scopefs daemon --stop requests the daemon's end
}

// ErrOlder is the error of a daemon that is older than what it would take over.
var ErrOlder = errors.New("views of a newer scopefs run: start that version again, or end them with scopefs daemon --stop")

// Holder is the daemon's side of the holder process. It replaces a process that dies.
type Holder struct {
	opt Options

	mu     sync.Mutex
	socket int // -1: there is no process
	kill   func()
	places map[uint64]*Place
	last   uint64
	closed bool
	grace  time.Duration
	done   sync.WaitGroup
}

// Place is one FUSE connection or sandbox that the holder keeps.
type Place struct {
	Kind wire.Kind

	// Meta and Files are those of Hold, in the daemon that takes over. The Place owns the files.
	Meta  json.RawMessage
	Files []*os.File

	h    *Holder
	id   uint64
	conn fusemount.Connection
	own  *os.File // the abort file, if the Place has to close it
	pid  int      // of what is held; 0: it is not
}

// Start connects to the holder of the last daemon, and returns what that holder keeps. Without one it starts a holder. A
// holder that refuses for another reason than ErrOlder is to end what it keeps.
func Start(opt Options) (h *Holder, left []*Place, err error) {
	h = &Holder{opt: opt, socket: -1, places: map[uint64]*Place{}}
	if opt.Socket != "" {
		if left, err = h.takeOver(); err == nil || errors.Is(err, ErrOlder) {
			return h, left, err
		}
		if !errors.Is(err, errNobody) {
			_ = Stop(opt.Socket, endTime)
			if opt.Failed != nil {
				opt.Failed(fmt.Errorf("the views of the last daemon end: %w", err))
			}
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h, nil, h.start()
}

var errNobody = errors.New("no holder is there")

// connect connects to the socket of a holder.
func connect(path string) (fd int, err error) {
	name, release, err := paths.SocketName(path)
	if errors.Is(err, unix.ENOENT) {
		err = errNobody
	}
	if err != nil {
		return -1, err
	}
	defer release()
	if fd, err = unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0); err != nil {
		return -1, err
	}
	if err = wire.Limit(fd, 2*wire.FirstTime); err == nil {
		err = unix.Connect(fd, &unix.SockaddrUnix{Name: name})
	}
	if err != nil {
		unix.Close(fd)
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ECONNREFUSED) {
			err = errNobody
		}
		return -1, err
	}
	return fd, nil
}

// takeOver connects to the holder that the last daemon left.
func (h *Holder) takeOver() (left []*Place, err error) {
	fd, err := connect(h.opt.Socket)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			unix.Close(fd)
			for _, p := range left {
				p.close()
			}
			left, h.places = nil, map[uint64]*Place{}
		}
	}()
	peer, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return nil, err
	}
	if int(peer.Uid) != os.Geteuid() {
		return nil, fmt.Errorf("%s is user %d's", h.opt.Socket, peer.Uid)
	}
	pidfd, err := unix.PidfdOpen(int(peer.Pid), 0)
	if err != nil {
		return nil, err
	}
	hello := wire.Message{Op: wire.OpHello, Protocol: wire.Protocol, Oldest: wire.Oldest}
	if err := wire.Send(fd, hello, []*os.File{h.opt.Lock}, 0); err != nil {
		unix.Close(pidfd)
		return nil, err
	}
	for {
		msg, files, err := wire.Receive(fd)
		switch {
		case err != nil:
		case msg.Op == wire.OpRefused && msg.Older:
			err = ErrOlder
		case msg.Op == wire.OpRefused:
			err = errors.New(msg.Text)
		case msg.Op == wire.OpItem:
			p := &Place{h: h, id: msg.ID, Kind: msg.Kind, Meta: msg.Meta, conn: fusemount.Connection{Dir: msg.Dir}, pid: msg.PID}
			if msg.Abort && len(files) > 0 {
				p.own, files = files[0], files[1:]
				p.conn.File = p.own
			}
			p.Files = files
			h.places[p.id], h.last = p, max(h.last, p.id)
			left = append(left, p)
			continue
		case msg.Op == wire.OpItems:
			if err = wire.Forever(fd); err == nil {
				h.serve(fd, func() { _ = unix.PidfdSendSignal(pidfd, unix.SIGKILL, nil, 0) })
				h.done.Go(func() { unix.Close(pidfd) })
				return left, nil
			}
		}
		if err != nil {
			descriptors.Close(files)
			unix.Close(pidfd)
			return left, err
		}
	}
}

// start starts a process and sends it all places. The caller holds mu.
func (h *Holder) start() error {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	theirs := os.NewFile(uintptr(pair[1]), "holder")
	defer theirs.Close()
	first := wire.Message{Op: wire.OpStart, Socket: h.opt.Socket}
	files := []*os.File{theirs}
	if first.Socket != "" {
		listener, err := bind(first.Socket)
		if err == nil {
			defer listener.Close()
			files = append(files, listener)
			first.Lock, err = wire.IDOf(int(h.opt.Lock.Fd()))
		}
		if err != nil {
			unix.Close(pair[0])
			return fmt.Errorf("holder: %w", err)
		}
	}
	cmd, err := child.Command(child.Holder)
	if err != nil {
		unix.Close(pair[0])
		return fmt.Errorf("holder: %w", err)
	}
	cmd.Env = []string{"GOMAXPROCS=1"}
	cmd.ExtraFiles = files
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		unix.Close(pair[0])
		return fmt.Errorf("start holder process: %w", err)
	}
	go func() { _ = cmd.Wait() }()
	h.serve(pair[0], func() { _ = cmd.Process.Kill() })
	h.send(first, nil)
	for _, p := range h.places {
		p.send()
	}
	if h.grace > 0 {
		h.send(wire.Message{Op: wire.OpSettled, Grace: h.grace}, nil)
	}
	return nil
}

// bind makes the socket of the run directory. Only the daemon's user can connect, once the holder listens.
func bind(path string) (*os.File, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	name, release, err := paths.SocketName(path)
	if err != nil {
		return nil, err
	}
	defer release()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "listener")
	if err = unix.Fchmod(fd, 0o600); err == nil { // the mode of the socket that bind makes: unix(7)
		err = unix.Bind(fd, &unix.SockaddrUnix{Name: name})
	}
	if err == nil {
		err = os.Chmod(path, 0o600)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// serve makes fd the socket of the process, reads its messages, and closes it at the end.
func (h *Holder) serve(fd int, kill func()) {
	h.socket, h.kill = fd, kill
	h.done.Go(func() {
		for {
			msg, files, err := wire.Receive(fd)
			descriptors.Close(files)
			if err != nil {
				break
			}
			if msg.Op == wire.OpStop && h.opt.Stop != nil {
				h.opt.Stop()
			}
		}
		h.mu.Lock()
		defer h.mu.Unlock()
		unix.Close(fd)
		h.socket = -1
		if h.closed {
			return
		}
		if err := h.start(); err != nil && h.opt.Failed != nil {
			h.opt.Failed(fmt.Errorf("%w: should the daemon be killed, programs may wait for their views until it is started again", err))
		}
	})
}

// send sends one message. If the process does not take it, send kills that process; its replacement gets all places. The
// caller holds mu. After Close or Leave it sends nothing: what the process keeps is no more this daemon's.
func (h *Holder) send(msg wire.Message, files []*os.File) {
	if h.socket < 0 || h.closed {
		return
	}
	if err := wire.Send(h.socket, msg, files, unix.MSG_DONTWAIT); err != nil {
		h.kill()
	}
}

// Settled makes what is held live on for grace after the end of this daemon. The daemon calls it when it has taken over
// everything from the last one.
func (h *Holder) Settled(grace time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.grace = grace
	h.send(wire.Message{Op: wire.OpSettled, Grace: grace}, nil)
}

// Keep makes a process that serves no connection outlive the daemon: see Place.Hold.
func (h *Holder) Keep(kind wire.Kind, pid int, meta json.RawMessage, files []*os.File) *Place {
	p := h.place(Place{Kind: kind})
	p.Hold(pid, meta, files)
	return p
}

// Add makes the holder abort c when the daemon exits, until Remove. c must stay open until then.
func (h *Holder) Add(kind wire.Kind, c fusemount.Connection) *Place {
	p := h.place(Place{Kind: kind, conn: c})
	h.mu.Lock()
	defer h.mu.Unlock()
	p.send()
	return p
}

func (h *Holder) place(p Place) *Place {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.last++
	p.h, p.id = h, h.last
	h.places[p.id] = &p
	return &p
}

// Hold makes the connection outlive the daemon, and the process pid that serves it. files begin with PIDFD, and Heart. The next
// daemon receives meta and files. The Place closes the files.
func (p *Place) Hold(pid int, meta json.RawMessage, files []*os.File) {
	p.h.mu.Lock()
	defer p.h.mu.Unlock()
	p.Meta, p.Files, p.pid = meta, files, pid
	if p.h.places[p.id] == p {
		p.send()
	}
}

// send sends the place. The caller holds mu.
func (p *Place) send() {
	msg := wire.Message{Op: wire.OpAdd, ID: p.id, Kind: p.Kind, Dir: p.conn.Dir, Hold: p.pid > 0, PID: p.pid, Meta: p.Meta}
	files := p.Files
	if p.conn.File != nil {
		msg.Abort, files = true, append([]*os.File{p.conn.File}, files...)
	}
	p.h.send(msg, files)
}

// Remove makes the holder forget the connection.
func (p *Place) Remove() {
	p.h.mu.Lock()
	defer p.h.mu.Unlock()
	if p.h.places[p.id] != p {
		return
	}
	delete(p.h.places, p.id)
	p.h.send(wire.Message{Op: wire.OpRemove, ID: p.id}, nil)
	p.close()
}

// Connection returns the connection, as this daemon can abort it.
func (p *Place) Connection() fusemount.Connection { return p.conn }

// Dir returns the mount point of the connection.
func (p *Place) Dir() string { return p.conn.Dir }

// End aborts the connection, kills the process that serves it, and removes the place.
func (p *Place) End() {
	_ = p.conn.Abort()
	if n := p.Kind.Files(); p.pid > 0 && n > 0 && len(p.Files) >= n {
		pidfd.Kill(p.Files[wire.PIDFD])
	}
	p.Remove()
}

func (p *Place) close() {
	descriptors.Close(p.Files)
	if p.own != nil {
		p.own.Close()
	}
}

// endTime bounds the wait for the end of the process.
const endTime = 5 * time.Second

// Close ends everything that is left, and waits for the process.
func (h *Holder) Close() { h.leave(wire.Message{Op: wire.OpEnd}) }

// Leave closes the connection to the process. It keeps what is held for the next daemon.
func (h *Holder) Leave() { h.leave(wire.Message{}) }

func (h *Holder) leave(last wire.Message) {
	h.mu.Lock()
	fd := h.socket
	if last.Op != "" {
		h.send(last, nil)
	} else if fd >= 0 {
		_ = unix.Shutdown(fd, unix.SHUT_RDWR)
	}
	h.closed = true
	h.mu.Unlock()
	ended := make(chan struct{})
	go func() { h.done.Wait(); close(ended) }()
	select {
	case <-ended:
	case <-time.After(endTime):
		h.mu.Lock()
		if h.socket >= 0 {
			h.kill()
		}
		h.mu.Unlock()
		<-ended
	}
}

// Stop has the holder with a socket end everything, and the daemon first if there is one. It returns when the holder is gone.
// Without a holder there is nothing to end.
func Stop(socket string, limit time.Duration) error {
	fd, err := connect(socket)
	if errors.Is(err, errNobody) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := wire.Limit(fd, limit); err != nil {
		return err
	}
	if err := wire.Send(fd, wire.Message{Op: wire.OpStop}, nil, 0); err != nil {
		return err
	}
	msg, files, err := wire.Receive(fd)
	descriptors.Close(files)
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, unix.ECONNRESET):
		return nil
	case err != nil:
		return fmt.Errorf("not ended within %v: %w", limit, err)
	}
	return errors.New(msg.Text)
}
