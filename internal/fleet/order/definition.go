package order

import (
	"errors"
	"fmt"
	"path"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/mod/sumdb/note"

	"github.com/scopefs/scopefs/internal/peer"
	"github.com/scopefs/scopefs/scope"
)

// MaxDefinition limits a signed definition, in bytes.
const MaxDefinition = 256 << 10

// maxAhead is how far in the future a definition may have been signed: clocks differ.
const maxAhead = time.Hour

// Definition is a version of an agent's definition for nodes, or says that they have it no more.
type Definition struct {
	Name    scope.ID `json:"name"`            // of the agent
	Version int64    `json:"version"`         // milliseconds since 1970; a later one replaces an earlier one
	Nodes   []string `json:"nodes,omitempty"` // patterns of path.Match; none: all nodes
	Removed bool     `json:"removed,omitempty"`
	Text    string   `json:"text,omitempty"` // of the file
}

const definitionHead = "scopefs fleet definition v1\n"

// Sign returns a definition, signed with a private key.
func (d Definition) Sign(private string) ([]byte, error) {
	if err := d.check(); err != nil {
		return nil, err
	}
	signed, err := sign(definitionHead, d, private)
	if err == nil && len(signed) > MaxDefinition {
		err = fmt.Errorf("the definition is larger than %d bytes with its signature", MaxDefinition)
	}
	return signed, err
}

// check returns an error for what no node takes.
func (d Definition) check() error {
	if _, err := scope.ParseID(string(d.Name)); err != nil {
		return err
	}
	if d.Version <= 0 {
		return errors.New("it lacks a version")
	}
	if d.Removed != (d.Text == "") {
		return errors.New("it has no text")
	}
	if !utf8.ValidString(d.Text) {
		return errors.New("it is no UTF-8")
	}
	for _, pattern := range d.Nodes {
		if _, err := path.Match(pattern, ""); err != nil || pattern == "" {
			return fmt.Errorf("%.64q is no pattern of nodes", pattern)
		}
	}
	return nil
}

// OpenDefinition returns a definition that one of the keys has signed, and the name of that key. It does not look at the node
// or the time.
func OpenDefinition(signed []byte, keys []note.Verifier) (d Definition, by string, err error) {
	if len(signed) > MaxDefinition {
		return d, "", fmt.Errorf("it is larger than %d bytes", MaxDefinition)
	}
	n, err := note.Open(signed, note.VerifierList(keys...))
	if err != nil {
		return d, "", errors.New("no trusted key has signed it")
	}
	d, err = parseDefinition(n.Text)
	return d, n.Sigs[0].Name, err
}

// ReadDefinition returns a definition, whoever has signed it.
func ReadDefinition(signed []byte) (d Definition, err error) {
	if len(signed) > MaxDefinition {
		return d, fmt.Errorf("it is larger than %d bytes", MaxDefinition)
	}
	_, err = note.Open(signed, note.VerifierList())
	unknown, ok := errors.AsType[*note.UnverifiedNoteError](err)
	if !ok {
		return d, errors.New("it is no signed definition")
	}
	return parseDefinition(unknown.Note.Text)
}

func parseDefinition(signed string) (d Definition, err error) {
	text, ok := strings.CutPrefix(signed, definitionHead)
	if !ok {
		return d, errors.New("it is no definition")
	}
	if err := peer.Decode([]byte(text), &d); err != nil {
		return Definition{}, errors.New("it is no definition that this version reads")
	}
	return d, d.check()
}

// For reports whether a definition is for a node.
func (d Definition) For(node string) bool {
	for _, pattern := range d.Nodes {
		if ok, _ := path.Match(pattern, node); ok {
			return true
		}
	}
	return len(d.Nodes) == 0
}

// Next returns the version of a definition that follows another one, as far as nodes take it; 0: there is none.
func Next(after int64, now time.Time) int64 {
	if at := now.UnixMilli(); after < at || after > now.Add(maxAhead).UnixMilli() {
		return at
	}
	return after + 1
}

// Follows returns an error unless a definition may follow the version that a node has, at a time.
func (d Definition) Follows(version int64, now time.Time) error {
	switch at := time.UnixMilli(d.Version); {
	case d.Version <= version:
		return fmt.Errorf("the version of %s is not newer than that of %s, which the node has",
			at.UTC().Format(time.RFC3339), time.UnixMilli(version).UTC().Format(time.RFC3339))
	case at.After(now.Add(maxAhead)):
		return fmt.Errorf("its version is of %s: see the clocks of both hosts", at.UTC().Format(time.RFC3339))
	}
	return nil
}
