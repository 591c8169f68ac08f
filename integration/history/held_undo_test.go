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
