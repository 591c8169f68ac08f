// Package printable escapes text for one line of a terminal.
package printable

import (
	"fmt"
	"strings"
	"unicode"
)

// Text escapes every character that is not printable, including those that end a line or control a terminal.
func Text(s string) string { return escape(s, "") }

// Lines is Text for a text of several lines: it keeps newlines and tabs.
func Lines(text string) string { return escape(text, "\n\t") }

func escape(s, keep string) string {
	var b strings.Builder
	for _, r := range s {
		if unicode.IsPrint(r) || strings.ContainsRune(keep, r) {
			b.WriteRune(r)
		} else {
			fmt.Fprintf(&b, "\\u%04x", r)
		}
	}
	return b.String()
}
