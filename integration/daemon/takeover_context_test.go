package daemon

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/internal/need"
)

// noting is a definition whose calls of bash see what context_set has set.
const noting = "scopes: {enum: [notes], set: [notes], tools: {bash: {const: [notes]}}}"

// seen prints what a command sees of its context.
const seen = "cut -c-80 /context/notes.json"

// setting returns the arguments of a call that sets a text.
func setting(text string) map[string]any {
	return map[string]any{"messages": []any{map[string]any{"type": "notes", "text": text}}}
}

// set has a client set a text.
func (c *wireClient) set(id int, text string) {
	c.t.Helper()
	c.call(id, "context_set", setting(text))
	m := c.answer(id)
	require.NotNil(c.t, m.Result, "%+v", m.Error)
	require.False(c.t, m.Result.IsError)
}

func (c *webClient) set(text string) {
	c.T.Helper()
	arguments, err := json.Marshal(setting(text))
	require.NoError(c.T, err)
	status, answer := c.post(strings.TrimSpace(harness.Request(5, "context_set", string(arguments))))
	require.Equal(c.T, http.StatusOK, status, answer)
	require.Contains(c.T, answer, `"messages":1`)
}

// contexts returns the files of what sessions over HTTP have set.
func (w *webHost) contexts() []string {
	all, err := filepath.Glob(filepath.Join(w.Base, "run", "web", "*", "*", "*.context"))
	require.NoError(w.T, err)
	return all
}

// TestTakeOverContextSet: what a session has set of its context outlives the daemon, and the next one. No other session sees it, and
// only root can read it.
func TestTakeOverContextSet(t *testing.T) {
	need.All(t, "a daemon that ends, in one more place")
	for how, end := range ends {
		t.Run(how, func(t *testing.T) {
			w := serveWeb(onMemory(t, map[string]string{"a": noting}))
			c, other := greetedBridge(w.Host, "a"), greetedBridge(w.Host, "a")
			web, beside := w.client("a").greet(), w.client("a").greet()
			sees := func(id int, text string) {
				t.Helper()
				assert.Contains(t, c.bash(id, seen), "socket "+text)
				assert.Contains(t, web.bash(seen), "web "+text)
				assert.Equal(t, "[]\n", other.bash(id, seen), "another client")
				assert.Equal(t, "[]\n", beside.bash(seen), "another session")
			}
			for i, text := range []string{"one", "two" + strings.Repeat("x", 100_000), "three"} {
				id := 10 * (i + 1)
				c.set(id, "socket "+text)
				web.set("web " + text)
				sees(id+1, text[:3])
				for next := range 2 {
					end(w.Host)
					w.start()
					assert.Contains(t, c.back(), inSameSandbox)
					other.back()
					sees(id+2+next, text[:3])
				}
			}
			for _, name := range w.contexts() {
				for ; name != filepath.Join(w.Base, "run"); name = filepath.Dir(name) {
					info, err := os.Stat(name)
					require.NoError(t, err)
					assert.Zero(t, info.Mode().Perm()&0o077, name)
				}
			}
			assert.Len(t, w.contexts(), 1)
			assert.Equal(t, http.StatusNoContent, web.status(http.MethodDelete))
			w.Eventually("it is removed", func() bool { return len(w.contexts()) == 0 })
		})
	}
}

// TestTakeOverContextSetBounds: a context that is too long to be kept is lost, and no earlier one comes back in its place. A run
// directory on a disk has none.
func TestTakeOverContextSetBounds(t *testing.T) {
	need.All(t, "a daemon that ends, in one more place")
	w := serveWeb(onMemory(t, map[string]string{"a": noting}))
	disk := serveWeb(harness.LayOut(t, map[string]string{"a": noting}))
	var onDisk unix.Statfs_t
	require.NoError(t, unix.Statfs(disk.Base, &onDisk))
	c, web, plain := greetedBridge(w.Host, "a"), w.client("a").greet(), disk.client("a").greet()
	plain.set("web one")
	if onDisk.Type != unix.TMPFS_MAGIC {
		assert.Empty(t, disk.contexts())
	}
	for _, text := range []string{"one", strings.Repeat("x", 5<<20)} {
		c.set(len(text), text)
		web.set(text)
	}
	assert.Contains(t, c.bash(2, seen), "xxx")
	w.Kill()
	w.start()
	assert.Contains(t, c.back(), inSameSandbox)
	assert.Equal(t, "[]\n", c.bash(3, seen))
	assert.Equal(t, "[]\n", web.bash(seen))
	assert.Empty(t, w.contexts())
}

// TestTakeOverContextSetDenied: what the rules of the next daemon do not let a session set is lost, and does not come back with the
// rules.
func TestTakeOverContextSetDenied(t *testing.T) {
	need.All(t, "a daemon that ends, in one more place")
	for name, now := range map[string]string{
		"scope": strings.Replace(noting, "set: [notes]", "set: [plan]", 1),
		"tool":  "tools: [bash]\n" + noting,
		"write": "view: {access: read}\n" + noting,
	} {
		t.Run(name, func(t *testing.T) {
			w := serveWeb(onMemory(t, map[string]string{"a": noting}))
			c, web := greetedBridge(w.Host, "a"), w.client("a").greet()
			c.set(1, "secret")
			web.set("secret")
			for i, rules := range []string{now, noting} {
				w.Kill()
				w.Define("a", rules)
				w.start()
				c.back()
				for _, sees := range []string{c.bash(10+i, seen), web.bash(seen)} {
					assert.Equal(t, "[]\n", sees, fmt.Sprint(i))
				}
			}
			assert.Empty(t, w.contexts())
		})
	}
}
