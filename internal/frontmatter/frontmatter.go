// Package frontmatter reads the YAML between the first two --- lines of a file:
// of definitions, skills and other programs' agent files.
package frontmatter

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"

	"go.yaml.in/yaml/v3"
)

// MaxKeys bounds the YAML before the second --- line, in bytes.
const MaxKeys = 64 << 10

// Cut cuts a text at its first two "---" lines. The first of them is left in front
// as an empty line, so that YAML counts lines as the file does. A byte order mark
// before it, as some editors write, is dropped. Its errors say "what: remedy".
func Cut(text []byte) (front, body []byte, err error) {
	const mark = "---"
	at := 0
	text = bytes.TrimPrefix(text, []byte("\ufeff"))
	if len(bytes.TrimSpace(text)) == 0 {
		return nil, nil, errors.New("is empty: put the keys between two --- lines, name at least")
	}
	for line := range bytes.Lines(text) {
		switch isMark := string(bytes.TrimRight(line, " \t\r\n")) == mark; {
		case at == 0 && !isMark:
			return nil, nil, errors.New("does not start with a --- line: put the keys between two of them")
		case at > MaxKeys:
			return nil, nil, fmt.Errorf("has more than %d bytes of keys: shorten them, or add the second --- line", MaxKeys)
		case at > 0 && isMark:
			return text[len(mark):at], text[at+len(line):], nil
		}
		at += len(line)
	}
	return nil, nil, errors.New("has no second --- line: end the keys with one")
}

// Error is an error at a line of the YAML. It says "what: remedy".
type Error struct {
	Line int // from 1
	Err  error
}

func (e *Error) Error() string { return fmt.Sprintf("line %d: %v", e.Line, e.Err) }

// Unwrap returns the error without its line.
func (e *Error) Unwrap() error { return e.Err }

// Parse returns the top of the one document in a YAML text, nil for a text that
// has none. It refuses anchors and aliases, which make YAML grow when it is read.
// Its errors are of type *[Error].
func Parse(text []byte) (*yaml.Node, error) {
	dec := yaml.NewDecoder(bytes.NewReader(text))
	var doc, more yaml.Node
	if err := dec.Decode(&doc); errors.Is(err, io.EOF) {
		return nil, nil
	} else if err != nil {
		return nil, syntaxError(text, err)
	}
	if err := dec.Decode(&more); err == nil {
		return nil, &Error{more.Line, errors.New("starts a second YAML document: keep one")}
	} else if !errors.Is(err, io.EOF) {
		return nil, syntaxError(text, err)
	}
	if err := noAliases(&doc); err != nil {
		return nil, err
	}
	return doc.Content[0], nil
}

// Text returns the text that a key of the front matter has, "" for none.
func Text(front []byte, key string) (string, error) {
	top, err := Parse(front)
	if err != nil || top == nil || top.Kind != yaml.MappingNode {
		return "", err
	}
	for i := 0; i+1 < len(top.Content); i += 2 {
		if value := top.Content[i+1]; top.Content[i].Value == key && value.Kind == yaml.ScalarNode && value.ShortTag() != "!!null" {
			return value.Value, nil
		}
	}
	return "", nil
}

// Value returns the value of a key of a mapping, or nil.
func Value(n *yaml.Node, key string) *yaml.Node {
	for i := 0; n.Kind == yaml.MappingNode && i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == key {
			return n.Content[i+1]
		}
	}
	return nil
}

// syntaxError returns an error of the library with its line.
func syntaxError(text []byte, err error) error {
	line, what := problem(err)
	hint := ""
	if strings.Contains(what, "unknown anchor") || strings.Contains(what, "expected alphabetic or numeric") {
		hint = "; a pattern that starts with * needs quotes"
	}
	at := problemLine(text, line, what)
	lines := bytes.Split(text, []byte("\n"))
	if at <= len(lines) && bytes.HasPrefix(bytes.TrimLeft(lines[at-1], " "), []byte("\t")) {
		return &Error{at, errors.New("begins with a tab: write spaces")}
	}
	return &Error{at, fmt.Errorf("is not YAML, %s: correct it%s", what, hint)}
}

// problem returns the line and the text of an error of the library. The line is where the
// enclosing mapping or list begins, often one too low, and 0 for the first line.
func problem(err error) (line int, what string) {
	what = strings.TrimPrefix(err.Error(), "yaml: ")
	if n, _ := fmt.Sscanf(what, "line %d:", &line); n == 1 {
		_, what, _ = strings.Cut(what, ": ")
	}
	return line, what
}

// The bounds of the parses of problemLine: their number, and the bytes of all of them. A parse
// of hostile text takes about a millisecond for each KiB.
const (
	maxTries  = 100
	maxParsed = 512 << 10
)

// problemLine returns the line of a problem: the first one with which the text up to there has
// the same problem, after the last one up to which it is valid. For a bracket or a quote that
// is not closed, that is the line where it opens. If the search reaches a bound, problemLine
// returns the library's line.
func problemLine(text []byte, line int, what string) int {
	r := &eachByte{text: text}
	_ = parse(r)
	end := r.read
	lines := bytes.SplitAfter(text[:end], []byte("\n"))
	at, parsed := len(lines), 0
	for n := len(lines); n > 0; n-- {
		if parsed += end; len(lines)-n == maxTries || parsed > maxParsed {
			return max(line, 1)
		}
		err := parse(bytes.NewReader(text[:end]))
		if err == nil {
			break
		}
		if _, now := problem(err); now == what {
			at = n
		}
		end -= len(lines[n-1])
	}
	return at
}

// parse returns the error of a text.
func parse(r io.Reader) error {
	dec := yaml.NewDecoder(r)
	for {
		var n yaml.Node
		if err := dec.Decode(&n); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
	}
}

// eachByte is a Reader that returns one byte at a time: the library reads no more than it needs.
type eachByte struct {
	text []byte
	read int
}

func (r *eachByte) Read(b []byte) (int, error) {
	if r.read == len(r.text) {
		return 0, io.EOF
	}
	n := copy(b, r.text[r.read:r.read+1])
	r.read += n
	return n, nil
}

func noAliases(n *yaml.Node) error {
	if n.Kind == yaml.AliasNode || n.Anchor != "" {
		return &Error{n.Line, errors.New("anchors and aliases are not read: write the value out, and quote a pattern that starts with *")}
	}
	for _, c := range n.Content {
		if err := noAliases(c); err != nil {
			return err
		}
	}
	return nil
}
