// Package printable escapes text for one line of a terminal.
package printable

import (
	"fmt"
	"strings"
	"unicode"
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
