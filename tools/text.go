package tools

import (
	"bytes"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/scopefs/scopefs/internal/printable"
)

// Quote returns a file's name for a text: see [printable.Quote].
func Quote(name string) string { return printable.Quote(name) }

// PlainJSON escapes characters in JSON that encoding/json leaves unescaped: those that
// control a terminal, are invisible, or change the writing direction. An agent may have
// written them.
func PlainJSON(text []byte) []byte {
	odd := func(r rune) bool { return r != '\n' && !unicode.IsPrint(r) }
	if bytes.IndexFunc(text, odd) < 0 {
		return text
	}
	var out []byte
	for _, r := range string(text) {
		switch {
		case !odd(r):
			out = utf8.AppendRune(out, r)
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			out = fmt.Appendf(out, "\\u%04x\\u%04x", high, low)
		default:
			out = fmt.Appendf(out, "\\u%04x", r)
		}
	}
	return out
}

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
