package file

import (
	"container/heap"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/tools"
)

const maxEntries = 1000 // of one page

// ListArgs are the arguments of list_dir.
type ListArgs struct {
	Path   string `json:"path,omitempty" jsonschema:"the directory, relative to the workspace (default: its root)"`
	Depth  int    `json:"depth,omitempty" limit:"min=1,max=5,default=1" jsonschema:"how many levels to list"`
	Cursor string `json:"cursor,omitempty" limit:"len=16384" jsonschema:"next_cursor of the page before"`
	Limit  int    `json:"limit,omitempty" limit:"min=1,max=1000,default=1000" jsonschema:"entries of a page"`
}

func (a ListArgs) Subject() (path, target string) { return logged(a.Path), "" }

func (a ListArgs) Outside() *tools.Error { return strayed(reading, a.Path) }

// Entry is a name in the result of list_dir or glob.
type Entry struct {
	Path     string `json:"path" limit:"len=8192" jsonschema:"relative to the workspace"`
	Type     string `json:"type" limit:"enum=file|directory|link|fifo|socket|device"`
	Size     int64  `json:"size" jsonschema:"in bytes"`
	Modified string `json:"modified"`
}

// ListResult is the result of list_dir.
type ListResult struct {
	Path       string  `json:"path" limit:"len=8192"`
	Entries    []Entry `json:"entries" limit:"items=1000" jsonschema:"sorted by name, a directory before what is in it"`
	NextCursor string  `json:"next_cursor,omitempty" limit:"len=16384" jsonschema:"there is more: pass it as cursor"`
}

// Content returns a line an entry: a directory with a slash, a file with its size.
func (r ListResult) Content() []tools.Content {
	var b strings.Builder
	for _, e := range r.Entries {
		switch e.Type {
		case "directory":
			fmt.Fprintf(&b, "%s/\n", tools.Quote(e.Path))
		case "file":
			fmt.Fprintf(&b, "%s\t%d\n", tools.Quote(e.Path), e.Size)
		default:
			fmt.Fprintf(&b, "%s\t(%s)\n", tools.Quote(e.Path), e.Type)
		}
	}
	if len(r.Entries) == 0 {
		b.WriteString("(empty)\n")
	}
	if r.NextCursor != "" {
		fmt.Fprintf(&b, "[there is more; go on with cursor %q]\n", r.NextCursor)
	}
	return []tools.Content{{Text: b.String()}}
}

func newEntry(rel string, st *unix.Stat_t) Entry {
	return Entry{Path: strings.ToValidUTF8(rel, "\ufffd"), Type: typeName(st.Mode), Size: st.Size,
		Modified: time.Unix(st.Mtim.Unix()).UTC().Format(time.RFC3339)}
}

func (t *tree) list(ctx context.Context, in ListArgs) (ListResult, error) {
	p, err := t.at(in.Path, reading)
	if err != nil {
		return ListResult{}, err
	}
	l := lister{tree: t, ctx: ctx, max: maxEntries}
	if in.Limit > 0 {
		l.max = min(in.Limit, maxEntries)
	}
	var after []string
	if in.Cursor != "" {
		b, err := base64.RawURLEncoding.DecodeString(in.Cursor)
		if err != nil || len(b) == 0 {
			return ListResult{}, problem(tools.Invalid, p.rel, "not a cursor", "leave it out to begin at the beginning")
		}
		after = strings.Split(string(b), "/")
	}
	l.found = []Entry{}
	if err := l.walk(p, nil, max(1, in.Depth), after); err != nil {
		return ListResult{}, t.fail(p, err, reading)
	}
	r := ListResult{Path: p.rel, Entries: l.found}
	if l.more {
		r.NextCursor = base64.RawURLEncoding.EncodeToString([]byte(l.last))
	}
	return r, nil
}

// lister collects one page.
type lister struct {
	tree  *tree
	ctx   context.Context // of the one call it is for
	max   int
	found []Entry
	last  string // the last entry's path below the directory that is listed
	more  bool
}

// walk lists a directory whose names below the listed one are above. after is
// where the page before ended, as far as that is in here.
func (l *lister) walk(p place, above []string, depth int, after []string) error {
	from := ""
	if len(after) > 0 {
		from = after[0]
	}
	// One more than there is room for, and the one that the cursor names.
	names, err := smallest(l.ctx, p, from, l.max-len(l.found)+2)
	if err != nil {
		return err
	}
	for _, name := range names {
		var inner []string
		below := append(slices.Clone(above), name)
		child := p.child(name)
		if len(after) > 0 && name == from {
			inner = after[1:]
		}
		st, err := l.tree.lstat(child, reading)
		if isCode(err, tools.NotFound) {
			continue // gone meanwhile
		}
		if err != nil {
			return err
		}
		if len(after) == 0 || name != from {
			if len(l.found) == l.max {
				l.more = true
				return nil
			}
			l.found = append(l.found, newEntry(child.rel, &st))
			l.last = path.Join(below...)
		}
		if depth > 1 && st.Mode&unix.S_IFMT == unix.S_IFDIR {
			err := l.walk(child, below, depth-1, inner)
			if l.more || err != nil && !isCode(l.tree.fail(child, err, reading), tools.Denied) {
				return err
			}
		}
	}
	return nil
}

// smallest returns the n first names of a directory that are not before from. It
// holds no more of them, however many there are.
func smallest(ctx context.Context, p place, from string, n int) ([]string, error) {
	var kept names
	err := eachName(ctx, p, func(name string) error {
		switch {
		case name < from:
		case len(kept) < n:
			heap.Push(&kept, name)
		case name < kept[0]:
			kept[0] = name
			heap.Fix(&kept, 0)
		}
		return nil
	})
	slices.Sort(kept)
	return kept, err
}

// eachName calls f with the names in a directory as the kernel returns them. It
// holds few of them at a time.
func eachName(ctx context.Context, p place, f func(name string) error) error {
	d, err := openDir(p)
	if err != nil {
		return err
	}
	defer d.Close()
	for {
		batch, err := d.Readdirnames(1000)
		for _, name := range batch {
			if err := f(name); err != nil {
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

func openDir(p place) (*os.File, error) {
	return os.OpenFile(p.full, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK, 0)
}

// names is a heap whose first is the last in order.
type names []string

func (n names) Len() int           { return len(n) }
func (n names) Less(i, j int) bool { return n[i] > n[j] }
func (n names) Swap(i, j int)      { n[i], n[j] = n[j], n[i] }
func (n *names) Push(x any)        { *n = append(*n, x.(string)) }
func (n *names) Pop() any          { panic("a heap that only grows") }
