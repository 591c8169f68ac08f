package tools

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// Clean returns what others wrote as valid UTF-8 without control characters but
// line ends and tabs, and without the tag characters (U+E0000 to U+E007F), which
// show nothing to a person and text to a model.
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
