package view

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/fs/fusemount"
	"github.com/scopefs/scopefs/internal/account"
	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/heart"
	"github.com/scopefs/scopefs/internal/holder"
	holding "github.com/scopefs/scopefs/internal/holder/wire"
	"github.com/scopefs/scopefs/internal/mount"
	"github.com/scopefs/scopefs/internal/peer"
	"github.com/scopefs/scopefs/internal/pidfd"
	"github.com/scopefs/scopefs/internal/view/wire"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/beneath"
	"github.com/scopefs/scopefs/tools/sandbox"
)

// A view lives on when its daemon ends, for Host.Grace: it goes on by its rules, and records what it serves in its spool.
// What needs the daemon waits for the next one: a denial, which is recorded before it is answered, and a change for which
// the history needs the session. The next daemon receives the view's descriptors from the holder, sends it new sockets,
// and its rules before anything else.

// protocol is the number of the messages between a daemon and a view. A daemon takes over views from oldest on: those of the
// last two numbers.
const protocol, oldest = 1, 1

// heldView is what a daemon keeps about a view for the next one.
type heldView struct {
	Protocol int            `json:"protocol"`
	Version  string         `json:"version"` // of the program
	Program  beneath.FileID `json:"program"` // its file
	Agent    scope.ID       `json:"agent"`
	At       string         `json:"at"`
	Hidden   int            `json:"hidden,omitempty"`
	Minor    uint32         `json:"minor"` // of the mount's device number
	PID      int            `json:"pid"`
	Owner    account.User   `json:"owner"`
	Config   wire.Config    `json:"config"` // without rules
	Scope    beneath.FileID `json:"scope"`
	History  beneath.FileID `json:"history,omitzero"`
	Spool    string         `json:"spool,omitempty"` // the file
	Unkept   string         `json:"unkept,omitempty"`
	Late     string         `json:"late,omitempty"`

	Group *sandbox.KeptGroup `json:"group,omitempty"`
}

// left are the views that the last daemon has left.
type left struct {
	mu  sync.Mutex
	all map[scope.ID]*leftView
}

// leftView is one of them.
type leftView struct {
	heldView
	place *holder.Place
}

// Leave keeps what the holder of the last daemon has handed over until Start takes it, or EndLeft ends it. If a view is newer
// than this daemon, Leave keeps nothing, ends nothing and returns holder.ErrOlder.
func (h *Host) Leave(places []*holder.Place) error {
	h.left.mu.Lock()
	defer h.left.mu.Unlock()
	for _, p := range places {
		var was struct{ Protocol int }
		if json.Unmarshal(p.Meta, &was) == nil && was.Protocol > protocol {
			return holder.ErrOlder
		}
	}
	h.left.all = map[scope.ID]*leftView{}
	for _, p := range places {
		l := &leftView{place: p}
		err := json.Unmarshal(p.Meta, &l.heldView)
		switch {
		case err == nil && l.Protocol < oldest:
			err = fmt.Errorf("its protocol is number %d, the oldest of this daemon %d", l.Protocol, oldest)
		case err == nil && (len(p.Files) != l.files() || l.PID <= 1 || h.left.all[l.Agent] != nil):
			err = errors.New("the holder says nonsense")
		}
		if err != nil {
			h.Logger.Warn("a view of the last daemon ends", "agent", l.Agent, "err", err)
			p.End()
			continue
		}
		h.left.all[l.Agent] = l
	}
	return nil
}

// IsLeft reports whether the last daemon has left a view of an agent at a mount point; "" is any.
func (h *Host) IsLeft(id scope.ID, at string) bool {
	h.left.mu.Lock()
	defer h.left.mu.Unlock()
	l := h.left.all[id]
	return l != nil && (at == "" || l.At == at)
}

// claim returns the view that the last daemon has left of an agent at a mount point, once; nil: none.
func (h *Host) claim(id scope.ID, at string) *leftView {
	h.left.mu.Lock()
	defer h.left.mu.Unlock()
	l := h.left.all[id]
	if l == nil || l.At != at {
		return nil
	}
	delete(h.left.all, id)
	return l
}

// end ends the view, and waits until it is gone, for reapTime at most; nil is none.
func (l *leftView) end() {
	if l == nil {
		return
	}
	fd, err := dup(l.place.Files[holding.PIDFD])
	l.place.End()
	if err != nil {
		return
	}
	process := os.NewFile(uintptr(fd), "view")
	defer process.Close()
	select {
	case <-pidfd.Ended(process):
	case <-time.After(reapTime):
	}
}

// locked reports whether the holder has the lock of what the view holds.
func (l *leftView) locked() bool { return l.Config.Hold }

// lock returns the lock of what the view holds. The caller closes it.
func (l *leftView) lock() (beneath.File, error) {
	fd, err := dup(l.place.Files[l.files()-1])
	return beneath.NewFile(fd), err
}

// dup returns another descriptor of a file. File.Fd would make it blocking.
func dup(f *os.File) (fd int, err error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return -1, err
	}
	if failed := raw.Control(func(of uintptr) { fd, err = unix.FcntlInt(of, unix.F_DUPFD_CLOEXEC, 0) }); failed != nil {
		return -1, failed
	}
	return fd, err
}

// EndLeft ends the views that no agent has taken over.
func (h *Host) EndLeft() {
	h.left.mu.Lock()
	all := h.left.all
	h.left.all = nil
	h.left.mu.Unlock()
	for id, l := range all {
		h.Logger.Info("a view of the last daemon ends: no agent has it any more", "agent", id, "at", l.At)
		l.end()
	}
}

// Holdable reports whether the view may live on without this daemon. One of a branch depends on another agent, or on a task.
func (v *View) Holdable() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.host.Grace > 0 && v.def.Branch == "" && !v.byRule && v.at != ""
}

// hold makes the view live on when this daemon ends.
func (v *View) hold(r *running, was heldView) {
	meta, err := json.Marshal(was)
	if err != nil {
		return
	}
	r.place.Hold(r.pid, meta, r.held)
	v.mu.Lock()
	defer v.mu.Unlock()
	v.mayLeave = true
}

// is returns what the holder keeps of a view with a configuration, but for what the process is.
func (v *View) is(cfg wire.Config, root *beneath.Root, history kept, owner account.User) (heldView, error) {
	cfg.Policy, cfg.Lease = scope.PolicySpec{}, 0
	is := heldView{
		Protocol: protocol,
		Version:  v.host.Build,
		Program:  v.host.Program,
		Agent:    v.def.Name,
		At:       v.at,
		Hidden:   v.hidden,
		Owner:    owner,
		Config:   cfg,
		Unkept:   v.Unkept(),
	}
	v.mu.Lock()
	if v.held != nil && v.held.history.Root != nil {
		history = v.held.history
	}
	v.mu.Unlock()
	var err error
	if is.Scope, err = identity(root); err == nil && history.Root != nil {
		is.History, err = identity(history.Root)
	}
	return is, err
}

// same returns why a view that was left is not what this daemon would start.
func (l *leftView) same(is heldView) error {
	if is.Config.Grace == 0 {
		return errors.New("it is to end with its daemon now")
	}
	was := l.heldView
	for _, c := range []*wire.Config{&was.Config, &is.Config} { // auto has become kept
		if c.History != nil {
			h := *c.History
			h.Optional, c.History = false, &h
		}
	}
	was.Protocol, was.Version, was.Program = is.Protocol, is.Version, is.Program
	was.PID, was.Minor, was.Hidden, was.Spool, was.Unkept, was.Late = is.PID, is.Minor, is.Hidden, is.Spool, is.Unkept, is.Late
	was.Group = is.Group
	a, err := json.Marshal(was)
	if err != nil {
		return err
	}
	b, err := json.Marshal(is)
	if err != nil {
		return err
	}
	if string(a) != string(b) {
		return errors.New("more than its rules has changed")
	}
	return nil
}

// mounted returns an error unless the view is what is seen at its mount point.
func (l *leftView) mounted(table *mount.Table) error {
	all, err := table.At(l.At)
	if err != nil {
		return err
	}
	if len(all) == 0 {
		return errors.New("it is not mounted any more")
	}
	top := all[len(all)-1]
	if id, ok := mount.Agent(top); !ok || id != l.Agent || uint32(top.Minor) != l.Minor {
		return fmt.Errorf("%s is mounted at %q", top.Source, l.At)
	}
	return nil
}

// takeOver continues with a view that the last daemon has left. After an error that view has ended.
func (v *View) takeOver(ctx context.Context, l *leftView, root *beneath.Root, history kept, held bool,
	owner account.User) (*running, error) {
	cfg := v.config(history, l.Spool != "")
	cfg.Hold = held
	is, err := v.is(cfg, root, history, owner)
	if err == nil {
		err = l.same(is)
	}
	if err == nil {
		err = l.mounted(&v.host.Mounts)
	}
	if err == nil {
		err = l.counts(v.share.File())
	}
	var p *served
	var theirs []*os.File
	if err == nil {
		p, theirs, err = sockets()
	}
	if err != nil {
		l.end()
		return nil, err
	}
	defer closeFiles(theirs)
	says := &LogWriter{Logger: v.host.Logger.With("agent", string(v.def.Name))}
	if err := p.Adopt(l.PID, l.place.Files, says); err != nil { // cannot happen: see Leave
		p.close()
		l.end()
		return nil, err
	}
	r := newRunning(ctx, v.host.Control.Connection(l.Minor, v.at), l.place)
	r.served, r.wire, r.means = p, wire.New(bounded{p.wire}, wire.MaxFromView), "by "+l.Version
	if l.Program != v.host.Program {
		r.build = l.Version
	}
	v.host.again.Take(v.host.Paths.Audit())
	if l.Spool != "" {
		if r.spool, err = v.takeSpool(l.Spool); err == nil {
			v.spool.Store(r.spool)
		}
	}
	if err == nil {
		err = p.Pass(theirs...)
	}
	if err == nil {
		v.decide(l.Unkept)
		v.setLate(l.Late)
		v.mu.Lock()
		v.hidden, v.mayLeave = l.Hidden, true
		v.wire, v.requests, v.process = r.wire, r.requests, p
		v.mu.Unlock()
		v.of.PrepareLimit(v.def, l.Group)
		r.outOfMemory = v.of.Limit(v.def, r.pid)
		r.listen(v)
		err = v.greet(r)
	}
	if err == nil && held { // the last daemon may have ended while it was frozen
		err = v.freeze(r.alive, r.wire, r.requests, false)
	}
	if err != nil {
		v.mu.Lock()
		v.wire, v.requests, v.process, v.mayLeave = nil, nil, nil, false
		v.mu.Unlock()
		r.end(v)
		return nil, err
	}
	if group := v.of.KeepLimit(v.def); !reflect.DeepEqual(group, l.Group) {
		l.Group = group
		v.hold(r, l.heldView)
	}
	return r, nil
}

// greet sends the rules to a view that was taken over, and whether the log can be written. The view decides by the rules
// before it sends anything. One that does not answer is ended meanwhile.
func (v *View) greet(r *running) error {
	v.ruling.Lock()
	defer v.ruling.Unlock()
	ctx, cancel := context.WithCancel(r.alive)
	defer cancel()
	go func() {
		if err := v.probe(ctx, r.served, r.beats, r.conn, r.requests); err != nil {
			_ = r.conn.Abort()
			r.Kill()
		}
	}()
	if err := v.sendRules(); err != nil {
		return err
	}
	return v.sendLog(r.wire)
}

// takeSpool opens the spool of a view that was left. Its events may be in the log already.
func (v *View) takeSpool(name string) (*spool, error) {
	dir, ok := v.host.spoolDir()
	if !ok || filepath.Dir(name) != dir || !strings.HasPrefix(filepath.Base(name), string(v.def.Name)+".") {
		return nil, fmt.Errorf("%q is no spool of the view", name)
	}
	f, err := os.OpenFile(name, os.O_RDWR|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	v.host.spools.mu.Lock()
	v.host.spools.use(name)
	v.host.spools.mu.Unlock()
	return &spool{host: v.host, agent: v.def.Name, of: v.of, file: f, doubt: true, unread: make(chan struct{}, 1)}, nil
}

// running is a view process that serves its mount.
type running struct {
	*served
	conn     fusemount.Connection
	place    *holder.Place
	spool    *spool // nil: none
	wire     *wire.Conn
	requests *peer.Requests[wire.FromView]
	beats    *heart.Heart

	alive       context.Context         // ends shortly before the view
	dead        context.CancelCauseFunc // ends it
	listened    chan struct{}           // closed when the view's messages are handled; nil: nobody listens
	outOfMemory func() bool
	means       string // for the log: what confines the process
	build       string // if another one than this daemon's
}

func newRunning(ctx context.Context, conn fusemount.Connection, place *holder.Place) *running {
	r := &running{conn: conn, place: place, requests: peer.NewRequests[wire.FromView](wire.MaxRequests),
		outOfMemory: func() bool { return false }}
	r.alive, r.dead = context.WithCancelCause(ctx)
	return r
}

// listen handles the view's messages and heartbeats from now on.
func (r *running) listen(v *View) {
	r.beats = heart.NewHeart(r.heart)
	go r.beats.Serve(v.of.Unlocked)
	r.listened = make(chan struct{})
	go func() {
		defer close(r.listened)
		(&channel{View: v, alive: r.alive, end: r.dead, wire: r.wire, requests: r.requests, spool: r.spool}).listen()
	}()
}

// end ends the process after its connection, and returns how the process ended.
func (r *running) end(v *View) string {
	_ = r.conn.Abort()
	r.dead(nil)
	r.close()
	if r.listened != nil {
		<-r.listened
	}
	how := r.quit()
	if !r.gone() {
		v.mu.Lock()
		v.lingering = append(v.lingering, r.ended)
		v.mu.Unlock()
	}
	if r.said != nil && r.served.gone() { // what it wrote last
		select {
		case <-r.said:
		case <-time.After(reapTime):
		}
	}
	closeFiles(r.held)
	if r.spool != nil {
		r.spool.end(r.gone())
		v.spool.Store(nil)
	}
	r.requests.Close(errors.New("the view has ended"))
	r.conn.Close()
	r.place.Remove()
	return how
}

// leave leaves the process to the next daemon. All that it has sent is answered.
func (r *running) leave(v *View) {
	if r.spool != nil {
		if err := r.spool.drain(); err != nil {
			v.host.Logger.Warn("the next daemon records what is left", "agent", v.def.Name, "err", err)
		}
		r.spool.file.Close()
		v.spool.Store(nil)
	}
	r.requests.Close(errors.New("the daemon ends"))
	r.close()
	r.conn.Close()
}

// Leave leaves the view to the next daemon, and reports whether that is possible. It returns when what the view has sent is
// answered.
func (v *View) Leave() bool {
	v.mu.Lock()
	may := v.mayLeave && v.state == api.Mounted && !v.ending
	if may {
		v.ending, v.leaving = true, true
	}
	v.mu.Unlock()
	if may {
		v.stop()
		<-v.done
	}
	return may
}

// isLeaving reports whether the view is left to the next daemon.
func (v *View) isLeaving() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.leaving
}

// hangUp makes the view send nothing more on these sockets, and the channel's listen return after what was sent.
func (r *running) hangUp() {
	if raw, err := r.served.wire.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { _ = unix.Shutdown(int(fd), unix.SHUT_RD) })
	}
}

// launch starts a view process and mounts it.
func (v *View) launch(ctx context.Context, dirs directories, root *beneath.Root, history kept, held bool,
	owner account.User) (_ *running, err error) {
	dev, err := mount.Open(v.def.Name, owner.UID, owner.GID, v.shared(), v.def.View.Closed)
	if err != nil {
		return nil, err
	}
	defer dev.Close()
	conn := v.host.Control.Connection(dev.Minor(), v.at)
	r := newRunning(ctx, conn, v.host.Holder.Add(holding.View, conn))
	spool, theirs := v.openSpool()
	cfg := v.config(history, spool != nil)
	cfg.Hold = held
	is, err := v.is(cfg, root, history, owner)
	if err == nil {
		r.served, err = v.spawn(dirs, dev.File(), theirs, owner, cfg.Grace > 0)
	}
	if theirs != nil {
		theirs.Close()
	}
	if err != nil {
		if spool != nil {
			spool.end(true)
		}
		r.dead(nil)
		conn.Close()
		r.place.Remove()
		return nil, err
	}
	r.spool, r.wire = spool, wire.New(bounded{r.served.wire}, wire.MaxFromView)
	v.spool.Store(spool)
	defer func() {
		if err != nil {
			r.end(v)
		}
	}()
	var preparing sync.WaitGroup
	defer preparing.Wait()
	preparing.Go(func() { v.of.PrepareLimit(v.def, nil) }) // while the process starts
	means, err := v.handshake(r.served, r.wire, r.requests, cfg)
	if err != nil {
		return nil, err
	}
	r.means = fmt.Sprint(means)
	r.outOfMemory = v.of.Limit(v.def, r.pid)
	if err := mount.Attach(dev, v.def.Name, v.at); err != nil {
		return nil, err
	}
	if cfg.Grace > 0 {
		is.Minor, is.PID, is.Unkept, is.Group = dev.Minor(), r.pid, v.Unkept(), v.of.KeepLimit(v.def)
		v.mu.Lock()
		is.Late = v.late
		v.mu.Unlock()
		if spool != nil {
			is.Spool = spool.file.Name()
		}
		v.hold(r, is)
	}
	r.listen(v)
	return r, nil
}
