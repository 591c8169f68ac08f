package tree

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
)

// Head is what a log signs: its tree at a size.
type Head struct {
	Origin string // the name of the log's key
	Size   int64
	Root   tlog.Hash
	Counts Counts
}

const countsFormat = "denied %d begun %d ended %d unknown %d lost %d"

// text returns the head as the text of a checkpoint: c2sp.org/tlog-checkpoint. The counts are an extension line.
func (h Head) text() string {
	return fmt.Sprintf("%s\n%d\n%s\n"+countsFormat+"\n", h.Origin, h.Size, h.Root,
		h.Counts.Denied, h.Counts.Begun, h.Counts.Ended, h.Counts.Unknown, h.Counts.Lost)
}

// Sign returns the signed head.
func (h Head) Sign(signer note.Signer) ([]byte, error) {
	h.Origin = signer.Name()
	return note.Sign(&note.Note{Text: h.text()}, signer)
}

// ErrHead reports a text that is no head.
var ErrHead = errors.New("no head of a log")

// OpenHead returns a signed head whose signature by key is valid. Other signatures, such as those of witnesses, are not
// looked at.
func OpenHead(signed []byte, key note.Verifier) (h Head, err error) {
	n, err := note.Open(signed, note.VerifierList(key))
	if err != nil {
		return h, err
	}
	lines := strings.Split(n.Text, "\n")
	if len(lines) < 5 {
		return h, ErrHead
	}
	if h.Origin = lines[0]; h.Origin != key.Name() {
		return h, fmt.Errorf("%w: it is of %q", ErrHead, h.Origin)
	}
	if h.Size, err = strconv.ParseInt(lines[1], 10, 64); err != nil || h.Size < 0 || strconv.FormatInt(h.Size, 10) != lines[1] {
		return h, ErrHead
	}
	if h.Root, err = tlog.ParseHash(lines[2]); err != nil {
		return h, fmt.Errorf("%w: %w", ErrHead, err)
	}
	c := &h.Counts
	if n, err := fmt.Sscanf(lines[3], countsFormat, &c.Denied, &c.Begun, &c.Ended, &c.Unknown, &c.Lost); err != nil || n != 5 {
		return h, fmt.Errorf("%w: no counts", ErrHead)
	}
	return h, nil
}

// Grow proves that a head grows from the tree of an earlier size, in lines, by the hashes of its tree (RFC 6962, section 2.1.2).
func Grow(from int64, h Head, hashes tlog.HashReader) ([]tlog.Hash, error) {
	root, err := tlog.TreeHash(from, hashes)
	if err != nil {
		return nil, err
	}
	proof, err := tlog.ProveTree(h.Size, from, hashes)
	if err != nil {
		return nil, err
	}
	return proof, tlog.CheckTree(proof, h.Size, h.Root, from, root)
}
