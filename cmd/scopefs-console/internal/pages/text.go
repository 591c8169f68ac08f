package pages

import (
	"fmt"
	"html/template"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/scopefs/scopefs/internal/printable"
)

// maxShown limits a text that is shown, in bytes.
const maxShown = 8 << 10

// show returns any value as text that cannot deceive: characters that control a terminal, change the direction of text or
// have no width are escapes, and what is long is cut with a mark. Every value of a template goes through show or a function
// of shown: TestEveryValueIsShown.
func show(v any) string {
	text, ok := v.(string)
	if !ok {
		text = fmt.Sprint(v)
	}
	cut := 0
	if len(text) > maxShown {
		end := maxShown
		for end > maxShown-utf8.UTFMax && !utf8.RuneStart(text[end]) {
			end--
		}
		text, cut = text[:end], len(text)-end
	}
	text = printable.Text(text)
	if cut > 0 {
		text += fmt.Sprintf(" … %d more bytes", cut)
	}
	return text
}

// lines is show for a text of several lines.
func lines(text string) string {
	all := strings.Split(text, "\n")
	for i, line := range all {
		all[i] = show(strings.ReplaceAll(line, "\t", "    "))
	}
	return strings.Join(all, "\n")
}

// code is show for a part of a line of a program, without a cut: the text has a bound, and its end decides as its beginning.
func code(text string) string { return printable.Text(strings.ReplaceAll(text, "\t", "    ")) }

// whole is lines without a cut: see code.
func whole(text string) string { return printable.Lines(strings.ReplaceAll(text, "\t", "    ")) }

// value is a text that an attribute sends back: it is not shown, and so stays as it is. See TestEveryValueIsShown.
func value(text string) string { return text }

// short is show of the first characters of a text.
func short(n int, v any) string {
	text := show(v)
	if utf8.RuneCountInString(text) <= n {
		return text
	}
	return string([]rune(text)[:n]) + "…"
}

// size returns a number of bytes in a unit.
func size[T int | int64 | uint64](n T) string {
	switch v := float64(n); {
	case v >= 1<<30:
		return fmt.Sprintf("%.1f GiB", v/(1<<30))
	case v >= 1<<20:
		return fmt.Sprintf("%.1f MiB", v/(1<<20))
	case v >= 1<<10:
		return fmt.Sprintf("%.0f KiB", v/(1<<10))
	}
	return fmt.Sprint(n, " B")
}

// ago returns how long ago a time was.
func ago(t time.Time) string { return since(time.Since(t)) }

func since(d time.Duration) string {
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%d s", int(max(d, 0).Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%d min", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h", int(d.Hours()))
	}
	return fmt.Sprintf("%d d", int(d.Hours()/24))
}

func clock(t time.Time) string { return t.Local().Format("2006-01-02 15:04:05.000") }

// shown are the functions of templates whose results may be written.
var shown = template.FuncMap{
	"show": show, "value": value, "code": code, "lines": lines, "whole": whole, "short": short, "ago": ago, "clock": clock,
	"bytes": func(v any) string {
		switch n := v.(type) {
		case int:
			return size(n)
		case int64:
			if n < 0 {
				return "–"
			}
			return size(n)
		case uint64:
			return size(n)
		}
		return show(v)
	},
}
