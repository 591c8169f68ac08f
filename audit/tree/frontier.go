// Package tree has the Merkle tree over the lines of a log (RFC 6962, section 2.1) and its signed heads.
//
// A leaf is a line, see [Leaf]. The log stores the hash of each complete subtree of [BlockLines] leaves; the
// hashes below follow from the lines, those above from the stored ones. It writes these files beside the segments:
//
//   - tree: the hashes of the blocks, [HashSize] bytes each, in order. They stay when segments are removed.
//   - 00000001.tree: where segment 1 begins in the tree ([Position]), how far it is hashed, and [HintSize] bytes of the
//     hash of each line, which name the line that was changed.
//   - key, mode 0600, and key.pub: the Ed25519 key of the log, made when the log is, in the forms of
//     golang.org/x/mod/sumdb/note.
//   - head: the last signed head, a checkpoint of c2sp.org/tlog-checkpoint.
package tree

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"

	"golang.org/x/mod/sumdb/tlog"
)

// The sizes of what is stored, in leaves and bytes.
const (
	BlockLevel = 8               // the level of the stored hashes
	BlockLines = 1 << BlockLevel // leaves below a stored hash
	HashSize   = tlog.HashSize
	HintSize   = 4
)

// Frontier is a tree of Size leaves, by the roots of its largest complete subtrees, from left to right: one for each
// bit of Size. It suffices to append leaves and to compute the root.
type Frontier struct {
	Size  int64
	Peaks []tlog.Hash
}

// Add appends a leaf's hash. If that completes a block, Add returns the block's hash and true.
func (f *Frontier) Add(leaf tlog.Hash) (block tlog.Hash, complete bool) {
	hash := leaf
	for level, n := 0, f.Size; ; level, n = level+1, n>>1 {
		if level == BlockLevel {
			block, complete = hash, true
		}
		if n&1 == 0 {
			break
		}
		last := len(f.Peaks) - 1
		hash = tlog.NodeHash(f.Peaks[last], hash)
		f.Peaks = f.Peaks[:last]
	}
	f.Peaks = append(f.Peaks, hash)
	f.Size++
	return block, complete
}

// Root returns the root of the tree.
func (f *Frontier) Root() tlog.Hash {
	if len(f.Peaks) == 0 {
		root, _ := tlog.TreeHash(0, nil) // of no leaf
		return root
	}
	root := f.Peaks[len(f.Peaks)-1]
	for i := len(f.Peaks) - 2; i >= 0; i-- {
		root = tlog.NodeHash(f.Peaks[i], root)
	}
	return root
}

// Peak returns the root of the complete subtree n of a level, if it is one of the largest.
func (f *Frontier) Peak(level int, n int64) (tlog.Hash, bool) {
	i := 0
	for l := 62; l >= 0; l-- {
		if f.Size>>l&1 == 0 {
			continue
		}
		if l == level {
			return f.Peaks[i], n == f.Size>>l-1
		}
		i++
	}
	return tlog.Hash{}, false
}

// Equal reports whether both are the same tree.
func (f *Frontier) Equal(g Frontier) bool { return f.Size == g.Size && f.Root() == g.Root() }

// Counts are the numbers of lines of some kinds, from the first line of the log on.
type Counts struct {
	Denied  int64 // denials and violations
	Begun   int64 // calls and requests with an outcome begin
	Ended   int64 // ends and refusals of calls and requests
	Unknown int64 // calls whose end is unknown
	Lost    int64 // events of the log about lost or damaged lines
}

// Position is a place in a log: how many bytes of a segment are hashed, and the tree up to there.
type Position struct {
	Offset int64
	Boot   uint64 // the kernel and mount under which it was written; see the log's mark
	Counts Counts
	Tree   Frontier
}

// Clone returns a copy that shares no memory.
func (p Position) Clone() Position {
	p.Tree.Peaks = append([]tlog.Hash(nil), p.Tree.Peaks...)
	return p
}

// PositionSize is the size of an encoded position in its file.
const PositionSize = 4096

var errPosition = errors.New("no position of a tree, or a damaged one")

// Encode returns p in PositionSize bytes, with a check sum.
func (p Position) Encode() []byte {
	b := make([]byte, 0, PositionSize)
	for _, n := range [...]int64{p.Offset, int64(p.Boot), p.Counts.Denied, p.Counts.Begun, p.Counts.Ended,
		p.Counts.Unknown, p.Counts.Lost, p.Tree.Size} {
		b = binary.LittleEndian.AppendUint64(b, uint64(n))
	}
	for _, h := range p.Tree.Peaks {
		b = append(b, h[:]...)
	}
	b = b[:PositionSize-4]
	return binary.LittleEndian.AppendUint32(b, crc32.ChecksumIEEE(b))
}

// DecodePosition decodes what Encode returns.
func DecodePosition(b []byte) (p Position, err error) {
	if len(b) != PositionSize || crc32.ChecksumIEEE(b[:PositionSize-4]) != binary.LittleEndian.Uint32(b[PositionSize-4:]) {
		return p, errPosition
	}
	var boot int64
	for i, n := range [...]*int64{&p.Offset, &boot, &p.Counts.Denied, &p.Counts.Begun, &p.Counts.Ended,
		&p.Counts.Unknown, &p.Counts.Lost, &p.Tree.Size} {
		*n = int64(binary.LittleEndian.Uint64(b[i*8:]))
	}
	p.Boot = uint64(boot)
	if p.Tree.Size < 0 || p.Offset < 0 {
		return p, errPosition
	}
	rest := bytes.NewReader(b[8*8:])
	for bits := p.Tree.Size; bits != 0; bits &= bits - 1 {
		var h tlog.Hash
		_, _ = rest.Read(h[:])
		p.Tree.Peaks = append(p.Tree.Peaks, h)
	}
	return p, nil
}
