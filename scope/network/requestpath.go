package network

import (
	"encoding/hex"
	"strings"
	"unicode"
	"unicode/utf8"
)

// PathReadings returns the paths that servers may read in a request's path, which has no percent
// encoding: as it is, without the parameters of its components, and up to a question mark or a number
// sign. A rule for paths covers a request if it covers all of them.
//
// It is not ok for a path that servers turn into another one: with a dot segment or an empty component, also one
// before a parameter or among blanks and characters that have no shape; with a backslash, a control character, or text
// that is not UTF-8 (an overlong form of a slash); with a character that a server folds to one of these (Unicode's
// form NFKC, or the best fit of a Windows code page); or with a second encoding.
func PathReadings(path string) (readings []string, ok bool) {
	if !strings.HasPrefix(path, "/") || !utf8.ValidString(path) || strings.ContainsFunc(path, func(r rune) bool { return unicode.IsControl(r) || r == '\\' }) {
		return nil, false
	}
	folded := compatible.Replace(path)
	seen := strings.Map(shape, folded)
	if countSeparators(folded) != countSeparators(path) || strings.Contains(seen, "//") || Encoded(path) {
		return nil, false
	}
	for part := range strings.FieldsFuncSeq(seen, func(r rune) bool { return strings.ContainsRune("/?#", r) }) {
		if name := before(part, ";"); name != "" && strings.Trim(name, ".") == "" {
			return nil, false
		}
	}
	return cuts(path), true
}

// shape returns -1 for a character that servers may drop: a blank, a mark on another one, or one without a shape.
func shape(r rune) rune {
	if !unicode.In(r, unicode.L, unicode.N, unicode.P, unicode.S) || unicode.Is(unicode.Other_Default_Ignorable_Code_Point, r) {
		return -1
	}
	return r
}

// Encoded reports whether a path holds what a server that decodes twice would take for another character.
func Encoded(path string) bool {
	for rest, found := path, true; found; {
		if _, rest, found = strings.Cut(rest, "%"); len(rest) >= 2 {
			if _, err := hex.DecodeString(rest[:2]); err == nil {
				return true
			}
		}
	}
	return false
}

// cuts returns a path, the path without parameters, and what is before a question mark or a number sign.
func cuts(path string) []string {
	parts := strings.Split(path, "/")
	for i := range parts {
		parts[i] = before(parts[i], ";")
	}
	return []string{path, strings.Join(parts, "/"), before(path, "?"), before(path, "#")}
}

// compatible replaces the characters that Unicode's form NFKC has separators, marks or dots for, and those that
// code pages of Windows fit to a separator.
var compatible = strings.NewReplacer(
	"\u2024", ".", "\u2025", "..", "\u2026", "...", "\u3002", ".", "\ufe19", "...", "\ufe30", "..", "\ufe52", ".", "\uff0e", ".", "\uff61", ".",
	"\u2044", "/", "\u2100", "a/c", "\u2101", "a/s", "\u2105", "c/o", "\u2106", "c/u", "\u2215", "/", "\u29f8", "/", "\uff0f", "/",
	"\u2216", `\`, "\u29f5", `\`, "\ufe68", `\`, "\uff3c", `\`, "\u00a5", `\`, "\u20a9", `\`, "\u037e", ";", "\ufe14", ";", "\ufe54", ";", "\uff1b", ";",
	"\u2047", "??", "\u2048", "?!", "\u2049", "!?", "\ufe16", "?", "\ufe56", "?", "\uff1f", "?", "\ufe5f", "#", "\uff03", "#", "\ufe6a", "%", "\uff05", "%",
)

func countSeparators(path string) (n int) {
	for _, c := range path {
		if strings.ContainsRune(`/\;?#%`, c) {
			n++
		}
	}
	return n
}

func before(text, mark string) string {
	head, _, _ := strings.Cut(text, mark)
	return head
}
