package order

import (
	"bytes"
	"errors"
	"fmt"

	"golang.org/x/mod/sumdb/note"

	"github.com/scopefs/scopefs/internal/peer"
	"github.com/scopefs/scopefs/scope"
)

// Source is what a directory of commits has defined, with the versions that a later commit may replace. Only the commands of operators
// read it; for nodes a definition is a definition.
type Source struct {
	Name     string               `json:"name"`
	Path     string               `json:"path"`   // of the directory in the repository
	Commit   string               `json:"commit"` // the last one
	Versions map[scope.ID][]int64 `json:"versions,omitempty"`
}

const sourceHead = "scopefs fleet source v1\n"

// SourceKey returns the key of a source among those of definitions. No agent has such a name, and no node reads the key.
func SourceKey(name string) string { return "source." + name }

// Sign returns a source, signed with a private key.
func (s Source) Sign(private string) ([]byte, error) {
	signed, err := sign(sourceHead, s, private)
	if err == nil && len(signed) > MaxDefinition {
		err = fmt.Errorf("the source is larger than %d bytes: use more than one", MaxDefinition)
	}
	return signed, err
}

// OpenSource returns a source that the owner of a private key, or of one of the public keys of trust, has signed.
func OpenSource(signed []byte, private string, trust []string) (s Source, err error) {
	text, ok := signedBy(signed, private, trust)
	if !ok {
		return s, errors.New("no trusted key has signed it")
	}
	rest, ok := bytes.CutPrefix(text, []byte(sourceHead))
	if !ok || peer.Decode(rest, &s) != nil {
		return s, errors.New("it is no source that this version reads")
	}
	return s, nil
}

// Ours reports whether the owner of a private key, or of one of the public keys of trust, has signed a note.
func Ours(signed []byte, private string, trust []string) bool {
	_, ok := signedBy(signed, private, trust)
	return ok
}

// signedBy returns the text of a note. The private key has signed it if it would sign it the same: Ed25519 is deterministic (RFC 8032).
func signedBy(signed []byte, private string, trust []string) (text []byte, ok bool) {
	if len(signed) > MaxDefinition {
		return nil, false
	}
	var keys []note.Verifier
	for _, text := range trust {
		key, err := ParseKey(text)
		if err != nil {
			return nil, false
		}
		keys = append(keys, key)
	}
	n, err := note.Open(signed, note.VerifierList(keys...))
	if err == nil {
		return []byte(n.Text), true
	}
	unknown, ok := errors.AsType[*note.UnverifiedNoteError](err)
	if !ok {
		return nil, false
	}
	again, err := signText(unknown.Note.Text, private)
	return []byte(unknown.Note.Text), err == nil && bytes.Equal(again, signed)
}
