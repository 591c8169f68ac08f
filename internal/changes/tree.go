package changes

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/scope/beneath"
)

// Tree is an agent's directory, as it is now.
type Tree struct {
	root  *beneath.Root
	since time.Time
	found map[string]entry

	// Unread has directories that could not be read, and mounts; Left is set if the tree
	// has more than a million entries or 100,000 changes, and the rest was not looked at.
	Unread []string
	Left   bool
}

type entry struct {
	kind    string
	born    bool // since then, if the file system knows
	changed time.Time
}

// maxEntries bounds what a walk looks at.
const maxEntries = 1_000_000

// clockTick is how much older than its change the time of an inode can be: the kernel
// reads it from a clock that advances each tick, with CONFIG_HZ=100 each 10 ms
// (ktime_get_coarse_real_ts64).
const clockTick = 10 * time.Millisecond

// Walk finds what changed in a directory since a time less clockTick, by the time at which the inode
// changed: a program cannot set that (inode(7)). Of directories it finds new ones alone,
// because every change of an entry changes them.
func Walk(ctx context.Context, root *beneath.Root, since time.Time) (*Tree, error) {
	since = since.Add(-clockTick)
	t := &Tree{root: root, since: since, found: map[string]entry{}}
	seen, queue := 0, []string{""}
	for len(queue) > 0 {
		dir := queue[0]
		queue = queue[1:]
		names, err := t.names(dir)
		if err != nil {
			t.Unread = append(t.Unread, dir)
			continue
		}
		for _, name := range names {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			if seen++; seen > maxEntries || len(t.found) >= maxPaths {
				t.Left = true
				return t, nil
			}
			rel := beneath.Join(dir, name)
			now, there := t.stat(rel)
			if !there {
				continue
			}
			if now.kind == "directory" {
				queue = append(queue, rel)
				if !now.born {
					continue
				}
			}
			if !now.changed.Before(since) {
				t.found[rel] = now
			}
		}
	}
	return t, nil
}

// names lists a directory.
func (t *Tree) names(rel string) ([]string, error) {
	st, err := look(t.root, rel)
	if err != nil {
		return nil, err
	}
	f, err := t.root.Open(rel, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, st.ID())
	if err != nil {
		return nil, err
	}
	dir := os.NewFile(uintptr(f.FD()), "")
	defer dir.Close()
	names, err := dir.Readdirnames(maxEntries)
	if err == io.EOF { // it is empty
		err = nil
	}
	return names, err
}

// look returns the attributes of what is at a path, without following links.
func look(root *beneath.Root, rel string) (st beneath.Stat, err error) {
	obj, err := root.Object(rel)
	if err != nil {
		return st, err
	}
	defer obj.Close()
	return obj.Stat()
}

func (t *Tree) stat(rel string) (entry, bool) {
	st, err := look(t.root, rel)
	if err != nil {
		return entry{}, false
	}
	e := entry{kind: "other", changed: time.Unix(st.Ctime.Sec, int64(st.Ctime.Nsec))}
	switch {
	case st.IsRegular():
		e.kind = "file"
	case st.IsDir():
		e.kind = "directory"
	case st.IsLink():
		e.kind = "link"
	}
	if st.Mask&unix.STATX_BTIME != 0 {
		e.born = !time.Unix(st.Btime.Sec, int64(st.Btime.Nsec)).Before(t.since)
	}
	return e, true
}

// ErrTooLarge is the error of a file that Read does not return.
var ErrTooLarge = errors.New("more than a megabyte")

// MaxText is how much of a file Read returns, in bytes.
const MaxText = 1 << 20

// Read returns the content of a regular file beneath a directory; nil if there is none.
func Read(root *beneath.Root, rel string) ([]byte, error) {
	st, err := look(root, rel)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return nil, nil
	}
	if err != nil || !st.IsRegular() {
		return nil, err
	}
	f, err := root.Open(rel, unix.O_RDONLY|unix.O_CLOEXEC, st.ID())
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text := make([]byte, MaxText+1)
	size := 0
	for n := -1; n != 0 && size < len(text); size += n {
		if n, err = f.ReadAt(text[size:], int64(size)); err != nil {
			return nil, err
		}
	}
	if size > MaxText {
		return nil, ErrTooLarge
	}
	return text[:size], nil
}

// Hidden reports whether a path is in a repository's data. Reports leave these files out.
func Hidden(rel string) bool {
	return strings.HasPrefix(rel, ".git/") || strings.Contains(rel, "/.git/")
}
