package history

import (
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/internal/api"
)

// TestHeldUndo: what a run or a session has changed in held changes is taken back there, by command and by tool, with and without a view.
// The directory stays as it is until the commit, which takes what is held then.
func TestHeldUndo(t *testing.T) {
	k := started(harness.LayOut(t, map[string]string{"a": "view: {changes: held}"}))
	dir := k.Scope("a")
	harness.Plant(t, dir, "f=one\n", "gone=gone\n", "d/x=x\n", "d/y=y\n")
	untouched := func() {
		t.Helper()
		assert.Equal(t, "one\n", harness.ReadAll(t, dir+"/f"))
		assert.FileExists(t, dir+"/gone")
		assert.FileExists(t, dir+"/d/x")
	}
	k.run("a", "echo two >f; rm gone; mv d e; echo 1 >e/new")
	first := k.held("a")
	require.Len(t, first, 4, "%q", first)
	assert.Contains(t, k.Must("undo", "a", "--session", "last"), "a, undo, the last session: ")
	assert.Empty(t, k.held("a"))
	assert.Equal(t, "one\n", k.run("a", "cat f gone d/x d/y | head -1"))
	untouched()
	assert.Contains(t, k.Must("redo", "a"), "a, redo, the last undo: ")
	assert.Equal(t, first, k.held("a"))
	assert.Equal(t, "two\nx\n1\n", k.run("a", "cat f e/x e/new"))

	u := k.Connect("a")
	assert.Contains(t, u.List(), "undo")
	assert.NotContains(t, u.List(), "changes")
	u.Call("checkpoint", args{"name": "green"})
	u.Bash("echo three >f; rm e/x; echo 2 >g; mv e/y g")
	out := u.Call("undo", args{"checkpoint": "green"})
	assert.Empty(t, out["conflicts"])
	assert.Equal(t, first, k.held("a"))
	assert.Equal(t, "two\nx\ny\n", k.run("a", "cat f e/x e/y"))
	untouched()

	u.Bash("echo own >own")
	k.run("a", "echo theirs >>own")
	conflicts := u.Call("undo", args{"checkpoint": "green"})["conflicts"]
	assert.Contains(t, fmt.Sprint(conflicts), "own", "another session has changed it")
	held := k.held("a")
	require.NoError(t, os.WriteFile(dir+"/f", []byte("host\n"), 0o644))
	assert.NotEmpty(t, k.commit("a", api.CommitOptions{}).Conflicts, "the host has changed f")
	require.NoError(t, os.WriteFile(dir+"/d/x", []byte("x\n"), 0o644))
	assert.Len(t, k.held("a"), len(held))
	k.commit("a", api.CommitOptions{Theirs: true})
	assert.Equal(t, "two\n", harness.ReadAll(t, dir+"/f"))
	assert.Equal(t, "own\ntheirs\n", harness.ReadAll(t, dir+"/own"))
	assert.Equal(t, "1\n", harness.ReadAll(t, dir+"/e/new"))
	_, _, code := k.Try("undo", "a", "--since", "1h")
	assert.Equal(t, 1, code, "what was committed is a conflict")
	assert.Equal(t, "two\n", harness.ReadAll(t, dir+"/f"))
}

// TestHeldRedo: a redo hides nothing that the host has made since the undo, which has found no file of the directory there.
func TestHeldRedo(t *testing.T) {
	k := started(harness.LayOut(t, map[string]string{"a": "view: {changes: held}"}))
	dir := k.Scope("a")
	harness.Plant(t, dir, "f=one\n", "g=one\n")
	k.run("a", "echo two >>f; echo two >>g")
	require.NoError(t, os.Remove(dir+"/f"))
	require.NoError(t, os.Remove(dir+"/g"))
	k.Must("undo", "a", "--session", "last")
	require.NoError(t, os.WriteFile(dir+"/g", []byte("host\n"), 0o644))
	stdout, _, code := k.Try("redo", "a")
	assert.Equal(t, 1, code)
	assert.Contains(t, stdout, "conflict: g: another object is there")
	assert.Equal(t, "one\ntwo\nhost\n", k.run("a", "cat f g"))
}

// TestHeldVersions: show prints what a file was in held changes, also where that was the directory's, and restore brings it back there. The
// directory stays as it is.
func TestHeldVersions(t *testing.T) {
	k := started(harness.LayOut(t, map[string]string{"a": "view: {changes: held}"}))
	dir := k.Scope("a")
	harness.Plant(t, dir, "f=one\n", "gone=gone\n", "d/x=x\n", "other=other\n")
	before := harness.Dumped(t, dir, harness.Times)
	k.run("a", "echo new >new") // a checkpoint is of a history
	k.Must("checkpoint", "a", "green")
	k.run("a", "echo two >f")
	k.Must("checkpoint", "a", "blue")
	k.run("a", "echo three >f; rm gone; mv d e; echo more >>e/x; rm new")
	held := k.held("a")
	for word, want := range map[string]string{
		"f@green": "one\n", "f@blue": "two\n", "gone@blue": "gone\n", "d/x@blue": "x\n", "new@blue": "new\n", "other@green": "other\n",
	} {
		assert.Equal(t, want, k.Must("show", "a", word), word)
	}
	for _, word := range []string{"e/x@blue", "absent@green"} {
		_, stderr, code := k.Try("show", "a", word)
		assert.Equal(t, 1, code, word)
		assert.Contains(t, stderr, "there was no file", word)
	}
	to := t.TempDir()
	k.Must("restore", "a", "f@green", "--to", to)
	assert.Equal(t, "one\n", read(t, to+"/f"))
	assert.Equal(t, held, k.held("a"))
	k.Must("restore", "a", "f@blue")
	k.Must("restore", "a", "gone@blue")
	assert.Equal(t, "two\ngone\n", k.run("a", "cat f gone"))
	k.Must("restore", "a", "f@green")
	assert.Equal(t, "one\n", k.run("a", "cat f"))
	assert.Equal(t, before, harness.Dumped(t, dir, harness.Times))
}
