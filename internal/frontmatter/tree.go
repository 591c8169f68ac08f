package frontmatter

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// The canonical form of a YAML text is the result of [Parse] in bytes that need no YAML parser. A mark comes first: 'e' with a line
// and a text is an error, 'n' an empty document; anything else is the top node. A node has a mark of its kind, its tag and its line;
// then a scalar has its value, a list or a mapping the number of its nodes and these. Numbers are uvarints, texts have their
// length first. A node has no style, comment, column or anchor.

// The marks of the canonical form.
const (
	formError   = 'e'
	formNothing = 'n'
	formMapping = 'm'
	formList    = 'l'
	formScalar  = 's'
)

// Bounds of the canonical form of a text of [MaxKeys] bytes.
const (
	MaxForm  = 1 << 20 // bytes
	maxDepth = 100     // of nodes
	maxTag   = 256     // bytes
	maxWrong = 2 << 10 // bytes of an error's text
)

// errForm is the error of bytes that are no canonical form.
var errForm = errors.New("is no canonical form of YAML")

// Form returns the canonical form of the result of Parse.
func Form(top *yaml.Node, err error) []byte {
	var f form
	switch {
	case err != nil:
	case top == nil:
		return []byte{formNothing}
	default:
		err = f.add(top, maxDepth)
	}
	if err == nil && len(f) > MaxForm {
		err = &Error{1, errors.New("has too many values: shorten it")}
	}
	if err == nil {
		return f
	}
	at := &Error{1, err}
	_ = errors.As(err, &at)
	what := at.Err.Error()
	return form{formError}.number(at.Line).text(strings.ToValidUTF8(what[:min(len(what), maxWrong)], ""))
}

type form []byte

func (f form) number(n int) form { return binary.AppendUvarint(f, uint64(n)) }

func (f form) text(s string) form { return append(f.number(len(s)), s...) }

// add appends a node with at most depth levels.
func (f *form) add(n *yaml.Node, depth int) error {
	mark := byte(formScalar)
	switch n.Kind {
	case yaml.MappingNode:
		mark = formMapping
	case yaml.SequenceNode:
		mark = formList
	}
	tag := n.ShortTag()
	switch {
	case depth == 0:
		return &Error{n.Line, fmt.Errorf("has more than %d levels: flatten it", maxDepth)}
	case len(tag) > maxTag:
		return &Error{n.Line, fmt.Errorf("has a tag of more than %d bytes: remove it", maxTag)}
	case !utf8.ValidString(n.Value), !utf8.ValidString(tag):
		return &Error{n.Line, errors.New("is not UTF-8: write it as UTF-8")}
	}
	*f = append(*f, mark).text(tag).number(n.Line)
	if mark == formScalar {
		*f = f.text(n.Value)
		return nil
	}
	*f = f.number(len(n.Content))
	for _, c := range n.Content {
		if err := f.add(c, depth-1); err != nil {
			return err
		}
	}
	return nil
}

// ReadForm returns the result of Parse whose canonical form is in data, which may be anything. An error of the text that was parsed is
// of type *[Error], one of data is not.
func ReadForm(data []byte) (*yaml.Node, error) {
	r := reader{data: data}
	if len(data) > MaxForm {
		return nil, errForm
	}
	var top *yaml.Node
	var wrong error
	switch r.mark() {
	case formError:
		line, text := r.line(), r.text(maxWrong)
		wrong = &Error{line, errors.New(text)}
	case formNothing:
	default:
		r.data = data
		top = r.node(maxDepth)
	}
	if r.bad || len(r.data) > 0 {
		return nil, errForm
	}
	return top, wrong
}

// reader reads the canonical form. After bad is set, its results have no meaning.
type reader struct {
	data []byte
	bad  bool
}

func (r *reader) fail() {
	r.bad, r.data = true, nil
}

func (r *reader) mark() byte {
	if len(r.data) == 0 {
		r.fail()
		return 0
	}
	mark := r.data[0]
	r.data = r.data[1:]
	return mark
}

// number returns a number of at most most.
func (r *reader) number(most int) int {
	n, size := binary.Uvarint(r.data)
	if size <= 0 || n > uint64(most) {
		r.fail()
		return 0
	}
	r.data = r.data[size:]
	return int(n)
}

func (r *reader) line() int {
	line := r.number(MaxKeys + 1)
	if line == 0 {
		r.fail()
	}
	return line
}

// text returns a text of at most most bytes, which is UTF-8.
func (r *reader) text(most int) string {
	n := r.number(most)
	if n > len(r.data) || !utf8.Valid(r.data[:n]) {
		r.fail()
		return ""
	}
	s := string(r.data[:n])
	r.data = r.data[n:]
	return s
}

// node returns a node with at most depth levels. Each node takes bytes, so that data bounds their number.
func (r *reader) node(depth int) *yaml.Node {
	n := &yaml.Node{}
	switch r.mark() {
	case formMapping:
		n.Kind = yaml.MappingNode
	case formList:
		n.Kind = yaml.SequenceNode
	case formScalar:
		n.Kind = yaml.ScalarNode
	default:
		r.fail()
	}
	if n.Tag, n.Line = r.text(maxTag), r.line(); n.Tag == "" || n.Tag == "!" || depth == 0 {
		r.fail()
	}
	if n.Kind == yaml.ScalarNode {
		n.Value = r.text(MaxForm)
		return n
	}
	count := r.number(len(r.data))
	if n.Kind == yaml.MappingNode && count%2 == 1 {
		r.fail()
	}
	for range count {
		if r.bad {
			break
		}
		n.Content = append(n.Content, r.node(depth-1))
	}
	return n
}
