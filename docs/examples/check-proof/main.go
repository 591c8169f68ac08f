// Command check-proof checks what scopefs audit prove printed, with the standard library alone.
//
//	go run ./docs/examples/check-proof PROOF [KEY]
//
// KEY is a file with the log's public key, kept elsewhere. Without it the proof's own key is used, which anybody can make.
package main

import (
	"bytes"
	"cmp"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

type proof struct {
	Key    string `json:"key"`
	Head   string `json:"head"`
	Events []struct {
		Line  string             `json:"line"`
		Shown map[string]opening `json:"shown"`
		Index int64              `json:"index"`
		Path  [][]byte           `json:"path"` // base64
	} `json:"events"`
}

// An opening shows what a commitment is of.
type opening struct {
	Value string
	Key   []byte
}

func main() {
	if err := check(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "check-proof:", err)
		os.Exit(1)
	}
}

func check(args []string) error {
	if len(args) < 1 || len(args) > 2 {
		return errors.New("usage: check-proof PROOF [KEY]")
	}
	text, err := os.ReadFile(args[0])
	var p proof
	if err := cmp.Or(err, json.Unmarshal(text, &p)); err != nil {
		return err
	}
	if len(args) == 2 {
		key, err := os.ReadFile(args[1])
		if err != nil {
			return err
		}
		p.Key = string(key)
	}
	size, root, err := openHead(p.Head, strings.TrimSpace(p.Key))
	if err != nil || len(p.Events) == 0 {
		return cmp.Or(err, errors.New("the proof has no event"))
	}
	for _, e := range p.Events {
		leaf := sha256.Sum256(append([]byte{0}, e.Line...)) // RFC 6962, section 2.1
		if !included(leaf[:], e.Index, size, e.Path, root) {
			return fmt.Errorf("line %d is not in the log", e.Index+1)
		}
		line, err := open(e.Line, e.Shown)
		if line = strings.TrimSuffix(line, "\n"); err != nil || strings.ContainsFunc(line, unicode.IsControl) {
			return cmp.Or(err, fmt.Errorf("line %d has control characters", e.Index+1)) // the log escapes them
		}
		fmt.Println(line)
	}
	return nil
}

// open puts values in the place of their commitments. Only a line that ends with a newline has commitments.
func open(line string, shown map[string]opening) (string, error) {
	for field, o := range shown {
		sum := sha256.Sum256([]byte(string(o.Key) + field + "\n" + o.Value))
		commitment := `,"` + field + `":"sha256:` + base64.RawURLEncoding.EncodeToString(sum[:]) + `"`
		if !slices.Contains([]string{"path", "target", "rule", "program", "detail"}, field) || !strings.HasSuffix(line, "\n") ||
			len(o.Key) != 16 || strings.Count(line, commitment) != 1 {
			return "", fmt.Errorf("the log has another %q", field)
		}
		line = strings.Replace(line, commitment, `,"`+field+`":"`+o.Value+`"`, 1)
	}
	return line, nil
}

// openHead checks a checkpoint (c2sp.org/tlog-checkpoint) with one key: NAME+HASH+BASE64 of a type byte and the key.
func openHead(head, key string) (size int64, root []byte, err error) {
	name, rest, _ := strings.Cut(key, "+")
	_, encoded, _ := strings.Cut(rest, "+")
	public, err := base64.StdEncoding.DecodeString(encoded)
	if err != nil || len(public) != 1+ed25519.PublicKeySize || public[0] != 1 {
		return 0, nil, errors.New("the key is no Ed25519 key")
	}
	id := sha256.Sum256(append([]byte(name+"\n"), public...))
	text, signatures, _ := strings.Cut(head, "\n\n")
	text += "\n"
	signed := false
	for line := range strings.Lines(signatures) {
		rest, ours := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "— "+name+" ")
		signature, err := base64.StdEncoding.DecodeString(rest)
		if ours && err == nil && len(signature) == 4+ed25519.SignatureSize && bytes.Equal(signature[:4], id[:4]) {
			signed = signed || ed25519.Verify(public[1:], []byte(text), signature[4:])
		}
	}
	if !signed {
		return 0, nil, fmt.Errorf("the head is not signed by %s", name)
	}
	lines := strings.Split(text, "\n")
	if len(lines) < 4 || lines[0] != name {
		return 0, nil, errors.New("the head is of another log")
	}
	size, err = strconv.ParseInt(lines[1], 10, 64)
	root, err2 := base64.StdEncoding.DecodeString(lines[2])
	return size, root, cmp.Or(err, err2)
}

// included follows a path from a leaf to the root: RFC 9162, section 2.1.3.2.
func included(hash []byte, index, size int64, path [][]byte, root []byte) bool {
	node := func(left, right []byte) []byte {
		sum := sha256.Sum256(append(append([]byte{1}, left...), right...))
		return sum[:]
	}
	at, last := index, size-1
	for _, sibling := range path {
		switch {
		case last == 0 || len(sibling) != sha256.Size:
			return false
		case at&1 == 1 || at == last:
			hash = node(sibling, hash)
			for at&1 == 0 && at != 0 {
				at, last = at>>1, last>>1
			}
		default:
			hash = node(hash, sibling)
		}
		at, last = at>>1, last>>1
	}
	return 0 <= index && index < size && last == 0 && bytes.Equal(hash, root)
}
