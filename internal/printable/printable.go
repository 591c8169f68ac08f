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
