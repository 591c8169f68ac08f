// Package proof verifies a log, and proves lines of it to others. It reads the files of a log, and links nothing of what writes them.
package proof

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"

	"github.com/scopefs/scopefs/audit/event"
	"github.com/scopefs/scopefs/audit/segment"
	"github.com/scopefs/scopefs/audit/tree"
)

// ErrNotProved reports that no event was selected, or none that a head covers yet.
var ErrNotProved = errors.New("no such event is below the last head of the log")

// ProveOptions say what [Prove] proves: an event, or all events of a session.
type ProveOptions struct {
	Seq     uint64
	Session string
	Redact  []string             // fields whose values it leaves out, of [tree.Redactable]
	Heads   map[string]io.Reader // texts with signed heads that were kept elsewhere, by a name for errors: see [tree.EachHead]
	Beside  map[string]io.Reader // likewise, of this host: a text may have none
}

// Prove returns a proof of lines of the log in dir by its last head, or by the head of the options that covers all of them and
// has the most signatures. It fails if a text of Heads has no head of the log, or one that the log has not signed.
func Prove(ctx context.Context, dir string, o ProveOptions) (p tree.Proof, err error) {
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
	if p.Events, err = v.find(o.Seq, o.Session); err != nil {
		return p, fmt.Errorf("prove: %w", err)
	}
	if len(p.Events) == 0 {
		return p, ErrNotProved
	}
	if err := v.choose(&p, o); err != nil {
		return p, fmt.Errorf("prove: %w", err)
	}
	for _, e := range p.Events {
		v.need(e.Index)
		if err := e.Redact(o.Redact); err != nil {
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

// choose has the proof be by the head with the most signatures, among the heads of this log that cover its lines.
func (v *prover) choose(p *tree.Proof, o ProveOptions) error {
	last, most := v.head.Size, 1
	look := func(text io.Reader) (tree.Kept, error) {
		return tree.EachHead(whileReader{v.ctx, text}, v.key, func(_ int64, h tree.Head, signed string) {
			n := strings.Count(signed, "\n— ")
			if n > most && h.Size <= last && h.Size > p.Events[len(p.Events)-1].Index {
				v.head, p.Head, most = h, signed, n
			}
		})
	}
	for _, name := range slices.Sorted(maps.Keys(o.Beside)) {
		_, _ = look(o.Beside[name]) // it cannot make a proof wrong
	}
	for _, name := range slices.Sorted(maps.Keys(o.Heads)) {
		kept, err := look(o.Heads[name])
		if err == nil && kept.Heads == 0 {
			err = fmt.Errorf("it has no head of the log %s, and %d of others", v.key.Name(), kept.Others)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return v.ctx.Err()
}

// Growth returns the last signed head of the log in dir, its size in lines, and the proof that it grows from a smaller size. From 0 and
// from its own size there is nothing to prove.
func Growth(ctx context.Context, dir string, from int64) (signed []byte, size int64, proof []tlog.Hash, err error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, 0, nil, err
	}
	defer root.Close()
	v, p := prover{ctx: ctx, root: root, leaves: map[int64][]tlog.Hash{}}, tree.Proof{}
	if err := v.open(&p); err != nil {
		return nil, 0, nil, fmt.Errorf("prove: %w", err)
	}
	defer v.blocks.Close()
	if from > 0 && from < v.head.Size {
		v.need(from)
		if err = v.load(); err == nil {
			proof, err = tree.Grow(from, v.head, tlog.HashReaderFunc(v.hashes))
		}
		if err != nil {
			err = fmt.Errorf("the log does not show how its head of %d lines grows from that of %d: %w", v.head.Size, from, err)
		}
	}
	return []byte(p.Head), v.head.Size, proof, err
}

// Head returns the last signed head of the log in dir, and how many lines it is of. Its signature is not checked.
func Head(dir string) (signed []byte, size int64, err error) {
	signed, err = os.ReadFile(filepath.Join(dir, segment.Head))
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
	key    note.Verifier
	head   tree.Head
	parts  []part
	leaf   tree.Leaf
	leaves map[int64][]tlog.Hash // by block: the hashes of its lines, from the first that is kept
}

// A part is a segment and where it begins in the tree.
type part struct {
	segment.Segment
	start tree.Position
}

func (v *prover) open(p *tree.Proof) error {
	public, err := v.root.ReadFile(segment.PublicKey)
	if err != nil {
		return err
	}
	signed, err := v.root.ReadFile(segment.Head)
	if err != nil {
		return err
	}
	p.Key, p.Head = strings.TrimSpace(string(public)), string(signed)
	if v.key, err = note.NewVerifier(p.Key); err != nil {
		return err
	}
	if v.head, err = tree.OpenHead(signed, v.key); err != nil {
		return err
	}
	all, err := segment.List(v.root)
	if err != nil {
		return err
	}
	for _, seg := range all {
		f, err := segment.OpenFile(v.root, segment.TreeFile(seg.Number))
		if errors.Is(err, os.ErrNotExist) { // not hashed yet
			break
		}
		if err != nil {
			return err
		}
		start, _, err := segment.Positions(f)
		f.Close()
		if err != nil {
			return err
		}
		v.parts = append(v.parts, part{seg, start})
	}
	v.blocks, err = segment.OpenFile(v.root, segment.Tree)
	return err
}

// lines calls do with the lines of part i that the head covers, and their places in the tree.
func (v *prover) lines(i int, do func(index int64, line []byte) error) error {
	index := v.parts[i].start.Tree.Size
	return segment.Lines(v.root, v.parts[i].Segment, 0, -1, func(line []byte) error {
		if err := v.ctx.Err(); err != nil || index >= v.head.Size {
			return err
		}
		index++
		return do(index-1, line)
	})
}

// find returns the selected lines.
func (v *prover) find(seq uint64, session string) (found []tree.ProvedLine, err error) {
	want := event.AppendString([]byte(`"session":`), event.Escape(session))
	for i := range v.parts {
		err := v.lines(i, func(index int64, line []byte) error {
			n, _, ok := segment.ParseHead(line)
			if ok && (n == seq || session != "" && bytes.Contains(line, want)) {
				text, shown := v.leaf.Commit(segment.Unended(line))
				found = append(found, tree.ProvedLine{Line: text, Shown: shown, Index: index})
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
				v.leaves[block] = append(leaves, v.leaf.Hash(segment.Unended(line)))
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
