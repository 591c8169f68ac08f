package branch

import (
	"encoding/json"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/fs/history/journal"
	"github.com/scopefs/scopefs/fs/plan"
	"github.com/scopefs/scopefs/scope/beneath"
)

// taken are versions of objects of Base that are no conflict: those that commits have left, and those that the branch has shown. It is
// a journal of lines of JSON. A line that a power failure has cut off is dropped, with those after it: the objects then count as changed
// in Base.
type taken struct {
	log  *journal.Log
	byID map[uint64]line // by inode number: the object may be moved later
}

// line is one version. Without a change time it is each with the rest.
type line struct {
	ident
	Path []byte `json:"p,omitempty"` // JSON has no strings that are not UTF-8
}

func (t *taken) open(top beneath.Dir, own bool) error {
	t.byID = map[uint64]line{}
	log, err := journal.OpenLog(top, takenName, journal.Lines, own, func(text []byte) bool {
		var l line
		if json.Unmarshal(text, &l) != nil {
			return false
		}
		t.add(l)
		return true
	})
	if err != nil {
		return err
	}
	if t.log != nil {
		t.log.Close()
	}
	t.log = log
	return nil
}

func (t *taken) add(l line) { t.byID[l.Ino] = l }

// append adds lines, which [Branch.renew] makes durable.
func (t *taken) append(lines []line) error {
	for _, l := range lines {
		t.add(l)
	}
	return journal.AppendJSON(t.log, lines...)
}

// since returns why an object of Base conflicts with the branch: it was changed since the fork, and not by a commit.
func (b *Branch) since(st *beneath.Stat) string {
	if later(b.stamp, st.Ctime) {
		return ""
	}
	if l, ok := b.taken.byID[st.Ino]; ok {
		now := plan.IdentOf(st)
		if l.Ctime == (unix.StatxTimestamp{}) {
			now.Ctime = l.Ctime
		}
		if l.ident == now {
			return ""
		}
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
