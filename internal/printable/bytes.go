package printable

import (
	"bytes"
	"fmt"
	"unicode/utf8"
)

// OfBytes returns bytes as text, in which U+FFFD stands for each run of NUL and of bytes that are not UTF-8. It counts those bytes.
func OfBytes(p []byte) (text string, replaced int) {
	p = bytes.ReplaceAll(p, []byte{0}, []byte{0xff})
	for rest := p; len(rest) > 0; {
		r, n := utf8.DecodeRune(rest)
		if r == utf8.RuneError && n == 1 {
			replaced++
		}
		rest = rest[n:]
	}
	return string(bytes.ToValidUTF8(p, []byte("\uFFFD"))), replaced
}

// Replaced returns a line about bytes that OfBytes has replaced, or "" for none.
func Replaced(n int) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("[bytes that are NUL or not UTF-8, shown as \uFFFD: %d; base64 or xxd prints them]\n", n)
}
