package tools

import (
	"context"
	"encoding/json"
	"strconv"
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func FuzzQuote(f *testing.F) {
	for _, name := range []string{"plain", "with space", "é/日本", "a\nb", "\x1b[31mred", "\x7f", "\u009b31m", "\u202etxt.exe", "\u2028", `"a\nb"`, `a\b`, "\xff", "", "\U000e0041"} {
		f.Add(name, name+"'")
	}
	f.Fuzz(func(t *testing.T, name, other string) {
		shown := Quote(name)
		assert.False(t, strings.ContainsFunc(shown, func(r rune) bool { return !unicode.IsPrint(r) }), "%q", shown)
		if shown != name {
			back, err := strconv.Unquote(shown)
			require.NoError(t, err)
			assert.Equal(t, name, back)
		}
		assert.Equal(t, name == other, shown == Quote(other), "%q %q", name, other)

		text, err := json.Marshal(map[string]string{name: other})
		require.NoError(t, err)
		plain := PlainJSON(text)
		assert.False(t, strings.ContainsFunc(string(plain), func(r rune) bool { return !unicode.IsPrint(r) }), "%q", plain)
		assert.JSONEq(t, string(text), string(plain))
	})
}

func TestQuote(t *testing.T) {
	for name, want := range map[string]string{"a b": "a b", "é": "é", "it's": "it's", "a\nb": `"a\nb"`, "\x1b[2J": `"\x1b[2J"`, `say "x"`: `"say \"x\""`, `a\b`: `"a\\b"`, "\u202e": `"\u202e"`} {
		assert.Equal(t, want, Quote(name))
	}
	e := &Error{Code: NotFound, Message: "no such file", Path: "a\nb"}
	assert.Equal(t, `not_found: no such file: "a\nb"`, e.Error())
}

// To a schema 1.0 and 1e0 are integers: they are to every tool.
func TestIntegersOfAnyForm(t *testing.T) {
	type inner struct {
		N int `json:"n"`
	}
	type args struct {
		N     int            `json:"n,omitempty"`
		U     uint16         `json:"u,omitempty"`
		P     *int64         `json:"p,omitempty"`
		List  []int          `json:"list,omitempty"`
		Map   map[string]int `json:"map,omitempty"`
		Inner inner          `json:"inner,omitzero"`
		F     float64        `json:"f,omitempty"`
		S     string         `json:"s,omitempty"`
	}
	var got args
	tool, err := New("t", "test", Hints{}, func(_ context.Context, _ Env, in args) (struct{}, error) {
		got = in
		return struct{}{}, nil
	})
	require.NoError(t, err)
	call := func(text string) error {
		got = args{}
		a, perr := parse(json.RawMessage(text))
		if perr != nil {
			return perr
		}
		schema, err := tool.input()
		if err != nil {
			return err
		}
		if err := schema.Validate(a.value); err != nil {
			return err
		}
		in := tool.read("a", a.canonical)
		if in.err != nil {
			return in.err
		}
		_, err = tool.run(context.Background(), Env{}, in.value)
		return err
	}
	for _, form := range []string{"3", "3.0", "3e0", "3.000", "30e-1", "0.3E+1", "0.03e2"} {
		text := strings.ReplaceAll(`{"n":#,"u":#,"p":#,"list":[#,#],"map":{"k":#},"inner":{"n":#},"f":#,"s":"1.0"}`, "#", form)
		require.NoError(t, call(text), form)
		three := int64(3)
		assert.Equal(t, args{3, 3, &three, []int{3, 3}, map[string]int{"k": 3}, inner{3}, 3, "1.0"}, got, form)
	}
	require.NoError(t, call(`{"n":1e18,"f":0.5}`))
	assert.Equal(t, args{N: 1e18, F: 0.5}, got)
	require.NoError(t, call(`{"n":9007199254740993.0}`))
	assert.Equal(t, 9007199254740993, got.N, "no digit is lost")
	require.NoError(t, call(`{"n":-0.0}`))
	for _, text := range []string{`{"n":1.5}`, `{"n":1e-400}`, `{"n":1e999999999}`, `{"n":1e30}`, `{"u":65536.0}`, `{"n":"1.0"}`, `{"n":1e-99999999999999999999}`, `{"n":1.` + strings.Repeat("0", 1000) + `1}`} {
		assert.Error(t, call(text), text)
	}
}
