package report

import (
	"fmt"
	"io"
	"iter"
	"strings"

	"github.com/scopefs/scopefs/internal/printable"
	"github.com/scopefs/scopefs/internal/selftest"
)

// Selftest prints how many attempts of each class were held, and those that were not, or not made.
func Selftest(w io.Writer, classes iter.Seq[string], counts map[string]map[string]int, failed []selftest.Outcome) error {
	var t Table
	total := map[string]int{}
	t.Row("CLASS", "HELD", "FAILED", "SKIPPED", "NOT MADE")
	for class := range classes {
		c := counts[class]
		t.Row(class, c[selftest.Held], c[selftest.Failed], c[selftest.Skipped], c[selftest.NotMade])
		for state, n := range c {
			total[state] += n
		}
	}
	t.Row("all", total[selftest.Held], total[selftest.Failed], total[selftest.Skipped], total[selftest.NotMade])
	if err := t.Print(w); err != nil {
		return err
	}
	var f Table
	for _, one := range failed {
		f.Row(one.ID, one.State, one.Evidence, one.Like)
	}
	return f.Print(w)
}

// Attempt prints an attempt with what it printed.
func Attempt(w io.Writer, one selftest.Outcome) error {
	_, err := fmt.Fprintln(w, printable.Text(strings.TrimSpace(fmt.Sprintf("%-8s %s: %s %s", one.State, one.ID, one.Try, one.Evidence))))
	for line := range strings.Lines(one.Output) {
		if err == nil {
			_, err = fmt.Fprintln(w, "    "+printable.Text(strings.TrimSuffix(line, "\n")))
		}
	}
	return err
}
