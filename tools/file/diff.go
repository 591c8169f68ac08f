package file

import (
	"bytes"
	"strings"

	unified "github.com/rogpeppe/go-internal/diff"

	"github.com/scopefs/scopefs/tools"
)

const maxDiff = 64 << 10 // bytes

// Diff returns a unified diff of two texts (diff(1), -u), of at most maxDiff bytes.
func Diff(name, before, after string) string {
	d := unifiedDiff(name, before, after)
	if len(d) > maxDiff {
		return cutText(d, maxDiff) + "\n[cut]\n"
	}
	return d
}

func unifiedDiff(name, before, after string) string {
	d := unified.Diff(tools.Quote("a/"+name), []byte(before), tools.Quote("b/"+name), []byte(after))
	_, d, _ = bytes.Cut(d, []byte("\n")) // drop the line "diff a b", which separates several files
	return string(d)
}

// cutText returns at most so many bytes of a text, without a part of a character.
func cutText(s string, most int) string { return strings.ToValidUTF8(s[:most], "") }
