package query

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/rogpeppe/go-internal/diff"

	"github.com/scopefs/scopefs/audit/event"
	"github.com/scopefs/scopefs/fs/branch"
	"github.com/scopefs/scopefs/fs/history"
	"github.com/scopefs/scopefs/scope/beneath"
)

// Shown is a text of what differs, for a person: a line for each change, removals, moves, links and modes first, and then
// diffs of text.
type Shown struct {
	Text      string `json:"text"`
	Note      string `json:"note"` // how many changes there are, and what Text leaves out
	Conflicts int    `json:"conflicts,omitempty"`
}

// The bounds of what clients cause, in bytes. Those of a Shown are as a message has it.
const (
	maxHashed = 1 << 30   // new content
	maxDiffed = 256 << 10 // a content with a diff
	maxLines  = 32 << 10  // the lines of a Shown
	maxDiffs  = 24 << 10  // its diffs of new files, and of others: many new files must not hide what others become
)

// maxFull bounds the diffs that are made and have no room.
const maxFull = 100

// clientOfBranch answers a request of a client of the agent's tools about the branch. See client.
func (s *Server) clientOfBranch(ctx context.Context, r *Request) (*Reply, error) {
	s.turn.Lock()
	defer s.turn.Unlock()
	switch {
	case r.Diff != nil:
		return s.show(ctx, r.Diff)
	case r.Commit != nil:
		r.Commit.Conflicts = branch.Refuse
		reply, entries, err := s.take(ctx, r.Commit, nil)
		if errors.Is(err, branch.ErrChanged) {
			return &Reply{Stale: true}, nil
		}
		if err != nil {
			return nil, err
		}
		page := page(s.readable(entries), 0)
		reply.Entries, reply.Total = page.Entries, page.Total
		return reply, nil
	}
	return nil, errors.New("no request of a client")
}

// show returns what differs as a text, with its hash. Without Whole it leaves out what the agent's rules hide.
func (s *Server) show(ctx context.Context, r *Branch) (*Reply, error) {
	w := &shower{Server: s, whole: r.Whole}
	set, err := s.Branch.Show(ctx, r.Paths, maxHashed, maxDiffed, w.see)
	switch {
	case errors.Is(err, branch.ErrTooLarge):
		return &Reply{Nothing: fmt.Sprintf("the changes have more than %d MiB: give paths", maxHashed>>20)}, nil
	case errors.Is(err, branch.ErrChanged):
		return &Reply{Stale: true}, nil
	case err != nil:
		return nil, err
	}
	return &Reply{Hash: set.Hash, Total: w.total, Shown: w.shown()}, nil
}

// shower makes a Shown.
type shower struct {
	*Server
	whole     bool
	lines     []line
	total     int
	kinds     map[history.ChangeKind]int
	diffs     [2]strings.Builder // of new files, and before them of others
	room      [2]int             // bytes taken of it
	full      [2]int             // diffs that had no room
	omitted   int                // files without a diff
	conflicts int
}

type line struct {
	rank int
	text string
}

func (w *shower) see(e *branch.Entry, content []byte, kept bool) {
	if !w.whole && (w.hides(e.Path) || w.hides(e.From)) {
		return
	}
	w.total++
	if w.kinds == nil {
		w.kinds = map[history.ChangeKind]int{}
	}
	if w.kinds[e.Kind]++; e.Conflict != "" {
		w.conflicts++
	}
	l := lineOf(e)
	if e.Type == "file" && e.Content && e.Kind != history.Deleted && !w.diff(e, content, kept) {
		l.text += ", no diff"
	}
	w.lines = append(w.lines, l)
}

// hides reports whether the agent's rules hide a path, "" for none.
func (s *Server) hides(rel string) bool { return rel != "" && s.Hooks.Read(rel) != nil }

// lineOf returns the line of an entry.
func lineOf(e *branch.Entry) line {
	l := line{rank: 1, text: string(e.Kind) + " "}
	if e.From != "" {
		l.text += event.Escape(e.From) + " -> "
	}
	l.text += event.Escape(e.Path)
	if e.Type == "directory" {
		l.text += "/"
	}
	if e.Kind != history.Changed && e.Kind != history.Added || e.Type != "file" && e.Type != "directory" {
		l.rank = 0
	}
	switch {
	case e.Kind == history.Deleted:
	case e.Type == "link":
		l.text += fmt.Sprintf(", a link to %s", event.Escape(e.Link))
	case e.OldSize >= 0 && e.OldMode != e.NewMode:
		l.text += fmt.Sprintf(", mode %04o -> %04o", e.OldMode, e.NewMode)
		l.rank = 0
	case e.OldSize < 0 && e.Type == "file" && e.NewMode&0o7111 != 0:
		l.text += fmt.Sprintf(", mode %04o", e.NewMode)
		l.rank = 0
	case e.Mode:
		l.text += ", owner or attributes"
		l.rank = 0
	}
	if e.Type == "file" && e.Kind != history.Deleted && e.Content {
		l.text += fmt.Sprintf(", %d bytes", e.NewSize)
	}
	if e.Conflict != "" {
		l.text += ", conflict: " + event.Escape(e.Conflict)
		if e.Merge == branch.MergeClean {
			l.text += "; scopefs commit --merge takes both"
		}
	}
	return l
}

// diff adds the diff of an entry. It reports whether there is one.
func (w *shower) diff(e *branch.Entry, content []byte, kept bool) bool {
	to := 0
	if e.Kind == history.Added {
		to = 1
	}
	old, ok := []byte(nil), kept && history.IsText(content) && w.full[to] < maxFull
	if ok && !w.whole {
		ok = one(w.Branch.Merged, e.Path)
	}
	if ok && e.Kind != history.Added {
		before := cmp.Or(e.From, e.Path)
		old, ok = readText(w.Branch.Base, before)
		ok = ok && (w.whole || one(w.Branch.Base, before))
	}
	if !ok {
		w.omitted++
		return false
	}
	text := diff.Diff("a/"+event.Escape(cmp.Or(e.From, e.Path)), old, "b/"+event.Escape(e.Path), content)
	_, text, _ = bytes.Cut(text, []byte("\n")) // drop the line "diff a b"
	size := sizeOf(string(text))
	if w.room[to]+size > maxDiffs {
		w.full[to]++
		w.omitted++
		return false
	}
	w.room[to] += size
	w.diffs[to].Write(text)
	return true
}

// sizeOf returns the size of a text in a message, where <, > and & are escaped.
func sizeOf(text string) int {
	b, _ := json.Marshal(text) // a string
	return len(b)
}

// one reports whether a file has one name: a rule may hide another one.
func one(root *beneath.Root, rel string) bool {
	st, err := root.Stat(rel)
	return err == nil && st.Nlink <= 1
}

// readText returns the text of a file of at most maxDiffed bytes.
func readText(root *beneath.Root, rel string) ([]byte, bool) {
	data := make([]byte, maxDiffed+1)
	n := 0
	for {
		m, size, link, err := history.ReadFile(root, rel, data[n:], int64(n))
		if n += max(m, 0); err != nil || link || size > maxDiffed || n > maxDiffed {
			return nil, false
		}
		if m <= 0 || int64(n) >= size {
			return data[:n], history.IsText(data[:n])
		}
	}
}

func (w *shower) shown() *Shown {
	slices.SortStableFunc(w.lines, func(a, b line) int { return cmp.Compare(a.rank, b.rank) })
	var b strings.Builder
	listed, size := 0, 0
	for _, l := range w.lines {
		if size += sizeOf(l.text + "\n"); size > maxLines {
			break
		}
		b.WriteString(l.text + "\n")
		listed++
	}
	var note strings.Builder
	fmt.Fprintf(&note, "%d changes", w.total)
	sign := ":"
	for _, kind := range []history.ChangeKind{history.Deleted, history.Renamed, history.ModeChanged, history.Changed, history.Added} {
		if n := w.kinds[kind]; n > 0 {
			fmt.Fprintf(&note, "%s %d %s", sign, n, kind)
			sign = ","
		}
	}
	if left := w.total - listed; left > 0 {
		fmt.Fprintf(&note, "; %d are not listed", left)
	}
	if w.omitted > 0 {
		fmt.Fprintf(&note, "; %d have no diff", w.omitted)
	}
	return &Shown{Text: b.String() + w.diffs[0].String() + w.diffs[1].String(), Note: note.String(), Conflicts: w.conflicts}
}
