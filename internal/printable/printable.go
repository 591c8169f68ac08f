// Package printable escapes text for one line of a terminal.
package printable

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Text escapes every character that is not printable, including those that end a line or control a terminal, letters and marks
// that nobody sees, and letters that look like other ones or marks that cover them.
func Text(s string) string { return escape(s, "") }

// Lines is Text for a text of several lines: it keeps newlines and tabs.
func Lines(text string) string { return escape(text, "\n\t") }

// unseen are the characters without a picture of their own that are letters or marks to unicode.IsPrint: Unicode Standard
// Annex #44, Default_Ignorable_Code_Point.
var unseen = []*unicode.RangeTable{unicode.Other_Default_Ignorable_Code_Point, unicode.Variation_Selector}

const blank = '\u2800' // braille without a dot

func escape(s, keep string) string {
	var b strings.Builder
	deceive := deceivers(s)
	for at, r := range s {
		if unicode.IsPrint(r) && !deceive[at] && !unicode.In(r, unseen...) && r != blank || strings.ContainsRune(keep, r) {
			b.WriteRune(r)
		} else {
			fmt.Fprintf(&b, "\\u%04x", r)
		}
	}
	return b.String()
}

// Quote returns a file's name for a text. It returns the name unchanged, unless it holds
// a quote, a backslash or an unprintable character, such as a line end, an escape or an
// override of the writing direction. Such a name becomes a Go string, which
// strconv.Unquote decodes.
func Quote(name string) string {
	odd := func(r rune) bool { return r == '"' || r == '\\' || !unicode.IsPrint(r) }
	if utf8.ValidString(name) && !strings.ContainsFunc(name, odd) {
		return name
	}
	return strconv.Quote(name)
}
