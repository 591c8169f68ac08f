package frontmatter

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// Mapping is the kind of a node that has keys.
const Mapping = yaml.MappingNode

// ErrByHand reports YAML that is written in a way that an [Edit] does not change.
var ErrByHand = errors.New("is written in a way that scopefs does not change")

// Edit is a change of one value of the front matter of a text. Apply changes the bytes of that value alone: comments,
// order and spaces stay as they are.
type Edit struct {
	Keys  []string // of mappings, from the top
	Add   string   // adds an item to the list of Keys, in YAML's flow style; it makes the list
	Index int      // of the item that is removed, if Add and Set are ""; -1, or of a scalar: the key; what is empty then goes, too
	Set   string   // sets the value of Keys, which is absent, a scalar or a flow collection of one line, in YAML's flow style
}

// Apply returns the text with the edit made. It compares the values before and after, and returns ErrByHand rather than
// a text in which anything else has changed.
func (e Edit) Apply(text []byte) ([]byte, error) {
	front, _, err := Cut(text)
	if err != nil {
		return nil, err
	}
	top, err := Parse(front)
	if err != nil {
		return nil, err
	}
	if top == nil || top.Kind != yaml.MappingNode {
		return nil, ErrByHand
	}
	if value := e.Add + e.Set; value != "" {
		list, err := flowNode("[" + value + "\n]")
		if err != nil || strings.ContainsAny(value, "\n\r") || list.Kind != yaml.SequenceNode || len(list.Content) != 1 {
			return nil, fmt.Errorf("%s: %q is not one value", strings.Join(e.Keys, "."), value)
		}
	}
	s := source{text: text, end: bytes.Index(text, front) + len(front), newline: "\n"}
	if bytes.Contains(front, []byte("\r\n")) {
		s.newline = "\r\n"
	}
	s.lines = lineOffsets(text)
	after, err := e.at(s, top, e.Keys)
	if err != nil {
		return nil, fmt.Errorf("%s %w", strings.Join(e.Keys, "."), err)
	}
	var want, got any
	if front, _, err = Cut(after); err != nil {
		return nil, ErrByHand
	}
	now, err := Parse(front)
	if err != nil || top.Decode(&want) != nil || now.Decode(&got) != nil || !reflect.DeepEqual(want, got) {
		return nil, fmt.Errorf("%s %w", strings.Join(e.Keys, "."), ErrByHand)
	}
	return after, nil
}

// at makes the edit at the keys below a mapping, in the text and in the node.
func (e Edit) at(s source, n *yaml.Node, keys []string) ([]byte, error) {
	i := 0
	for i < len(n.Content) && n.Content[i].Value != keys[0] {
		i += 2
	}
	removes := e.Add == "" && e.Set == ""
	switch {
	case i < len(n.Content):
	case removes:
		return nil, errors.New("is not there")
	default:
		value, err := flowNode(e.value(keys[1:]))
		if err != nil {
			return nil, err
		}
		n.Content = append(n.Content, &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: keys[0]}, value)
		return s.insert(n, Quote(keys[0])+": "+e.value(keys[1:]))
	}
	value := n.Content[i+1]
	switch {
	case value.Kind == yaml.ScalarNode && !removes && (len(keys) > 1 || e.Add != "") && value.ShortTag() != "!!null" && value.Value != "none":
		return nil, ErrByHand // the scalar says something, which a collection in its place would not
	case value.Kind == yaml.ScalarNode && !removes:
		made, err := flowNode(e.value(keys[1:]))
		if err != nil {
			return nil, err
		}
		n.Content[i+1] = made
		return s.replaceScalar(value, e.value(keys[1:]))
	case len(keys) == 1 && e.Set != "" && value.Style&yaml.FlowStyle != 0:
		made, err := flowNode(e.Set)
		if err != nil {
			return nil, err
		}
		n.Content[i+1] = made
		return s.replaceFlow(value, e.Set)
	case len(keys) > 1 && value.Kind == yaml.MappingNode:
		if removes && len(value.Content) == 2 && e.empties(value, keys[1:]) {
			return s.remove(n, i/2, func() { n.Content = slices.Delete(n.Content, i, i+2) })
		}
		return e.at(s, value, keys[1:])
	case removes && len(keys) == 1 && e.empty(value):
		return s.remove(n, i/2, func() { n.Content = slices.Delete(n.Content, i, i+2) })
	case len(keys) > 1 || value.Kind != yaml.SequenceNode || e.Set != "":
		return nil, ErrByHand
	case e.Add != "":
		item, err := flowNode(e.Add)
		if err != nil {
			return nil, err
		}
		value.Content = append(value.Content, item)
		return s.insert(value, e.Add)
	case e.Index >= len(value.Content):
		return nil, errors.New("is not there")
	}
	return s.remove(value, e.Index, func() { value.Content = slices.Delete(value.Content, e.Index, e.Index+1) })
}

// empties reports whether the removal leaves a mapping with nothing.
func (e Edit) empties(n *yaml.Node, keys []string) bool {
	value := Value(n, keys[0])
	if value == nil || len(n.Content) != 2 {
		return false
	}
	return len(keys) > 1 && e.empties(value, keys[1:]) || len(keys) == 1 && e.empty(value)
}

// empty reports whether the removal leaves nothing of the value of the last key.
func (e Edit) empty(value *yaml.Node) bool {
	return e.Index < 0 || value.Kind != yaml.MappingNode && len(value.Content) <= 1
}

// value returns the value that is made below keys that are not there.
func (e Edit) value(keys []string) string {
	text := e.Set
	if text == "" {
		text = "[" + e.Add + "]"
	}
	for _, key := range slices.Backward(keys) {
		text = "{" + Quote(key) + ": " + text + "}"
	}
	return text
}

func flowNode(text string) (*yaml.Node, error) {
	var doc yaml.Node
	if err := yaml.Unmarshal([]byte(text), &doc); err != nil || len(doc.Content) != 1 {
		return nil, ErrByHand
	}
	return doc.Content[0], nil
}

// Quote returns a text as a scalar of YAML, which may stand in a flow collection.
func Quote(text string) string {
	plain := func(r rune) bool {
		return 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || strings.ContainsRune("._/-", r)
	}
	n, err := flowNode(text)
	if err == nil && n.Kind == yaml.ScalarNode && n.ShortTag() == "!!str" && n.Value == text &&
		!strings.HasPrefix(text, "-") && !strings.ContainsFunc(text, func(r rune) bool { return !plain(r) }) {
		return text
	}
	quoted, _ := yaml.Marshal(&yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: text, Style: yaml.DoubleQuotedStyle}) // cannot fail
	return strings.TrimSpace(string(quoted))
}

// source is the text of a file whose nodes have lines and columns of it.
type source struct {
	text    []byte
	end     int   // of the front matter
	lines   []int // where each line starts
	newline string
}

func lineOffsets(text []byte) []int {
	at := []int{0}
	for i, b := range text {
		if b == '\n' {
			at = append(at, i+1)
		}
	}
	return at
}

// offset returns where a node starts. Columns count characters.
func (s source) offset(n *yaml.Node) int {
	at := s.lines[n.Line-1]
	for range n.Column - 1 {
		_, size := utf8.DecodeRune(s.text[at:])
		at += size
	}
	return at
}

// splice returns the text with a part replaced.
func (s source) splice(from, to int, with string) []byte {
	return slices.Concat(s.text[:from], []byte(with), s.text[to:])
}

// replaceScalar replaces a scalar of one line.
func (s source) replaceScalar(n *yaml.Node, with string) ([]byte, error) {
	from := s.offset(n)
	if n.Style&(yaml.DoubleQuotedStyle|yaml.SingleQuotedStyle) != 0 {
		closes := -1
		if strings.IndexByte(`"'`, s.text[from]) >= 0 { // no tag
			closes = s.quoted(from)
		}
		if closes < 0 || bytes.ContainsAny(s.text[from:closes], "\n\r") {
			return nil, ErrByHand
		}
		return s.splice(from, closes+1, with), nil
	}
	if n.Value == "" || !bytes.HasPrefix(s.text[from:], []byte(n.Value)) {
		return nil, ErrByHand
	}
	return s.splice(from, from+len(n.Value), with), nil
}

// quoted returns where the quotation that begins at a byte ends; -1: nowhere. In single quotes two are a quote, in double quotes a
// backslash escapes one.
func (s source) quoted(from int) int {
	for at, c := from+1, s.text[from]; at < s.end; at++ {
		switch {
		case c == '"' && s.text[at] == '\\':
			at++
		case s.text[at] != c:
		case c == '\'' && at+1 < s.end && s.text[at+1] == c:
			at++
		default:
			return at
		}
	}
	return -1
}

// replaceFlow replaces a flow collection of one line, which has no comment.
func (s source) replaceFlow(n *yaml.Node, with string) ([]byte, error) {
	from := s.offset(n)
	_, closes, err := s.parts(n)
	if err != nil || bytes.ContainsAny(s.text[from:closes], "\n\r") {
		return nil, ErrByHand
	}
	return s.splice(from, closes+1, with), nil
}

// insert adds an item to a list, or a key with its value to a mapping, after the last one. The caller has
// added the node already.
func (s source) insert(n *yaml.Node, item string) ([]byte, error) {
	if n.Style&yaml.FlowStyle != 0 {
		parts, end, err := s.parts(n)
		if err != nil {
			return nil, err
		}
		last := parts[len(parts)-1]
		held := strings.TrimRight(string(s.text[last.from:last.to]), " \t\r\n")
		switch at := last.from + len(held); {
		case held == "" && len(parts) > 1: // after a comma
			return s.splice(last.from, last.from, " "+item), nil
		case held == "":
			return s.splice(end, end, item), nil
		case strings.Contains(held[strings.LastIndexByte(held, '\n')+1:], "#"): // it may end with a comment
			return s.splice(end, end, ", "+item), nil
		default:
			return s.splice(at, at, ", "+item), nil
		}
	}
	step, dash := 1, "- "
	if n.Kind == yaml.MappingNode {
		step, dash = 2, ""
	}
	old := len(n.Content) - step
	if old <= 0 {
		return nil, ErrByHand
	}
	from, err := s.start(n, old-step)
	if err != nil {
		return nil, err
	}
	at, indent := s.blockEnd(from), s.indent(from)
	line := strings.Repeat(" ", indent) + dash + item + s.newline
	if at > 0 && s.text[at-1] != '\n' {
		line = s.newline + line
	}
	return s.splice(at, at, line), nil
}

// remove removes an item or a key with its value, by its number. change does the same to the node.
func (s source) remove(n *yaml.Node, index int, change func()) ([]byte, error) {
	defer change()
	if n.Style&yaml.FlowStyle != 0 {
		parts, _, err := s.parts(n)
		if err != nil || index >= len(parts) {
			return nil, ErrByHand
		}
		part := parts[index]
		switch {
		case index+1 < len(parts):
			part.to = parts[index+1].from
			for part.to < s.end && (s.text[part.to] == ' ' || s.text[part.to] == '\t') {
				part.to++
			}
			for s.text[part.from] == ' ' || s.text[part.from] == '\t' {
				part.from++
			}
		case index > 0:
			part.from = parts[index-1].to
		}
		return s.splice(part.from, part.to, ""), nil
	}
	step := 1
	if n.Kind == yaml.MappingNode {
		step = 2
	}
	if index*step >= len(n.Content) {
		return nil, ErrByHand
	}
	from, err := s.start(n, index*step)
	if err != nil {
		return nil, err
	}
	first := s.lineOf(from)
	if strings.TrimSpace(string(s.text[first:from])) != "" { // such as the first key of a mapping in a list
		return nil, ErrByHand
	}
	return s.splice(first, s.blockEnd(from), ""), nil
}

// start returns where an element of a block collection starts: its dash, or its key.
func (s source) start(n *yaml.Node, index int) (int, error) {
	at := s.offset(n.Content[index])
	if n.Kind == yaml.MappingNode {
		return at, nil
	}
	for at--; at >= 0; at-- {
		switch s.text[at] {
		case '-':
			return at, nil
		case ' ', '\t':
		default:
			return 0, ErrByHand
		}
	}
	return 0, ErrByHand
}

func (s source) lineOf(at int) int { return bytes.LastIndexByte(s.text[:at], '\n') + 1 }

func (s source) indent(at int) int { return utf8.RuneCount(s.text[s.lineOf(at):at]) }

// blockEnd returns where the last line of a block element ends: the line before the next one that is not indented more,
// without comments and empty lines before that.
func (s source) blockEnd(from int) int {
	indent, at := s.indent(from), from
	end := s.nextLine(from)
	for at = end; at < s.end; at = s.nextLine(at) {
		line := string(s.text[at:s.nextLine(at)])
		text := strings.TrimLeft(line, " ")
		switch {
		case strings.TrimSpace(text) == "" || text[0] == '#':
		case len(line)-len(text) <= indent:
			return end
		default:
			end = s.nextLine(at)
		}
	}
	return min(end, s.end)
}

func (s source) nextLine(at int) int {
	if i := bytes.IndexByte(s.text[at:s.end], '\n'); i >= 0 {
		return at + i + 1
	}
	return s.end
}

// span is a part of the text.
type span struct{ from, to int }

// parts returns what commas divide in a flow collection, one part at least, and where it closes.
func (s source) parts(n *yaml.Node) (parts []span, closes int, err error) {
	at := s.offset(n)
	part := span{from: at + 1}
	depth := 0
	for ; at < s.end; at++ {
		switch s.text[at] {
		case '[', '{':
			depth++
		case ']', '}':
			if depth--; depth == 0 {
				part.to = at
				return append(parts, part), at, nil
			}
		case ',':
			if depth == 1 {
				part.to = at
				parts, part = append(parts, part), span{from: at + 1}
			}
		case '#':
			if strings.ContainsRune(" \t\n", rune(s.text[at-1])) {
				at = s.nextLine(at) - 1
			}
		case '"', '\'':
			if !strings.ContainsRune(" \t\n[{,:", rune(s.text[at-1])) {
				continue // within a plain scalar
			}
			if at = s.quoted(at); at < 0 {
				return nil, 0, ErrByHand
			}
		}
	}
	return nil, 0, ErrByHand
}
