package report

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"strings"

	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/printable"
	"github.com/scopefs/scopefs/scope/excess"
)

// Proposal is a text that the user decides about.
type Proposal struct {
	api.Proposal
	Width int `json:"-"` // columns of the terminal; 0: none
}

// Print prints the file, and last what the user decides about. Each line of the file has a margin, so that none looks like
// one of ours.
func (p *Proposal) Print(w io.Writer) error {
	out := &bytes.Buffer{}
	fmt.Fprintf(out, "%s:\n", printable.Text(p.File))
	p.quote(out, p.Text)
	switch {
	case p.Diff != "":
		fmt.Fprintf(out, "Difference to what you trusted last:\n")
		p.quote(out, p.Diff)
	case p.Last != "":
		fmt.Fprintf(out, "You have trusted this file already.\n")
	}
	switch {
	case p.ID != api.Repository:
		fmt.Fprintf(out, "It concerns %s.\n", cmp.Or(strings.Join(p.Agents, ", "), "no agent"))
	case len(p.Widens) > 0:
		fmt.Fprintf(out, "It allows beyond your own definition:\n")
		for _, line := range p.Widens {
			p.quote(out, printable.Text(line))
		}
	default:
		fmt.Fprintf(out, "It allows nothing beyond your own definition.\n")
	}
	fmt.Fprintf(out, "SHA-256 %s\n", p.Hash)
	_, err := w.Write(out.Bytes())
	return err
}

// Widens prints what a change of rules allows; nothing if it allows nothing.
func Widens(w io.Writer, all []excess.Excess) error {
	text := ""
	for _, e := range all {
		text += "  | " + printable.Text(e.String()) + "\n"
	}
	if text != "" {
		text = "It allows beyond the rules that hold:\n" + text
	}
	_, err := io.WriteString(w, text)
	return err
}

// quote writes a text with a margin, and breaks its lines where the terminal would.
func (p *Proposal) quote(w io.Writer, text string) {
	const margin = "  | "
	for line := range strings.Lines(printable.Lines(text)) {
		line = strings.ReplaceAll(strings.TrimSuffix(line, "\n"), "\t", "    ")
		for first := true; first || line != ""; first = false {
			var part string
			part, line = cutColumns(line, p.Width-len(margin))
			fmt.Fprintf(w, "%s%s\n", margin, part)
		}
	}
}

// cutColumns cuts a line where a terminal of some columns certainly has room; 0 or less is no bound. A character that is not
// ASCII may be two columns wide.
func cutColumns(line string, columns int) (part, rest string) {
	used := 0
	for i, r := range line {
		if used++; r >= 0x80 {
			used++
		}
		if columns > 0 && used > columns && i > 0 {
			return line[:i], line[i:]
		}
	}
	return line, ""
}
