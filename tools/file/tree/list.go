package tree

import (
	"container/heap"
	"context"
	"encoding/base64"
	"errors"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/tools/file/message"
)

const maxEntries = 1000 // of one page

func newEntry(rel string, st *unix.Stat_t) message.Entry {
	return message.Entry{Path: strings.ToValidUTF8(rel, "\ufffd"), Type: typeName(st.Mode), Size: st.Size,
		Modified: time.Unix(st.Mtim.Unix()).UTC().Format(time.RFC3339)}
}

func (t *tree) list(ctx context.Context, in message.ListArgs) (message.ListResult, error) {
	p, err := t.at(in.Path, message.Reading)
	if err != nil {
		return message.ListResult{}, err
	}
	l := lister{tree: t, ctx: ctx, max: maxEntries, namesOnly: in.NamesOnly}
	if in.Limit > 0 {
		l.max = min(in.Limit, maxEntries)
	}
	var after []string
	if in.Cursor != "" {
		b, err := base64.RawURLEncoding.DecodeString(in.Cursor)
		if err != nil || len(b) == 0 {
			return message.ListResult{}, message.Problem(message.Invalid, p.rel, "not a cursor", "leave it out to begin at the beginning")
		}
		after = strings.Split(string(b), "/")
	}
	l.found = []message.Listed{}
	if err := l.walk(p, nil, max(1, in.Depth), after); err != nil {
		return message.ListResult{}, t.fail(p, err, message.Reading)
	}
	r := message.ListResult{Path: p.rel, Entries: l.found}
	if l.more {
		r.NextCursor = base64.RawURLEncoding.EncodeToString([]byte(l.last))
	}
	return r, nil
}

// lister collects one page of a listing.
type lister struct {
	tree  *tree
	ctx   context.Context // of the call
	max   int
	found []message.Listed
	last  string // path of the last entry, relative to the listed directory
	more  bool

	namesOnly bool
}

// entry returns the result for a directory's entry. With namesOnly the type comes from the
// directory.
func (l *lister) entry(p place, d fs.DirEntry) (message.Listed, error) {
	if l.namesOnly {
		return message.Listed{Path: strings.ToValidUTF8(p.rel, "\ufffd"), Type: typeName(modeOf(d.Type()))}, nil
	}
	st, err := l.tree.lstat(p, message.Reading)
	e := newEntry(p.rel, &st)
	return message.Listed{Path: e.Path, Type: e.Type, Size: &e.Size, Modified: e.Modified}, err
}

// modeOf returns the file type bits of a mode, as in stat(2).
func modeOf(m fs.FileMode) uint32 {
	switch m.Type() {
	case 0:
		return unix.S_IFREG
	case fs.ModeDir:
		return unix.S_IFDIR
	case fs.ModeSymlink:
		return unix.S_IFLNK
	case fs.ModeNamedPipe:
		return unix.S_IFIFO
	case fs.ModeSocket:
		return unix.S_IFSOCK
	}
	return unix.S_IFBLK
}

// walk lists a directory. above is its path relative to the listed one; after is the part
// of the previous page's end that lies in this directory.
func (l *lister) walk(p place, above []string, depth int, after []string) error {
	from := ""
	if len(after) > 0 {
		from = after[0]
	}
	// One entry more than fits, and the one that the cursor names.
	names, err := smallest(l.ctx, p, from, l.max-len(l.found)+2)
	if err != nil {
		return err
	}
	for _, d := range names {
		name := d.Name()
		var inner []string
		below := append(slices.Clone(above), name)
		child := p.child(name)
		if len(after) > 0 && name == from {
			inner = after[1:]
		}
		e, err := l.entry(child, d)
		if isCode(err, message.NotFound) {
			continue // removed meanwhile
		}
		if err != nil {
			return err
		}
		if len(after) == 0 || name != from {
			if len(l.found) == l.max {
				l.more = true
				return nil
			}
			l.found = append(l.found, e)
			l.last = path.Join(below...)
		}
		if depth > 1 && e.Type == "directory" {
			err := l.walk(child, below, depth-1, inner)
			if l.more || err != nil && !isCode(l.tree.fail(child, err, message.Reading), message.Denied) {
				return err
			}
		}
	}
	return nil
}

// smallest returns the first n entries of a directory in order, without names before
// from. It never holds more than n.
func smallest(ctx context.Context, p place, from string, n int) ([]fs.DirEntry, error) {
	var kept entries
	err := eachEntry(ctx, p, func(d fs.DirEntry) error {
		switch name := d.Name(); {
		case name < from:
		case len(kept) < n:
			heap.Push(&kept, d)
		case name < kept[0].Name():
			kept[0] = d
			heap.Fix(&kept, 0)
		}
		return nil
	})
	slices.SortFunc(kept, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	return kept, err
}

// eachEntry calls f with the entries of a directory in the kernel's order. It holds few of
// them at a time.
func eachEntry(ctx context.Context, p place, f func(fs.DirEntry) error) error {
	d, err := openDir(p.full)
	if err != nil {
		return err
	}
	defer d.Close()
	for {
		batch, err := d.ReadDir(1000)
		for _, e := range batch {
			if err := f(e); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return err
		}
	}
}

// entries is a heap with the last entry in order at its top.
type entries []fs.DirEntry

func (n entries) Len() int           { return len(n) }
func (n entries) Less(i, j int) bool { return n[i].Name() > n[j].Name() }
func (n entries) Swap(i, j int)      { n[i], n[j] = n[j], n[i] }
func (n *entries) Push(x any)        { *n = append(*n, x.(fs.DirEntry)) }
func (n *entries) Pop() any          { panic("a heap that only grows") }
