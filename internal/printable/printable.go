// Package printable escapes text for one line of a terminal.
package printable

import (
	"fmt"
	"strings"
	"unicode"
)

// Text escapes every character that is not printable, including those that end a line or control a terminal.
func Text(s string) string {
	var b strings.Builder
	for _, r := range s {
		if unicode.IsPrint(r) {
			b.WriteRune(r)
		} else {
			fmt.Fprintf(&b, "\\u%04x", r)
		}
	}
	return b.String()
}

// Lines is Text for a text of several lines: it keeps newlines and tabs.
func Lines(text string) string {
	var b strings.Builder
	for line := range strings.SplitAfterSeq(text, "\n") {
		line, end := strings.CutSuffix(line, "\n")
		for i, part := range strings.Split(line, "\t") {
			if i > 0 {
				b.WriteByte('\t')
			}
			b.WriteString(Text(part))
		}
		if end {
			b.WriteByte('\n')
		}
	}
	return b.String()
}
