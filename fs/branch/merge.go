package branch

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"

	"github.com/rogpeppe/go-internal/diff"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/fs/plan"
	"github.com/scopefs/scopefs/scope/beneath"
)

// The values of Entry.Merge. Another one says why the entry cannot be merged.
const (
	MergeClean = "clean"  // a commit with Merge takes both changes
	Merged     = "merged" // this commit has taken both
)

// Why an entry with a conflict cannot be merged.
const (
	whyNoBase  = "what it was before is not kept"
	whyNoText  = "no text of 1 MiB at most"
	whyMode    = "the directory has changed its owner, mode or attributes"
	whyJudged  = "its content is judged as a whole"
	whyOverlap = "both changed the same lines"
)

// mergeable reports whether a content is a text.
func mergeable(text []byte) bool { return len(text) <= maxBase && bytes.IndexByte(text, 0) < 0 }

// merge returns the content that has the changes of Base and those of the branch's version, which is at a path of root. why says
// why there is none.
func (b *Branch) merge(e *Entry, root *beneath.Root, rel string) (merged []byte, why string) {
	switch {
	case b.Judged != nil && b.Judged(e.Path):
		return nil, whyJudged
	case e.origin == nil:
		return nil, whyNoBase
	}
	ours, st, ok := textOf(b.Base, e.base)
	if !ok || e.origin.Length < 0 || plan.IdentOf(&st) != plan.IdentOf(&e.old) {
		return nil, whyNoText
	}
	theirs, _, ok := textOf(root, rel)
	if !ok {
		return nil, whyNoText
	}
	if !plan.SameAttributes(&e.origin.Attr, plan.AttributesOf(b.Base, e.base, &e.old, false)) {
		return nil, whyMode
	}
	before, ok := e.origin.text(b.bases)
	if !ok {
		return nil, whyNoBase
	}
	if merged, ok = merge3(before, ours, theirs); !ok {
		return nil, whyOverlap
	}
	return merged, ""
}

// textOf returns the content of a text, and its attributes.
func textOf(root *beneath.Root, rel string) (text []byte, st beneath.Stat, ok bool) {
	st, err := root.Stat(rel)
	if err != nil || !st.IsRegular() || st.Size > maxBase {
		return nil, st, false
	}
	f, err := root.Open(rel, unix.O_RDONLY, st.ID())
	if err != nil {
		return nil, st, false
	}
	defer f.Close()
	text = make([]byte, st.Size)
	n, err := f.ReadAt(text, 0)
	return text, st, err == nil && n == len(text) && mergeable(text)
}

// tryMerge sets what a commit with Merge would do with an entry that Base has changed, too.
func (d *differ) tryMerge(e *Entry) {
	if e.Type != "file" || !e.Content || e.fixed || !e.old.IsRegular() {
		return
	}
	merged, why := d.merge(e, d.Merged, e.Path)
	e.setMerged(merged, why)
}

func (e *Entry) setMerged(merged []byte, why string) {
	if e.Merge, e.merged = why, nil; why == "" {
		sum := sha256.Sum256(merged)
		e.Merge, e.merged, e.size = MergeClean, sum[:], int64(len(merged))
	}
}

// mergedName is the name in the stage of a merged file.
func mergedName(i int) string { return "m" + stagedName(i) }

// merge makes the merged version of an entry in the stage, of the branch's version there, and returns what it is: nothing
// if they cannot be merged any more.
func (s *stager) merge(e *Entry, i int) (_ ident, err error) {
	text, why := s.Branch.merge(e, s.State, stagePath(stagedName(i)))
	if e.setMerged(text, why); why != "" {
		return ident{}, nil
	}
	st, err := s.stage.Stat(stagedName(i))
	if err != nil {
		return ident{}, err
	}
	f, err := s.stage.Create(mergedName(i), unix.O_RDWR, 0o600)
	if err != nil {
		return ident{}, err
	}
	defer f.Close()
	if n, err := f.WriteAt(text, 0, false); err != nil || n < len(text) {
		return ident{}, cmp.Or(err, error(unix.ENOSPC))
	}
	was := plan.AttributesOf(s.State, stagePath(stagedName(i)), &st, true)
	if err := plan.Apply(s.State, stagePath(mergedName(i)), f, &f, was); err != nil {
		return ident{}, err
	}
	if s.count++; s.count <= maxSyncs {
		if err := f.Sync(false); err != nil {
			return ident{}, err
		}
	}
	e.Merge = Merged
	st, err = f.Stat()
	return stagedIdent(&st), err
}

// hunk replaces the lines from start to end by others.
type hunk struct {
	start, end int
	lines      []string
}

// touches reports whether no line is between two hunks.
func (h hunk) touches(o hunk) bool { return h.start <= o.end && o.start <= h.end }

// merge3 merges two versions of a text by lines: diff3(1). It returns false if both change the same lines, or adjacent ones, and
// not in the same way.
func merge3(before, ours, theirs []byte) ([]byte, bool) {
	a, b, lines := hunks(before, ours), hunks(before, theirs), linesOf(before)
	var out strings.Builder
	at := 0
	for len(a) > 0 || len(b) > 0 {
		var next hunk
		switch {
		case len(a) > 0 && len(b) > 0 && a[0].touches(b[0]):
			if a[0].start != b[0].start || a[0].end != b[0].end || !slices.Equal(a[0].lines, b[0].lines) {
				return nil, false
			}
			next, a, b = a[0], a[1:], b[1:]
		case len(b) == 0 || len(a) > 0 && a[0].start < b[0].start:
			next, a = a[0], a[1:]
		default:
			next, b = b[0], b[1:]
		}
		for _, l := range lines[at:next.start] {
			out.WriteString(l)
		}
		for _, l := range next.lines {
			out.WriteString(l)
		}
		at = next.end
	}
	for _, l := range lines[at:] {
		out.WriteString(l)
	}
	return []byte(out.String()), true
}

// hunks returns how a text differs from the one before, of a unified diff.
func hunks(before, after []byte) (list []hunk) {
	text := diff.Diff("", before, "", after)
	if len(text) == 0 {
		return nil
	}
	lines := linesOf(after)
	x, y := 0, 0
	open := false // the last line was a change
	change := func() *hunk {
		if !open {
			list, open = append(list, hunk{start: x, end: x}), true
		}
		return &list[len(list)-1]
	}
	for _, l := range linesOf(text)[3:] { // diff, ---, +++
		switch l[0] {
		case '@':
			var count, others int
			_, _ = fmt.Sscanf(l, "@@ -%d,%d +%d,%d @@", &x, &count, &y, &others) // the library's own
			x, y = x-min(count, 1), y-min(others, 1)
			open = false
		case '-':
			h := change()
			x++
			h.end = x
		case '+':
			h := change()
			h.lines = append(h.lines, lines[y])
			y++
		case ' ':
			x, y, open = x+1, y+1, false
		}
	}
	return list
}

// linesOf returns the lines of a text with their ends.
func linesOf(text []byte) []string {
	lines := strings.SplitAfter(string(text), "\n")
	if lines[len(lines)-1] == "" {
		lines = lines[:len(lines)-1]
	}
	return lines
}
