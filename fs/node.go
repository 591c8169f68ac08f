package fs

import (
	"maps"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/scopefs/scopefs/fs/quota"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/beneath"
)

// node is an inode of the kernel's cache: the identity of an object and the names under which it was found. A name may
// be out of date. It is a hint where to look, and the identity decides whether that object is the one meant.
type node struct {
	id       uint64
	identity atomic.Pointer[beneath.FileID] // see tree.become
	kind     uint32                         // the type bits of its mode
	dir      bool

	watched atomic.Int64                 // View.now when the watch on this directory began; 0: none
	changes atomic.Uint32                // counts changes of names in this directory
	listed  atomic.Pointer[listed]       // the listing that the kernel may cache
	removed atomic.Pointer[beneath.Stat] // the last attributes of a directory that a client has removed
	muted   atomic.Int32                 // handles whose passthrough writes the watch ignores
	setID   atomic.Bool                  // the kernel may cache set-id bits of it
	adopted atomic.Bool                  // a copy at a held path has replaced it
	handle  string                       // the file handle by which the watch reports it; guarded by follower.mu

	usage quota.Usage

	staged atomic.Pointer[staged] // it is the text of a judged file; nil: an object of the scope

	path atomic.Pointer[pathOf] // the last result of tree.newest
	held atomic.Pointer[heldAs] // the last result of View.nodeHeld

	// Guarded by tree.mu.
	names   names
	lookups uint64

	// Guarded by table.mu.
	open      []*handle // to reach a file without a name
	backing   int32     // the id of the backing file while backingOn > 0
	ownBacks  bool      // that is of Hold.Upper
	backingOn int       // handles that use it
}

func (n *node) ident() beneath.FileID { return *n.identity.Load() }

// newNode returns a node of an object.
func newNode(id uint64, ident beneath.FileID, kind uint32) *node {
	n := &node{id: id, kind: kind, dir: kind == syscall.S_IFDIR}
	n.identity.Store(&ident)
	return n
}

// nameIn is a directory entry.
type nameIn struct {
	parent *node
	name   string
}

// tree is the table of nodes. A node refers to its parents. The kernel, too, caches the parents of each inode it
// caches, so this keeps nothing longer.
type tree struct {
	mu      sync.RWMutex
	byID    map[uint64]*node
	byIdent map[beneath.FileID]*node
	root    *node
	last    uint64 // the newest id; ids are never reused, so generations are not needed
	moves   uint64 // counts moves of directories
	most    int    // the largest number of nodes since shrink

	size   int64        // approximate bytes of nodes and names
	limit  int64        // of size; 0 is none
	crowd  func()       // called when size nears the limit
	cached atomic.Int64 // bytes of paths in node.path
}

// The approximate bytes of a node and of each name, without the text of the name. A watched directory keeps a kernel
// inode in memory.
const (
	nodeSize      = 384
	directorySize = 1536
	nameSize      = 128
)

func (n *node) size() int64 {
	size := int64(nodeSize)
	if n.dir {
		size = directorySize
	}
	return size + n.names.size
}

func (at nameIn) size() int64 { return nameSize + int64(len(at.name)) }

// full reports whether no node can be added.
func (t *tree) full() bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.limit > 0 && t.size > t.limit
}

func (t *tree) init(root beneath.FileID) {
	t.root = newNode(fuse.FUSE_ROOT_ID, root, syscall.S_IFDIR)
	t.root.lookups = 1
	t.last = fuse.FUSE_ROOT_ID
	t.byID = map[uint64]*node{t.root.id: t.root}
	t.byIdent = map[beneath.FileID]*node{root: t.root}
}

func (t *tree) get(id uint64) *node {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.byID[id]
}

// found returns the node of st, found under a name in parent, and counts one lookup, which a FORGET of the kernel will
// undo. It fails with ErrStale if the name would make a directory its own ancestor, which happens when the host moves
// directories during the lookup, and with ENOMEM if the table is full.
//
// An object that was just created always gets a new node. Its identity can equal that of a removed object: birth times
// have the resolution of the kernel's tick (ktime_get_coarse_real_ts64), and an inode number may be reused within one.
// The same holds for an object of another type.
func (t *tree) found(parent *node, base string, st *beneath.Stat, made bool) (*node, error) {
	ident := st.ID()
	t.mu.Lock()
	defer t.mu.Unlock()
	n := t.byIdent[ident]
	if n == nil || made || n.kind != st.Type() {
		if t.limit > 0 && !made { // a created object exists already; roomy ran before
			if t.size > t.limit*3/4 && t.crowd != nil {
				t.crowd()
			}
			if t.size > t.limit {
				return nil, syscall.ENOMEM
			}
		}
		t.last++
		n = newNode(t.last, ident, st.Type())
		t.byID[n.id], t.byIdent[ident] = n, n
		t.size += n.size()
	} else if n.dir && t.under(parent, n) {
		return nil, beneath.ErrStale
	}
	n.lookups++
	n.removed.Store(nil) // a new directory may have the identity of a removed one
	t.addName(n, nameIn{parent, base}, st.Nlink > 1)
	return n, nil
}

// addName makes a name the newest. Without keep it replaces the others: an object with one link has one name.
func (t *tree) addName(n *node, at nameIn, keep bool) {
	have := n.names.list
	if len(have) > 0 && have[n.names.newest] == at && (keep || len(have) == 1) {
		return
	}
	if len(have) > 0 {
		defer t.renamed(n)
	}
	t.size -= n.size()
	if n.dir || !keep {
		n.names.only(at)
	} else {
		n.names.add(at)
	}
	t.size += n.size()
}

// become gives a node another identity: another object is at its path. It reports false if another node has that.
func (t *tree) become(n *node, ident beneath.FileID) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if other := t.byIdent[ident]; other != nil {
		return other == n
	}
	if t.byIdent[n.ident()] == n {
		delete(t.byIdent, n.ident())
	}
	n.identity.Store(&ident)
	t.byIdent[ident] = n
	return true
}

// named adds a name that an undo has given an object.
func (t *tree) named(n *node, at nameIn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !n.dir || !t.under(at.parent, n) {
		t.addName(n, at, true)
	}
}

// moved records a rename.
func (t *tree) moved(ident beneath.FileID, from, to nameIn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := t.byIdent[ident]
	if n == nil || n.dir && t.under(to.parent, n) {
		return
	}
	defer t.renamed(n)
	t.size -= n.size()
	n.names.remove(from)
	n.names.add(to)
	t.size += n.size()
}

// unlinked records that a name of an object was removed. The last name stays, because the policy decides by it while
// the file is open.
func (t *tree) unlinked(ident beneath.FileID, at nameIn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := t.byIdent[ident]
	if n == nil || len(n.names.list) < 2 {
		return
	}
	t.size -= n.size()
	if n.names.remove(at) {
		t.renamed(n)
	}
	t.size += n.size()
}

// byIdentity returns the node of an object, or nil.
func (t *tree) byIdentity(ident beneath.FileID) *node {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.byIdent[ident]
}

// everyParent reports whether is holds for every directory in which a node has a name. It is false for a node without
// a name.
func (t *tree) everyParent(n *node, is func(*node) bool) bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	for _, at := range n.names.list {
		if !is(at.parent) {
			return false
		}
	}
	return len(n.names.list) > 0
}

// everyAncestor reports whether is holds for every directory above a directory.
func (t *tree) everyAncestor(n *node, is func(*node) bool) bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	for depth := 0; n != t.root; depth++ {
		if len(n.names.list) == 0 || depth > maxDepth {
			return false
		}
		if n = n.names.list[0].parent; !is(n) {
			return false
		}
	}
	return true
}

// everyName returns the names of all nodes.
func (t *tree) everyName() []nameIn {
	t.mu.RLock()
	defer t.mu.RUnlock()
	var all []nameIn
	for _, n := range t.byID {
		all = append(all, n.names.list...)
	}
	return all
}

// everyID returns the ids of all nodes.
func (t *tree) everyID() []uint64 {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return slices.Collect(maps.Keys(t.byID))
}

// forget subtracts lookups. It removes a node without lookups, and returns it.
func (t *tree) forget(id, lookups uint64) *node {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := t.byID[id]
	if n == nil || n == t.root {
		return nil
	}
	if n.lookups -= min(lookups, n.lookups); n.lookups > 0 {
		return nil
	}
	delete(t.byID, id)
	if t.byIdent[n.ident()] == n {
		delete(t.byIdent, n.ident())
	}
	t.size -= n.size()
	t.cache(n, nil)
	t.shrink()
	return n
}

// shrink frees the memory of a table that has become much smaller. Go's maps do not shrink, and its heap returns
// memory late.
func (t *tree) shrink() {
	const least = 1 << 14
	t.most = max(t.most, len(t.byID)+1)
	if t.most < least || len(t.byID) > t.most/8 {
		return
	}
	t.most = 0
	byID, byIdent := make(map[uint64]*node, len(t.byID)), make(map[beneath.FileID]*node, len(t.byIdent))
	maps.Copy(byID, t.byID)
	maps.Copy(byIdent, t.byIdent)
	t.byID, t.byIdent = byID, byIdent
	go debug.FreeOSMemory()
}

// Forget performs FORGET: the kernel drops lookups of a node.
func (v *View) Forget(id, lookups uint64) {
	n := v.nodes.forget(id, lookups)
	if n == nil {
		return
	}
	if n.watched.Load() != 0 {
		v.unfollow(n)
	}
	if n.dir {
		v.streams.Drop(n.id)
	}
}

// maxDepth bounds the components of a path. Paths may be longer than PATH_MAX.
const maxDepth = 1 << 16

// pathOf is the cached path of a node's newest name. It is valid while tree.moves is moves.
type pathOf struct {
	moves uint64
	rel   string
}

// maxCached bounds all cached paths, in bytes. Without a bound a deep tree would take memory by the square of its
// depth.
const maxCached = 16 << 20

// newest returns the path of a node's newest name. It is not ok for a node that is not connected to the root.
func (t *tree) newest(n *node) (rel string, ok bool) {
	if n == t.root {
		return "", true
	}
	t.mu.RLock()
	defer t.mu.RUnlock()
	if known := n.path.Load(); known != nil && known.moves == t.moves {
		return known.rel, true
	}
	if len(n.names.list) == 0 {
		return "", false
	}
	if rel, ok = t.path(n.names.list[n.names.newest]); ok && t.cached.Load()+int64(len(rel)) <= maxCached {
		t.cache(n, &pathOf{t.moves, rel})
	}
	return rel, ok
}

// cache replaces the cached path of a node; nil is none.
func (t *tree) cache(n *node, p *pathOf) {
	if p != nil {
		t.cached.Add(int64(len(p.rel)))
	}
	if old := n.path.Swap(p); old != nil {
		t.cached.Add(-int64(len(old.rel)))
	}
}

// others returns up to 64 other paths of a node with several names, where an object may be that is not at its newest
// name.
func (t *tree) others(n *node) (all []string) {
	const most = 64
	t.mu.RLock()
	defer t.mu.RUnlock()
	for i := len(n.names.list) - 1; i >= 0 && len(all) < most; i-- {
		if i == n.names.newest {
			continue
		}
		if rel, ok := t.path(n.names.list[i]); ok {
			all = append(all, rel)
		}
	}
	return all
}

// strictest returns the path of the name on which a policy grants least.
func (t *tree) strictest(n *node, policy *scope.Policy) (rel string, ok bool) {
	t.mu.RLock()
	several := len(n.names.list) > 1
	t.mu.RUnlock()
	if !several || policy.Uniform() {
		return t.newest(n)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	at, ok := n.names.judge(policy, t.moves, t.path)
	if !ok {
		return "", false
	}
	return t.path(at)
}

// parents returns one path in each directory in which a node has a name.
func (t *tree) parents(n *node) (all []string) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	known := map[*node]bool{}
	for _, at := range n.names.list {
		if known[at.parent] {
			continue
		}
		known[at.parent] = true
		if rel, ok := t.path(at); ok {
			all = append(all, rel)
		}
	}
	return all
}

// path builds the path of a name. Directories have one name each.
func (t *tree) path(at nameIn) (string, bool) {
	size, depth := len(at.name), 0
	for p := at.parent; p != t.root; p = p.names.list[0].parent {
		if depth++; depth > maxDepth || len(p.names.list) == 0 {
			return "", false
		}
		size += len(p.names.list[0].name) + 1
	}
	var b strings.Builder
	b.Grow(size)
	t.write(&b, at.parent)
	b.WriteString(at.name)
	return b.String(), true
}

func (t *tree) write(b *strings.Builder, dir *node) {
	if dir == t.root {
		return
	}
	t.write(b, dir.names.list[0].parent)
	b.WriteString(dir.names.list[0].name)
	b.WriteByte('/')
}

// renamed invalidates the cached path of a node and, for a directory, those of its subtree.
func (t *tree) renamed(n *node) {
	t.cache(n, nil)
	if n.dir {
		t.moves++
	}
}

// under reports whether n is dir or in its subtree.
func (t *tree) under(n, dir *node) bool {
	for depth := 0; n != t.root; depth++ {
		if n == dir {
			return true
		}
		if len(n.names.list) == 0 || depth > maxDepth {
			return false
		}
		n = n.names.list[0].parent
	}
	return dir == t.root
}
