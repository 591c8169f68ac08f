package file

import (
	"bytes"
	"strings"

	unified "github.com/rogpeppe/go-internal/diff"

	"github.com/scopefs/scopefs/tools"
)

const maxDiff = 64 << 10 // bytes

// diff returns a unified diff of two texts (diff(1), -u), cut after maxDiff.
func diff(name, before, after string) string {
	d := unified.Diff(tools.Quote("a/"+name), []byte(before), tools.Quote("b/"+name), []byte(after))
	_, d, _ = bytes.Cut(d, []byte("\n")) // the header starts with "diff a b", which is for several files
	if len(d) > maxDiff {
		return strings.ToValidUTF8(string(d[:maxDiff]), "") + "\n[cut]\n"
	}
	return string(d)
}
