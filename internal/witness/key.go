package witness

import (
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"golang.org/x/mod/sumdb/note"
)

// The algorithm of a witness's key, cosignature/v1, and the bytes of its signature: a time, in seconds since 1970, and Ed25519's.
const (
	cosignature = 0x04
	timeSize    = 8
	hashSize    = 4 // of a key's hash, which is before a signature in a note
)

// verifier is a witness's public key.
type verifier struct {
	name string
	hash uint32
	key  ed25519.PublicKey
}

// NewVerifier returns the verifier of a witness's key, in the form of c2sp.org/signed-note.
func NewVerifier(text string) (note.Verifier, error) {
	name, hash, key, err := parse(strings.TrimSpace(text), ed25519.PublicKeySize)
	if err != nil || hash != keyHash(name, key) {
		return nil, fmt.Errorf("%.100q is no key of a witness: want NAME+HASH+KEY, of cosignature/v1", text)
	}
	return &verifier{name, hash, key}, nil
}

// parse reads NAME+HASH+KEY.
func parse(text string, size int) (name string, hash uint32, key []byte, err error) {
	name, rest, _ := strings.Cut(text, "+")
	id, coded, _ := strings.Cut(rest, "+")
	number, err := strconv.ParseUint(id, 16, 32)
	key, errKey := base64.StdEncoding.DecodeString(coded)
	if err != nil || errKey != nil || len(id) != 2*hashSize || len(key) != 1+size || key[0] != cosignature ||
		name == "" || strings.ContainsAny(name, " \t\r\n") {
		return "", 0, nil, errors.New("no key of cosignature/v1")
	}
	return name, uint32(number), key[1:], nil
}

// keyHash returns the hash of a public key, as c2sp.org/signed-note has it.
func keyHash(name string, public ed25519.PublicKey) uint32 {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s\n\x04%s", name, []byte(public)))
	return binary.BigEndian.Uint32(sum[:])
}

func (v *verifier) Name() string    { return v.name }
func (v *verifier) KeyHash() uint32 { return v.hash }

func (v *verifier) Verify(text, sig []byte) bool {
	if len(sig) != timeSize+ed25519.SignatureSize {
		return false
	}
	at := binary.BigEndian.Uint64(sig)
	if at > uint64(time.Now().Add(time.Hour).Unix()) {
		return false
	}
	return ed25519.Verify(v.key, message(at, text), sig[timeSize:])
}

// message returns what a witness signs.
func message(at uint64, text []byte) []byte {
	return fmt.Appendf(nil, "cosignature/v1\ntime %d\n%s", at, text)
}

// Time returns when a witness has made a signature of a note.
func Time(sig note.Signature) time.Time {
	b, err := base64.StdEncoding.DecodeString(sig.Base64)
	if err != nil || len(b) != hashSize+timeSize+ed25519.SignatureSize {
		return time.Time{}
	}
	return time.Unix(int64(binary.BigEndian.Uint64(b[hashSize:])), 0).UTC()
}
