package report

import (
	"bytes"
	"fmt"
	"io"
	"strings"

	unified "github.com/rogpeppe/go-internal/diff"

	"github.com/scopefs/scopefs/internal/amend"
	"github.com/scopefs/scopefs/internal/frontmatter"
	"github.com/scopefs/scopefs/internal/printable"
)

// Diff prints the name of a file, and the lines in which two texts of it differ.
func Diff(w io.Writer, name string, before, after []byte) error {
	text := printable.Text(name) + "\n"
	lines := 0
	for line := range bytes.Lines(unified.Diff("", before, "", after)) {
		if lines++; lines > 3 && (line[0] == '-' || line[0] == '+') { // after "diff", "---" and "+++"
			text += printable.Lines(string(line))
		}
	}
	_, err := fmt.Fprint(w, text)
	return err
}

// Edited is Diff of a definition that an edit has changed. Where it has replaced a line, the values that differ are printed and not the line,
// which may have many others.
func Edited(w io.Writer, name string, before, after []byte) error {
	var b strings.Builder
	if err := Diff(&b, name, before, after); err != nil {
		return err
	}
	text := b.String()
	values := frontmatter.Changed(before, after)
	if strings.Contains(text, "\n-") && strings.Contains(text, "\n+") && len(values) > 0 {
		text = printable.Text(name) + "\n"
		for _, line := range values {
			text += printable.Text(line) + "\n"
		}
	}
	_, err := fmt.Fprint(w, text)
	return err
}

// Written prints what was written into a definition; nil: nothing.
func Written(w io.Writer, d *amend.Draft) error {
	if d == nil {
		return nil
	}
	before, after := d.Changes()
	return Edited(w, d.File, before, after)
}
