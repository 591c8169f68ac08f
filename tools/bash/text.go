package bash

import (
	"bytes"
	"strings"
	"unicode/utf8"

	"github.com/scopefs/scopefs/tools"
)

// text returns bytes as text. Where they are none, NUL included, U+FFFD stands
// for each row of them.
func text(p []byte) (s string, binary bool) {
	if utf8.Valid(p) && bytes.IndexByte(p, 0) < 0 {
		return string(p), false
	}
	p = bytes.ReplaceAll(p, []byte{0}, []byte{0xff})
	return string(bytes.ToValidUTF8(p, []byte("\uFFFD"))), true
}

// trimEnd drops the beginning of a character at the end of p.
func trimEnd(p []byte) []byte {
	for i := 1; i <= min(len(p), utf8.UTFMax-1); i++ {
		if c := p[len(p)-i]; utf8.RuneStart(c) {
			if c >= utf8.RuneSelf && !utf8.FullRune(p[len(p)-i:]) {
				return p[:len(p)-i]
			}
			break
		}
	}
	return p
}

// trimStart drops the end of a character at the start of p.
func trimStart(p []byte) []byte {
	for i := range min(len(p), utf8.UTFMax) {
		if utf8.RuneStart(p[i]) {
			return p[i:]
		}
	}
	return p
}

// writeLines writes text that ends with a line's end, if there is any.
func writeLines(b *strings.Builder, text string) {
	b.WriteString(text)
	if text != "" && !strings.HasSuffix(text, "\n") {
		b.WriteByte('\n')
	}
}

// said is the content that a text is. Clients refuse an empty one.
func said(text string) []tools.Content {
	if text == "" {
		text = "(no output)"
	}
	return []tools.Content{{Text: text}}
}
