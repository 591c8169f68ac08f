package tools

import (
	"bytes"
	"cmp"
	"encoding/json"
	"math/big"
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
	value, canonical, bad := scoped.Canonical(text, maxDepth)
	switch {
	case bad != nil && (bad.Path == "" || bad.Code == scoped.TooLarge):
		return nil, Errorf(Code(bad.Code), "arguments: %s", bad.Message)
	case bad != nil:
		return nil, ofContext(bad, ruleSchema)
	}
	if _, ok := value.(map[string]any); !ok {
		return nil, Errorf(Invalid, "arguments: want an object")
	}
	return &arguments{value, canonical}, nil
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

// integers returns arguments in which each integral number is written as digits alone.
func integers(args json.RawMessage) json.RawMessage {
	v, err := exact(args)
	if err != nil {
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
