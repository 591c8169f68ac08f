// Package sides turns a unified diff into rows of two sides.
package sides

import (
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"
)

// A Row is a line of a diff: text of the diff's own, such as a file's name, or a line of the old and of the new text.
type Row struct {
	Own      string // "": Old and New
	Old, New Side
}

// Side is a line of a text; the zero Side is none.
type Side struct {
	Line  int // its number, from 1; 0: none
	Parts []Part
	Same  bool // the other side has it, too
}

// Part is a part of a line. Hot parts are not in the other side's line. Kind is what it is in a program: see package colours.
type Part struct {
	Text string
	Hot  bool
	Kind string
}

var hunk = regexp.MustCompile(`^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@`)

// Rows returns the rows of a unified diff, at most most, and how many lines of it are left out. The counts of a hunk say
// where it ends: a line of a text that looks like a header is a line of the text.
func Rows(diff string, most int) (rows []Row, left int) {
	lines := strings.Split(strings.TrimSuffix(diff, "\n"), "\n")
	var removed, added []Side
	var notes []Row // about the end of a text, which come after the lines on both sides
	flush := func() {
		for i := range max(len(removed), len(added)) {
			var row Row
			if i < len(removed) {
				row.Old = removed[i]
			}
			if i < len(added) {
				row.New = added[i]
			}
			if i < len(removed) && i < len(added) {
				row.Old.Parts, row.New.Parts = apart(row.Old.Parts[0].Text, row.New.Parts[0].Text)
			}
			rows = append(rows, row)
		}
		rows = append(rows, notes...)
		removed, added, notes = nil, nil, nil
	}
	old, oldLeft, fresh, freshLeft := 0, 0, 0, 0
	for i, line := range lines {
		if len(rows)+max(len(removed), len(added)) >= most {
			flush()
			return rows, len(lines) - i
		}
		mark, text := byte(0), ""
		if line != "" {
			mark, text = line[0], line[1:]
		}
		switch {
		case (mark == ' ' || line == "") && oldLeft > 0 && freshLeft > 0:
			flush()
			rows = append(rows, Row{Old: Side{old, []Part{{Text: text}}, true}, New: Side{fresh, []Part{{Text: text}}, true}})
			old, oldLeft, fresh, freshLeft = old+1, oldLeft-1, fresh+1, freshLeft-1
		case mark == '-' && oldLeft > 0:
			if len(added) > 0 {
				flush()
			}
			removed = append(removed, Side{Line: old, Parts: []Part{{Text: text}}})
			old, oldLeft = old+1, oldLeft-1
		case mark == '+' && freshLeft > 0:
			added = append(added, Side{Line: fresh, Parts: []Part{{Text: text}}})
			fresh, freshLeft = fresh+1, freshLeft-1
		case mark == '\\' && len(removed)+len(added) > 0: // it may stand between them
			notes = append(notes, Row{Own: line})
		default:
			flush()
			if m := hunk.FindStringSubmatch(line); m != nil {
				old, oldLeft, fresh, freshLeft = number(m[1]), count(m[2]), number(m[3]), count(m[4])
			} else {
				oldLeft, freshLeft = 0, 0
			}
			if line != "" {
				rows = append(rows, Row{Own: line})
			}
		}
	}
	flush()
	return rows, 0
}

func number(text string) int {
	n, err := strconv.Atoi(text)
	if err != nil {
		return 0
	}
	return n
}

// count is number for the length of a side: 1 if it is left out.
func count(text string) int {
	if text == "" {
		return 1
	}
	return number(text)
}

// apart marks what differs between two lines: what is between the beginning and the end that they share.
func apart(a, b string) (old, fresh []Part) {
	start := 0
	for start < len(a) && start < len(b) && a[start] == b[start] {
		start++
	}
	for start > 0 && !boundary(a, start) {
		start--
	}
	end := 0
	for end < len(a)-start && end < len(b)-start && a[len(a)-1-end] == b[len(b)-1-end] {
		end++
	}
	for end > 0 && !boundary(a, len(a)-end) {
		end--
	}
	split := func(s string) (parts []Part) {
		for i, text := range []string{s[:start], s[start : len(s)-end], s[len(s)-end:]} {
			if text != "" {
				parts = append(parts, Part{Text: text, Hot: i == 1})
			}
		}
		return parts
	}
	return split(a), split(b)
}

func boundary(s string, i int) bool { return i >= len(s) || utf8.RuneStart(s[i]) }
