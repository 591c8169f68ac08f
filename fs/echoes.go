package fs

import (
	"crypto/rand"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/fs/echo"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/beneath"
)

// Echoer sends requests to the processes in sandboxes that repeat what the host has changed: see package echo.
type Echoer interface {
	// Echo returns the replies by sandbox; to is one of these, "" is all. It takes a bounded time, and returns when cancel is closed.
	Echo(to string, r echo.Request, cancel <-chan struct{}) (map[string]echo.Reply, error)
}

// echoes makes inotify(7) in sandboxes report what the host changes. It is the layer between the kernel and a View: requests of a
// thread that repeats a change do not reach the View. The answers are true or, where the kernel must see a name come or go, valid for no
// time: another process's lookup of the name is a request of its own. The thread holds the directory's lock meanwhile.
type echoes struct {
	fuse.RawFileSystem
	view   *View
	echoer Echoer

	mu      sync.Mutex
	pending map[nameIn]hostChange
	whole   bool // more has changed than pending has
	wake    chan struct{}

	active  atomic.Bool // batches or stuck is not empty
	lock    sync.RWMutex
	batches []*batch
	stuck   map[uint32]bool // threads of batches that were not answered: each may be anywhere in its batch
}

// hostChange is what the host has done about a name since the last look.
type hostChange struct {
	names bool // it was created, removed or moved
	dir   bool // it was a directory
}

// batch is a request under way.
type batch struct {
	token  string
	thread uint32 // 0: it has not looked up the token
	acts   map[nameAt]*actNow
}

// nameAt is a name as the kernel asks for it.
type nameAt struct {
	dir  uint64
	name string
}

// actNow is what is left of an Act. echoes.lock guards it.
type actNow struct {
	remove *node // the object that the name has until the thread removes it; nil: nothing is to be removed
	create bool
}

const (
	maxPending = 1 << 14
	lookPause  = 200 * time.Millisecond // between two looks for watches
	quietPause = time.Second            // likewise, when the last one has found none
)

func (e *echoes) init(v *View, by Echoer) {
	e.view, e.echoer, e.wake = v, by, make(chan struct{}, 1)
	e.pending, e.stuck = map[nameIn]hostChange{}, map[uint32]bool{}
}

// around returns what serves the kernel's requests.
func (e *echoes) around(below fuse.RawFileSystem) fuse.RawFileSystem {
	if e.echoer == nil {
		return below
	}
	e.RawFileSystem = below
	return e
}

// note records a change by the host; name "": any number of unknown ones.
func (e *echoes) note(dir *node, name string, c hostChange) {
	if e.echoer == nil {
		return
	}
	e.mu.Lock()
	if at := (nameIn{dir, name}); name == "" || len(e.pending) >= maxPending {
		e.whole = true
	} else {
		was := e.pending[at]
		e.pending[at] = hostChange{was.names || c.names, was.dir || c.dir}
	}
	e.mu.Unlock()
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// follow watches a directory that a client has looked up: inotify_add_watch(2) needs no other request.
func (e *echoes) follow(dir *node) {
	if e.echoer == nil || dir == nil || dir.watched.Load() != 0 {
		return
	}
	p := place{node: dir}
	if e.view.openDir(&p) == nil {
		e.view.follow(dir, p.dir)
		p.dir.Close()
	}
}

// run repeats changes until the view ends.
func (e *echoes) run() {
	for {
		select {
		case <-e.wake:
		case <-e.view.ended:
			return
		}
		began := time.Now()
		pause := max(e.repeat(), 20*time.Since(began)) // a twentieth of a processor
		select {
		case <-time.After(min(pause, quietPause)):
		case <-e.view.ended:
			return
		}
	}
}

// repeat repeats what has changed, and returns the pause before the next look.
func (e *echoes) repeat() (pause time.Duration) {
	e.mu.Lock()
	pending, whole := e.pending, e.whole
	e.pending, e.whole = map[nameIn]hostChange{}, false
	e.mu.Unlock()
	seen, err := e.echoer.Echo("", echo.Request{}, e.view.ended)
	if err != nil {
		return quietPause
	}
	var watched watchedSet
	box := ""
	for from, r := range seen {
		if len(r.Watched) > 0 || r.All {
			box = from // an event reaches the watchers of all sandboxes
			watched.add(r)
		}
	}
	if box == "" {
		return quietPause
	}
	for _, dir := range e.view.nodes.directories() {
		if watched.has(e.view.shown(dir)) {
			e.follow(dir) // a listing had shown it to the kernel
		}
	}
	left := e.plan(pending, whole, &watched)
	for len(left) > 0 {
		began := time.Now()
		n := batchOf(left)
		if !e.send(box, left[:n]) {
			for _, p := range left { // once more does no harm
				e.note(p.dir, string(p.Name), hostChange{names: p.Remove != 0 || p.Create != 0, dir: p.IsDir})
			}
			return quietPause
		}
		left = left[n:]
		select {
		case <-time.After(time.Since(began)): // half of a processor
		case <-e.view.ended:
			return 0
		}
	}
	return lookPause
}

// watchedSet are inode numbers that clients see.
type watchedSet struct {
	all    bool
	inodes map[uint64]bool
}

func (w *watchedSet) add(r echo.Reply) {
	w.all = w.all || r.All
	if w.inodes == nil {
		w.inodes = map[uint64]bool{}
	}
	for _, n := range r.Inodes() {
		w.inodes[n] = true
	}
}

func (w *watchedSet) has(inode uint64) bool { return w.all || w.inodes[inode] }

// shown returns the inode number that clients see of a node.
func (v *View) shown(n *node) uint64 {
	if v.hold == nil || n.dir {
		return n.ident().Ino
	}
	return v.hold.Number(n.ident().Ino, n.ident().Birth)
}

// planned is an Act, and what the view needs to answer it.
type planned struct {
	echo.Act
	dir *node
	old *node // of Remove
}

// plan returns what is to be repeated, each directory's together.
func (e *echoes) plan(pending map[nameIn]hostChange, whole bool, watched *watchedSet) (all []planned) {
	files := e.view.nodes.filesOf(func(n *node) bool { return watched.has(e.view.shown(n)) })
	if whole {
		for _, dir := range e.view.nodes.directories() {
			rel, ok := e.view.nodes.newest(dir)
			if ok && watched.has(e.view.shown(dir)) && len(rel) <= echo.MaxDir && e.view.policy.Load().File(scope.OpLookup, rel).Allow {
				all = append(all, planned{Act: echo.Act{Dir: []byte(rel)}, dir: dir})
			}
		}
		for at := range files {
			pending[at] = hostChange{names: true}
		}
	}
	for at, c := range pending {
		if p, ok := e.planOne(at, c, files[at], watched); ok {
			all = append(all, p)
		}
	}
	slices.SortStableFunc(all, func(a, b planned) int { return int(a.dir.id) - int(b.dir.id) })
	return all
}

// planOne plans for one name. was is the watched file that had the name.
func (e *echoes) planOne(at nameIn, c hostChange, was *node, watched *watchedSet) (p planned, ok bool) {
	v := e.view
	here := place{node: at.parent, name: at.name}
	if v.openDir(&here) != nil {
		return p, false
	}
	defer here.dir.Close()
	v.follow(here.node, here.dir)
	if d := v.policy.Load().File(scope.OpLookup, here.path()); !d.Allow || len(here.base) > echo.MaxDir || v.stages.covers(at) {
		return p, false
	}
	st, err := v.statAt(&here, at.name)
	exists, inDir := err == nil, watched.has(v.shown(at.parent))
	if was != nil && exists && st.ID() == was.ident() {
		if !inDir {
			c.names = false
		}
		was = nil
	}
	p = planned{Act: echo.Act{Dir: []byte(here.base), Name: []byte(at.name)}, dir: at.parent}
	regular := exists && st.IsRegular()
	if c.names {
		if was != nil || inDir && !exists {
			p.old, p.IsDir = was, was == nil && c.dir
			if was == nil {
				p.old = v.nodes.stranger(p.IsDir)
			}
			p.Remove = v.shown(p.old)
		}
		if kind := st.Type(); exists && inDir && kind != unix.S_IFCHR && kind != unix.S_IFBLK {
			p.Create = kind
		}
	}
	p.Modify = regular && (inDir || watched.has(v.number(&st)))
	return p, p.Remove != 0 || p.Create != 0 || p.Modify
}

// batchOf returns how many of some acts fit into a request.
func batchOf(all []planned) (n int) {
	for size := 0; n < len(all) && n < echo.MaxActs; n++ {
		if size += len(all[n].Dir) + len(all[n].Name); size > echo.MaxPaths {
			break
		}
	}
	return n
}

// send has some acts done by a sandbox, and reports whether the view can go on.
func (e *echoes) send(box string, acts []planned) bool {
	b := &batch{token: rand.Text(), acts: map[nameAt]*actNow{}}
	r := echo.Request{Token: b.token}
	for _, p := range acts {
		r.Acts = append(r.Acts, p.Act)
		if len(p.Name) > 0 {
			b.acts[nameAt{p.dir.id, string(p.Name)}] = &actNow{p.old, p.Create != 0}
		}
		if p.Remove != 0 { // a name that the kernel has would be removed without a question
			e.view.conn.InvalidateEntry(p.dir.id, string(p.Name), false)
		}
	}
	e.lock.Lock()
	e.batches = append(e.batches, b)
	e.active.Store(true)
	e.lock.Unlock()
	replies, err := e.echoer.Echo(box, r, e.view.ended)
	e.lock.Lock()
	defer e.lock.Unlock()
	e.batches = slices.DeleteFunc(e.batches, func(o *batch) bool { return o == b })
	if err != nil && b.thread != 0 { // the kernel may give the id of a thread that is no more to any other
		e.stuck[b.thread] = true
	}
	e.active.Store(len(e.batches)+len(e.stuck) > 0)
	return err == nil && !replies[box].Ended
}

// of returns the batch that a thread does; nil: none. The caller holds lock.
func (e *echoes) of(thread uint32) *batch {
	for _, b := range e.batches {
		if b.thread == thread && thread != 0 {
			return b
		}
	}
	return nil
}

// looks reports whether an operation is a look of a thread that repeats changes: these are not recorded. What else it does, and what a
// thread does that has its id by now, is.
func (e *echoes) looks(op scope.Op, thread uint32) bool {
	if !e.active.Load() || op != scope.OpLookup && op != scope.OpStat {
		return false
	}
	e.lock.RLock()
	defer e.lock.RUnlock()
	return e.of(thread) != nil
}

// expected answers the step of a thread's act that take ends. ours is false for a thread that does no batch.
func (e *echoes) expected(head *fuse.InHeader, name string, take func(*actNow) bool) (code fuse.Status, ours bool) {
	if !e.active.Load() {
		return fuse.OK, false
	}
	e.lock.Lock()
	defer e.lock.Unlock()
	b := e.of(head.Pid)
	switch {
	case e.stuck[head.Pid]:
		return fuse.EINTR, true
	case b == nil:
		return fuse.OK, false
	}
	if act := b.acts[nameAt{head.NodeId, name}]; act == nil || !take(act) {
		return fuse.EINTR, true
	}
	return fuse.OK, true
}

// Lookup answers what the thread needs to see of a name that it repeats.
func (e *echoes) Lookup(cancel <-chan struct{}, head *fuse.InHeader, name string, out *fuse.EntryOut) fuse.Status {
	if e.active.Load() && e.look(head, name, out) {
		return fuse.OK
	}
	return e.RawFileSystem.Lookup(cancel, head, name, out)
}

func (e *echoes) look(head *fuse.InHeader, name string, out *fuse.EntryOut) bool {
	e.lock.Lock()
	if i := slices.IndexFunc(e.batches, func(b *batch) bool { return b.token == name }); i >= 0 && head.Pid != 0 &&
		head.NodeId == fuse.FUSE_ROOT_ID {
		e.batches[i].thread = head.Pid
		delete(e.stuck, head.Pid) // that thread is no more: another one has its id
		e.lock.Unlock()
		e.fill(head, e.view.nodes.stranger(false), out)
		return true
	}
	var act actNow
	if b := e.of(head.Pid); b != nil && b.acts[nameAt{head.NodeId, name}] != nil {
		act = *b.acts[nameAt{head.NodeId, name}]
	}
	e.lock.Unlock()
	switch {
	case act.remove != nil:
		e.fill(head, act.remove, out)
	case act.create: // node 0, valid for no time
	default:
		return false
	}
	return true
}

// fill fills out for an object that has lost its name, or that never was. The kernel keeps neither name nor attributes.
func (e *echoes) fill(head *fuse.InHeader, n *node, out *fuse.EntryOut) {
	p := place{node: n, light: true}
	if e.view.nodes.foundAgain(n) && e.view.openNode(&p, false) == nil {
		defer p.close()
		e.view.setAttr(&out.Attr, &p.stat) // a client has it open
	} else {
		out.Attr = fuse.Attr{Ino: e.view.shown(n), Mode: n.kind | 0o600, Nlink: 1, Owner: fuse.Owner{Uid: head.Uid, Gid: head.Gid}}
	}
	out.NodeId = n.id
}

// Unlink answers the removal of a name that the host has removed.
func (e *echoes) Unlink(cancel <-chan struct{}, head *fuse.InHeader, name string) fuse.Status {
	if code, ours := e.expected(head, name, (*actNow).removed); ours {
		return code
	}
	return e.RawFileSystem.Unlink(cancel, head, name)
}

// Rmdir is Unlink for a directory.
func (e *echoes) Rmdir(cancel <-chan struct{}, head *fuse.InHeader, name string) fuse.Status {
	if code, ours := e.expected(head, name, (*actNow).removed); ours {
		return code
	}
	return e.RawFileSystem.Rmdir(cancel, head, name)
}

func (a *actNow) removed() bool {
	had := a.remove != nil
	a.remove = nil
	return had
}

func (a *actNow) created() bool {
	had := a.create && a.remove == nil
	a.create = false
	return had
}

// made answers the creation of a name that the host has created, by what is there.
func (e *echoes) made(head *fuse.InHeader, name string, kind uint32, out *fuse.EntryOut) (fuse.Status, bool) {
	code, ours := e.expected(head, name, (*actNow).created)
	if !ours || !code.Ok() {
		return code, ours
	}
	code = e.RawFileSystem.Lookup(nil, head, name, out)
	switch {
	case code.Ok() && out.NodeId == 0:
		code = fuse.ENOENT // the host has removed it again
	case code.Ok() && out.Mode&unix.S_IFMT != kind:
		e.RawFileSystem.Forget(out.NodeId, 1)
		code = fuse.EAGAIN
	}
	out.SetAttrTimeout(0)
	return code, true
}

// Mknod is made for files, FIFOs and sockets.
func (e *echoes) Mknod(cancel <-chan struct{}, in *fuse.MknodIn, name string, out *fuse.EntryOut) fuse.Status {
	if code, ours := e.made(&in.InHeader, name, in.Mode&unix.S_IFMT, out); ours {
		return code
	}
	return e.RawFileSystem.Mknod(cancel, in, name, out)
}

// Mkdir is made for directories.
func (e *echoes) Mkdir(cancel <-chan struct{}, in *fuse.MkdirIn, name string, out *fuse.EntryOut) fuse.Status {
	if code, ours := e.made(&in.InHeader, name, unix.S_IFDIR, out); ours {
		return code
	}
	return e.RawFileSystem.Mkdir(cancel, in, name, out)
}

// Symlink is made for symbolic links.
func (e *echoes) Symlink(cancel <-chan struct{}, head *fuse.InHeader, to, name string, out *fuse.EntryOut) fuse.Status {
	if code, ours := e.made(head, name, unix.S_IFLNK, out); ours {
		return code
	}
	return e.RawFileSystem.Symlink(cancel, head, to, name, out)
}

// SetAttr answers a change that changes nothing: the kernel takes the size of the answer. It is the present one, and another is refused:
// the host has changed the file since the thread looked, or the thread is not the process's. Writers through the mount wait for the lock
// of the inode, which the thread holds.
func (e *echoes) SetAttr(cancel <-chan struct{}, in *fuse.SetAttrIn, out *fuse.AttrOut) fuse.Status {
	over, ours := e.isOver(in.Pid)
	if !ours {
		return e.RawFileSystem.SetAttr(cancel, in, out)
	}
	if over {
		return fuse.EINTR
	}
	code := e.RawFileSystem.GetAttr(cancel, &fuse.GetAttrIn{InHeader: in.InHeader}, out)
	if code.Ok() && !changesNothing(in, &out.Attr) {
		return fuse.EINTR
	}
	out.SetTimeout(0)
	return code
}

// isOver reports whether a thread's batch was not answered. ours is false for a thread that does none.
func (e *echoes) isOver(thread uint32) (over, ours bool) {
	if !e.active.Load() {
		return false, false
	}
	e.lock.RLock()
	defer e.lock.RUnlock()
	over = e.stuck[thread]
	return over, over || e.of(thread) != nil
}

// changesNothing reports whether an object has the size or the mode that a request sets, and whether it sets nothing else.
func changesNothing(in *fuse.SetAttrIn, now *fuse.Attr) bool {
	const others = fuse.FATTR_UID | fuse.FATTR_GID | fuse.FATTR_ATIME | fuse.FATTR_MTIME
	return in.Valid&others == 0 && (in.Valid&fuse.FATTR_SIZE == 0 || in.Size == now.Size) &&
		(in.Valid&fuse.FATTR_MODE == 0 || (in.Mode^now.Mode)&0o7777 == 0)
}

// stranger returns a node that is in no table: the kernel needs one for an object that is no more.
func (t *tree) stranger(dir bool) *node {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.last++
	kind := uint32(unix.S_IFREG)
	if dir {
		kind = unix.S_IFDIR
	}
	return newNode(t.last, beneath.FileID{Ino: 1<<62 | t.last}, kind)
}

// foundAgain counts a lookup of a node. It reports false for one that is not in the table.
func (t *tree) foundAgain(n *node) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.byID[n.id] != n {
		return false
	}
	n.lookups++
	return true
}

// filesOf returns the nodes by their names, of those that are no directories and for which is holds.
func (t *tree) filesOf(is func(*node) bool) map[nameIn]*node {
	t.mu.RLock()
	defer t.mu.RUnlock()
	all := map[nameIn]*node{}
	for _, n := range t.byID {
		if n.dir || !is(n) {
			continue
		}
		for _, at := range n.names.list {
			all[at] = n
		}
	}
	return all
}

// directories returns the nodes that are directories.
func (t *tree) directories() (all []*node) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	for _, n := range t.byID {
		if n.dir {
			all = append(all, n)
		}
	}
	return all
}
