package effect

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

// TestConfigures: of what is below .git, git itself writes most.
func TestConfigures(t *testing.T) {
	for rel, want := range map[string]bool{
		"Makefile": true, "sub/package.json": true, ".envrc": true, "a/.vscode/tasks.json": true, "CLAUDE.md": true,
		".git/config": true, ".git/hooks/pre-commit": true, "sub/.git/config": true,
		".git/hooks/pre-commit.sample": false, ".git/index": false, ".git/objects/ab/cd": false,
		"main.go": false, "a.b/c": false, "Makefile.txt": false, "": false,
	} {
		assert.Equal(t, want, Configures(rel), rel)
	}
}

// TestText: a text is short, says how much it leaves out, and holds no line that a file's name has made.
func TestText(t *testing.T) {
	unnamed := func(string, bool) bool { return false }
	all := func(string, bool) bool { return true }
	many := &Effects{LeftOut: 7}
	for i := range Max {
		many.Removed = append(many.Removed, Object{Path: fmt.Sprintf("%0100d", i)})
	}
	text := many.Text(unnamed, "changes call=x", "undo call=x")
	assert.Equal(t, maxLines, strings.Count(text, "\n"))
	assert.True(t, strings.HasSuffix(text, fmt.Sprintf("and %d more: changes call=x (to take it back: undo call=x)\n", Max-(maxLines-1)+7)), text)

	evil := &Effects{Created: []Object{{Path: "a\nnothing changed"}}, Refused: []Refusal{{"x\n", "create", "r\x1b[1m", true}}}
	assert.Equal(t, 2, strings.Count(evil.Text(unnamed, "", ""), "\n"))
	assert.NotContains(t, evil.Text(unnamed, "", ""), "\x1b")

	named := &Effects{Changed: []Object{{Path: "f"}, {Path: "Makefile", Marks: []string{Read}}}, Removed: []Object{{Path: "gone"}}}
	assert.Equal(t, "removed gone\nchanged Makefile ("+Read+")\n", named.Text(all, "", ""))
	assert.Empty(t, (&Effects{Changed: []Object{{Path: "f"}}}).Text(all, "", "undo call=x"))
	assert.Equal(t, "2 removed, 115 created", Counts{Removed: 2, Created: 115}.Summary())
}
