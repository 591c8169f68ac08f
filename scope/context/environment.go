package scoped

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// The bounds of an environment, beside 64 levels.
const (
	MaxBytes    = 16 << 20
	MaxMessages = 10_000
)

// The bounds of names, in bytes.
const (
	maxName     = 64
	maxInstance = 128
)

// The members of a message that the protocol knows.
const (
	memberType     = "type"
	memberInstance = "_instance"
)

// Environment is the messages of which calls get some. It is immutable. The nil
// Environment has none.
type Environment struct{ messages []message }

// message is one message. Each text is compact JSON.
type message struct {
	scope    string
	instance string // "": every instance sees it
	text     json.RawMessage
}

// Parse reads an environment: a JSON array of objects, each with a member type and
// perhaps a member _instance. It keeps the bytes of strings and numbers. A name
// that an object has twice is an error at any level.
func Parse(text []byte) (*Environment, *Error) {
	if len(text) > MaxBytes {
		return nil, errorf(TooLarge, "the context has %d bytes, and %d are the limit", len(text), MaxBytes)
	}
	text, err := compact(text)
	if err != nil {
		return nil, err
	}
	if text[0] != '[' {
		return nil, errorf(Invalid, `the context is no array of messages: write [{"type": SCOPE, ...}]`)
	}
	env, w := &Environment{}, &walker{text: text}
	return env, w.array(0, func(int) *Error {
		if len(env.messages) == MaxMessages {
			return errorf(TooLarge, "the context has more than %d messages", MaxMessages)
		}
		m, err := w.message()
		env.messages = append(env.messages, m)
		return err
	})
}

// message reads one message of an environment.
func (w *walker) message() (m message, err *Error) {
	if w.text[w.at] != '{' {
		return m, errorf(Invalid, "a message is no object")
	}
	from := w.at
	err = w.object(1, func(name string, value json.RawMessage) (err *Error) {
		switch name {
		case memberType:
			m.scope, err = scopeName(value)
		case memberInstance:
			m.instance, err = instanceName(value)
		}
		return err
	})
	if m.text = w.text[from:w.at:w.at]; err == nil && m.scope == "" {
		err = errorf(Invalid, "a message has no type").in(memberType)
	}
	return m, err
}

// all returns the messages, also of the nil Environment.
func (e *Environment) all() []message {
	if e == nil {
		return nil
	}
	return e.messages
}

// Len returns the number of messages.
func (e *Environment) Len() int { return len(e.all()) }

// Scopes returns the names of the scopes that have messages, sorted.
func (e *Environment) Scopes() (names []string) {
	for _, m := range e.all() {
		names = append(names, m.scope)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// Size returns the bytes of the messages.
func (e *Environment) Size() int { return size(e.all()) }

func size(messages []message) (n int) {
	for _, m := range messages {
		n += len(m.text)
	}
	return n
}

// Append returns an environment with the messages of both, e's first.
func (e *Environment) Append(more *Environment) (*Environment, *Error) {
	all := &Environment{slices.Concat(e.all(), more.all())}
	size := all.Size() + len(all.messages) + 1 // brackets and commas
	if len(all.messages) > MaxMessages || size > MaxBytes {
		return nil, errorf(TooLarge, "both contexts together have %d messages of %d bytes, and %d of %d bytes are the limit", len(all.messages), size, MaxMessages, MaxBytes)
	}
	return all, nil
}

// Within returns an error for a scope of which e has other messages than given: whoever calls for another one passes on the
// scopes that it was given as they are, or fewer.
func (e *Environment) Within(given *Environment) *Error {
	for _, name := range e.Scopes() {
		all := func(env *Environment) []byte {
			return array(slices.DeleteFunc(slices.Clone(env.all()), func(m message) bool { return m.scope != name }))
		}
		if !bytes.Equal(all(e), all(given)) {
			return errorf(Denied, "the call works for another agent, which did not give it the scope %s like this: leave _context out, or take scopes away", name)
		}
	}
	return nil
}

// JSON returns the array of the messages, which Parse reads.
func (e *Environment) JSON() []byte { return array(e.all()) }

// array returns the JSON array of messages.
func array(messages []message) []byte {
	parts := make([][]byte, len(messages))
	for i, m := range messages {
		parts[i] = m.text
	}
	return joined('[', parts, ']')
}

// joined returns values or members with commas between them, in brackets.
func joined(open byte, parts [][]byte, end byte) []byte {
	size := len(parts) + 2
	for _, part := range parts {
		size += len(part)
	}
	out := append(make([]byte, 0, size), open) // one copy: the parts may have megabytes
	for i, part := range parts {
		if i > 0 {
			out = append(out, ',')
		}
		out = append(out, part...)
	}
	return append(out, end)
}

// scopeName reads the name of a scope.
func scopeName(value json.RawMessage) (string, *Error) {
	name, err := text(value)
	if err == nil && !IsName(name) {
		err = errorf(Invalid, "%.80q is no name of a scope: want a letter, then letters, digits, _ and -, at most %d bytes", name, maxName)
	}
	return name, err
}

// IsName reports whether s can be the name of a scope.
func IsName(s string) bool {
	for i := range len(s) {
		c := s[i]
		letter := 'a' <= c|0x20 && c|0x20 <= 'z'
		if !letter && (i == 0 || (c < '0' || c > '9') && c != '_' && c != '-') {
			return false
		}
	}
	return s != "" && len(s) <= maxName
}

// instanceName reads the name of an instance.
func instanceName(value json.RawMessage) (string, *Error) {
	name, err := text(value)
	if err == nil && (name == "" || len(name) > maxInstance || strings.ContainsFunc(name, notInstance)) {
		err = errorf(Invalid, "%.80q is no name of an instance: want 1 to %d bytes without control characters", name, maxInstance)
	}
	return name, err
}

// notInstance reports what may not be in the name of an instance: control and
// format characters, and U+FFFD, which a lone surrogate becomes.
func notInstance(r rune) bool {
	return unicode.IsControl(r) || unicode.Is(unicode.Cf, r) || r == utf8.RuneError
}

// text reads a string of compact JSON.
func text(value json.RawMessage) (string, *Error) {
	if value[0] != '"' {
		return "", errorf(Invalid, "want a string")
	}
	return unquote(value), nil
}
