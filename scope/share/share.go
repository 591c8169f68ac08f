// Package share divides what agents share: stores, buckets, subjects. It is pure, as package scope is.
package share

import (
	"errors"
	"fmt"
	"path"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/scopefs/scopefs/scope"
)

// A Strategy divides a shared resource among agents. An agent uses keys; the
// resource has names. A Strategy maps each key of an agent to a name in the
// agent's part of the resource. The parts of two agents have no name in common.
//
// Package tools applies a tool's strategy to the inputs of each call before it
// runs the tool. A tool does not call Apply or Enforce.
type Strategy interface {
	// Apply returns the name of key in the part of agent id. The key "" means
	// the whole part, if the strategy has a name for it; the name of every key
	// begins with that name. The error wraps ErrOutside if the key leads out of
	// the part, and ErrKey if the key is malformed.
	Apply(id scope.ID, key string) (name string, err error)

	// Enforce returns the key of a name in the part of agent id. It is the
	// inverse of Apply. For any other name the error wraps ErrOutside.
	Enforce(id scope.ID, name string) (key string, err error)
}

var (
	// ErrOutside reports a key or name outside an agent's part.
	ErrOutside = errors.New("outside the scope")

	// ErrKey reports a malformed key, subject or name.
	ErrKey = errors.New("malformed name")
)

// maxKey limits a key, in bytes.
const maxKey = 1024

func checkKey(key string) error {
	switch {
	case len(key) > maxKey:
		return fmt.Errorf("%w: its length is %d bytes, above %d", ErrKey, len(key), maxKey)
	case strings.ContainsRune(key, 0):
		return fmt.Errorf("%w: it holds a NUL", ErrKey)
	}
	return nil
}

// Prefix is the strategy of a resource with paths. A key is a relative path,
// and its name is {Base}/agents/{id}/{key}. Base may be empty. A key with "..",
// an empty component or a leading slash is outside.
type Prefix struct{ Base string }

// Apply returns the path of key below the agent's directory.
func (p Prefix) Apply(id scope.ID, key string) (string, error) {
	if err := checkKey(key); err != nil {
		return "", err
	}
	if key != "" && !localPath(key) {
		return "", fmt.Errorf("%w: %.100q leads out of it", ErrOutside, key)
	}
	return p.root(id) + key, nil
}

// Enforce returns name relative to the agent's directory.
func (p Prefix) Enforce(id scope.ID, name string) (string, error) {
	key, ok := strings.CutPrefix(name, p.root(id))
	if !ok || key != "" && !localPath(key) {
		return "", ErrOutside
	}
	return key, nil
}

func (p Prefix) root(id scope.ID) string {
	root := id.Dir() + "/"
	if p.Base != "" {
		root = strings.TrimSuffix(p.Base, "/") + "/" + root
	}
	return root
}

// localPath reports whether a path is clean, relative and without "..".
func localPath(key string) bool {
	return key != "." && key != ".." && path.Clean(key) == key && key[0] != '/' && !strings.HasPrefix(key, "../")
}

// File is the strategy of a resource with one file for each agent:
// {Dir}/agent_{id}.db. Its only key is "".
type File struct{ Dir string }

// Apply returns the agent's file.
func (f File) Apply(id scope.ID, key string) (string, error) {
	if key != "" {
		return "", fmt.Errorf("%w: there is one file for each agent", ErrOutside)
	}
	return path.Join(f.Dir, "agent_"+string(id)+".db"), nil
}

// Enforce returns "" for the agent's file.
func (f File) Enforce(id scope.ID, name string) (string, error) {
	if own, _ := f.Apply(id, ""); name != own {
		return "", ErrOutside
	}
	return "", nil
}

// Schemas is the strategy of a database with a schema and a role for each agent:
// agent_{id}. Its only key is "".
type Schemas struct{}

// Apply returns the name of the agent's schema and role. PostgreSQL cuts names off at 63
// bytes, so two longer ones could be one: the id of an agent has at most 57 bytes.
func (Schemas) Apply(id scope.ID, key string) (string, error) {
	name := "agent_" + string(id)
	switch {
	case key != "":
		return "", fmt.Errorf("%w: there is one schema for each agent", ErrOutside)
	case len(name) > 63:
		return "", fmt.Errorf("%w: an agent with a schema has an id of at most 57 bytes", ErrKey)
	}
	return name, nil
}

// Enforce returns "" for the agent's schema.
func (s Schemas) Enforce(id scope.ID, name string) (string, error) {
	if own, err := s.Apply(id, ""); err != nil || name != own {
		return "", ErrOutside
	}
	return "", nil
}

// Namespace is the strategy of a resource with flat names. The name of a key is
// {id}{Separator}{key}. An id never contains a Separator, so one agent's part
// is never a prefix of another's.
//
// Bytes of the key other than letters, digits and those in Plain are encoded as
// Escape and two hexadecimal digits. Separator and Escape are always encoded.
type Namespace struct {
	Separator, Escape byte
	Plain             string // further bytes that are not encoded
}

// The namespaces of resources that scopefs supports.
var (
	// Keys is for key-value stores: {id}:{key}. A name has no character that is
	// special in Redis's patterns (KEYS, SCAN) or hash tags.
	Keys = Namespace{Separator: ':', Escape: '%', Plain: "-._~/@+=,"}

	// Buckets is for stores whose names may only have letters, digits, '-' and
	// '_', such as JetStream: {id}_{key}.
	Buckets = Namespace{Separator: '_', Escape: '-'}
)

const hexDigits = "0123456789ABCDEF"

// Apply returns the agent's name for key.
func (n Namespace) Apply(id scope.ID, key string) (string, error) {
	if err := checkKey(key); err != nil {
		return "", err
	}
	b := append(make([]byte, 0, len(id)+1+len(key)), id...)
	b = append(b, n.Separator)
	for i := range len(key) {
		if c := key[i]; n.plain(c) {
			b = append(b, c)
		} else {
			b = append(b, n.Escape, hexDigits[c>>4], hexDigits[c&15])
		}
	}
	return string(b), nil
}

// Enforce returns the key of one of the agent's names.
func (n Namespace) Enforce(id scope.ID, name string) (string, error) {
	rest, ok := strings.CutPrefix(name, string(id)+string(n.Separator))
	if !ok {
		return "", ErrOutside
	}
	key := make([]byte, 0, len(rest))
	for i := 0; i < len(rest); i++ {
		c := rest[i]
		switch {
		case n.plain(c):
			key = append(key, c)
		case c == n.Escape && i+2 < len(rest):
			high, low := strings.IndexByte(hexDigits, rest[i+1]), strings.IndexByte(hexDigits, rest[i+2])
			if high < 0 || low < 0 || n.plain(byte(high<<4|low)) { // each key has only one name
				return "", ErrOutside
			}
			key = append(key, byte(high<<4|low))
			i += 2
		default:
			return "", ErrOutside
		}
	}
	return string(key), nil
}

func (n Namespace) plain(c byte) bool {
	switch {
	case c == n.Separator || c == n.Escape:
		return false
	case 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9':
		return true
	}
	return strings.IndexByte(n.Plain, c) >= 0
}

// Subjects is the strategy of a message bus whose subjects are tokens separated
// by dots, such as NATS. The name of a.b is {id}.a.b, and that of the whole part
// {id}. with the dot. A key with an empty token, a wildcard ("*" or ">"), a
// control character, white space or a token that begins with "$" is malformed. No
// character needs encoding.
type Subjects struct{}

// Apply returns the agent's subject.
func (Subjects) Apply(id scope.ID, key string) (string, error) {
	if err := checkKey(key); err != nil {
		return "", err
	}
	if key != "" && !isSubject(key) {
		return "", fmt.Errorf("%w: %.100q is no subject: write tokens with dots between them, without *, >, $ and spaces", ErrKey, key)
	}
	return string(id) + "." + key, nil
}

// Enforce returns the subject without the agent's id.
func (Subjects) Enforce(id scope.ID, name string) (string, error) {
	key, ok := strings.CutPrefix(name, string(id)+".")
	if !ok || key != "" && !isSubject(key) {
		return "", ErrOutside
	}
	return key, nil
}

// isSubject reports whether s is a subject without wildcards. Tokens with "$", such
// as $JS and $SYS, are those of a bus's own subjects.
func isSubject(s string) bool {
	for token := range strings.SplitSeq(s, ".") {
		if token == "" || token[0] == '$' || strings.ContainsFunc(token, func(r rune) bool {
			return r == '*' || r == '>' || unicode.IsControl(r) || unicode.IsSpace(r) || r == utf8.RuneError
		}) {
			return false
		}
	}
	return true
}

// None is the strategy of a resource that agents only write to and whose
// credential defines its scope, such as a webhook. The name is the key.
type None struct{}

// Apply returns the key.
func (None) Apply(_ scope.ID, key string) (string, error) { return key, checkKey(key) }

// Enforce returns the name.
func (None) Enforce(_ scope.ID, name string) (string, error) { return name, nil }
