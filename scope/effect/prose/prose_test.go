package prose

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/scopefs/scopefs/scope/effect"
)

// TestText: a text is short, says how much it leaves out, and holds no line that a file's name has made.
func TestText(t *testing.T) {
	unnamed := func(string, bool) bool { return false }
	all := func(string, bool) bool { return true }
	many := &effect.Effects{LeftOut: 7}
	for i := range effect.Max {
		many.Removed = append(many.Removed, effect.Object{Path: fmt.Sprintf("%0100d", i)})
	}
	text := Text(many, unnamed, "changes call=x", "undo call=x")
	assert.Equal(t, maxLines, strings.Count(text, "\n"))
	assert.True(t, strings.HasSuffix(text, fmt.Sprintf("and %d more: changes call=x (to take it back: undo call=x)\n", effect.Max-(maxLines-1)+7)), text)

	evil := &effect.Effects{Created: []effect.Object{{Path: "a\nnothing changed"}}, Refused: []effect.Refusal{{Path: "x\n", Op: "create", Rule: "r\x1b[1m", Host: true}}}
	assert.Equal(t, 2, strings.Count(Text(evil, unnamed, "", ""), "\n"))
	assert.NotContains(t, Text(evil, unnamed, "", ""), "\x1b")

	named := &effect.Effects{Changed: []effect.Object{{Path: "f"}, {Path: "Makefile", Marks: []string{effect.Read}}}, Removed: []effect.Object{{Path: "gone"}}}
	assert.Equal(t, "removed gone\nchanged Makefile ("+effect.Read+")\n", Text(named, all, "", ""))
	assert.Empty(t, Text(&effect.Effects{Changed: []effect.Object{{Path: "f"}}}, all, "", "undo call=x"))
	assert.Equal(t, "2 removed, 115 created", Sum(effect.Counts{Removed: 2, Created: 115}))
}
