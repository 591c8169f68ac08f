package bash

import (
	"strings"
	"unicode/utf8"

	"github.com/scopefs/scopefs/tools"
)

// trimEnd drops an incomplete UTF-8 sequence at the end of p.
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

// trimStart drops UTF-8 continuation bytes at the start of p.
func trimStart(p []byte) []byte {
	for i := range min(len(p), utf8.UTFMax) {
		if utf8.RuneStart(p[i]) {
			return p[i:]
		}
	}
	return p
}

// writeLines writes text and a final newline, or nothing for an empty text.
func writeLines(b *strings.Builder, text string) {
	b.WriteString(text)
	if text != "" && !strings.HasSuffix(text, "\n") {
		b.WriteByte('\n')
	}
}

// textContent returns text as content. Clients reject empty content, so that it
// replaces "" by "(no output)".
func textContent(text string) []tools.Content {
	if text == "" {
		text = "(no output)"
	}
	return []tools.Content{{Text: text}}
}
