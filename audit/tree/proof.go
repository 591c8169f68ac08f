package tree

import (
	"errors"
	"fmt"
	"strings"
	"unicode"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
)

// Proof shows that lines are in a log, and nothing about its other lines. It is a file of its own: Check needs no log.
type Proof struct {
	Shows  string       `json:"shows"` // in words
	Key    string       `json:"key"`   // the log's public key, in the form of golang.org/x/mod/sumdb/note
	Head   string       `json:"head"`  // a signed head: c2sp.org/tlog-checkpoint, with the signatures of witnesses if there are some
	Events []ProvedLine `json:"events"`
}

// ProvedLine is a line and its inclusion proof (RFC 6962, section 2.1.1).
type ProvedLine struct {
	Line  string             `json:"line"`            // what the tree hashes: see Leaf
	Shown map[string]Opening `json:"shown,omitempty"` // the values of fields that Line has only commitments to
	Index int64              `json:"index"`           // of the line in the tree, from 0
	Path  []tlog.Hash        `json:"path"`            // from the leaf to the root
}

// Text returns the line, and the fields that it has commitments to in place of values. It checks the values that are shown. A
// line with control characters, which the log escapes, is an error: its owner may want to deceive whoever reads it.
func (l ProvedLine) Text() (line string, redacted []string, err error) {
	line, redacted, err = Open(l.Line, l.Shown)
	if err == nil && strings.ContainsFunc(line, unicode.IsControl) {
		err = errors.New("it has control characters")
	}
	return line, redacted, err
}

// Redact removes the values of fields.
func (l ProvedLine) Redact(fields []string) error {
	if len(fields) > 0 && l.Shown == nil {
		return fmt.Errorf("line %d of the log: an older version recorded it, without a salt: it can only be shown as a whole", l.Index+1)
	}
	for _, field := range fields {
		delete(l.Shown, field)
	}
	return nil
}

// Check checks the proof by a public key, or by the proof's own if key is empty. It returns the head.
func (p Proof) Check(key string) (h Head, err error) {
	if key == "" {
		key = p.Key
	}
	verifier, err := note.NewVerifier(strings.TrimSpace(key))
	if err != nil {
		return h, fmt.Errorf("key of the proof: %w", err)
	}
	if h, err = OpenHead([]byte(p.Head), verifier); err != nil {
		return h, fmt.Errorf("head of the proof: %w", err)
	}
	if len(p.Events) == 0 {
		return h, errors.New("the proof has no line")
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
