package file

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/scopefs/scopefs/tools"
)

const (
	maxShown    = 500       // bytes of a line
	maxGrepText = 256 << 10 // bytes of an answer
	maxSpan     = 50        // lines of one match that are shown
)

// matched is what was found in a file. Lines are those of the output content.
type matched struct {
	Path  string     `json:"path" limit:"len=8192"`
	Count int        `json:"count" jsonschema:"lines that match"`
	Lines []grepLine `json:"lines,omitempty" limit:"items=250000"`
}

type grepLine struct {
	Line    int    `json:"line" jsonschema:"counted from 1"`
	Text    string `json:"text" limit:"len=1000"`
	Context bool   `json:"context,omitempty" jsonschema:"it does not match, but is near one that does"`
}

type grepResult struct {
	Files     []matched `json:"files" limit:"items=5000"`
	Truncated bool      `json:"truncated,omitempty" jsonschema:"there are more"`

	Output grepOutput `json:"output" limit:"enum=content|files|count"`
}

// Content is what ripgrep would print.
func (r grepResult) Content() []tools.Content {
	var b strings.Builder
	for _, f := range r.Files {
		switch r.Output {
		case outputFiles:
			fmt.Fprintln(&b, tools.Quote(f.Path))
		case outputCount:
			fmt.Fprintf(&b, "%s:%d\n", tools.Quote(f.Path), f.Count)
		default:
			f.print(&b, true)
		}
	}
	switch {
	case len(r.Files) == 0:
		b.WriteString("no matches\n")
	case r.Truncated:
		b.WriteString("[there are more; narrow the search or raise the limit]\n")
	}
	return []tools.Content{{Text: b.String()}}
}

func (m *matched) print(b *strings.Builder, numbers bool) {
	name := tools.Quote(m.Path)
	for i, l := range m.Lines {
		if i > 0 && l.Line > m.Lines[i-1].Line+1 && (l.Context || m.Lines[i-1].Context) {
			b.WriteString("--\n")
		}
		sep := ":"
		if l.Context {
			sep = "-"
		}
		b.WriteString(name + sep)
		if numbers {
			fmt.Fprintf(b, "%d%s", l.Line, sep)
		}
		b.WriteString(l.Text + "\n")
	}
}

// scan finds the lines of a content that match. The expression runs over all of
// it: the first line it finds is then asked alone, because a match may have
// begun in it only to end in another.
func (s *search) scan(rel string, b []byte) *matched {
	m := matched{Path: strings.ToValidUTF8(rel, "\ufffd")}
	var hits [][2]int // ranges of line numbers, from 0
	line, counted := 0, 0
	b = bytes.ReplaceAll(b, []byte("\r\n"), []byte("\n"))
	for at := 0; at < len(b) && (m.Count <= s.limit || s.in.Output == outputCount); {
		loc := s.re.FindIndex(b[at:])
		if loc == nil {
			break
		}
		from, to := at+loc[0], at+loc[1]
		start := bytes.LastIndexByte(b[:from], '\n') + 1
		if start == len(b) { // after the last line
			break
		}
		last := from
		if s.in.Multiline && to > from {
			last = to - 1
		}
		end := len(b)
		if i := bytes.IndexByte(b[last:], '\n'); i >= 0 {
			end = last + i
		}
		at = end + 1
		if !s.in.Multiline && !s.re.Match(b[start:end]) {
			continue
		}
		line += bytes.Count(b[counted:start], []byte("\n"))
		counted = start
		span := bytes.Count(b[start:end], []byte("\n"))
		m.Count++
		hits = append(hits, [2]int{line, line + span})
		if s.in.Output == outputFiles {
			break
		}
		if s.in.Output == outputCount {
			hits = nil
		}
	}
	if m.Count == 0 {
		return nil
	}
	if s.in.Output == outputContent {
		m.Lines = s.lines(b, hits)
	}
	return &m
}

// lines returns the lines of the hits and those around them.
func (s *search) lines(b []byte, hits [][2]int) (out []grepLine) {
	n, size := 0, 0
	for text := range bytes.Lines(b) {
		for len(hits) > 0 && n > hits[0][1]+s.after {
			hits = hits[1:]
		}
		if len(hits) == 0 || size > maxGrepText {
			return out
		}
		if n >= hits[0][0]-s.before && n <= hits[0][0]+maxSpan+s.after {
			hit := n >= hits[0][0] && n <= hits[0][1]
			for _, h := range hits[1:] { // context of one, hit of the next
				if h[0] > n {
					break
				}
				hit = hit || n <= h[1]
			}
			l := grepLine{Line: n + 1, Text: shown(text), Context: !hit}
			size += len(l.Text)
			out = append(out, l)
		}
		n++
	}
	return out
}

func shown(line []byte) string {
	line = bytes.TrimRight(line, "\r\n")
	more := len(line) - maxShown
	if more > 0 {
		line = line[:maxShown]
	}
	s := strings.ToValidUTF8(string(line), "\ufffd")
	if more > 0 {
		s += fmt.Sprintf("… [%d bytes cut]", more)
	}
	return s
}

// keep adds a file to the result, up to its bounds.
func (s *search) keep(m *matched) {
	if s.in.Output != outputContent {
		if s.count == s.limit {
			s.full = true
			return
		}
		s.count++
		s.found = append(s.found, *m)
		return
	}
	kept := m.Lines[:0]
	for _, l := range m.Lines {
		if !l.Context {
			if s.count == s.limit || s.size > maxGrepText {
				s.full = true
				break
			}
			s.count++
		}
		s.size += len(l.Text)
		kept = append(kept, l)
	}
	if m.Lines = kept; len(kept) > 0 {
		s.found = append(s.found, *m)
	}
}

func (s *search) result(err error) grepResult {
	r := grepResult{Files: s.found, Truncated: s.full || err != nil, Output: s.in.Output}
	if r.Files == nil {
		r.Files = []matched{}
	}
	return r
}
