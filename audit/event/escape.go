package event

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

var errEscape = errors.New("malformed escape")

// Escape returns s as valid UTF-8 on one line, without characters that control a terminal. It replaces a backslash
// with \\, a byte that is not UTF-8, a C0 control or DEL with \xNN, and other control and format characters (C1, line
// and paragraph separators, bidirectional overrides, zero-width characters) with \u{N}. [Unescape] reverses it.
func Escape(s string) string {
	if plain(s) {
		return s
	}
	b := make([]byte, 0, len(s)+16)
	for len(s) > 0 {
		r, n := utf8.DecodeRuneInString(s)
		b = appendEscaped(b, r, s[:n])
		s = s[n:]
	}
	return string(b)
}

// plain reports whether s is printable ASCII without a backslash, and so equals its escape.
func plain(s string) bool {
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' || s[i] == '\\' {
			return false
		}
	}
	return true
}

// appendEscaped appends the escape of the character r, decoded from raw.
func appendEscaped(b []byte, r rune, raw string) []byte {
	switch {
	case r == '\\':
		return append(b, `\\`...)
	case r < ' ', r == 0x7f, r == utf8.RuneError && len(raw) == 1:
		return fmt.Appendf(b, `\x%02x`, raw[0])
	case unicode.In(r, unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp):
		return fmt.Appendf(b, `\u{%x}`, r)
	}
	return append(b, raw...)
}

// Unescape returns the string from which [Escape] made s. It returns an error for text that Escape does not produce,
// such as a truncated string of the log.
func Unescape(s string) (string, error) {
	var b strings.Builder
	for {
		before, after, found := strings.Cut(s, `\`)
		b.WriteString(before)
		if !found {
			return b.String(), nil
		}
		raw, rest, err := unescapeOne(after)
		if err != nil {
			return "", fmt.Errorf("unescape at %.12q: %w", `\`+after, err)
		}
		b.WriteString(raw)
		s = rest
	}
}

// Escaped reports whether s is a string of the log: what [Escape] or [Bound] may return.
func Escaped(s string) bool {
	for {
		before, after, found := strings.Cut(s, `\`)
		if Escape(before) != before {
			return false
		}
		if !found {
			return true
		}
		if removed, ok := strings.CutPrefix(after, "cut{"); ok {
			digits, rest, found := strings.Cut(removed, "}")
			if _, err := strconv.ParseUint(digits, 10, 64); err != nil || !found {
				return false
			}
			s = rest
			continue
		}
		_, rest, err := unescapeOne(after)
		if err != nil {
			return false
		}
		s = rest
	}
}

// unescapeOne decodes one escape. s starts after its backslash.
func unescapeOne(s string) (raw, rest string, err error) {
	switch {
	case strings.HasPrefix(s, `\`):
		return `\`, s[1:], nil
	case strings.HasPrefix(s, "x") && len(s) >= 3:
		if n, err := strconv.ParseUint(s[1:3], 16, 8); err == nil {
			return string([]byte{byte(n)}), s[3:], nil
		}
	case strings.HasPrefix(s, "u{"):
		hex, rest, found := strings.Cut(s[2:], "}")
		n, err := strconv.ParseUint(hex, 16, 31)
		if found && err == nil && utf8.ValidRune(rune(n)) {
			return string(rune(n)), rest, nil
		}
	}
	return "", "", errEscape
}

// Bound escapes s. If the result is longer than limit bytes, Bound replaces the middle with a marker, because both
// ends of a path say more than its first half. The marker cannot occur in s, whose backslashes are doubled.
func Bound(s string, limit int) string {
	if len(s) <= limit { // an escape is never shorter than its original
		if esc := Escape(s); len(esc) <= limit {
			return esc
		}
	}
	const marker = len(`\cut{}`) + 20 // the digits of a uint64
	side := (limit - marker) / 2
	var head []byte
	from := 0
	for {
		r, n := utf8.DecodeRuneInString(s[from:])
		next := appendEscaped(head, r, s[from:from+n])
		if len(next) > side {
			break
		}
		head, from = next, from+n
	}
	to, size := len(s), 0
	for {
		r, n := utf8.DecodeLastRuneInString(s[:to])
		size += len(appendEscaped(nil, r, s[to-n:to]))
		if size > side {
			break
		}
		to -= n
	}
	return string(head) + `\cut{` + strconv.Itoa(to-from) + `}` + Escape(s[to:])
}

// AppendString appends an escaped string as JSON. An escaped string has no control characters, so only the quote and
// the backslash need escaping (RFC 8259, section 7).
func AppendString(b []byte, s string) []byte {
	b = append(b, '"')
	for i := range len(s) {
		if s[i] == '"' || s[i] == '\\' {
			b = append(b, '\\')
		}
		b = append(b, s[i])
	}
	return append(b, '"')
}
