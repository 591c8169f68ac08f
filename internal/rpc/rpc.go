// Package rpc finds the head of a JSON-RPC 2.0 message in the message's text, one
// message a line, and decodes nothing else. Parameters and results can be megabytes:
// encoding/json scans them twice, and the MCP SDK's jsonrpc.DecodeMessage copies them
// twice, changes the ids that no float64 holds, and takes the last of two members with
// one name.
package rpc

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
)

// Kind is the kind of a message.
type Kind int

// The kinds of messages.
const (
	None         Kind = iota // no message: any other text, such as JSON logs
	Request                  // has an id and a method
	Notification             // has a method and no id
	Response                 // has an id, and a result or an error
)

// Head is what routes a message. The slices are JSON, parts of the message's text. They
// are nil for what it lacks, and for an id of null.
type Head struct {
	Kind                      Kind
	ID, Params, Result, Error []byte
	Method                    string
}

// ErrTwice is the error of a message that has a member of its head twice: two parsers
// could take it for two messages.
var ErrTwice = errors.New("a member is there twice")

var errNone = errors.New("no JSON-RPC 2.0 message")

// Parse returns the head of a message. The error reports what is no message, among it
// one that has a member of its head twice. Parse does not validate parameters, a result
// and an error: it only finds their end. It compares names of members exactly, after it
// has unescaped them. With an error the Head has the ID, if Parse has reached it.
func Parse(message []byte) (Head, error) {
	var h Head
	var id, version, method []byte
	var why error
	parts := [...]struct {
		name  string
		value *[]byte
	}{{"jsonrpc", &version}, {"id", &id}, {"method", &method}, {"params", &h.Params}, {"result", &h.Result}, {"error", &h.Error}}
	whole := members(message, func(name []byte, start, end int) bool {
		for _, p := range parts {
			if !isName(name, p.name) {
				continue
			}
			if *p.value != nil {
				why = fmt.Errorf("%w: %q", ErrTwice, p.name)
				return false
			}
			*p.value = message[start:end]
		}
		return true
	})
	switch {
	case id == nil:
	case !json.Valid(id) || bytes.IndexByte([]byte(`"-0123456789n`), id[0]) < 0:
		why = errors.Join(why, errors.New("the id is neither a string nor a number"))
	case id[0] != 'n':
		h.ID = id
	}
	switch {
	case why != nil:
		return Head{ID: h.ID}, why
	case !whole || string(version) != `"2.0"`:
		return Head{ID: h.ID}, errNone
	case method != nil:
		if method[0] != '"' || json.Unmarshal(method, &h.Method) != nil {
			return Head{ID: h.ID}, errors.New("the method is no string")
		}
		if h.Kind = Notification; h.ID != nil {
			h.Kind = Request
		}
	case h.ID != nil && (h.Result != nil || h.Error != nil):
		h.Kind = Response
	}
	return h, nil
}

// Replace returns the object with a member's value replaced by change(value). If change
// returns nil, the member is missing, or the text is no object, it returns the text. Of
// several members with the name the last counts, as for encoding/json and the MCP SDK.
func Replace(object []byte, name string, change func(old []byte) []byte) []byte {
	from, to := 0, 0
	whole := members(object, func(n []byte, start, end int) bool {
		if isName(n, name) {
			from, to = start, end
		}
		return true
	})
	if !whole || to == 0 {
		return object
	}
	value := change(object[from:to])
	if value == nil {
		return object
	}
	return bytes.Join([][]byte{object[:from], value, object[to:]}, nil)
}

// members calls f with the name, in quotes, and the offsets of the value of each member
// of a JSON object, while f returns true. It reports whether the text is one object, as
// far as that is seen without a look into its values.
func members(text []byte, f func(name []byte, start, end int) bool) bool {
	i := blanks(text, 0)
	if at(text, i) != '{' {
		return false
	}
	i = blanks(text, i+1)
	if at(text, i) == '}' {
		return blanks(text, i+1) == len(text)
	}
	for {
		from := i
		if at(text, i) != '"' {
			return false
		}
		i = stringEnd(text, i)
		name := text[from:i]
		if i = blanks(text, i); at(text, i) != ':' {
			return false
		}
		start := blanks(text, i+1)
		end := valueEnd(text, start)
		if end == start || !f(name, start, end) {
			return false
		}
		switch i = blanks(text, end); at(text, i) {
		case ',':
			i = blanks(text, i+1)
		case '}':
			return blanks(text, i+1) == len(text)
		default:
			return false
		}
	}
}

// at returns a byte of text, or 0 at its end.
func at(text []byte, i int) byte {
	if i >= len(text) {
		return 0
	}
	return text[i]
}

// blanks returns the offset after the white space at i.
func blanks(text []byte, i int) int {
	for i < len(text) && (text[i] == ' ' || text[i] == '\t' || text[i] == '\r' || text[i] == '\n') {
		i++
	}
	return i
}

// stringEnd returns the offset after the JSON string that begins at i.
func stringEnd(text []byte, i int) int {
	for from := i + 1; ; {
		n := bytes.IndexByte(text[from:], '"')
		if n < 0 {
			return len(text)
		}
		end, escapes := from+n, 0
		for end-escapes > from && text[end-escapes-1] == '\\' {
			escapes++
		}
		if from = end + 1; escapes%2 == 0 {
			return from
		}
	}
}

// valueEnd returns the offset after the JSON value that begins at i, i if there is none.
func valueEnd(text []byte, i int) int {
	for depth := 0; i < len(text); i++ {
		switch text[i] {
		case '"':
			if i = stringEnd(text, i) - 1; depth == 0 {
				return i + 1
			}
		case '{', '[':
			depth++
		case '}', ']':
			if depth == 0 { // it closes the object around the value
				return i
			}
			if depth--; depth == 0 {
				return i + 1
			}
		case ',', ' ', '\t', '\r', '\n':
			if depth == 0 {
				return i
			}
		}
	}
	return i
}

// isName compares a name in quotes, which may have escapes, with one of letters and the like. It reads no more of it than it must: a
// message may have any number of names, of any length.
func isName(quoted []byte, name string) bool {
	rest := quoted[1 : len(quoted)-1]
	for _, c := range []byte(name) {
		switch {
		case len(rest) > 0 && rest[0] == c:
			rest = rest[1:]
		case len(rest) > 1 && rest[0] == '\\' && rest[1] == c && c == '/':
			rest = rest[2:]
		case len(rest) > 5 && rest[0] == '\\' && rest[1] == 'u':
			if n, err := strconv.ParseUint(string(rest[2:6]), 16, 16); err != nil || n != uint64(c) {
				return false
			}
			rest = rest[6:]
		default:
			return false
		}
	}
	return len(rest) == 0
}

// ErrTooLong is the error of a line of more bytes than ReadLine may return.
var ErrTooLong = errors.New("a message is too long")

// ReadLine appends the next line, with its newline, to buffer. An unterminated last
// line comes with the error that ended it. A line that would make more than most bytes
// is [ErrTooLong].
func ReadLine(from *bufio.Reader, buffer []byte, most int) ([]byte, error) {
	buffer, err := ReadPart(from, buffer, most)
	if errors.Is(err, ErrTooLong) {
		buffer = buffer[:0]
	}
	return buffer, err
}

// ReadPart is ReadLine that returns with [ErrTooLong] what it has read of the line, for a
// caller that reads on.
func ReadPart(from *bufio.Reader, buffer []byte, most int) ([]byte, error) {
	for {
		part, err := from.ReadSlice('\n')
		if cap(buffer)-len(buffer) < len(part) { // append would grow a long buffer by a quarter, and leave five times its size as garbage
			buffer = slices.Grow(buffer, max(min(3*len(buffer), most-len(buffer)), len(part)))
		}
		buffer = append(buffer, part...) // the next ReadSlice overwrites part
		if len(buffer) > most {
			return buffer, fmt.Errorf("%w: it has more than %d bytes", ErrTooLong, most)
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return buffer, err
		}
	}
}
