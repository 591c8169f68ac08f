package tools

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"io"
	"math/big"
	"slices"
	"strconv"
	"strings"

	scoped "github.com/scopefs/scopefs/scope/context"
)

// The bounds of arguments.
const (
	maxArguments = 8 << 20 // bytes
	maxDepth     = 32      // of objects and lists within each other
)

// arguments are the arguments of a call. The door decides by value and by the
// canonical form, and the tool gets the canonical form, decoded once.
type arguments struct {
	value     any             // for schemas and filters; nil after them
	canonical json.RawMessage // names sorted, no blanks
}

// parse reads arguments, bounded in size and depth, and makes them canonical.
func parse(text json.RawMessage) (*arguments, *Error) {
	if len(bytes.TrimSpace(text)) == 0 || string(bytes.TrimSpace(text)) == "null" {
		text = json.RawMessage("{}")
	}
	if len(text) > maxArguments {
		return nil, Errorf(TooLarge, "the arguments have %d bytes, and %d are the limit", len(text), maxArguments)
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
	if tooDeep(v, maxDepth) {
		return nil, Errorf(TooLarge, "the arguments are more than %d levels deep", maxDepth)
	}
	if bad := scoped.Check(text); bad != nil { // the decoder takes the last of two names
		return nil, ofContext(bad, ruleSchema)
	}
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, Errorf(Invalid, "arguments: %v", err)
	}
	return &arguments{floats(v), bytes.TrimRight(out.Bytes(), "\n")}, nil
}

// Canonical returns arguments as [Set.Call] reads them: one object without a name twice, its
// names sorted. The error is an [*Error].
func Canonical(text json.RawMessage) (json.RawMessage, error) {
	args, bad := parse(text)
	if bad != nil {
		return nil, bad
	}
	return args.canonical, nil
}

// floats replaces each number by a float64: a schema takes a json.Number for a string.
func floats(v any) any {
	switch v := v.(type) {
	case json.Number:
		f, _ := v.Float64() // a number out of range becomes infinite, which is no integer
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

// integers returns arguments in which each integral number is written as digits alone.
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

// tooDeep reports whether objects and lists are nested deeper than room. encoding/json
// rejects more than 10000 levels before it builds them.
func tooDeep(v any, room int) bool {
	deeper := func(e any) bool { return tooDeep(e, room-1) }
	switch v := v.(type) {
	case []any:
		return room == 0 || slices.ContainsFunc(v, deeper)
	case map[string]any:
		for _, e := range v {
			if deeper(e) {
				return true
			}
		}
		return room == 0
	}
	return false
}
