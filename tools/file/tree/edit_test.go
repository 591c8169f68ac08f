package tree

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/internal/need"
	"github.com/scopefs/scopefs/tools/file/message"
)

func at(n int) *int { return &n }

func TestEdit(t *testing.T) {
	for name, test := range map[string]struct {
		before string
		edits  []message.Edit
		after  string
		code   message.Code
		text   string // in the error
	}{
		"one":              {before: "a\nb\nc\n", edits: []message.Edit{{OldText: "b", NewText: "B"}}, after: "a\nB\nc\n"},
		"in order":         {before: "a\n", edits: []message.Edit{{OldText: "a", NewText: "b"}, {OldText: "b", NewText: "c"}}, after: "c\n"},
		"all":              {before: "a a a\n", edits: []message.Edit{{OldText: "a", NewText: "b", ReplaceAll: true}}, after: "b b b\n"},
		"twice":            {before: "a a\n", edits: []message.Edit{{OldText: "a", NewText: "b"}}, code: message.Conflict, text: "edit 1: old_text was found 2 times"},
		"all or none":      {before: "a\n", edits: []message.Edit{{OldText: "a", NewText: "b"}, {OldText: "z", NewText: "c"}}, code: message.Conflict, text: "edit 2: old_text was not found"},
		"nearest":          {before: "x\n\tfoo()\n", edits: []message.Edit{{OldText: "    foo()", NewText: ""}}, code: message.Conflict, text: "line 2 is like its first line"},
		"delete":           {before: "a\nb\n", edits: []message.Edit{{OldText: "a\n", NewText: ""}}, after: "b\n"},
		"carriage returns": {before: "a\r\nb\r\n", edits: []message.Edit{{OldText: "a\nb", NewText: "x\ny\nz"}}, after: "x\r\ny\r\nz\r\n"},
		"said with them":   {before: "a\r\nb\r\n", edits: []message.Edit{{OldText: "a\r\nb", NewText: "x"}}, after: "x\r\n"},
		"mixed ends":       {before: "a\r\nb\n", edits: []message.Edit{{OldText: "b\n", NewText: "c\n"}}, after: "a\r\nc\n"},
		"byte order mark":  {before: "\ufeffa\n", edits: []message.Edit{{OldText: "a", NewText: "b"}}, after: "\ufeffb\n"},
		"insert first":     {before: "a\n", edits: []message.Edit{{InsertLine: at(0), NewText: "x"}}, after: "x\na\n"},
		"insert last":      {before: "a\nb", edits: []message.Edit{{InsertLine: at(2), NewText: "x\n"}}, after: "a\nb\nx\n"},
		"insert past":      {before: "a\n", edits: []message.Edit{{InsertLine: at(2), NewText: "x"}}, code: message.Invalid, text: "past the end"},
		"insert and old":   {before: "a\n", edits: []message.Edit{{InsertLine: at(0), OldText: "a"}}, code: message.Invalid, text: "excludes"},
		"empty old":        {before: "a\n", edits: []message.Edit{{NewText: "x"}}, code: message.Invalid, text: "old_text is empty"},
		"empty file":       {before: "", edits: []message.Edit{{NewText: "x"}}, after: "x"},
		"binary":           {before: "a\x00", edits: []message.Edit{{OldText: "a", NewText: "b"}}, code: message.Invalid, text: "binary"},
		"late binary":      {before: strings.Repeat("a", sniffed) + "\xff", edits: []message.Edit{{OldText: "b", NewText: "b"}}, code: message.Invalid, text: "binary"},
		"a dollar":         {before: "a\n", edits: []message.Edit{{OldText: "a", NewText: "$1 $& \\1"}}, after: "$1 $& \\1\n"},
	} {
		t.Run(name, func(t *testing.T) {
			tr := newTree(t, map[string]string{"f": test.before})
			dry, derr := tr.edit(ctx(), message.EditArgs{Path: "f", Edits: test.edits, DryRun: true})
			assert.Equal(t, test.before, tr.content(t, "f"))
			r, err := tr.edit(ctx(), message.EditArgs{Path: "f", Edits: test.edits, IfMatch: hashOf([]byte(test.before))})
			if test.code != "" {
				e := asTold(t, err)
				assert.Equal(t, test.code, e.Code)
				assert.Contains(t, e.Error(), test.text)
				assert.Equal(t, e, asTold(t, derr))
				assert.Equal(t, test.before, tr.content(t, "f"))
				return
			}
			require.NoError(t, err)
			assert.Equal(t, test.after, tr.content(t, "f"))
			assert.Equal(t, hashOf([]byte(test.after)), r.Hash)
			assert.Equal(t, r.Diff, dry.Diff)
			assert.True(t, dry.DryRun)
		})
	}
}

func TestEditRefuses(t *testing.T) {
	tr := newTree(t, map[string]string{"f": "a", "big": strings.Repeat("a", maxWhole+1), "out => /etc/passwd": ""})
	for path, code := range map[string]message.Code{"no": message.NotFound, "big": message.TooLarge, "out": message.OutsideScope, "../x": message.OutsideScope, ".": message.Invalid} {
		_, err := tr.edit(ctx(), message.EditArgs{Path: path, Edits: []message.Edit{{OldText: "a", NewText: "b"}}})
		assert.Equal(t, code, asTold(t, err).Code, path)
	}
	_, err := tr.edit(ctx(), message.EditArgs{Path: "f", Edits: []message.Edit{{OldText: "a", NewText: "b"}}, IfMatch: hashOf(nil)})
	assert.Equal(t, message.Conflict, asTold(t, err).Code)
	_, err = tr.edit(ctx(), message.EditArgs{Path: "f", Edits: []message.Edit{{OldText: "a", NewText: "a"}}})
	assert.Contains(t, asTold(t, err).Message, "old_text and new_text are equal")
	assert.Equal(t, "a", tr.content(t, "f"))
}

// patch(1) makes the new text of the old one and the diff.
func TestDiffPatches(t *testing.T) {
	patch := need.Program(t, "patch")
	dir := t.TempDir()
	random := rand.New(rand.NewPCG(1, 2))
	for i := range 60 {
		var before, after []string
		for n := range random.IntN(60) {
			line := fmt.Sprintf("%d\n", random.IntN(5)+n/7)
			if random.IntN(6) > 0 {
				before = append(before, line)
			}
			if random.IntN(6) > 0 {
				after = append(after, line)
			}
		}
		a, b := strings.Join(before, ""), strings.Join(after, "")
		if i%3 == 0 {
			b = strings.TrimSuffix(b, "\n")
		}
		d := message.Diff("f", a, b)
		if a == b {
			assert.Empty(t, d)
			continue
		}
		require.NoError(t, os.WriteFile(dir+"/f", []byte(a), 0o644))
		cmd := exec.Command(patch, "-s", "-F0", "f")
		cmd.Dir, cmd.Stdin = dir, strings.NewReader(d)
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s\n%s", out, d)
		got, err := os.ReadFile(dir + "/f")
		if os.IsNotExist(err) && b == "" { // patch removes what it has emptied
			continue
		}
		require.NoError(t, err)
		require.Equal(t, b, string(got), d)
		os.Remove(dir + "/f")
	}
}

func TestDiffIsBounded(t *testing.T) {
	d := message.Diff("f", numbered(1, 100000), strings.ReplaceAll(numbered(1, 100000), "line", "row"))
	assert.Less(t, len(d), 100000)
	assert.Contains(t, d, "[cut]")
}
