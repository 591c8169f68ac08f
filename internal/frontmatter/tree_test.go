package frontmatter

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

// shape is what readers of a node see of it.
func shape(n *yaml.Node) string {
	if n == nil {
		return "nothing"
	}
	var all strings.Builder
	fmt.Fprintf(&all, "%d %s %d %q(", n.Kind, n.ShortTag(), n.Line, n.Value)
	for _, c := range n.Content {
		all.WriteString(shape(c))
	}
	return all.String() + ")"
}

var forms = []string{
	"", "# only a comment\n", "tools: [read_file, 'bash']\nview:\n  access: read\n  paths:\n    \"*.key\": hide\n",
	"a: 1\nb: 1.5\nc: true\nd: null\ne:\nf: ~\ng: 2024-01-02\nh: 0x1f\ni: \"null\"\nj: 'true'\nk: !!str 1\nl: !own x\nm: ! 5\n",
	"text: |\n  one\n  two\nfolded: >-\n  a\n  b\n? {k: v}\n: [x]\n", "- a\n- [b, {c: d}]\n", "just text\n", "a: a\na: b\n", "{a, b: }",
	"a: [\n", "a: &x b\nb: *x\n", "a: b\n---\nc: d\n", "\ta: b\n", "a: \"\\u263a \\0\"\n", "b: !!binary aGk=\n", "<<: {a: b}\n",
	strings.Repeat("[", 200) + strings.Repeat("]", 200), "{" + strings.Repeat("a,", 30_000) + "}", "a: !" + strings.Repeat("x", 300) + " b",
}

// TestForm: the canonical form has all that Parse returns and readers of nodes see.
func TestForm(t *testing.T) {
	for _, text := range forms {
		top, wrong := Parse([]byte(text))
		form := Form(top, wrong)
		got, err := ReadForm(form)
		if wrong == nil && err != nil { // a bound of the form
			require.IsType(t, &Error{}, err, "%.40q", text)
			assert.Regexp(t, "more than 100 levels|more than 256 bytes", err.Error())
			continue
		}
		if wrong != nil {
			assert.EqualError(t, err, wrong.Error(), "%.40q", text)
			continue
		}
		assert.Equal(t, shape(top), shape(got), "%.40q", text)
	}
}

// TestFormHostile: what a process that was taken over answers is a tree within the bounds, or refused.
func TestFormHostile(t *testing.T) {
	scalar := func(value string) form { return form{formScalar}.text("!!str").number(1).text(value) }
	list := func(n int) form { return form{formList}.text("!!seq").number(1).number(n) }
	deep := form{}
	for range maxDepth {
		deep = append(deep, list(1)...)
	}
	for name, data := range map[string][]byte{
		"nothing":        {},
		"no mark":        {'x'},
		"half a mapping": append(form{formMapping}.text("!!map").number(1).number(1), scalar("a")...),
		"more after it":  append(scalar("a"), 'n'),
		"after nothing":  {formNothing, formNothing},
		"a huge count":   list(1 << 40),
		"a huge text":    form{formScalar}.text("!!str").number(1).number(1 << 60),
		"a count beyond": list(3),
		"a text cut off": form{formScalar}.text("!!str").number(1).number(1),
		"an endless one": {formList, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff},
		"no tag":         form{formScalar}.text("").number(1).text("a"),
		"a long tag":     form{formScalar}.text(strings.Repeat("x", maxTag+1)).number(1).text("a"),
		"no line":        form{formScalar}.text("!!str").number(0).text("a"),
		"no UTF-8":       scalar("\xff"),
		"too deep":       append(deep, scalar("a")...),
		"too long":       append(scalar(strings.Repeat("a", MaxForm)), make([]byte, 0)...),
		"an error's end": form{formError}.number(1).number(10),
		"a long error":   form{formError}.number(1).text(strings.Repeat("a", maxWrong+1)),
		"error's line":   form{formError}.number(1 << 30).text("a"),
	} {
		top, err := ReadForm(data)
		assert.ErrorIs(t, err, errForm, name)
		assert.Nil(t, top, name)
	}
}

// FuzzForm: bytes of any kind are refused, or read as what their canonical form says.
func FuzzForm(f *testing.F) {
	for _, text := range forms {
		f.Add(Form(Parse([]byte(text))))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		top, wrong := ReadForm(data)
		if wrong == errForm {
			return
		}
		again, err := ReadForm(Form(top, wrong))
		assert.Equal(t, shape(top), shape(again))
		assert.Equal(t, fmt.Sprint(wrong), fmt.Sprint(err))
	})
}
