package proof

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/audit/event"
	"github.com/scopefs/scopefs/audit/segment"
	"github.com/scopefs/scopefs/audit/tree"
)

// VerifyOptions are the options of [Verify].
type VerifyOptions struct {
	Key      string                  // the log's public key, kept elsewhere; default: key.pub beside the log
	Heads    map[string]io.Reader    // texts with signed heads that were kept elsewhere, by a name for errors: see [tree.EachHead]
	Beside   map[string]io.Reader    // likewise, of this host: Matched does not count them, and a text may have none
	Progress func(done, total int64) // is called now and then with the bytes of segments that were read

	// Match is called for each head of the options that lines match, with its text and the number of the last event below it.
	Match func(h tree.Head, signed string, seq uint64)
}

// Verified says what [Verify] found.
type Verified struct {
	Head    tree.Head // the last head, which the lines match
	Removed int64     // lines before the first one kept: their segments were removed
	After   int64     // lines after the last head, which nothing vouches for yet
	Matched int       // heads of the options that the lines match
	Older   int       // heads of the options that are of removed lines alone: they vouch for none that is left
	Others  int       // heads of the options that are of other logs
	Cut     int       // heads of the options that end too early
	Gaps    []string  // numbers that the log itself says are lost
	Foreign []string  // lines that the log itself says it has not written
}

// BrokenError reports that a log is not what was recorded, and where that shows first.
type BrokenError struct {
	Segment string // the file; empty if the fault is in none
	Line    int64  // the line in it, from 1; 0 if the fault is in none
	What    string
}

func (e *BrokenError) Error() string {
	switch {
	case e.Segment == "":
		return "broken: " + e.What
	case e.Line == 0:
		return fmt.Sprintf("broken: %s: %s", e.Segment, e.What)
	}
	return fmt.Sprintf("broken: %s, line %d: %s", e.Segment, e.Line, e.What)
}

// Verify reads the log in dir, or a copy of one, and compares its lines with its last head and with heads that were kept
// elsewhere. It needs no other process and writes nothing. A [BrokenError] names the first line that is not what was
// recorded. Whoever has the log's key can rewrite the log and sign it: Verify
// detects that only by a head from elsewhere.
func Verify(ctx context.Context, dir string, opts VerifyOptions) (Verified, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return Verified{}, err
	}
	defer root.Close()
	v := verifier{root: root, opts: opts, heads: map[int64][]namedHead{}}
	if err := v.readHeads(ctx); err != nil {
		return Verified{}, err
	}
	if v.blocks, err = segment.OpenFile(root, segment.Tree); err != nil {
		return Verified{}, &BrokenError{Segment: segment.Tree, What: "the hashes of the lines are missing: " + cause(err)}
	}
	defer v.blocks.Close()
	err = v.walk(ctx)
	return v.found, err
}

func cause(err error) string {
	if path, ok := errors.AsType[*fs.PathError](err); ok {
		return path.Err.Error()
	}
	return err.Error()
}

type namedHead struct {
	text   string
	line   int64 // in the text
	from   source
	signed string
	tree.Head
}

// A source says where a head is from.
type source byte

const (
	elsewhere source = iota
	beside
	within // the log's own
)

func (h namedHead) name() string {
	if h.line <= 1 {
		return h.text
	}
	return fmt.Sprintf("%s, line %d", h.text, h.line)
}

// verifier is one call of Verify.
type verifier struct {
	root   *os.Root
	opts   VerifyOptions
	blocks *os.File // tree
	heads  map[int64][]namedHead
	last   tree.Head
	found  Verified

	at      tree.Position
	seq     uint64          // of the line before
	hashed  int64           // the size of the tree that the files of the tree have
	hints   []byte          // of the segment
	suspect *BrokenError    // the first line that seems to be another
	seg     segment.Segment // the current one
	line    int64           // in seg
	removed int             // the last segment that the log says it removed
}

// readHeads reads the key, the log's head and the heads of the options, and checks their signatures.
func (v *verifier) readHeads(ctx context.Context) error {
	text := v.opts.Key
	if text == "" {
		b, err := v.root.ReadFile(segment.PublicKey)
		if err != nil {
			return &BrokenError{Segment: segment.PublicKey, What: "the log's public key is missing: give it with --key: " + cause(err)}
		}
		text = string(b)
	}
	key, err := note.NewVerifier(strings.TrimSpace(text))
	if err != nil {
		return fmt.Errorf("key of the log: %w", err)
	}
	own, err := v.root.ReadFile(segment.Head)
	if err != nil {
		return &BrokenError{Segment: segment.Head, What: "the signed head is missing: " + cause(err)}
	}
	if v.last, err = tree.OpenHead(own, key); err != nil {
		return &BrokenError{Segment: segment.Head, What: fmt.Sprintf("it is not signed by the log's key %s: %v", key.Name(), err)}
	}
	v.heads[v.last.Size] = []namedHead{{segment.Head, 1, within, "", v.last}}
	for from, texts := range []map[string]io.Reader{elsewhere: v.opts.Heads, beside: v.opts.Beside} {
		for name, text := range texts {
			if err := v.addHeads(ctx, name, text, key, source(from)); err != nil {
				return err
			}
		}
	}
	return nil
}

// addHeads adds the heads of a text from elsewhere.
func (v *verifier) addHeads(ctx context.Context, name string, text io.Reader, key note.Verifier, from source) error {
	kept, err := tree.EachHead(whileReader{ctx, text}, key, func(line int64, h tree.Head, signed string) {
		if v.opts.Match == nil { // a text may have millions
			signed = ""
		}
		v.heads[h.Size] = append(v.heads[h.Size], namedHead{name, line, from, signed, h})
	})
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		return &BrokenError{Segment: name, What: err.Error()}
	case kept.Heads == 0 && from == elsewhere:
		return &BrokenError{Segment: name,
			What: fmt.Sprintf("it has no head that is signed by the log's key %s, and %d of other logs", key.Name(), kept.Others)}
	}
	v.found.Others += kept.Others
	v.found.Cut += kept.Cut
	return nil
}

// whileReader fails when ctx has ended.
type whileReader struct {
	ctx context.Context
	io.Reader
}

func (r whileReader) Read(b []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.Reader.Read(b)
}

// walk reads all segments.
func (v *verifier) walk(ctx context.Context) error {
	all, err := segment.List(v.root)
	if err != nil {
		return err
	}
	done, total := int64(0), int64(0)
	sizes := make([]int64, len(all))
	for i, seg := range all {
		if info, err := v.root.Lstat(seg.Name()); err == nil {
			sizes[i] = info.Size()
			total += sizes[i]
		}
	}
	for i, seg := range all {
		if i > 0 && seg.Number != all[i-1].Number+1 {
			return v.broken(0, fmt.Sprintf("the segment before it, %s, is missing", segment.Name(seg.Number-1)), segment.Name(seg.Number))
		}
		v.seg, v.line = seg, 0
		if err := v.enter(i == 0); err != nil {
			return err
		}
		err := eachLeaf(ctx, v.root, seg, v.add)
		if broken, ok := errors.AsType[*BrokenError](err); ok {
			return broken
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			return v.broken(v.line+1, "it cannot be read: "+cause(err), seg.Name())
		}
		if done += sizes[i]; v.opts.Progress != nil {
			v.opts.Progress(done, total)
		}
	}
	if len(all) > 0 && all[0].Number-1 > v.removed {
		return v.broken(0, fmt.Sprintf("the segments up to %s are missing, and the log has not removed them",
			segment.Name(all[0].Number-1)), all[0].Name())
	}
	return v.finish()
}

// broken returns the error of the first line that seems to be another, else the given one.
func (v *verifier) broken(line int64, what, name string) error {
	if v.suspect != nil {
		return v.suspect
	}
	return &BrokenError{Segment: name, Line: line, What: what}
}

// enter begins a segment: the tree must be what it was where the segment began.
func (v *verifier) enter(first bool) error {
	name := segment.TreeFile(v.seg.Number)
	text, err := v.root.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) && v.at.Tree.Size >= v.last.Size && (!first || v.last.Size == 0) { // not hashed yet
		v.hints = nil
		return nil
	}
	if err != nil {
		return v.broken(0, "it is missing: "+cause(err), name)
	}
	var start, now tree.Position
	if len(text) >= tree.PositionSize {
		start, err = tree.DecodePosition(text[:tree.PositionSize])
	} else {
		start, err = tree.DecodePosition(nil)
	}
	if err != nil {
		return v.broken(0, err.Error(), name)
	}
	if v.hints = nil; len(text) >= 2*tree.PositionSize {
		v.hints = text[2*tree.PositionSize:]
		if now, err = tree.DecodePosition(text[tree.PositionSize : 2*tree.PositionSize]); err == nil {
			v.hashed = now.Tree.Size
		}
	}
	switch {
	case first:
		v.at, v.found.Removed = start.Clone(), start.Tree.Size
		return v.compareHeads()
	case start.Tree.Size > v.at.Tree.Size:
		return v.broken(0, fmt.Sprintf("%d lines before it are missing", start.Tree.Size-v.at.Tree.Size), segment.Name(v.seg.Number))
	case start.Tree.Size < v.at.Tree.Size:
		return v.broken(0, fmt.Sprintf("%d lines before it were inserted", v.at.Tree.Size-start.Tree.Size), segment.Name(v.seg.Number))
	case !start.Tree.Equal(v.at.Tree):
		return v.broken(0, "lines of the segment before it were changed", segment.Name(v.seg.Number))
	}
	return nil
}

// add takes one line.
func (v *verifier) add(line []byte, leaf tlog.Hash) error {
	v.line++
	index := v.at.Tree.Size
	switch {
	case !bytes.HasSuffix(line, []byte("\n")) && !v.open():
		return v.broken(v.line, "its newline is missing: it was cut off", v.seg.Name())
	case bytes.HasSuffix(line, []byte("\n")) && index >= v.last.Size && segment.ParseEvent(line) == 0:
		return v.broken(v.line, "it is no event: another program has written it", v.seg.Name())
	}
	kind := segment.Value(line, "event")
	v.number(kind, line)
	if at := (v.line - 1) * tree.HintSize; index < v.hashed && at+tree.HintSize <= int64(len(v.hints)) &&
		string(v.hints[at:at+tree.HintSize]) != string(leaf[:tree.HintSize]) {
		v.suspects("it is not the line that was recorded")
	}
	segment.Count(&v.at.Counts, kind, line)
	block, complete := v.at.Tree.Add(leaf)
	if complete && v.at.Tree.Size <= v.last.Size {
		var stored [tree.HashSize]byte
		if _, err := v.blocks.ReadAt(stored[:], index/tree.BlockLines*tree.HashSize); err != nil || stored != block {
			v.suspects(fmt.Sprintf("one of the %d lines up to this one is not what was recorded", tree.BlockLines))
		}
	}
	return v.compareHeads()
}

// open reports whether a process has the log open: its last line may be one that is being written.
func (v *verifier) open() bool {
	f, err := segment.OpenFile(v.root, segment.Mark)
	if err != nil {
		return false
	}
	defer f.Close()
	return segment.Lock(f, unix.LOCK_EX|unix.LOCK_NB) != nil
}

func (v *verifier) suspects(what string) {
	if v.suspect == nil {
		v.suspect = &BrokenError{Segment: v.seg.Name(), Line: v.line, What: what}
	}
}

// number compares the line's number with that of the line before it.
func (v *verifier) number(kind string, line []byte) {
	seq, _, ok := segment.ParseSeq(line)
	if !ok {
		return // what was recorded nevertheless is in the tree
	}
	before := v.seq
	v.seq = seq
	outcome := ""
	if kind == event.KindAudit {
		outcome = segment.Value(line, "outcome")
	}
	lost := segment.Lost(outcome)
	if outcome == event.OutcomeForeign {
		v.found.Foreign = append(v.found.Foreign, segment.Value(line, "detail"))
	}
	if outcome == event.OutcomeRemoved {
		to := 0 // of two processes the later record may be of fewer segments
		_, _ = fmt.Sscanf(segment.Value(line, "detail"), segment.RemovedFormat, new(int), &to)
		v.removed = max(v.removed, to)
	}
	if before == 0 && !lost || seq == before+1 {
		return
	}
	if seq > before && lost {
		if before == 0 { // the log's directory was removed
			v.removed = v.seg.Number - 1
		}
		v.found.Gaps = append(v.found.Gaps, fmt.Sprintf("numbers %d to %d: %s", before+1, seq-1, segment.Value(line, "detail")))
		return
	}
	v.suspects(fmt.Sprintf("event %d follows event %d", seq, before))
}

// compareHeads compares the tree with the heads of its size.
func (v *verifier) compareHeads() error {
	for _, h := range v.heads[v.at.Tree.Size] {
		if h.Root != v.at.Tree.Root() {
			what := fmt.Sprintf("the head of %d lines has another root: lines were changed before it was signed, or it is of another copy of the log", h.Size)
			return v.broken(0, what, h.name())
		}
		if h.Counts != v.at.Counts {
			return v.broken(0, "the head counts other denials, calls or losses than the lines have", h.name())
		}
		v.match(h)
	}
	return nil
}

// match counts a head that the lines match.
func (v *verifier) match(h namedHead) {
	switch {
	case h.from == elsewhere && h.Size <= v.found.Removed:
		v.found.Older++
	case h.from == elsewhere:
		v.found.Matched++
	}
	if h.from != within && h.Size > v.found.Removed && v.opts.Match != nil {
		v.opts.Match(h.Head, h.signed, v.seq)
	}
}

// finish compares what is left at the end.
func (v *verifier) finish() error {
	size := v.at.Tree.Size
	for _, heads := range v.heads {
		for _, h := range heads {
			switch {
			case h.Size > size:
				what := fmt.Sprintf("it is of %d lines, the log has %d: %d lines are missing at the end", h.Size, size, h.Size-size)
				return v.broken(0, what, h.name())
			case h.Size < v.found.Removed && h.from == within:
				return v.broken(0, "it is older than the first line of the log", h.name())
			case h.Size < v.found.Removed && h.from == elsewhere:
				v.found.Older++
			}
		}
	}
	if v.suspect != nil { // the lines are those of the head: a file of the tree is not
		v.suspect.What = "the files of the tree were changed here: the lines match the head"
		return v.suspect
	}
	v.found.Head, v.found.After = v.last, size-v.last.Size
	return nil
}
