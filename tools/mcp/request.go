package mcp

import (
	"bytes"
	"encoding/json"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

// decode returns the message of a line. For a request or notification as clients write them, id is the JSON of its id;
// otherwise id is nil.
func decode(line []byte) (m jsonrpc.Message, id []byte, err error) {
	if r, id := request(line); r != nil {
		return r, id, nil
	}
	m, err = jsonrpc.DecodeMessage(line)
	return m, nil, err
}

// request takes a request or notification apart and leaves its parameters as they are. jsonrpc.DecodeMessage copies the
// line twice and allocates 64 KiB for the shortest one, which takes longer than to validate and record a call. request
// returns nil for what is not a request, and for all unusual input: a further member, a name twice, an escape in a name,
// method or id, an id that is no short integer or string.
func request(line []byte) (r *jsonrpc.Request, id []byte) {
	if !json.Valid(line) {
		return nil, nil
	}
	var version, method, params []byte
	i := blanks(line)
	if line[i] != '{' {
		return nil, nil
	}
	for line[i] != '}' {
		i++ // the brace or the comma
		i += blanks(line[i:])
		if line[i] != '"' { // an empty object
			return nil, nil
		}
		name := line[i:stringEnd(line, i)]
		i += len(name)
		i += blanks(line[i:]) + 1 // the colon
		i += blanks(line[i:])
		var part *[]byte
		switch string(name) {
		case `"jsonrpc"`:
			part = &version
		case `"id"`:
			part = &id
		case `"method"`:
			part = &method
		case `"params"`:
			part = &params
		}
		if part == nil || *part != nil {
			return nil, nil
		}
		*part = line[i:valueEnd(line, i)]
		i += len(*part)
		i += blanks(line[i:])
	}
	if string(version) != `"2.0"` || !plain(method) || id != nil && !plain(id) && !short(id) || params != nil && params[0] != '{' {
		return nil, nil
	}
	r = &jsonrpc.Request{Method: string(method[1 : len(method)-1]), Params: params}
	if id != nil {
		var err error
		if r.ID, err = jsonrpc.MakeID(string(id)); err != nil {
			return nil, nil
		}
	}
	return r, id
}

// valueEnd returns the offset after the JSON value that begins at i in valid JSON.
func valueEnd(text []byte, i int) int {
	for depth := 0; ; i++ {
		switch text[i] {
		case '"':
			if i = stringEnd(text, i) - 1; depth == 0 {
				return i + 1
			}
		case '{', '[':
			depth++
		case '}', ']':
			if depth == 0 { // it closes the object or array around the value
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
}

// plain reports whether a JSON value is a string of ASCII characters without escapes.
func plain(value []byte) bool {
	return len(value) >= 2 && value[0] == '"' && !bytes.ContainsFunc(value, func(c rune) bool { return c == '\\' || c >= 0x80 })
}

// short reports whether a JSON value is an integer that a float64 holds exactly.
func short(value []byte) bool {
	return len(value) <= 15 && !bytes.ContainsFunc(value, func(c rune) bool { return c != '-' && (c < '0' || c > '9') })
}
