package fs

import (
	"strings"

	"github.com/scopefs/scopefs/scope"
)

// maxDepth bounds a path of the tree; paths may be longer than PATH_MAX.
const maxDepth = 1 << 16

// pathOf is the path of a node's newest name after so many moves of directories.
type pathOf struct {
	moves uint64
	rel   string
}

// maxCached bounds the paths that nodes keep, in bytes; others are built each time.
// Without a bound a deep tree takes memory by the square of its depth.
const maxCached = 16 << 20

// newest returns the path of a node's newest name. It is not ok for a node whose
// parents do not lead to the root.
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

// cache replaces the path that a node keeps; nil is none.
func (t *tree) cache(n *node, p *pathOf) {
	if p != nil {
		t.cached.Add(int64(len(p.rel)))
	}
	if old := n.path.Swap(p); old != nil {
		t.cached.Add(-int64(len(old.rel)))
	}
}

// others returns some more paths of a node with several names: where else to look
// for an object that is not at its newest name.
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

// strictest returns the path of the name of a node on which a policy grants least.
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

// parents returns a path in each directory in which a node has a name.
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

// path builds the path of one name. Directories have one name each.
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

// renamed notes that the names of a node have changed, and with a directory's
// the paths of what is below it.
func (t *tree) renamed(n *node) {
	t.cache(n, nil)
	if n.dir {
		t.moves++
	}
}

// under reports whether n is dir or below it.
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
