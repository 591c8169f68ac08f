package tree

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/scopefs/scopefs/tools/file/message"
)

// A plan is the result of edits, before it is written.
type plan struct {
	p, target place
	before    []byte
	old       string // without the characters that text leaves out
	text      text   // the new content
	count     int    // replacements and insertions
}

// plan reads the file and applies the edits in memory.
func (t *tree) plan(in message.EditArgs) (e plan, err error) {
	if e.p, err = t.at(in.Path, message.Writing); err != nil {
		return e, err
	}
	var there bool
	if e.target, there, err = t.target(e.p); err != nil {
		return e, err
	}
	if !there {
		return e, message.Problem(message.NotFound, in.Path, "no such file or directory", "write_file makes one")
	}
	if e.before, err = t.whole(e.target, message.Writing); err != nil {
		return e, err
	}
	if err := sameHash(e.p, e.before, in.IfMatch); err != nil {
		return e, err
	}
	if !isText(e.before) || !utf8.Valid(e.before) {
		return e, notText(e.p, int64(len(e.before)), e.before[:min(len(e.before), 512)])
	}
	e.text = newText(e.before)
	e.old = e.text.s
	for i, edit := range in.Edits {
		n, err := e.text.apply(edit)
		if err != nil {
			err.Path, err.Message = e.p.rel, fmt.Sprintf("edit %d: %s", i+1, err.Message)
			return e, err
		}
		e.count += n
	}
	return e, nil
}

func (t *tree) edit(ctx context.Context, in message.EditArgs) (message.EditResult, error) {
	e, err := t.plan(in)
	if err != nil {
		return message.EditResult{}, err
	}
	after := e.text.bytes()
	r := message.EditResult{Path: e.p.rel, Edits: e.count, Diff: message.Diff(e.p.rel, e.old, e.text.s),
		Hash: hashOf(after), DryRun: in.DryRun}
	if err := ctx.Err(); err != nil {
		return message.EditResult{}, t.fail(e.p, err, message.Writing)
	}
	if in.DryRun || bytes.Equal(e.before, after) {
		return r, nil
	}
	if len(after) > maxWhole {
		return message.EditResult{}, message.Problem(message.TooLarge, e.p.rel,
			fmt.Sprintf("the new content is larger than %d bytes", maxWhole), "")
	}
	if r.InPlace, err = t.replace(e.target, after); err != nil {
		return message.EditResult{}, t.fail(e.target, err, message.Writing)
	}
	return r, nil
}

// text is a content without the characters that the agent does not see: a byte order
// mark and, if every line ends with one, carriage returns.
type text struct {
	s    string
	bom  bool
	crlf bool
}

func newText(b []byte) text {
	s, marked := strings.CutPrefix(string(b), bom)
	lines := strings.Count(s, "\n")
	t := text{s: s, bom: marked, crlf: lines > 0 && strings.Count(s, "\r\n") == lines}
	t.s = t.plain(s)
	return t
}

func (t *text) plain(s string) string {
	if t.crlf {
		return strings.ReplaceAll(s, "\r\n", "\n")
	}
	return s
}

func (t *text) bytes() []byte {
	s := t.s
	if t.crlf {
		s = strings.ReplaceAll(s, "\n", "\r\n")
	}
	if t.bom {
		s = bom + s
	}
	return []byte(s)
}

// apply applies one edit and counts its replacements.
func (t *text) apply(e message.Edit) (int, *message.Error) {
	old, new := t.plain(e.OldText), t.plain(e.NewText)
	if e.InsertLine != nil {
		if old != "" || e.ReplaceAll {
			return 0, message.Errorf(message.Invalid, "insert_line excludes old_text and replace_all")
		}
		return t.insert(*e.InsertLine, new)
	}
	if old == "" {
		if t.s != "" {
			return 0, message.Errorf(message.Invalid, "old_text is empty")
		}
		t.s = new
		return 1, nil
	}
	n := strings.Count(t.s, old)
	switch {
	case old == new:
		return 0, message.Errorf(message.Invalid, "old_text and new_text are equal: nothing would change")
	case n == 0:
		err := message.Errorf(message.Conflict, "old_text was not found")
		err.Hint = nearest(t.s, old)
		return 0, err
	case n > 1 && !e.ReplaceAll:
		err := message.Errorf(message.Conflict, "old_text was found %d times", n)
		err.Hint = "take more of the lines around it, or set replace_all"
		return 0, err
	}
	t.s = strings.ReplaceAll(t.s, old, new)
	if len(t.s) > 2*maxWhole {
		return 0, message.Errorf(message.TooLarge, "the new content is larger than %d bytes", maxWhole)
	}
	return n, nil
}

func (t *text) insert(after int, new string) (int, *message.Error) {
	at := 0
	for range after {
		i := strings.IndexByte(t.s[at:], '\n')
		if i < 0 && at == len(t.s) {
			return 0, message.Errorf(message.Invalid, "insert_line %d is past the end", after)
		}
		if i < 0 {
			t.s += "\n"
			i = len(t.s) - at - 1
		}
		at += i + 1
	}
	if new != "" && !strings.HasSuffix(new, "\n") {
		new += "\n"
	}
	t.s = t.s[:at] + new + t.s[at:]
	return 1, nil
}

// nearest returns a hint of where a similar text is.
func nearest(s, old string) string {
	var first string
	for line := range strings.Lines(old) {
		if first = strings.TrimSpace(line); first != "" {
			break
		}
	}
	if first == "" {
		return "read the file again"
	}
	n := 0
	for line := range strings.Lines(s) {
		n++
		if strings.TrimSpace(line) == first {
			return fmt.Sprintf("line %d is like its first line: compare white space and what follows it", n)
		}
	}
	return "not even its first line is there: read the file again"
}
