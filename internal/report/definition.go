package report

import (
	"bytes"
	"io"

	unified "github.com/rogpeppe/go-internal/diff"

	"github.com/scopefs/scopefs/internal/printable"
)

// Diff prints a unified diff of two texts of a file.
func Diff(w io.Writer, name string, before, after []byte) error {
	_, diff, _ := bytes.Cut(unified.Diff(name, before, name, after), []byte("\n")) // "diff a b"
	_, err := io.WriteString(w, printable.Lines(string(diff)))
	return err
}
