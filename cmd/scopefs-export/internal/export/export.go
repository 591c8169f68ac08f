// Package export writes events of the log in the forms that other programs read: CSV, OCSF and OTLP. Strings stay escaped as
// in the log.
package export

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/scopefs/scopefs/audit"
)

// A Writer writes events. Flush writes what it holds.
type Writer interface {
	Write(audit.Event) error
	Flush() error
}

var writers = map[string]func(out io.Writer, from Source) Writer{
	"csv": func(out io.Writer, _ Source) Writer { return newCSV(out) },
	"ocsf": func(out io.Writer, from Source) Writer {
		return lines{out, func(e audit.Event) any { return OCSF(e, from) }}
	},
	"otlp": func(out io.Writer, from Source) Writer { return &otlpLines{out: out, from: from} },
}

// Source is what all events of an export have in common.
type Source struct {
	Host    string
	Node    string // its name in a fleet; "": it is in none
	Version string // of scopefs
}

// New returns a writer of a format.
func New(format string, out io.Writer, from Source) (Writer, error) {
	if make := writers[format]; make != nil {
		return make(out, from), nil
	}
	return nil, fmt.Errorf("format %q: want %s", format, strings.Join(slices.Sorted(maps.Keys(writers)), ", "))
}

// lines writes a line of JSON for each event.
type lines struct {
	out  io.Writer
	form func(audit.Event) any
}

func (l lines) Write(e audit.Event) error {
	text, err := json.Marshal(l.form(e))
	if err == nil {
		_, err = l.out.Write(append(text, '\n'))
	}
	return err
}

func (l lines) Flush() error { return nil }

// columns are those of CSV, with the names that the fields have in the log.
var columns = []struct {
	name string
	of   func(audit.Event) string
}{
	{"seq", func(e audit.Event) string { return strconv.FormatUint(e.Seq, 10) }},
	{"time", func(e audit.Event) string { return e.Time.Format(time.RFC3339Nano) }},
	{"event", func(e audit.Event) string { return e.Event }},
	{"agent", func(e audit.Event) string { return e.Agent }},
	{"session", func(e audit.Event) string { return e.Session }},
	{"call", func(e audit.Event) string { return e.Call }},
	{"parent", func(e audit.Event) string { return e.Parent }},
	{"chain", func(e audit.Event) string { return e.Chain }},
	{"server", func(e audit.Event) string { return e.Server }},
	{"op", func(e audit.Event) string { return e.Op }},
	{"path", func(e audit.Event) string { return e.Path }},
	{"target", func(e audit.Event) string { return e.Target }},
	{"verdict", func(e audit.Event) string { return string(e.Verdict) }},
	{"rule", func(e audit.Event) string { return e.Rule }},
	{"rule_kind", func(e audit.Event) string { return e.RuleKind }},
	{"outcome", func(e audit.Event) string { return e.Outcome }},
	{"errno", func(e audit.Event) string { return e.Errno }},
	{"pid", func(e audit.Event) string { return number(int64(e.PID)) }},
	{"program", func(e audit.Event) string { return e.Program }},
	{"uid", func(e audit.Event) string { return pointed(e.UID) }},
	{"exit", func(e audit.Event) string { return pointed(e.Exit) }},
	{"changed", func(e audit.Event) string { return pointed(e.Changed) }},
	{"effects", func(e audit.Event) string { return e.Effects }},
	{"status", func(e audit.Event) string { return number(int64(e.Status)) }},
	{"bytes", func(e audit.Event) string { return number(e.Bytes) }},
	{"sent_bytes", func(e audit.Event) string { return number(e.Sent) }},
	{"duration_us", func(e audit.Event) string { return number(e.DurationUS) }},
	{"unrecorded", func(e audit.Event) string { return number(e.Unrecorded) }},
	{"detail", func(e audit.Event) string { return e.Detail }},
}

// number returns a number, "" for zero, which the log leaves out.
func number(n int64) string {
	if n == 0 {
		return ""
	}
	return strconv.FormatInt(n, 10)
}

func pointed[T any](p *T) string {
	if p == nil {
		return ""
	}
	return fmt.Sprint(*p)
}

// csvWriter writes RFC 4180, with a first line of names.
type csvWriter struct{ w *csv.Writer }

func newCSV(out io.Writer) csvWriter {
	w := csv.NewWriter(out)
	var names []string
	for _, c := range columns {
		names = append(names, c.name)
	}
	_ = w.Write(names) // Flush has the error
	return csvWriter{w}
}

func (c csvWriter) Write(e audit.Event) error {
	var row []string
	for _, column := range columns {
		row = append(row, plain(column.of(e)))
	}
	return c.w.Write(row)
}

func (c csvWriter) Flush() error {
	c.w.Flush()
	return c.w.Error()
}

// plain returns a cell that no spreadsheet takes for a formula: owasp.org, CSV Injection.
func plain(cell string) string {
	if cell != "" && strings.ContainsRune("=+-@", rune(cell[0])) {
		return "'" + cell
	}
	return cell
}
