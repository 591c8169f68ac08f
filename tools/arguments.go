package tools

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"io"
	"math/big"
	"strconv"
	"strings"
)

// The bounds of arguments.
const (
	maxArguments = 8 << 20 // bytes
	maxDepth     = 32      // of objects and lists within each other
)

// arguments are a call's, read once. What runs gets the canonical form, so that
// it sees what was judged: of a name that is there twice only the last.
type arguments struct {
	value     any             // as encoding/json reads it
	canonical json.RawMessage // names sorted, no blanks
}

func parse(text json.RawMessage) (*arguments, *Error) {
	if len(bytes.TrimSpace(text)) == 0 || string(bytes.TrimSpace(text)) == "null" {
		text = json.RawMessage("{}")
	}
	if len(text) > maxArguments {
		return nil, Errorf(TooLarge, "the arguments have %d bytes, and %d are the limit", len(text), maxArguments)
	}
	if tooDeep(text) {
		return nil, Errorf(TooLarge, "the arguments are more than %d levels deep", maxDepth)
	}
	// Numbers stay as they are written: a float64 would lose digits.
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		return nil, Errorf(Invalid, "arguments: %v", err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, Errorf(Invalid, "arguments: more than one value")
	}
	if _, ok := v.(map[string]any); !ok {
		return nil, Errorf(Invalid, "arguments: want an object")
	}
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, Errorf(Invalid, "arguments: %v", err)
	}
	return &arguments{floats(v), bytes.TrimRight(out.Bytes(), "\n")}, nil
}

// floats puts a float64 in the place of each number: to a schema's validation a
// json.Number would be a string.
func floats(v any) any {
	switch v := v.(type) {
	case json.Number:
		f, _ := v.Float64() // what is out of range is infinite, and no integer
		return f
	case []any:
		for i := range v {
			v[i] = floats(v[i])
		}
	case map[string]any:
		for k := range v {
			v[k] = floats(v[k])
		}
	}
	return v
}

// integers writes each number that is an integer as digits alone.
func integers(args json.RawMessage) json.RawMessage {
	dec := json.NewDecoder(bytes.NewReader(args))
	dec.UseNumber()
	var v any
	if dec.Decode(&v) != nil {
		return args
	}
	text, err := json.Marshal(plainIntegers(v))
	if err != nil {
		return args
	}
	return text
}

func plainIntegers(v any) any {
	switch v := v.(type) {
	case json.Number:
		// A big.Rat makes as many digits as the exponent says. What an int64 holds
		// needs few.
		_, exponent, _ := strings.Cut(strings.ToLower(string(v)), "e")
		if n, err := strconv.Atoi(cmp.Or(exponent, "0")); err != nil || n < -100 || n > 100 || len(v) > 100 {
			return v
		}
		if r, ok := new(big.Rat).SetString(string(v)); ok && r.IsInt() && r.Num().IsInt64() {
			return r.Num().Int64()
		}
	case []any:
		for i := range v {
			v[i] = plainIntegers(v[i])
		}
	case map[string]any:
		for k := range v {
			v[k] = plainIntegers(v[k])
		}
	}
	return v
}

// tooDeep counts brackets outside strings, before anything is built of them.
func tooDeep(text []byte) bool {
	depth, inString, escaped := 0, false, false
	for _, c := range text {
		switch {
		case escaped:
			escaped = false
		case inString:
			escaped, inString = c == '\\', c != '"'
		case c == '"':
			inString = true
		case c == '{' || c == '[':
			if depth++; depth > maxDepth {
				return true
			}
		case c == '}' || c == ']':
			depth--
		}
	}
	return false
}
