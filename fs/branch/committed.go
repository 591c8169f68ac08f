package branch

import (
	"bufio"
	"cmp"
	"encoding/json"
	"io"
	"maps"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/fs/history/journal"
	"github.com/scopefs/scopefs/scope/beneath"
)

// taken is what commits have left in Base: a journal of lines of JSON. A line that a power failure has cut off is dropped,
// with those after it: the objects then count as changed in Base.
type taken struct {
	file beneath.File
	size int64
	byID map[uint64]line // by inode number: the object may be moved later
	gone map[string]bool // paths that a commit has removed

	upper map[UpperID]bool                // objects of Upper that commits have taken
	paths map[string]UpperID              // paths that a commit has taken, and the objects of Upper
	seen  map[UpperID]unix.StatxTimestamp // how commits have taken them
}

// line is one object, or one path that has none any more.
type line struct {
	ident
	Path  []byte              `json:"p,omitempty"` // none: another name of the object was removed. JSON has no strings that are not UTF-8
	Made  bool                `json:"n,omitempty"` // the branch has made the directory: Upper has its own, which Base does not show through
	Moved bool                `json:"t,omitempty"` // the directory was moved: Upper shows it through by its new name
	Upper UpperID             `json:"u,omitzero"`  // the object in Upper; zero: the commit has only changed names in the directory
	Seen  unix.StatxTimestamp `json:"a,omitzero"`  // the change time of that object
	Gone  bool                `json:"g,omitempty"`
	Known UpperID             `json:"k,omitzero"` // only this: an object of Upper that came from one of Base, which a commit has removed
}

func (t *taken) open(top beneath.Dir) error {
	f, err := journal.OpenOrCreate(top, takenName)
	if err != nil {
		return err
	}
	t.file, t.byID, t.gone, t.paths = f, map[uint64]line{}, map[string]bool{}, map[string]UpperID{}
	t.upper, t.seen = map[UpperID]bool{}, map[UpperID]unix.StatxTimestamp{}
	if t.size, err = scanLines(f, t.add); err != nil {
		f.Close()
		return err
	}
	return f.Truncate(t.size)
}

// maxLine bounds a line, in bytes.
const maxLine = 1 << 20

// scanLines calls each for the lines of a file, up to one that is none, and returns their size.
func scanLines(f beneath.File, each func(line)) (size int64, err error) {
	r := bufio.NewReaderSize(&reader{File: f}, maxLine)
	for {
		one, err := r.ReadSlice('\n')
		var l line
		switch {
		case err == io.EOF || err == bufio.ErrBufferFull:
			return size, nil
		case err != nil:
			return size, err
		case json.Unmarshal(one, &l) != nil:
			return size, nil
		}
		each(l)
		size += int64(len(one))
	}
}

// reader reads a file from its beginning.
type reader struct {
	beneath.File
	at int64
}

func (r *reader) Read(p []byte) (int, error) {
	n, err := r.ReadAt(p, r.at)
	if err == nil && n == 0 {
		err = io.EOF
	}
	r.at += int64(max(n, 0))
	return max(n, 0), err
}

func readAll(f beneath.File) ([]byte, error) {
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	text := make([]byte, st.Size)
	n, err := f.ReadAt(text, 0)
	return text[:n], err
}

func (t *taken) add(l line) {
	if l.Known != (UpperID{}) {
		t.upper[l.Known] = true
		return
	}
	if l.Gone {
		t.gone[string(l.Path)] = true
		delete(t.paths, string(l.Path))
		if l.Dir {
			maps.DeleteFunc(t.paths, func(rel string, _ UpperID) bool { return within(rel, string(l.Path)) })
		}
		return
	}
	if len(l.Path) > 0 {
		delete(t.gone, string(l.Path))
	}
	if l.Moved && l.Dir { // it has brought other names
		maps.DeleteFunc(t.gone, func(rel string, _ bool) bool { return within(rel, string(l.Path)) })
	}
	if l.Upper != (UpperID{}) {
		t.paths[string(l.Path)], t.upper[l.Upper], t.seen[l.Upper] = l.Upper, true, plainTime(l.Seen)
	}
	if old := t.byID[l.Ino]; old.SameObject(l.ident) {
		if l.Ctime == (unix.StatxTimestamp{}) { // the commit has not changed the object
			l.ident = old.ident
		}
		l.Made, l.Moved, l.Upper = l.Made || old.Made, l.Moved || old.Moved, cmp.Or(l.Upper, old.Upper)
	}
	t.byID[l.Ino] = l
}

// append adds lines, durably.
func (t *taken) append(lines []line) error {
	var text []byte
	for _, l := range lines {
		t.add(l)
		one, err := json.Marshal(l)
		if err != nil {
			return err
		}
		text = append(append(text, one...), '\n')
	}
	n, err := t.file.WriteAt(text, t.size, false)
	if err == nil && n < len(text) {
		err = unix.ENOSPC
	}
	if err != nil {
		return err
	}
	t.size += int64(n)
	return t.file.Sync(true)
}

// has returns the line of an object, whatever version of it.
func (t *taken) has(st *beneath.Stat) (line, bool) {
	l, ok := t.byID[st.Ino]
	return l, ok && l.SameObject(identOf(st))
}

// since returns why an object of Base conflicts with the branch: it was changed since the fork, and not by a commit.
func (b *Branch) since(st *beneath.Stat) string {
	if later(b.stamp, st.Ctime) {
		return ""
	}
	if l, ok := b.taken.has(st); ok && l.ident == identOf(st) {
		return ""
	}
	return whyChanged
}

// The conflicts of an entry with Base.
const (
	whyChanged = "changed in the directory since the fork"
	whyGone    = "removed in the directory since the fork"
	whyNew     = "added or replaced in the directory since the fork"
	whyToo     = "is in the directory, too"
	whyCannot  = "cannot be taken: "
)
