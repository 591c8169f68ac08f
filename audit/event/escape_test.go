package event

import (
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestEscape(t *testing.T) {
	tests := map[string]struct{ raw, want string }{
		"empty":               {"", ""},
		"plain":               {"a b/c.txt", "a b/c.txt"},
		"letters stay":        {"größe/文件/🙂", "größe/文件/🙂"},
		"quote stays":         {`say "hi"`, `say "hi"`},
		"backslash":           {`a\x41`, `a\\x41`},
		"newline":             {"a\nb", `a\x0ab`},
		"terminal escape":     {"\x1b[2J", `\x1b[2J`},
		"DEL":                 {"\x7f", `\x7f`},
		"C1 control":          {"\u009b1m", `\u{9b}1m`},
		"line separator":      {"\u2028\u2029", `\u{2028}\u{2029}`},
		"right-to-left":       {"a\u202egpj", `a\u{202e}gpj`},
		"isolate":             {"\u2066x\u2069", `\u{2066}x\u{2069}`},
		"zero width":          {"a\u200bb\ufeff", `a\u{200b}b\u{feff}`},
		"invalid byte":        {"a\xffb", `a\xffb`},
		"cut rune":            {"\xe2\x82", `\xe2\x82`},
		"surrogate":           {"\xed\xa0\x80", `\xed\xa0\x80`},
		"replacement is text": {"\ufffd", "\ufffd"},
		"tag character":       {"\U000e0041", `\u{e0041}`},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, tc.want, Escape(tc.raw))
			back, err := Unescape(tc.want)
			require.NoError(t, err)
			assert.Equal(t, tc.raw, back)
		})
	}
}

func TestUnescapeRefuses(t *testing.T) {
	for _, s := range []string{`\`, `a\`, `\n`, `\x`, `\x1`, `\xg0`, `\u`, `\u{}`, `\u{41`, `\u{d800}`, `\u{110000}`, `\u{+41}`, `a\cut{12}b`} {
		_, err := Unescape(s)
		assert.ErrorIs(t, err, errEscape, s)
	}
}

func TestBound(t *testing.T) {
	assert.Equal(t, strings.Repeat("a", 256), Bound(strings.Repeat("a", 256), 256), "what fits is whole")

	long := strings.Repeat("a", 200) + strings.Repeat("z", 200)
	got := Bound(long, 256)
	assert.LessOrEqual(t, len(got), 256)
	assert.Equal(t, strings.Repeat("a", 115)+`\cut{170}`+strings.Repeat("z", 115), got)

	for _, c := range []string{"\n", "\\", "é", "\xff", "\u202e"} {
		got := Bound(strings.Repeat(c, 5000), 4096)
		assert.LessOrEqual(t, len(got), 4096)
		head, rest, found := strings.Cut(got, `\cut{`)
		require.True(t, found)
		_, end, _ := strings.Cut(rest, "}")
		for _, s := range []string{head, end} {
			raw, err := Unescape(s)
			require.NoError(t, err, "no escape is cut")
			assert.Equal(t, strings.Repeat(c, len(raw)/len(c)), raw)
		}
	}
}

func FuzzEscape(f *testing.F) {
	for _, s := range []string{"", "a", `\`, "\x00\xff", "\u2028", "\xe2\x82", `\u{41}`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		esc := Escape(s)
		back, err := Unescape(esc)
		require.NoError(t, err)
		require.Equal(t, s, back)
		requireHarmless(t, esc)
		cut := Bound(s, 64)
		require.LessOrEqual(t, len(cut), 64)
		requireHarmless(t, cut)
	})
}

func requireHarmless(t *testing.T, s string) {
	t.Helper()
	require.True(t, utf8.ValidString(s))
	for _, r := range s {
		require.False(t, unicode.In(r, unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp), "%U in %q", r, s)
	}
}
