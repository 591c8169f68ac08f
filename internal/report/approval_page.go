package report

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"time"
	"unicode"

	"github.com/scopefs/scopefs/internal/printable"
	"github.com/scopefs/scopefs/tools"
	"github.com/scopefs/scopefs/tools/approvals"
)

// The bounds of what a watch shows of a call at first.
const (
	MaxShownLines = 40  // of each part
	maxShownLine  = 300 // characters
)

// A page describes a call for a terminal. It escapes each line of an agent's text and
// prints it behind a margin, also after a break at the terminal's width: no text of an
// agent looks like a line of scopefs. The page counts the lines and characters that it
// omits.
type page struct {
	strings.Builder
	lines int // of each part; 0: all, and whole
	width int // of the terminal, in columns
}

// Call says what a call is and what it would do.
func Call(p approvals.Approval, lines, width int) string {
	d := &page{lines: lines, width: width}
	fmt.Fprintf(d, "%s\n  of %s, %s, by %s\n", name(p.Tool), name(p.Whose()), p.ID, name(p.Rule))
	rest := p.Arguments
	switch {
	case p.Changes != nil:
		d.part("  @ ", where(p))
		d.part("  ! ", p.Changes.Note)
		d.part("  | ", p.Changes.Diff)
		if p.Changes.Cut > 0 {
			fmt.Fprintf(d, "  ! %d bytes of the diff are left out: scopefs approvals show %s has the arguments\n", p.Changes.Cut, p.ID)
		}
		if p.Changes.Diff != "" { // the agent's sandbox makes the diff: the arguments are what the tool gets
			d.part("  ! ", "the diff is made in the agent's sandbox: the call has these arguments")
		}
	case p.Kind == approvals.KindCommand:
		if command, ok := p.Text("command"); ok {
			d.part("  $ ", command)
			rest = without(rest, "command")
		}
	case strings.HasPrefix(p.Tool, "ssh:"):
		if signed, ok := p.Text("text"); ok {
			d.part("  | ", signed)
			rest = without(rest, "text")
		}
	case p.Path != "":
		d.part("  @ ", where(p))
	}
	if len(rest) > 0 && string(rest) != "{}" {
		var text bytes.Buffer
		if json.Indent(&text, rest, "", "  ") == nil {
			d.part("  : ", text.String())
		}
	}
	for _, part := range p.Context {
		d.part("  < ", fmt.Sprintf("sees %s, %d bytes", part.Name, part.Bytes))
	}
	d.part("  < ", p.Preview)
	fmt.Fprintf(d, "  asked %s, until %s\n", p.Asked.Local().Format(time.TimeOnly), p.Expires.Local().Format(time.TimeOnly))
	return d.String()
}

// where returns the paths of a call, with what they lead to.
func where(p approvals.Approval) string {
	to, _ := p.Text("to")
	return p.About(to)
}

// name is a short name in our own line.
func name(s string) string { return tools.Clip(printable.Text(s), 80) }

// part writes a text behind a margin.
func (d *page) part(margin, text string) {
	if text == "" {
		return
	}
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	for i, line := range lines {
		if i == d.lines && d.lines > 0 {
			fmt.Fprintf(d, "  ! %d more lines are left out: v shows all\n", len(lines)-i)
			return
		}
		d.line(margin, strings.ReplaceAll(printable.Lines(line), "\t", "    "))
	}
}

// line writes a line behind a margin, in rows that fit.
func (d *page) line(margin, line string) {
	left := 0
	if all := []rune(line); d.lines > 0 && len(all) > maxShownLine {
		line, left = string(all[:maxShownLine]), len(all)-maxShownLine
	}
	most, column := max(d.width, 40)-len(margin)-1, 0
	d.WriteString(margin)
	for _, r := range line {
		columns := 1
		if r > unicode.MaxLatin1 { // it may be wide
			columns = 2
		}
		if column+columns > most {
			d.WriteString("\n" + margin)
			column = 0
		}
		d.WriteRune(r)
		column += columns
	}
	d.WriteByte('\n')
	if left > 0 {
		fmt.Fprintf(d, "  ! %d more characters of this line are left out: v shows all\n", left)
	}
}

// without returns an object without some of its members.
func without(object json.RawMessage, names ...string) json.RawMessage {
	var all map[string]json.RawMessage
	if json.Unmarshal(object, &all) != nil {
		return object
	}
	for _, name := range names {
		delete(all, name)
	}
	text, err := json.Marshal(all)
	if err != nil {
		return object
	}
	return text
}
