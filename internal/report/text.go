// Package report turns events of the log, definitions and answers of the daemon into text or JSON for an operator. What
// an agent wrote controls no terminal: every text is escaped.
package report

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"unicode"

	"github.com/scopefs/scopefs/internal/printable"
	"github.com/scopefs/scopefs/internal/printable/plainjson"
	"github.com/scopefs/scopefs/scope"
)

// JSON prints v as indented JSON.
func JSON(w io.Writer, v any) error { return plainjson.Write(w, v, "  ") }

// Line prints v as a line of JSON.
func Line(w io.Writer, v any) error { return plainjson.Write(w, v, "") }

// Table collects rows of cells, and prints them in columns. Every cell is escaped.
type Table struct {
	text bytes.Buffer
	w    *tabwriter.Writer
}

// Row adds a row.
func (t *Table) Row(cells ...any) {
	if t.w == nil {
		t.w = tabwriter.NewWriter(&t.text, 0, 0, 2, ' ', 0)
	}
	for i, cell := range cells {
		if i > 0 {
			fmt.Fprint(t.w, "\t")
		}
		fmt.Fprint(t.w, printable.Text(fmt.Sprint(cell)))
	}
	fmt.Fprintln(t.w)
}

// Print prints the rows that were added.
func (t *Table) Print(w io.Writer) error {
	if t.w == nil {
		return nil
	}
	_ = t.w.Flush() // to memory
	_, err := t.text.WriteTo(w)
	return err
}

// quoted returns s, in quotes if it contains characters that could pass for the
// next words of the line.
func quoted(s string) string {
	for _, r := range s {
		if !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune(`/._-+,=@~#%\`, r) {
			return `"` + strings.ReplaceAll(s, `"`, `\"`) + `"`
		}
	}
	return s
}

// some returns a non-nil list, which encodes as [] and not as null.
func some[T any](list []T) []T { return append([]T{}, list...) }

// names returns a list in words.
func names[T ~string](list []T) string {
	if len(list) == 0 {
		return "none"
	}
	var words []string
	for _, name := range list {
		words = append(words, string(name))
	}
	return strings.Join(words, ", ")
}

// verdictOf returns a decision in a word.
func verdictOf(d scope.Decision) string {
	switch {
	case d.Allow:
		return "allow"
	case d.Ask:
		return "ask"
	}
	return "deny"
}
