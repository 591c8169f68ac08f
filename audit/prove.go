package audit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/audit/tree"
)

// Proof shows that lines are in a log, and nothing about its other lines. It is a file of its own: Check needs no log.
type Proof struct {
	Shows  string       `json:"shows"` // in words
	Key    string       `json:"key"`   // the log's public key, in the form of golang.org/x/mod/sumdb/note
	Head   string       `json:"head"`  // a signed head: c2sp.org/tlog-checkpoint
	Events []ProvedLine `json:"events"`
}

// ProvedLine is a line and its inclusion proof (RFC 6962, section 2.1.1).
type ProvedLine struct {
	Line  string                  `json:"line"`            // what the tree hashes: see tree.Leaf
	Shown map[string]tree.Opening `json:"shown,omitempty"` // the values of fields that Line has only commitments to
	Index int64                   `json:"index"`           // of the line in the tree, from 0
	Path  []tlog.Hash             `json:"path"`            // from the leaf to the root
}

// Text returns the line, and the fields that it has commitments to in place of values. It checks the values that are shown. A
// line with control characters, which the log escapes, is an error: its owner may want to deceive whoever reads it.
func (l ProvedLine) Text() (line string, redacted []string, err error) {
	line, redacted, err = tree.Open(l.Line, l.Shown)
	if err == nil && strings.ContainsFunc(line, unicode.IsControl) {
		err = errors.New("it has control characters")
	}
	return line, redacted, err
}

// redact removes the values of fields.
func (l ProvedLine) redact(fields []string) error {
	if len(fields) > 0 && l.Shown == nil {
		return fmt.Errorf("line %d of the log: an older version recorded it, without a salt: it can only be shown as a whole", l.Index+1)
	}
	for _, field := range fields {
		delete(l.Shown, field)
	}
	return nil
}

// Redactable are the fields whose values a proof may leave out.
func Redactable() []string { return tree.Redactable() }

// ErrNotProved reports that no event was selected, or none that a head covers yet.
var ErrNotProved = errors.New("no such event is below the last head of the log")

// Prove returns a proof of an event (seq), or of all events of a session, by the last head of the log in dir. It leaves out
// the values of the fields redact, which are of [Redactable].
func Prove(ctx context.Context, dir string, seq uint64, session string, redact ...string) (p Proof, err error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return p, err
	}
	defer root.Close()
	v := prover{ctx: ctx, root: root, leaves: map[int64][]tlog.Hash{}}
	if err := v.open(&p); err != nil {
		return p, fmt.Errorf("prove: %w", err)
	}
	defer v.blocks.Close()
	if p.Events, err = v.find(seq, session); err != nil {
		return p, fmt.Errorf("prove: %w", err)
	}
	if len(p.Events) == 0 {
		return p, ErrNotProved
	}
	for _, e := range p.Events {
		v.need(e.Index)
		if err := e.redact(redact); err != nil {
			return p, fmt.Errorf("prove: %w", err)
		}
	}
	if err := v.load(); err != nil {
		return p, fmt.Errorf("prove: %w", err)
	}
	for i := range p.Events {
		if p.Events[i].Path, err = tlog.ProveRecord(v.head.Size, p.Events[i].Index, tlog.HashReaderFunc(v.hashes)); err != nil {
			return p, fmt.Errorf("prove: %w", err)
		}
	}
	p.Shows = fmt.Sprintf("The log %s had the lines below, at these places, when it signed the head of %d lines. This says nothing of other lines. "+
		"Whoever has a copy of the key from elsewhere can check it: scopefs audit check-proof FILE --key FILE.", v.head.Origin, v.head.Size)
	_, err = p.Check("")
	return p, err
}

// Growths returns the last signed head of the log in dir, and that it grows from sizes below it whose lines are left.
func Growths(ctx context.Context, dir string, from []int64) (signed []byte, all []tree.Growth, err error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, nil, err
	}
	defer root.Close()
	v, p := prover{ctx: ctx, root: root, leaves: map[int64][]tlog.Hash{}}, Proof{}
	if err := v.open(&p); err != nil {
		return nil, nil, fmt.Errorf("prove: %w", err)
	}
	defer v.blocks.Close()
	from = slices.DeleteFunc(slices.Clone(from), func(size int64) bool { return size <= 0 || size >= v.head.Size })
	for _, size := range from {
		v.need(size)
	}
	if len(from) > 0 {
		err = v.load()
	}
	for _, size := range from {
		if g, wrong := tree.Grow(size, v.head, tlog.HashReaderFunc(v.hashes)); err == nil && wrong == nil {
			all = append(all, g)
		}
	}
	return []byte(p.Head), all, err
}

// Check checks the proof by a public key, or by the proof's own if key is empty. It returns the head.
func (p Proof) Check(key string) (h tree.Head, err error) {
	if key == "" {
		key = p.Key
	}
	verifier, err := note.NewVerifier(strings.TrimSpace(key))
	if err != nil {
		return h, fmt.Errorf("key of the proof: %w", err)
	}
	if h, err = tree.OpenHead([]byte(p.Head), verifier); err != nil {
		return h, fmt.Errorf("head of the proof: %w", err)
	}
	if len(p.Events) == 0 {
		return h, ErrNotProved
	}
	for _, e := range p.Events {
		if err := tlog.CheckRecord(e.Path, h.Size, h.Root, e.Index, tlog.RecordHash([]byte(e.Line))); err != nil {
			return h, fmt.Errorf("line %d of the log: the proof does not lead to the head", e.Index+1)
		}
		if _, _, err := e.Text(); err != nil {
			return h, fmt.Errorf("line %d of the log: %w", e.Index+1, err)
		}
	}
	return h, nil
}

// Head returns the last signed head of the log in dir, and how many lines it is of. Its signature is not checked.
func Head(dir string) (signed []byte, size int64, err error) {
	signed, err = os.ReadFile(filepath.Join(dir, headName))
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("head of the log: %w: a daemon or a command signs one when it has recorded something", err)
	}
	if err == nil {
		_, err = fmt.Sscanf(string(signed), "%s\n%d\n", new(string), &size)
	}
	return signed, size, err
}

// prover is one call of Prove.
type prover struct {
	ctx    context.Context
	root   *os.Root
	blocks *os.File
	head   tree.Head
	parts  []part
	leaf   tree.Leaf
	leaves map[int64][]tlog.Hash // by block: the hashes of its lines, from the first that is kept
}

// A part is a segment and where it begins in the tree.
type part struct {
	segment
	start tree.Position
}

func (v *prover) open(p *Proof) error {
	public, err := v.root.ReadFile(publicName)
	if err != nil {
		return err
	}
	signed, err := v.root.ReadFile(headName)
	if err != nil {
		return err
	}
	p.Key, p.Head = strings.TrimSpace(string(public)), string(signed)
	key, err := note.NewVerifier(p.Key)
	if err != nil {
		return err
	}
	if v.head, err = tree.OpenHead(signed, key); err != nil {
		return err
	}
	all, err := segments(v.root)
	if err != nil {
		return err
	}
	for _, seg := range all {
		f, err := v.root.OpenFile(treeFile(seg.number), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
		if errors.Is(err, os.ErrNotExist) { // not hashed yet
			break
		}
		if err != nil {
			return err
		}
		start, _, err := readPositions(f)
		f.Close()
		if err != nil {
			return err
		}
		v.parts = append(v.parts, part{seg, start})
	}
	v.blocks, err = v.root.OpenFile(treeName, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	return err
}

// lines calls do with the lines of part i that the head covers, and their places in the tree.
func (v *prover) lines(i int, do func(index int64, line []byte) error) error {
	index := v.parts[i].start.Tree.Size
	return linesFrom(v.root, v.parts[i].segment, 0, -1, func(line []byte) error {
		if err := v.ctx.Err(); err != nil || index >= v.head.Size {
			return err
		}
		index++
		return do(index-1, line)
	})
}

// find returns the selected lines.
func (v *prover) find(seq uint64, session string) (found []ProvedLine, err error) {
	want := appendString([]byte(`"session":`), Escape(session))
	for i := range v.parts {
		err := v.lines(i, func(index int64, line []byte) error {
			n, _, ok := parseHead(line)
			if ok && (n == seq || session != "" && bytes.Contains(line, want)) {
				text, shown := v.leaf.Commit(unended(line))
				found = append(found, ProvedLine{Line: text, Shown: shown, Index: index})
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return found, nil
}

// need has load read the leaves of a line's block.
func (v *prover) need(line int64) { v.leaves[line/tree.BlockLines] = nil }

// load reads the leaves of the blocks that the proofs need, and of the last, incomplete one.
func (v *prover) load() error {
	v.need(v.head.Size)
	for i := range v.parts {
		from, to := v.parts[i].start.Tree.Size, v.head.Size
		if i+1 < len(v.parts) {
			to = v.parts[i+1].start.Tree.Size
		}
		needed := false
		for block := range v.leaves {
			needed = needed || block*tree.BlockLines < to && (block+1)*tree.BlockLines > from
		}
		if !needed {
			continue
		}
		err := v.lines(i, func(index int64, line []byte) error {
			block := index / tree.BlockLines
			if leaves, ok := v.leaves[block]; ok {
				v.leaves[block] = append(leaves, v.leaf.Hash(unended(line)))
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// hashes is a tlog.HashReader.
func (v *prover) hashes(indexes []int64) ([]tlog.Hash, error) {
	all := make([]tlog.Hash, len(indexes))
	for i, index := range indexes {
		level, n := tlog.SplitStoredHashIndex(index)
		h, err := v.node(level, n)
		if err != nil {
			return nil, err
		}
		all[i] = h
	}
	return all, nil
}

// node returns the root of the complete subtree n of a level.
func (v *prover) node(level int, n int64) (h tlog.Hash, err error) {
	switch {
	case level == tree.BlockLevel:
		_, err = v.blocks.ReadAt(h[:], n*tree.HashSize)
		return h, err
	case level < tree.BlockLevel:
		first := v.parts[0].start.Tree
		if n<<level < first.Size { // its lines were removed
			if h, ok := first.Peak(level, n); ok {
				return h, nil
			}
		}
		if level == 0 {
			block := n / tree.BlockLines
			at := n - max(block*tree.BlockLines, first.Size)
			if leaves := v.leaves[block]; at >= 0 && at < int64(len(leaves)) {
				return leaves[at], nil
			}
			return h, fmt.Errorf("line %d of the log is missing", n+1)
		}
	}
	left, err := v.node(level-1, 2*n)
	if err != nil {
		return h, err
	}
	right, err := v.node(level-1, 2*n+1)
	return tlog.NodeHash(left, right), err
}
