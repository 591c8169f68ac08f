package message

import (
	"bytes"
	"strings"

	unified "github.com/rogpeppe/go-internal/diff"

	"github.com/scopefs/scopefs/internal/printable"
)

// MaxDiff bounds the result of [Diff], in bytes.
const MaxDiff = 64 << 10

// Diff returns a unified diff of two texts (diff(1), -u), of at most MaxDiff bytes.
func Diff(name, before, after string) string {
	d := Unified(name, before, after)
	if len(d) > MaxDiff {
		return Cut(d, MaxDiff) + "\n[cut]\n"
	}
	return d
}

// Unified returns a unified diff of two texts.
func Unified(name, before, after string) string {
	name = strings.TrimPrefix(name, "/") // as git diff names files
	d := unified.Diff(printable.Quote("a/"+name), []byte(before), printable.Quote("b/"+name), []byte(after))
	_, d, _ = bytes.Cut(d, []byte("\n")) // drop the line "diff a b", which separates several files
	return string(d)
}

// Cut returns at most so many bytes of a text, without a part of a character.
func Cut(s string, most int) string { return strings.ToValidUTF8(s[:most], "") }
