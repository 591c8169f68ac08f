package report

import (
	"bytes"
	"errors"
	"iter"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/fs/history"
	"github.com/scopefs/scopefs/internal/api"
)

// TestChangesPrint: a change is one line and its diff, whatever its name and content.
func TestChangesPrint(t *testing.T) {
	texts := map[string]string{"one": "a\n-- b\n", "two": "a\n++ c\n", "bin": "\x00", "esc": "\x1b[2J\n"}
	version := func(name string) history.Version { return history.Version{Path: name} }
	for name, c := range map[string]struct {
		change history.Change
		diff   string
		line   string // of the table, from its path on
	}{
		"text": {history.Change{Kind: history.Changed, Path: "f", Type: "file", Old: version("one"), New: version("two")},
			"changed f\n--- a/f\n+++ b/f\n@@ -1,2 +1,2 @@\n a\n--- b\n+++ c\n", "f"},
		"name": {history.Change{Kind: history.Added, Path: `x\x0aremoved y`, Type: "file", New: version("one"), OldSize: -1, NewSize: 7},
			"added \"x\\x0aremoved y\"\n--- /dev/null\n+++ b/x\\x0aremoved y\n@@ -0,0 +1,2 @@\n+a\n+-- b\n", `"x\x0aremoved y"`},
		"control": {history.Change{Kind: history.Deleted, Path: "f", Type: "file", Old: version("esc")},
			"removed f\n--- a/f\n+++ /dev/null\n@@ -1,1 +0,0 @@\n-\\u001b[2J\n", "f"},
		"no text": {history.Change{Kind: history.Changed, Path: "f", Type: "file", Old: version("one"), New: version("bin"), OldSize: 7, NewSize: 1},
			"changed f: 7 > 1 (no diff: no text)\n", "f"},
		"large": {history.Change{Kind: history.Changed, Path: "f", Type: "file", Old: version("one"), New: version("two"), OldSize: 7, NewSize: 5 << 20},
			"changed f: 7 > 5.0MiB (no diff: larger than 4.0MiB)\n", "f"},
		"not kept": {history.Change{Kind: history.Changed, Path: "f", Type: "file", Why: "excluded", New: version("two"), OldSize: 1, NewSize: 2},
			"changed f (not kept: excluded): 1 > 2\n", "f (not kept: excluded)"},
		"gone": {history.Change{Kind: history.Changed, Path: "f", Type: "file", Old: version("one"), New: version("none"), OldSize: 7, NewSize: -1},
			"changed f: 7 (no diff: it cannot be read: none)\n", "f"},
		"moved": {history.Change{Kind: history.Renamed, Path: "g", From: "f", Type: "file", Old: version("one"), New: version("one"), OldSize: 7, NewSize: 7},
			"moved g (was f): 7\n", "g (was f)"},
		"moved and changed": {history.Change{Kind: history.Renamed, Path: "g", From: "f", Type: "file", Old: version("one"), New: version("two")},
			"moved g (was f)\n--- a/f\n+++ b/g\n@@ -1,2 +1,2 @@\n a\n--- b\n+++ c\n", "g (was f)"},
		"mode": {history.Change{Kind: history.ModeChanged, Path: "d", Type: "directory", Mode: true, OldMode: 0o755, NewMode: 0o700},
			"mode d/ (mode 0700, was 0755)\n", "d/ (mode 0700, was 0755)"},
		"times": {history.Change{Kind: history.ModeChanged, Path: "d", Type: "directory", Mode: true, OldMode: 0o755, NewMode: 0o755},
			"mode d/ (times, owner or attributes)\n", "d/ (times, owner or attributes)"},
		"fifo": {history.Change{Kind: history.Added, Path: "p", Type: "other"}, "added p (other)\n", "p (other)"},
	} {
		t.Run(name, func(t *testing.T) {
			r := &Changes{Agent: "a", Of: "the last session", form: ChangesPatch, Changes: []FileChange{{Change: c.change}}}
			read := func(list []history.Version) iter.Seq2[api.Text, error] {
				return func(yield func(api.Text, error) bool) {
					for _, v := range list {
						text, ok := texts[v.Path]
						err := error(nil)
						if !ok {
							err = errors.New(v.Path)
						}
						if !yield(api.Text{Content: api.Content{Size: int64(len(text))}, Text: []byte(text)}, err) {
							return
						}
					}
				}
			}
			r.parts = []part{{1, read}}
			var b bytes.Buffer
			require.NoError(t, r.Print(&b))
			assert.Equal(t, c.diff, b.String())
			b.Reset()
			r.form = ChangesTable
			require.NoError(t, r.Print(&b))
			assert.Equal(t, 3, strings.Count(b.String(), "\n"), b.String())
			assert.True(t, strings.HasSuffix(b.String(), "  "+c.line+"\n"), b.String())
			r.form = ChangesStat
			r.Complete()
			assert.Empty(t, r.Changes[0].Diff)
		})
	}
}

// TestGitFolded: git's own files are one line, in lists of changes and of what is held, and in a dry run. What has a mark is listed, and so
// is what configures git. With each, every file has a line.
func TestGitFolded(t *testing.T) {
	file := func(path string) FileChange {
		return FileChange{Change: history.Change{Kind: history.Changed, Path: path, Type: "file", OldSize: 1, NewSize: 1}}
	}
	list := []FileChange{file(".git/HEAD"), file(".git/config"), file(".git/index"), file(".git/objects/ab/1"), file("a"),
		file("sub/.git/HEAD")}
	list[2].Conflict, list[3].Kind = "changed in the directory since the fork", history.Deleted
	for _, held := range []bool{false, true} {
		var b bytes.Buffer
		r := &Changes{Agent: "a", Of: "held", held: held, Changes: list}
		require.NoError(t, r.Print(&b))
		lines := strings.Split(strings.TrimSpace(b.String()), "\n")[1:]
		column := strings.Index(lines[0], "PATH")
		var paths []string
		for _, line := range lines[1:] {
			paths = append(paths, line[column:])
		}
		assert.Equal(t, []string{".git/* (2 files)", ".git/config", ".git/index (conflict: changed in the directory since the fork)", "a",
			"sub/.git/* (1 file)"}, paths, b.String())
		b.Reset()
		r.Each = true
		require.NoError(t, r.Print(&b))
		assert.Equal(t, len(list)+2, strings.Count(b.String(), "\n"), b.String())
	}
	steps := []history.Step{{Action: history.Restore, Path: "a"}, {Action: history.Move, Path: ".git/index", To: ".git/index.lock"},
		{Action: history.Remove, Path: ".git/hooks/x"}, {Action: history.Restore, Path: ".git/index"}}
	r := UndoOf("a", "undo", "call x", true, "abc", &history.Result{Plan: history.Plan{Steps: steps}})
	var b bytes.Buffer
	require.NoError(t, r.Print(&b))
	assert.Contains(t, b.String(), "\nrestore  a\nundo     .git/* (2 steps)\nremove   .git/hooks/x\nto do this")
	b.Reset()
	r.Each = true
	require.NoError(t, r.Print(&b))
	assert.Contains(t, b.String(), "\nmove     .git/index -> .git/index.lock\n")
}

// TestUndoPrint: conflicts and what was not kept are listed always, the steps in a dry run.
func TestUndoPrint(t *testing.T) {
	result := &history.Result{Done: 3, Plan: history.Plan{
		Steps:     []history.Step{{Action: history.Remove, Path: "x y"}, {Action: history.Move, Path: "a", To: "b"}},
		Conflicts: []history.Problem{{Path: "c", Why: "another object is there"}, {Path: "big", Why: "excluded"}},
		Unkept:    []history.Problem{{Path: "big", Why: "excluded"}},
	}}
	var b bytes.Buffer
	r := UndoOf("a", "undo", "call x", false, "", result)
	require.NoError(t, r.Print(&b))
	assert.Equal(t, "a, undo, call x: 1 moved, 1 removed\nnot kept: big: excluded\nconflict: c: another object is there\n", b.String())
	assert.False(t, r.Whole())
	b.Reset()
	require.NoError(t, UndoOf("a", "redo", "the last undo", true, "abc", &history.Result{Plan: history.Plan{Steps: result.Steps}}).Print(&b))
	assert.Equal(t, "a, redo, the last undo, not done (--dry-run): 1 moved, 1 removed\nremove  \"x y\"\nmove    a -> b\nto do this, or nothing if it has changed: --shown abc\n", b.String())
	b.Reset()
	r = UndoOf("a", "undo", "call x", false, "", &history.Result{Rolled: true})
	require.NoError(t, r.Print(&b))
	assert.Equal(t, "a, undo, call x: nothing to do\ninterrupted: what was done is taken back\n", b.String())
	assert.False(t, r.Whole())
}
