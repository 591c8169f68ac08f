package branch

import (
	"cmp"
	"encoding/json"
	"maps"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/fs/history/journal"
	"github.com/scopefs/scopefs/scope/beneath"
)

// taken is what commits have left in Base: a journal of lines of JSON. A line that a power failure has cut off is dropped,
// with those after it: the objects then count as changed in Base.
type taken struct {
	log  *journal.Log
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

func (t *taken) open(top beneath.Dir) (err error) {
	t.byID, t.gone, t.paths = map[uint64]line{}, map[string]bool{}, map[string]UpperID{}
	t.upper, t.seen = map[UpperID]bool{}, map[UpperID]unix.StatxTimestamp{}
	t.log, err = journal.OpenLog(top, takenName, journal.Lines, eachLine(t.add))
	return err
}

// eachLine returns what OpenLog calls for lines.
func eachLine(each func(line)) func([]byte) bool {
	return func(text []byte) bool {
		var l line
		if json.Unmarshal(text, &l) != nil {
			return false
		}
		each(l)
		return true
	}
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
	texts := make([][]byte, len(lines))
	for i, l := range lines {
		t.add(l)
		var err error
		if texts[i], err = json.Marshal(l); err != nil {
			return err
		}
	}
	if err := t.log.Append(texts...); err != nil {
		return err
	}
	return t.log.Sync(true)
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
