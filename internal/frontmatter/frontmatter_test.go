package frontmatter

import (
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
