// Package prose says in words what a tool call or a command has changed: for its caller, and for a line of the log.
package prose

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/scopefs/scopefs/internal/printable"
	"github.com/scopefs/scopefs/scope/effect"
)

// maxLines bounds a text, and maxLine the characters of a line, unless one path is longer.
const (
	maxLines = 20
	maxLine  = 120
)

// Named reports whether the reader of a text knows of a change of a path, or of its creation.
type Named func(rel string, created bool) bool

// Text returns lines for a reader: each removal and move, the changes that named does not know, and what the rules refused. more
// names the command or call that lists all, for what has no room; undo what takes the changes back. "" leaves them out. The text of
// effects that named knows is "".
func Text(e *effect.Effects, named Named, more, undo string) string {
	roots := unknownRoots(e)
	switch {
	case e.Unknown != "" && len(e.Roots) == 0:
		return e.Unknown + "\n"
	case e.Nothing && len(e.Refused) == 0:
		return "nothing changed in /workspace" + beside(e) + "; HOME and /tmp are not watched\n" + roots
	}
	refused := refusals(e)
	var lines []string
	if e.Unknown != "" && !e.Direct {
		lines = append(lines, e.Unknown)
	}
	left, done := e.LeftOut, false
	for _, l := range e.Lists() {
		var words []string
		for _, o := range *l.Objects {
			if l.Always || len(o.Marks) > 0 || !named(o.Path, l.Objects == &e.Created) {
				words = append(words, text(&o))
			}
		}
		folded, cut := fold(l.Verb+" ", words, maxLines-len(refused)-len(lines)-1)
		lines, left = append(lines, folded...), left+cut
		done = done || len(words) > 0
	}
	if left > 0 {
		lines = append(lines, strings.TrimSuffix(fmt.Sprintf("and %d more: %s", left, more), ": "))
		done = true
	}
	if undo != "" && done {
		lines[len(lines)-1] += " (to take it back: " + undo + ")"
	}
	if lines = append(lines, refused...); len(lines) == 0 {
		return roots
	}
	return strings.Join(lines, "\n") + "\n" + roots
}

// unknownRoots returns a line for each root whose effects are not known.
func unknownRoots(e *effect.Effects) (text string) {
	for _, dir := range slices.Sorted(maps.Keys(e.Roots)) {
		if why := e.Roots[dir].Unknown; why != "" {
			text += printable.Quote(dir) + ": " + why + "\n"
		}
	}
	return text
}

// maxRefused bounds the refusals of a text.
const maxRefused = 3

// refusals returns a line for each refusal.
func refusals(e *effect.Effects) (lines []string) {
	for _, r := range e.Refused[:min(len(e.Refused), maxRefused)] {
		line := fmt.Sprintf("refused %s %s", r.Op, printable.Quote(r.Path))
		if r.Rule != "" {
			line += ": " + printable.Text(r.Rule)
		}
		if r.Host {
			line += ": do it on the host"
		}
		lines = append(lines, line)
	}
	if more := e.RefusedLeftOut + len(e.Refused) - maxRefused; more > 0 {
		lines = append(lines, fmt.Sprintf("and %d more refused", more))
	}
	return lines
}

// beside says what "nothing changed" does not cover.
func beside(e *effect.Effects) string {
	if e.Held {
		return ", but perhaps paths that a rule holds"
	}
	return ""
}

// fold joins words to lines that begin with a verb. It returns most lines at most, and the number of words that have no room.
func fold(verb string, words []string, most int) (lines []string, cut int) {
	line := ""
	for i, word := range words {
		switch {
		case line != "" && len(line)+len(word) < maxLine:
			line += ", " + word
			continue
		case line != "":
			lines = append(lines, line)
		}
		if line = verb + word; len(lines) >= most {
			return lines, len(words) - i
		}
	}
	if line != "" {
		lines = append(lines, line)
	}
	return lines, 0
}

func text(o *effect.Object) string {
	whole := printable.Quote(o.Path)
	if o.From != "" {
		whole = printable.Quote(o.From) + " -> " + whole
	}
	var about []string
	switch {
	case o.Files == 1:
		about = append(about, "1 file")
	case o.Files > 1:
		about = append(about, fmt.Sprintf("%d files", o.Files))
	}
	if o.Mode != "" {
		about = append(about, o.Mode)
	}
	for _, mark := range o.Marks {
		about = append(about, printable.Text(mark))
	}
	if len(about) > 0 {
		whole += " (" + strings.Join(about, "; ") + ")"
	}
	return whole
}

// Logged returns the effects for the log: how many objects, and a text with the first names. Nil: it is not known.
func Logged(e *effect.Effects) (objects *int, text string) {
	n := e.Counts.Sum()
	if e.Unknown != "" && n == 0 {
		return nil, ""
	}
	if n == 0 {
		return &n, ""
	}
	var names []string
	for _, o := range e.Listed() {
		if len(names) == maxLogged {
			break
		}
		names = append(names, printable.Quote(o.Path))
	}
	return &n, strings.TrimSuffix(Sum(e.Counts)+": "+strings.Join(names, ", "), ": ")
}

// maxLogged bounds the names of a line of the log.
const maxLogged = 5

// Sum returns the numbers of a command's effects, as: 2 removed, 1 changed, 115 created.
func Sum(c effect.Counts) string {
	var words []string
	for _, l := range (&effect.Effects{Counts: c}).Lists() {
		if *l.Count > 0 {
			words = append(words, fmt.Sprintf("%d %s", *l.Count, l.Sum))
		}
	}
	return strings.Join(words, ", ")
}
