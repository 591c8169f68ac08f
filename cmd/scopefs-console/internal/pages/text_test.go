package pages

import (
	"bytes"
	"html/template"
	"io/fs"
	"regexp"
	"slices"
	"strings"
	"testing"
	"text/template/parse"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/internal/devices"
)

// TestShow: text of an agent neither hides nor turns nor grows.
func TestShow(t *testing.T) {
	for text, want := range map[string]string{
		"a\x1b[31mb":                   `a\u001b[31mb`,
		"a\u202eb":                     `a\u202eb`,
		"a\u200b\u00adb":               `a\u200b\u00adb`,
		"a\nb\u2028c":                  `a\u000ab\u2028c`,
		"<b>&":                         "<b>&", // html/template's
		"é日本":                          "é日本",
		"p\u0430y e\u0301\u0301\u0301": `p\u0430y e` + "\u0301\u0301" + `\u0301`,
	} {
		assert.Equal(t, want, show(text))
	}
	long := show(strings.Repeat("é", 50<<20))
	assert.Less(t, len(long), 2*maxShown)
	assert.Regexp(t, `é … \d+ more bytes$`, long)
	assert.Equal(t, "a\n\\u001bb", lines("a\n\x1bb"))
}

// safe are functions beside shown whose results a template may write.
var safe = []string{"link", "asset", "chart", "query"}

// TestEveryValueIsShown: no template writes a value that has not gone through show or its like.
func TestEveryValueIsShown(t *testing.T) {
	s, err := New(api.NewClient(config.Paths{Run: t.TempDir()}), nil, "/root")
	require.NoError(t, err)
	values := 0
	for name, all := range s.templates[devices.All] {
		for _, one := range all.Templates() {
			if one.Tree != nil {
				walk(one.Tree.Root, func(pipe *parse.PipeNode) {
					values++
					last := pipe.Cmds[len(pipe.Cmds)-1]
					word, ok := last.Args[0].(*parse.IdentifierNode)
					fits := ok && (shown[word.Ident] != nil || slices.Contains(safe, word.Ident))
					assert.True(t, fits, "%s: {{%s}} is not shown: want {{show ...}}", name, pipe)
				})
			}
		}
	}
	assert.Greater(t, values, 20)
	pages, err := fs.Glob(htmlFiles, "html/*.html")
	require.NoError(t, err)
	for _, name := range pages {
		text, err := htmlFiles.ReadFile(name)
		require.NoError(t, err)
		assert.Len(t, regexp.MustCompile(`(="|[?;][a-z]+=)\{\{value `).FindAll(text, -1), bytes.Count(text, []byte("{{value ")), "%s: value is for attributes", name)
	}
	bad := template.Must(template.New("bad").Parse(`{{if .}}{{.X}}{{end}}`))
	found := 0
	walk(bad.Tree.Root, func(*parse.PipeNode) { found++ })
	assert.Equal(t, 1, found)
}

// walk calls f for each value that a template writes.
func walk(node parse.Node, f func(*parse.PipeNode)) {
	switch n := node.(type) {
	case *parse.ListNode:
		if n != nil {
			for _, one := range n.Nodes {
				walk(one, f)
			}
		}
	case *parse.ActionNode:
		if len(n.Pipe.Decl) == 0 {
			f(n.Pipe)
		}
	case *parse.IfNode:
		walk(n.List, f)
		walk(n.ElseList, f)
	case *parse.RangeNode:
		walk(n.List, f)
		walk(n.ElseList, f)
	case *parse.WithNode:
		walk(n.List, f)
		walk(n.ElseList, f)
	}
}
