package rpc

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const head = `{"jsonrpc":"2.0",`

var messages = map[string]Head{
	head + `"id":1,"method":"m"}`: {Kind: Request, ID: []byte(`1`), Method: "m"},
	" {  \"id\" : \"a\\\"b\" , \"method\" : \"\\u006d\" , \"jsonrpc\":\"2.0\" } \r\n": {Kind: Request, ID: []byte(`"a\"b"`), Method: "m"},
	head + `"params":{"a":"}\\\"","b":[1,{}]},"method":"m","id":1}`:                   {Kind: Request, ID: []byte(`1`), Method: "m", Params: []byte(`{"a":"}\\\"","b":[1,{}]}`)},
	head + `"method":"m"}`:                               {Kind: Notification, Method: "m"},
	head + `"method":"","id":null}`:                      {Kind: Notification},
	head + `"id":1.50,"result":{"id":2}}`:                {Kind: Response, ID: []byte(`1.50`), Result: []byte(`{"id":2}`)},
	head + `"\u0069d":1,"error":{},"other":0,"other":0}`: {Kind: Response, ID: []byte(`1`), Error: []byte(`{}`)},
	head + `"id":null,"error":{}}`:                       {Error: []byte(`{}`)},
	head + `"id":1,"METHOD":"m"}`:                        {ID: []byte(`1`)},
	`{"jsonrpc":"2.0"}`:                                  {},
}

func TestParse(t *testing.T) {
	for text, want := range messages {
		got, err := Parse([]byte(text))
		assert.NoError(t, err, text)
		assert.Equal(t, want, got, text)
	}
	for text, want := range map[string]string{ // the ID
		``: "", `{`: "", `{}`: "", `[]`: "", `"`: "", `{"a`: "", `{"a":`: "", `{"a":"\`: "", `{"id":1`: "1", `{"id":4x}`: "", `{"id":[1]}`: "",
		`{"id":1,"method":"m"}`:                "1",
		`{"jsonrpc":"1.0","id":1,"method":""}`: "1",
		head + `"id":1,"method":"m"}}`:         "1",
		head + `"id":1,"method":"m"},`:         "1",
		head + `"id":1,"method":7}`:            "1",
		head + `"id":1,"method":null}`:         "1",
		head + `"id":1,}`:                      "1",
		head + `"id":true,"method":"m"}`:       "",
		head + `"id":-,"method":"m"}`:          "",
	} {
		h, err := Parse([]byte(text))
		assert.Error(t, err, text)
		assert.Equal(t, want, string(h.ID), text)
	}
	for _, name := range []string{"jsonrpc", "id", "method", "params", "result", "error"} {
		_, err := Parse([]byte(head + `"id":1,"method":"m","params":1,"result":1,"error":1,"` + name + `":null}`))
		assert.ErrorIs(t, err, ErrTwice, name)
		escaped := `"\u00` + string("0123456789abcdef"[name[0]>>4]) + string("0123456789abcdef"[name[0]&15]) + name[1:] + `"`
		_, err = Parse([]byte(head + `"id":null,"method":"m","params":1,"result":1,"error":1,` + escaped + `:2}`))
		assert.ErrorIs(t, err, ErrTwice, escaped)
	}
}

// FuzzParse compares Parse and Replace with encoding/json.
func FuzzParse(f *testing.F) {
	for text := range messages {
		f.Add([]byte(text))
	}
	for _, text := range []string{`{"id":1,"id":{"x":"}"}}`, `{"a":"\\`, `{"\u0069d":"x","c":[{"id":"y"}]}`, `[]`, `{"id":4x}`} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		h, err := Parse(text)
		replaced := Replace(text, "id", func(old []byte) []byte { return []byte("7") })
		var all map[string]json.RawMessage
		if json.Unmarshal(text, &all) != nil || all == nil {
			return
		}
		if _, ok := all["id"]; ok {
			all["id"] = []byte("7")
			var now map[string]json.RawMessage
			require.NoError(t, json.Unmarshal(replaced, &now))
			require.Equal(t, all, now)
		} else {
			require.Equal(t, string(text), string(replaced))
		}
		require.NoError(t, json.Unmarshal(text, &all))
		if err != nil {
			return
		}
		var method string
		_ = json.Unmarshal(all["method"], &method)
		if id := string(all["id"]); id != "null" || h.ID != nil {
			require.Equal(t, id, string(h.ID))
		}
		require.True(t, method == h.Method || !utf8.Valid(text))
		require.Equal(t, [3]string{string(all["params"]), string(all["result"]), string(all["error"])},
			[3]string{string(h.Params), string(h.Result), string(h.Error)})
	})
}

func TestReadLine(t *testing.T) {
	in := bufio.NewReaderSize(strings.NewReader("a\n\n"+strings.Repeat("x", 99)+"\n"+strings.Repeat("x", 101)+"\nend"), 16)
	var buffer []byte
	for _, want := range []int{2, 1, 100} {
		line, err := ReadLine(in, buffer[:0], 100)
		require.NoError(t, err)
		assert.Len(t, line, want)
		buffer = line
	}
	_, err := ReadLine(in, buffer[:0], 100)
	assert.ErrorIs(t, err, ErrTooLong)
	in.Reset(strings.NewReader("end"))
	line, err := ReadLine(in, nil, 100)
	assert.True(t, errors.Is(err, io.EOF))
	assert.Equal(t, "end", string(line))
}

func BenchmarkParse(b *testing.B) {
	line := []byte(head + `"method":"tools/call","params":{"name":"write_file","arguments":{"path":"f","content":"` +
		strings.Repeat("some text\\n", 400) + `"}},"id":7}`)
	b.SetBytes(int64(len(line)))
	for b.Loop() {
		_, _ = Parse(line)
	}
}

// TestLongNames: a name costs what comparing takes, however long it is and however many there are.
func TestLongNames(t *testing.T) {
	many := []byte(`{` + strings.Repeat(`"\u0061":1,`, 10_000) + `"\u0061` + strings.Repeat("y", 1<<20) + `":1,"jsonrpc":"2.0","\u006det\u0068od":"m","id":1}`)
	assert.Less(t, testing.AllocsPerRun(1, func() {
		h, err := Parse(many)
		assert.NoError(t, err)
		assert.Equal(t, "m", h.Method)
	}), 100.0)
	assert.True(t, isName([]byte(`"a\/b"`), "a/b"))
	for _, other := range []string{`"i"`, `"idd"`, `"\u0069"`, `"\u006"`, `"i\u0065"`, `"ID"`, `"\u+069d"`, `""`} {
		assert.False(t, isName([]byte(other), "id"), other)
	}
}
