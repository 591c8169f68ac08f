package witness

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"time"

	"golang.org/x/mod/sumdb/note"
)

// Signer is a witness's private key.
type Signer struct {
	name string
	key  ed25519.PrivateKey
}

var _ note.Signer = (*Signer)(nil)

const privatePrefix = "PRIVATE+KEY+"

// NewKey returns a new private key as text.
func NewKey(name string) (string, error) {
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return "", err
	}
	coded := base64.StdEncoding.EncodeToString(append([]byte{cosignature}, private.Seed()...))
	return fmt.Sprintf("%s%s+%08x+%s", privatePrefix, name, keyHash(name, public), coded), nil
}

// NewSigner reads the text of a private key.
func NewSigner(private string) (*Signer, error) {
	text, ok := strings.CutPrefix(strings.TrimSpace(private), privatePrefix)
	name, hash, seed, err := parse(text, ed25519.SeedSize)
	if !ok || err != nil {
		return nil, errors.New("it is no private key of a witness")
	}
	s := &Signer{name, ed25519.NewKeyFromSeed(seed)}
	if hash != s.KeyHash() {
		return nil, errors.New("it is damaged: its hash is another one")
	}
	return s, nil
}

func (s *Signer) public() ed25519.PublicKey { return s.key.Public().(ed25519.PublicKey) }

// Name returns the name of the key.
func (s *Signer) Name() string { return s.name }

// KeyHash returns the hash of the public key.
func (s *Signer) KeyHash() uint32 { return keyHash(s.name, s.public()) }

// Verifier returns the public key.
func (s *Signer) Verifier() note.Verifier { return &verifier{s.name, s.KeyHash(), s.public()} }

// Public returns the public key as text, for NewVerifier.
func (s *Signer) Public() string {
	return fmt.Sprintf("%s+%08x+%s", s.name, s.KeyHash(), base64.StdEncoding.EncodeToString(append([]byte{cosignature}, s.public()...)))
}

// Sign returns the cosignature of the text of a note, with the present time.
func (s *Signer) Sign(text []byte) ([]byte, error) {
	at := uint64(time.Now().Unix())
	return append(binary.BigEndian.AppendUint64(nil, at), ed25519.Sign(s.key, message(at, text))...), nil
}
