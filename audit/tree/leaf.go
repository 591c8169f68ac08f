package tree

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/mod/sumdb/tlog"
)

// A Leaf computes the hashes of lines. It reuses its memory.
//
// A line with a salt is hashed with commitments in place of the values that a proof may leave out ([Redactable]), and with
// a newline at its end, so that no line is the committed form of another one:
//
//	{"seq":7,"time":"T","salt":"S","event":"file","path":"P"}
//	{"seq":7,"time":"T","salted":"H(salt)","event":"file","path":"sha256:H(path)"}
//
// H(salt) is the SHA-256 of "salt", a newline and S. H(path) is that of a key of 16 bytes, "path", a newline and the bytes P
// as they are in the line. The key is the beginning of the SHA-256 of "path", a newline and S, so that it tells neither S nor
// another key. Hashes are in base64url without padding.
//
// Other lines are those that scopefs wrote before it had salts, and damaged ones. They are hashed as they are.
type Leaf struct {
	text    []byte // 0x00 (RFC 6962, section 2.1), then what is hashed
	message []byte // of a commitment
}

// An Opening shows the value that a commitment is of.
type Opening struct {
	Value string `json:"value"` // the bytes between the quotes, as in the line
	Key   []byte `json:"key"`
}

// Redactable are the fields of a line that a proof may leave out.
func Redactable() []string { return []string{"path", "target", "rule", "program", "detail"} }

func redactable(field []byte) bool {
	switch string(field) {
	case "path", "target", "rule", "program", "detail":
		return true
	}
	return false
}

const (
	saltSize     = 16 // in the line
	keySize      = 16
	commitPrefix = "sha256:"
)

// Hash returns the hash of a line without its newline.
func (l *Leaf) Hash(line []byte) tlog.Hash {
	l.set(line, nil)
	return sha256.Sum256(l.text)
}

// Commit returns what is hashed of a line, and the openings of its commitments. They are nil for a line without a salt.
func (l *Leaf) Commit(line []byte) (text string, open map[string]Opening) {
	open = map[string]Opening{}
	if !l.set(line, open) {
		open = nil
	}
	return string(l.text[1:]), open
}

// set sets the text for a line, and reports whether the line has a salt.
func (l *Leaf) set(line []byte, open map[string]Opening) bool {
	l.text = append(l.text[:0], 0)
	at := saltAt(line)
	if at < 0 {
		l.text = append(l.text, line...)
		return false
	}
	salt, rest := line[at:at+saltSize], line[at+saltSize:]
	l.text = append(l.text, line[:at-len(`":"`)]...)
	l.text = l.appendHash(append(l.text, `ed":"`...), sha256.Sum256(l.of("salt", salt)))
	for at := 1; ; at++ { // rest begins with the quote after the salt, or after a value that was committed to
		for at < len(rest) && rest[at] != '"' {
			at++
		}
		if at++; at >= len(rest) {
			break
		}
		size := stringSize(rest[at:])
		if size < 0 {
			break
		}
		field := rest[at : at+size]
		at += size
		if !bytes.HasPrefix(rest[at+1:], []byte(`:"`)) || !redactable(field) {
			continue
		}
		value := rest[at+len(`":"`):]
		if size = stringSize(value); size < 0 {
			break
		}
		key := sha256.Sum256(l.of(string(field), salt))
		l.text = append(append(l.text, rest[:at+len(`":"`)]...), commitPrefix...)
		l.text = l.appendHash(l.text, l.commit(key[:keySize], string(field), value[:size]))
		if open != nil {
			open[string(field)] = Opening{string(value[:size]), bytes.Clone(key[:keySize])}
		}
		rest, at = value[size:], 0
	}
	l.text = append(append(l.text, rest...), '\n')
	return true
}

// of returns the message of the hash that derives something from the salt.
func (l *Leaf) of(what string, salt []byte) []byte {
	l.message = append(append(append(l.message[:0], what...), '\n'), salt...)
	return l.message
}

// commit returns the commitment to the value of a field.
func (l *Leaf) commit(key []byte, field string, value []byte) [sha256.Size]byte {
	l.message = append(append(append(append(l.message[:0], key...), field...), '\n'), value...)
	return sha256.Sum256(l.message)
}

func (l *Leaf) appendHash(b []byte, h [sha256.Size]byte) []byte {
	return base64.RawURLEncoding.AppendEncode(b, h[:])
}

// saltAt returns where the salt of a line is, or -1.
func saltAt(line []byte) int {
	const before, after = `{"seq":`, `,"time":"`
	if !bytes.HasPrefix(line, []byte(before)) {
		return -1
	}
	at := len(before)
	for at < len(line) && '0' <= line[at] && line[at] <= '9' {
		at++
	}
	if !bytes.HasPrefix(line[at:], []byte(after)) {
		return -1
	}
	at += len(after)
	size := bytes.IndexByte(line[at:], '"')
	if size < 0 || !bytes.HasPrefix(line[at+size:], []byte(`","salt":"`)) {
		return -1
	}
	at += size + len(`","salt":"`)
	if stringSize(line[at:]) != saltSize {
		return -1
	}
	return at
}

// stringSize returns the size of a JSON string that begins after its quote, or -1 if it does not end. Strings are short: a loop
// takes half the time of bytes.IndexByte.
func stringSize(b []byte) int {
	for i := 0; i < len(b); i++ {
		switch b[i] {
		case '"':
			return i
		case '\\':
			i++
		}
	}
	return -1
}

// ErrOpening reports an opening that is not of the line.
var ErrOpening = errors.New("the line has another value")

// Open returns a committed line with the values that are shown, and the fields whose values are not.
func Open(text string, shown map[string]Opening) (line string, redacted []string, err error) {
	line, committed := strings.CutSuffix(text, "\n")
	if !committed && len(shown) > 0 {
		return "", nil, fmt.Errorf("%w: it has no commitments", ErrOpening)
	}
	for field := range shown {
		if !redactable([]byte(field)) {
			return "", nil, fmt.Errorf("%q: %w: it is no field that can be redacted", field, ErrOpening)
		}
	}
	var l Leaf
	for _, field := range Redactable() {
		before := `,"` + field + `":"` + commitPrefix
		o, ok := shown[field]
		if !ok {
			if committed && strings.Contains(line, before) {
				redacted = append(redacted, field)
			}
			continue
		}
		commitment := before + string(l.appendHash(nil, l.commit(o.Key, field, []byte(o.Value)))) + `"`
		if len(o.Key) != keySize || strings.Count(line, commitment) != 1 {
			return "", nil, fmt.Errorf("%s: %w", field, ErrOpening)
		}
		line = strings.Replace(line, commitment, `,"`+field+`":"`+o.Value+`"`, 1)
	}
	return line, redacted, nil
}
