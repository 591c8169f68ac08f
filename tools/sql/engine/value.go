package engine

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/scopefs/scopefs/internal/peer"
)

// Value is a value of SQLite as JSON: null, a number, a string, or {"blob": base64}. A
// boolean is 1 or 0. An infinite REAL is the string "Infinity" or "-Infinity"; text
// that is not UTF-8 has U+FFFD for each wrong byte.
type Value struct {
	V any // nil, int64, float64, string or []byte
}

type blob struct {
	Blob *string `json:"blob"`
}

// MarshalJSON writes an INTEGER with all its digits, and a REAL so that it reads as a
// REAL again.
func (v Value) MarshalJSON() ([]byte, error) {
	switch x := v.V.(type) {
	case []byte:
		text := base64.StdEncoding.EncodeToString(x)
		return json.Marshal(blob{&text})
	case float64:
		switch {
		case math.IsInf(x, 1):
			return []byte(`"Infinity"`), nil
		case math.IsInf(x, -1):
			return []byte(`"-Infinity"`), nil
		}
		text := strconv.FormatFloat(x, 'g', -1, 64)
		if !strings.ContainsAny(text, ".e") {
			text += ".0"
		}
		return []byte(text), nil
	}
	return json.Marshal(v.V)
}

// UnmarshalJSON reads a Value. A number without fraction and exponent that fits 64 bits
// is an INTEGER, any other a REAL.
func (v *Value) UnmarshalJSON(text []byte) error {
	text = bytes.TrimSpace(text)
	if len(text) > 0 && text[0] == '{' {
		var b blob
		if err := peer.Decode(text, &b); err != nil {
			return err
		}
		if b.Blob == nil {
			return errors.New(`an object is {"blob": "base64"}`)
		}
		data, err := base64.StdEncoding.DecodeString(*b.Blob)
		v.V = data
		return err
	}
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.UseNumber()
	var x any
	if err := dec.Decode(&x); err != nil {
		return err
	}
	switch x := x.(type) {
	case nil, string:
		v.V = x
	case bool:
		v.V = int64(0)
		if x {
			v.V = int64(1)
		}
	case json.Number:
		if n, err := x.Int64(); err == nil {
			v.V = n
			return nil
		}
		f, err := x.Float64()
		v.V = f
		return err
	default:
		return fmt.Errorf("a value is null, a boolean, a number, a string or {\"blob\": \"base64\"}")
	}
	return nil
}

// Size returns the bytes of the value in a reply, roughly.
func (v Value) Size() int {
	switch x := v.V.(type) {
	case string:
		return len(x) + 2
	case []byte:
		return base64.StdEncoding.EncodedLen(len(x)) + 12
	}
	return 20
}
