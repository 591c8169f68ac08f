package scoped

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestCanonical(t *testing.T) {
	for text, want := range map[string]string{
		` { "b" : [ 1.0 , -0, 1e400 ] , "a" : "\u0041<&>" } `: `{"a":"A<&>","b":[1.0,-0,1e400]}`,
		`{"\u0062":1,"a":{"z":[],"y":{}},"":null}`:            `{"":null,"a":{"y":{},"z":[]},"b":1}`,
		"{\"a\":\"\u2028\",\"b\":\"\\u2028\"}":                `{"a":"\u2028","b":"\u2028"}`,
		`"\n\t\ud83d\ude00\/"`:                                `"\n\t😀/"`,
		`[true,false,null,12345678901234567890.10]`:           `[true,false,null,12345678901234567890.10]`,
		strings.Repeat("[", 4) + strings.Repeat("]", 4):       `[[[[]]]]`,
	} {
		_, got, err := Canonical([]byte(text), 4)
		require.Nil(t, err, text)
		assert.Equal(t, want, string(got), text)
	}
	for text, want := range map[string]Error{
		`{"a":1,"b":{"c":[0,{"d":1,"\u0064":2}]}}`: {Code: Invalid, Path: "/b/c/1/d"},
		`[[[[{}]]]]`:     {Code: TooLarge, Path: "/0/0/0/0"},
		`{"a":[[[{}]]]}`: {Code: TooLarge, Path: "/a/0/0/0"},
		`{} {}`:          {Code: Invalid},
		``:               {Code: Invalid},
		"\"\xff\"":       {Code: Invalid},
	} {
		_, _, err := Canonical([]byte(text), 4)
		require.NotNil(t, err, text)
		assert.Equal(t, want, Error{Code: err.Code, Path: err.Path}, text)
	}
}

// FuzzCanonical compares Canonical with encoding/json, which takes the last of two names.
func FuzzCanonical(f *testing.F) {
	for _, text := range []string{`{"b":[1.0,{"c":"\u0041"}],"a":null}`, `{"a":1,"a":2}`, `[[[[[]]]]]`, `"\ud800"`, `-1e-7`, `{"a":{"a":{"a":"\\"}}}`} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		value, canonical, err := Canonical(text, 32)
		if err != nil {
			return
		}
		dec := json.NewDecoder(bytes.NewReader(text))
		dec.UseNumber()
		var v any
		require.NoError(t, dec.Decode(&v))
		var want bytes.Buffer
		enc := json.NewEncoder(&want)
		enc.SetEscapeHTML(false)
		require.NoError(t, enc.Encode(v))
		require.Equal(t, strings.TrimSuffix(want.String(), "\n"), string(canonical))
		var plain any
		if json.Unmarshal(text, &plain) == nil { // every number fits
			require.Equal(t, plain, value)
		}
		again, same, err := Canonical(canonical, 32)
		require.Nil(t, err)
		require.Equal(t, canonical, same)
		require.Equal(t, value, again)
	})
}
