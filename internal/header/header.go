// Package header says which headers of HTTP an operator may set.
package header

import (
	"errors"
	"slices"
	"strings"
)

// IsText reports whether s is a valid value of a header: it has no
// control character except a tab.
func IsText(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f })
}

// IsName reports whether s is the name of a header that an operator may set.
func IsName(s string) bool {
	low := strings.ToLower(s)
	ours := []string{"accept", "accept-encoding", "connection", "content-encoding", "content-length", "content-type", "expect",
		"host", "last-event-id", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade"}
	if slices.Contains(ours, low) || s == "" || len(s) > 64 || strings.HasPrefix(low, "mcp-") || strings.HasPrefix(low, "proxy-") {
		return false
	}
	return !strings.ContainsFunc(low, func(r rune) bool {
		return r != '-' && r != '_' && (r < 'a' || r > 'z') && (r < '0' || r > '9')
	})
}

// Check checks the header that carries a credential, and the text before it.
func Check(name, prefix string) error {
	if name != "" && !IsName(name) {
		return errors.New("header: is no name of a header: correct it")
	}
	if strings.ContainsFunc(prefix, func(r rune) bool { return r < ' ' || r >= 0x7f }) {
		return errors.New("prefix: holds a character that no header may: remove it")
	}
	return nil
}
