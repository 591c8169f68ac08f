package history

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/fs/history/journal"
	"github.com/scopefs/scopefs/scope/beneath"
)

// Before returns the content that a path had before the selected changes. Later changes by others do not matter.
func (s *Store) Before(rel string, sel Selection) (Version, error) {
	at, err := s.began(rel, sel)
	if err != nil {
		return Version{}, err
	}
	found, err := s.find(Selection{Since: at})
	if nothing, ok := err.(*ErrNothing); ok && nothing.Unchanged {
		return s.present(rel)
	}
	if err != nil {
		return Version{}, err
	}
	found.any = true // what the host has changed since
	w := s.replay(found, Hooks{})
	t := w.at(rel)
	e := w.content[w.same(t.id)]
	for _, p := range w.plan.Unkept {
		if p.Path == rel && !t.there {
			return Version{}, &ErrNothing{Why: fmt.Sprintf("%q was not kept: %s", rel, p.Why)}
		}
	}
	for _, p := range w.plan.Conflicts {
		if p.Path == rel && (t.real != "" || s.opt.Layer != nil) {
			return Version{}, &ErrNothing{Why: fmt.Sprintf("what was at %q is not known: %s", rel, p.Why)}
		}
	}
	if v, ok := s.baseVersion(w.shows(), rel); ok && !t.there {
		return v, nil
	}
	switch {
	case !t.there || t.dir:
		return Version{}, &ErrNothing{Why: fmt.Sprintf("there was no file %q", rel)}
	case e != nil && e.Why != "":
		return Version{}, &ErrNothing{Why: fmt.Sprintf("%q was not kept: %s", rel, e.Why)}
	case e != nil:
		return versionOf(e), nil
	case t.kept != "":
		return keptVersion(t.kept)
	}
	return s.present(t.real)
}

// present returns the version that a file has now.
func (s *Store) present(rel string) (Version, error) {
	st, err := s.tree.Stat(rel)
	if s.opt.Layer != nil && errors.Is(err, beneath.ErrStale) {
		if v, ok := s.baseVersion(s.opt.Layer.Plan(), rel); ok {
			return v, nil
		}
		err = unix.ENOENT
	}
	if err == nil && st.IsDir() || err == unix.ENOENT || err == unix.ENOTDIR {
		return Version{}, &ErrNothing{Why: fmt.Sprintf("there was no file %q", rel)}
	}
	return Version{Path: rel}, err
}

// keptVersion returns the version of a kept file at a path of the history.
func keptVersion(at string) (Version, error) {
	name, number, _ := strings.Cut(at, "/")
	began, _, _, _ := journal.ParseName(name)
	k, err := strconv.ParseUint(number, 10, 32)
	return Version{Generation: idOf(began), Kept: uint32(k)}, err
}

// Read reads a content into p, from an offset on. It returns the size of the whole. The content of a symbolic link is its
// text.
func (s *Store) Read(v Version, p []byte, off int64) (n int, size int64, link bool, err error) {
	if v.Record != 0 {
		n, size, err = s.readRecord(v, p, off)
		return n, size, false, err
	}
	root, rel := s.tree, v.Path
	if v.Generation != "" {
		g, err := s.named(v.Generation)
		if err != nil {
			return 0, 0, false, err
		}
		root, rel = s.dir, g.name+"/"+keptName(v.Kept)
	}
	return ReadFile(root, rel, p, off)
}

// ReadFile is Store.Read of a file of a tree.
func ReadFile(root *beneath.Root, rel string, p []byte, off int64) (n int, size int64, link bool, err error) {
	st, err := root.Stat(rel)
	if err != nil {
		return 0, 0, false, err
	}
	if st.IsLink() {
		text, err := root.Readlink(rel)
		return copy(p, text[min(max(off, 0), int64(len(text))):]), int64(len(text)), true, err
	}
	if !st.IsRegular() {
		return 0, 0, false, &ErrNothing{Why: "it is no regular file"}
	}
	f, err := root.Open(rel, unix.O_RDONLY, st.ID())
	if err != nil {
		return 0, 0, false, err
	}
	defer f.Close()
	n, err = f.ReadAt(p, off)
	return n, int64(st.Size), false, err
}

// IsText reports whether a content has a diff that people can read.
func IsText(b []byte) bool { return utf8.Valid(b) && bytes.IndexByte(b, 0) < 0 }

// named returns a generation of the history.
func (s *Store) named(id string) (past, error) {
	all, err := s.generations()
	if err != nil {
		return past{}, err
	}
	for _, p := range all {
		if idOf(p.began) == id {
			return p, nil
		}
	}
	return past{}, &ErrNothing{Why: "generation " + id + " was given up"}
}

func (s *Store) readRecord(v Version, p []byte, off int64) (n int, size int64, err error) {
	g, err := s.named(v.Generation)
	if err != nil {
		return 0, 0, err
	}
	data, err := s.inline(g.name, &journal.Record{Seq: v.Record, At: v.At})
	return copy(p, data[min(max(off, 0), int64(len(data))):]), int64(len(data)), err
}
