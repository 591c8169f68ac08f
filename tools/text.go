package tools

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/scopefs/scopefs/internal/printable"
	"github.com/scopefs/scopefs/internal/printable/plainjson"
)

// Quote returns a file's name for a text: see [printable.Quote].
func Quote(name string) string { return printable.Quote(name) }

// PlainJSON is [plainjson.Text].
func PlainJSON(text []byte) []byte { return plainjson.Text(text) }

// Clean returns text of other programs as valid UTF-8, without control characters except
// line ends and tabs, and without the tag characters (U+E0000 to U+E007F), which a person
// does not see and a model reads as text.
func Clean(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) && r != '\n' && r != '\t' || 0xE0000 <= r && r <= 0xE007F {
			return -1
		}
		return r
	}, strings.ToValidUTF8(s, "\uFFFD"))
}

// Clip returns the first bytes of s, at most n and whole characters.
func Clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + "…"
}
