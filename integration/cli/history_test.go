package cli

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/integration/harness"
)

// TestChangesOfAttacker: names and contents of an agent write no line of a report and control no terminal, and a link that
// the host, or a race, puts in place of a file is not followed.
func TestChangesOfAttacker(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"a": "view: {changes: kept}"})
	m := &harness.Way{Host: h, Tmp: t.TempDir()}
	secret := filepath.Join(h.Base, "secret")
	require.NoError(t, os.WriteFile(secret, []byte("SECRET of the host\n"), 0o600))
	require.NoError(t, os.WriteFile(h.Scope("a", "swapped"), []byte("old\n"), 0o666))
	work := `printf 'x\033[2J\n' > text; echo x > "$(printf 'n\033[2J\nremoved 1 nothing')"; echo x > "$(printf 'n\377')"; echo new > swapped; mkfifo fifo`
	require.Zero(t, m.Run("a", "--", "sh", "-c", work).Code)
	require.NoError(t, os.Remove(h.Scope("a", "swapped")))
	require.NoError(t, os.Symlink(secret, h.Scope("a", "swapped")))
	for _, words := range []string{"changes a", "changes a -p", "changes a --stat", "changes a --name-only", "changes a --json -p", "undo a --session last -n"} {
		out, _, _ := h.Try(strings.Fields(words)...)
		assert.NotContains(t, out, "\x1b", words)
		assert.NotContains(t, out, "\nremoved 1", words)
		assert.NotContains(t, out, "SECRET", words)
	}
	assert.Contains(t, h.Must("changes", "a", "-p"), `+x\u001b[2J`)
	var r struct {
		Changes []struct{ Path, Kind, Type string }
	}
	require.NoError(t, json.Unmarshal([]byte(h.Must("changes", "a", "--json")), &r))
	got := map[string]string{}
	for _, c := range r.Changes {
		got[c.Path] = c.Kind + " " + c.Type
	}
	assert.Equal(t, map[string]string{
		"text": "added file", `n\x1b[2J\x0aremoved 1 nothing`: "added file", `n\xff`: "added file", "swapped": "changed link", "fifo": "added other",
	}, got)
	out := h.Must("changes", "a", "--name-only", `n\xff`)
	assert.NotContains(t, out, `n\xff`, "a path of the command line is bytes")
	assert.Equal(t, "n\\xff\n", h.Must("changes", "a", "--name-only", "n\xff"))

	_, errs, code := h.Try("undo", "a", "--session", "last")
	assert.Equal(t, 1, code, errs)
	text, err := os.ReadFile(secret)
	require.NoError(t, err)
	assert.Equal(t, "SECRET of the host\n", string(text))
	link, err := os.Readlink(h.Scope("a", "swapped"))
	require.NoError(t, err)
	assert.Equal(t, secret, link)
}

// TestUndoInterrupted: an interrupt takes back what an undo has done, and the command says so, whether the agent is mounted
// or not.
func TestUndoInterrupted(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"a": "view: {changes: kept}"})
	m := &harness.Way{Host: h, Tmp: t.TempDir()}
	require.NoError(t, os.MkdirAll(h.Scope("a", "d"), 0o777))
	require.NoError(t, os.Chmod(h.Scope("a", "d"), 0o777))
	const files = 10_000
	for i := range files {
		require.NoError(t, os.WriteFile(h.Scope("a", "d", fmt.Sprint(i)), nil, 0o666))
	}
	require.Zero(t, m.Run("a", "--", "sh", "-c", "rm -r d").Code)
	interrupt := func() string {
		cmd := m.Command("undo", "a", "--session", "last")
		var out strings.Builder
		cmd.Stdout, cmd.Stderr = &out, &out
		require.NoError(t, cmd.Start())
		h.Eventually("the undo has begun", func() bool {
			_, err := os.Lstat(h.Scope("a", "d"))
			return err == nil
		})
		require.NoError(t, cmd.Process.Signal(syscall.SIGINT))
		assert.Error(t, cmd.Wait())
		return out.String()
	}
	for range 2 {
		out := interrupt()
		assert.Contains(t, out, "interrupted: taking back what the undo has done\n")
		assert.Contains(t, out, "interrupted: what was done is taken back\n")
		assert.NoDirExists(t, h.Scope("a", "d"))
		h.Try("down", "a")
	}
	began := time.Now()
	h.Must("undo", "a", "--session", "last")
	t.Log("undo of", files, "files:", time.Since(began))
	entries, err := os.ReadDir(h.Scope("a", "d"))
	require.NoError(t, err)
	assert.Len(t, entries, files)
}
