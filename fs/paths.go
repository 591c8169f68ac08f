package fs

import "strings"

// maxDepth bounds a path of the tree; paths may be longer than PATH_MAX.
const maxDepth = 1 << 16

// pathsOf are a node's paths after so many moves of directories.
type pathsOf struct {
	moves uint64
	paths []string
}

// paths returns the paths of a node's names, the newest first. A node whose
// parents do not lead to the root has none. The slice is not the caller's.
func (t *tree) paths(n *node) []string {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if known := n.path.Load(); known != nil && known.moves == t.moves {
		return known.paths
	}
	out := t.walk(n)
	n.path.Store(&pathsOf{t.moves, out})
	return out
}

func (t *tree) walk(n *node) []string {
	if n == t.root {
		return []string{""}
	}
	out := make([]string, 0, len(n.names))
	for i := len(n.names) - 1; i >= 0; i-- {
		if rel, ok := t.path(n.names[i]); ok {
			out = append(out, rel)
		}
	}
	return out
}

// path builds the path of one name. Directories have one name each.
func (t *tree) path(at nameIn) (string, bool) {
	size, depth := len(at.name), 0
	for p := at.parent; p != t.root; p = p.names[0].parent {
		if depth++; depth > maxDepth || len(p.names) == 0 {
			return "", false
		}
		size += len(p.names[0].name) + 1
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
	t.write(b, dir.names[0].parent)
	b.WriteString(dir.names[0].name)
	b.WriteByte('/')
}

// renamed notes that the names of a node have changed, and with a directory's
// the paths of what is below it.
func (t *tree) renamed(n *node) {
	n.path.Store(nil)
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
		if len(n.names) == 0 || depth > maxDepth {
			return false
		}
		n = n.names[0].parent
	}
	return dir == t.root
}
