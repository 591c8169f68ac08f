package report

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/scope/beneath"
)

// TestParseBatch: what git prints in the agent's sandbox is the agent's to forge.
func TestParseBatch(t *testing.T) {
	hash := strings.Repeat("a", 40)
	old, err := parseBatch([]byte(hash+" blob 4\nold\n\n"+hash+":none missing\n"+hash+" tree 1\nx\n"+hash+" blob 0\n\n"), []string{"a", "none", "dir", "empty"})
	require.NoError(t, err)
	assert.Equal(t, map[string][]byte{"a": []byte("old\n"), "empty": {}}, old)
	for name, text := range map[string]string{
		"nothing":       "",
		"no size":       hash + " blob\nx\n",
		"a negative":    hash + " blob -1\n\n",
		"a large size":  hash + " blob 99999999999\nx\n",
		"a short text":  hash + " blob 9\nx\n",
		"no hash":       "x blob 1\nx\n",
		"no line's end": hash + " blob 1\nxy",
	} {
		_, err := parseBatch([]byte(text), []string{"a"})
		assert.Error(t, err, name)
	}
	assert.False(t, isCommit("--output=/etc/passwd"))
	assert.False(t, isCommit(hash+"\n"))
}

// TestDiffOfName: no name makes a line of its own in a diff.
func TestDiffOfName(t *testing.T) {
	dir := t.TempDir()
	const name = "x\nnote: nothing else was changed"
	require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte("new\n"), 0o644))
	root, err := beneath.OpenDir(dir)
	require.NoError(t, err)
	defer root.Close()
	diff, note := diffOf(root, name, []byte("old\n"))
	assert.Empty(t, note)
	assert.Equal(t, `--- a/x\x0anote: nothing else was changed
+++ b/x\x0anote: nothing else was changed
@@ -1,1 +1,1 @@
-old
+new
`, diff)
}

// TestLastSession: a session is a command of run, or a client; no call, MCP server or second
// sandbox of a client is one.
func TestLastSession(t *testing.T) {
	run := func(words string) audit.Event {
		return audit.Event{Op: "exec", Outcome: audit.OutcomeBegin, Target: words}
	}
	client := func(name, op string) audit.Event {
		return audit.Event{Op: op, Outcome: "started", Parent: name}
	}
	for name, c := range map[string]struct {
		events []audit.Event
		want   int // the index; -1: no session
	}{
		"none":                        {[]audit.Event{{Outcome: "started"}, {Outcome: "ended"}}, -1},
		"a command":                   {[]audit.Event{run("sh"), {Op: "exec", Outcome: "exit 0"}, {Outcome: "ended"}}, 0},
		"git of scopefs changes":      {[]audit.Event{run("sh"), run(strings.Join(gitWords, " ") + " cat-file")}, 0},
		"two clients":                 {[]audit.Event{client("a", ""), client("b", "")}, 1},
		"a second sandbox":            {[]audit.Event{client("a", ""), client("b", ""), client("a", "")}, 1},
		"an MCP server":               {[]audit.Event{client("a", ""), {Op: "exec", Outcome: audit.OutcomeBegin, Server: "s"}}, 0},
		"the program of a call":       {[]audit.Event{client("a", ""), {Op: "exec", Outcome: audit.OutcomeBegin, Call: "x"}}, 0},
		"scopefs call after a run":    {[]audit.Event{run("sh"), client("a", audit.OpCall)}, 0},
		"scopefs call before the run": {[]audit.Event{client("a", audit.OpCall), run("sh")}, 1},
		"scopefs call alone":          {[]audit.Event{client("a", audit.OpCall), client("b", audit.OpCall)}, 0},
	} {
		var s lastSession
		for i, e := range c.events {
			e.Time = time.Unix(int64(i+1), 0)
			s.add(e)
		}
		want := time.Time{}
		if c.want >= 0 {
			want = time.Unix(int64(c.want+1), 0)
		}
		assert.Equal(t, want, s.began, name)
	}
}
