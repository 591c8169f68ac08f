package fs

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/scope/beneath"
)

// object returns a result of statx(2).
func object(ino uint64, mode uint16, links uint32) *beneath.Stat {
	s := &beneath.Stat{}
	s.Ino, s.Mode, s.Nlink = ino, mode, links
	return s
}

func dir(ino uint64) *beneath.Stat                { return object(ino, unix.S_IFDIR, 2) }
func file(ino uint64, links uint32) *beneath.Stat { return object(ino, unix.S_IFREG, links) }

func newTree() *tree {
	t := &tree{}
	t.init(dir(1).ID())
	return t
}

// found is tree.found; nil on an error.
func found(t *testing.T, tr *tree, parent *node, base string, st *beneath.Stat, made bool) *node {
	n, err := tr.found(parent, base, st, made)
	assert.Equal(t, err == nil, n != nil)
	return n
}

// paths returns the paths of a node, the newest first.
func paths(tr *tree, n *node) []string {
	rel, ok := tr.newest(n)
	if !ok {
		return nil
	}
	return append([]string{rel}, tr.others(n)...)
}

func TestTreeNames(t *testing.T) {
	tr := newTree()
	a := found(t, tr, tr.root, "a", dir(2), false)
	b := found(t, tr, tr.root, "b", dir(3), false)
	f := found(t, tr, a, "f", file(4, 2), false)
	assert.Equal(t, []string{"a/f"}, paths(tr, f))
	assert.Same(t, f, found(t, tr, b, "g", file(4, 2), false), "a second name of the same file")
	assert.Equal(t, []string{"b/g", "a/f"}, paths(tr, f), "the newest first, none forgotten")
	found(t, tr, a, "f", file(4, 2), false)
	assert.Equal(t, []string{"a/f", "b/g"}, paths(tr, f))

	tr.moved(b.ident(), nameIn{tr.root, "b"}, nameIn{a, "c"})
	assert.Equal(t, []string{"a/f", "a/c/g"}, paths(tr, f), "what is below moves along")
	tr.unlinked(f.ident(), nameIn{a, "f"})
	assert.Equal(t, []string{"a/c/g"}, paths(tr, f))
	tr.unlinked(f.ident(), nameIn{b, "g"})
	assert.Equal(t, []string{"a/c/g"}, paths(tr, f), "the last name stays")
	found(t, tr, a, "h", file(4, 1), false)
	assert.Equal(t, []string{"a/h"}, paths(tr, f), "one link, one name")
	assert.Equal(t, []string{""}, paths(tr, tr.root))
}

func TestTreeIdentity(t *testing.T) {
	tr := newTree()
	old := found(t, tr, tr.root, "f", file(4, 1), false)
	assert.NotSame(t, old, found(t, tr, tr.root, "p", object(4, unix.S_IFIFO, 1), false), "another type, another object")
	made := found(t, tr, tr.root, "g", file(4, 1), true)
	assert.NotSame(t, old, made, "what was just made was not known")
	assert.NotEqual(t, old.id, made.id)
	assert.Same(t, made, found(t, tr, tr.root, "g", file(4, 1), false))
	assert.Same(t, old, tr.get(old.id), "the kernel knows it still")
	tr.forget(old.id, 1)
	assert.Nil(t, tr.get(old.id))
	assert.Same(t, made, found(t, tr, tr.root, "g", file(4, 1), false), "forgetting the old one leaves the new")

	removed := found(t, tr, tr.root, "d", dir(5), false)
	removed.removed.Store(dir(5))
	found(t, tr, tr.root, "e", dir(5), false)
	assert.Nil(t, removed.removed.Load(), "another directory with its identity, or one that was not removed")
}

func TestTreeForget(t *testing.T) {
	tr := newTree()
	f := found(t, tr, tr.root, "f", file(4, 1), false)
	found(t, tr, tr.root, "f", file(4, 1), false)
	tr.forget(f.id, 1)
	assert.NotNil(t, tr.get(f.id))
	tr.forget(f.id, 5)
	assert.Nil(t, tr.get(f.id))
	assert.Empty(t, tr.byIdent[f.ident()])
	tr.forget(tr.root.id, 100)
	assert.NotNil(t, tr.get(tr.root.id), "the root is never forgotten")
	tr.forget(12345, 1)
}

// TestTreeHasNoCycle: lookups that race with moves by the host can suggest that a
// directory is its own ancestor. Building a path must still end.
func TestTreeHasNoCycle(t *testing.T) {
	tr := newTree()
	a := found(t, tr, tr.root, "a", dir(2), false)
	b := found(t, tr, a, "b", dir(3), false)
	assert.Nil(t, found(t, tr, b, "a", dir(2), false))
	assert.Nil(t, found(t, tr, a, "a", dir(2), false))
	tr.moved(a.ident(), nameIn{tr.root, "a"}, nameIn{b, "a"})
	require.Equal(t, []string{"a/b"}, paths(tr, b))
	assert.Nil(t, found(t, tr, b, "root", dir(1), false), "nor is the root below anything")
}
