package frontmatter

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestText(t *testing.T) {
	for name, c := range map[string]struct{ text, want, err string }{
		"plain":      {"---\nname: a\ndescription: it does\n---\nbody", "it does", ""},
		"folded":     {"---\ndescription: >\n  it\n  does\n---\n", "it does\n", ""},
		"byte order": {"\ufeff---\r\ndescription: it\r\n---\r\n", "it", ""},
		"absent":     {"---\nname: a\n---\n", "", ""},
		"no text":    {"---\ndescription: {a: b}\n---\n", "", ""},
		"null":       {"---\ndescription:\n---\n", "", ""},
		"no keys":    {"---\n---\n", "", ""},
		"syntax":     {"---\na: b\ndescription: [\n---\n", "", "line 3: is not YAML"},
		"alias":      {"---\na: &x b\ndescription: *x\n---\n", "", "line 2: anchors and aliases are not read"},
		"glob":       {"---\ndescription: *x\n---\n", "", "needs quotes"},
		"no mark":    {"description: x\n", "", "does not start with a --- line"},
		"one mark":   {"---\ndescription: x\n", "", "has no second --- line"},
	} {
		t.Run(name, func(t *testing.T) {
			front, _, err := Cut([]byte(c.text))
			got := ""
			if err == nil {
				got, err = Text(front, "description")
			}
			if c.err != "" {
				require.ErrorContains(t, err, c.err)
				return
			}
			require.NoError(t, err)
			assert.Equal(t, c.want, got)
		})
	}
}

func TestParseRefusesTwoDocuments(t *testing.T) {
	_, err := Parse([]byte("a: b\n---\nc: d\n"))
	assert.ErrorContains(t, err, "line 2: starts a second YAML document")
	top, err := Parse(nil)
	assert.NoError(t, err)
	assert.Nil(t, top)
}

// TestLineOfProblem: a text that is no YAML names the line of the fault, and for what is not
// closed the line where it opens.
func TestLineOfProblem(t *testing.T) {
	for text, want := range map[string]int{
		"\nname: a\nview:\n  record: writes\n bad: x\nz: 1\n":                5,
		"\nname: a\n\n# c\nview:\n    paths:\n      a: b\n     b: c\nz: 1\n": 8,
		"a:\n  b: c\n d: e\n":                     3,
		"a: x\n  b: c\n":                          2,
		"\na: x\n\tb: c\n":                        3,
		"\na: x\nb:\n\t- c\n":                     4,
		"\n\ta: x\n":                              2,
		"a: b: c\nd: e\n":                         1,
		"\na: x\nb: c: d\ne: f\n":                 3,
		"\na: x\nb\nc: d\ne: f\n":                 3,
		"\na:\n- x\nb\nc: d\n":                    4,
		"\na:\n  b: c\n  - d\ne: f\n":             4,
		"\na:\n  - b\n  c: d\ne: f\n":             4,
		"\na: x\n\n- b\nc: d\n":                   4,
		"\na: ]\nb: c\nd: e\n":                    2,
		"\na: x\n\"b\" c: 1\nd: e\n":              3,
		"\na: x\nb: \"c\" d\ne: f\n":              3,
		"\na: x\nb: [c] d\ne: f\n":                3,
		"\na: x\nb: \"\\q\"\nc: d\n":              3,
		"\na: x\nb: @c\nd: e\n":                   3,
		"\na: x\nb: *c\nd: e\n":                   3,
		"\na: x\nb: !e!x c\nd: e\n":               3,
		"\na: x\nb: c\x01\nd: e\n":                3,
		"\na: x\nb: c\xff\nd: e\n":                3,
		"a: [x\nb: c\n":                           1,
		"a: \"x\nb: c\n":                          1,
		"\na: [x,\n  y]\nb: [c\nd: {}\ne: f\n":    4,
		"\na: [x,\n  y]\nb: {c: d\ne: {}\nf: g\n": 4,
		"\na: 'x\n  y'\nb: 'c\nd: e\nf: g\n":      4,
		"\na: [x,\n  b: c: d]\ne: f\n":            3,
	} {
		_, err := Parse([]byte(text))
		at, ok := errors.AsType[*Error](err)
		if assert.True(t, ok, "%q: %v", text, err) {
			assert.Equal(t, want, at.Line, "%q: %v", text, err)
		}
	}
}

// TestLineOfProblemBounded: a long text with a quote that is not closed is not read once for
// each line.
func TestLineOfProblemBounded(t *testing.T) {
	_, err := Parse([]byte("\na: \"x\n" + strings.Repeat("b: c\n", MaxKeys/5)))
	at, ok := errors.AsType[*Error](err)
	require.True(t, ok, err)
	assert.Equal(t, 2, at.Line)
}

// TestLineOfProblemLongLine: a long line with a fault after it is not parsed again for each line
// in between.
func TestLineOfProblemLongLine(t *testing.T) {
	text := []byte("[" + strings.Repeat("a: b, ", 200<<10/6) + strings.Repeat("\n", maxTries-1) + "}")
	once := testing.AllocsPerRun(1, func() { assert.Error(t, parse(bytes.NewReader(text))) })
	all := testing.AllocsPerRun(1, func() {
		_, err := Parse(text)
		assert.Error(t, err)
	})
	assert.Less(t, all/once, 6.0)
}
