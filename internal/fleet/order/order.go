// Package order is what operators sign for nodes of a fleet. An order is a signed note (c2sp.org/signed-note, Ed25519), so
// whatever carries it can neither make nor change one. It names its node, its time and a number that counts once.
package order

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"golang.org/x/mod/sumdb/note"

	"github.com/scopefs/scopefs/internal/peer"
)

// Max limits a signed decision, in bytes.
const Max = 8 << 10

// Valid is how long a decision is valid at most. A request waits as long.
const Valid = 15 * time.Minute

// Decision is an operator's decision about a request that waits on a node.
type Decision struct {
	Node    string    `json:"node"`
	Request string    `json:"request"` // its id
	Hash    string    `json:"hash"`    // of what the operator was shown
	Approve bool      `json:"approve"` // else it is denied
	Reason  string    `json:"reason,omitempty"`
	Expires time.Time `json:"expires"`
	Nonce   string    `json:"nonce"` // see NewNonce
}

// The first lines of notes. No signature of one kind counts for another one.
const decisionHead = "scopefs fleet decision v1\n"

// NewNonce returns 26 random characters.
func NewNonce() string { return rand.Text() }

// isNonce reports whether NewNonce could have returned a text.
func isNonce(text string) bool {
	return len(text) == 26 && !strings.ContainsFunc(text, func(r rune) bool { return (r < 'A' || r > 'Z') && (r < '2' || r > '7') })
}

// NewKey returns a key pair with an operator's name, as texts: the private one, and the public one for the key trust.
func NewKey(name string) (private, public string, err error) {
	if name == "" || len(name) > 64 || strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r > '~' || r == '+' }) {
		return "", "", fmt.Errorf("%.80q is no name of a key: write up to 64 ASCII characters without blanks and +", name)
	}
	return note.GenerateKey(rand.Reader, name)
}

// ParseKey reads an operator's public key.
func ParseKey(text string) (note.Verifier, error) {
	key, err := note.NewVerifier(text)
	if err != nil || len(text) > 256 || strings.ContainsFunc(key.Name(), func(r rune) bool { return r <= ' ' || r > '~' }) {
		return nil, fmt.Errorf("%.100q is no key of an operator: scopefs fleet keygen prints one", text)
	}
	return key, nil
}

// Sign returns a decision, signed with a private key.
func (d Decision) Sign(private string) ([]byte, error) {
	signed, err := sign(decisionHead, d, private)
	if err == nil && len(signed) > Max {
		err = fmt.Errorf("the decision is larger than %d bytes: shorten the reason", Max)
	}
	return signed, err
}

// sign returns a value below a head, signed with a private key.
func sign(head string, v any, private string) ([]byte, error) {
	text, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	return signText(head+string(text)+"\n", private)
}

func signText(text, private string) ([]byte, error) {
	signer, err := note.NewSigner(strings.TrimSpace(private))
	if err != nil {
		return nil, errors.New("the key is no private key of scopefs fleet keygen")
	}
	return note.Sign(&note.Note{Text: text}, signer)
}

// OpenDecision returns a decision that one of the keys has signed, and the name of that key. It does not look at the node or
// the time.
func OpenDecision(signed []byte, keys []note.Verifier) (d Decision, by string, err error) {
	if len(signed) > Max {
		return d, "", fmt.Errorf("it is larger than %d bytes", Max)
	}
	n, err := note.Open(signed, note.VerifierList(keys...))
	if err != nil {
		return d, "", errors.New("no trusted key has signed it")
	}
	text, ok := bytes.CutPrefix([]byte(n.Text), []byte(decisionHead))
	if !ok {
		return d, "", errors.New("it is no decision")
	}
	by = n.Sigs[0].Name
	if err := peer.Decode(text, &d); err != nil {
		return d, by, errors.New("it is no decision that this version reads")
	}
	if d.Request == "" || d.Hash == "" || !isNonce(d.Nonce) || d.Expires.IsZero() {
		return d, by, errors.New("it lacks the request, its hash, a number or a time")
	}
	return d, by, nil
}

// Fits returns an error unless a decision is for a node, now.
func (d Decision) Fits(node string, now time.Time) error {
	switch {
	case d.Node != node:
		return fmt.Errorf("it is for the node %.64q", d.Node)
	case !now.Before(d.Expires):
		return fmt.Errorf("it expired at %s", d.Expires.UTC().Format(time.RFC3339))
	case d.Expires.Sub(now) > Valid+time.Minute: // clocks differ
		return fmt.Errorf("it is valid for longer than %v: see the clocks of both hosts", Valid)
	}
	return nil
}
