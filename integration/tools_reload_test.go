package integration

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/tools"
)

// told waits until the client hears that its list has changed.
func (u *user) told(what string) {
	u.t.Helper()
	select {
	case <-u.changed:
	case <-time.After(10 * time.Second):
		u.t.Fatalf("the client is not told: %s", what)
	}
}

// settled forgets what the client was told so far.
func (u *user) settled() {
	for len(u.changed) > 0 {
		<-u.changed
	}
}

// TestToolsReload: when reload returns, the next call and the next file
// operation are decided by the new rules, and the client hears of it.
func TestToolsReload(t *testing.T) {
	h := newHost(t, map[string]string{"a": ""})
	plant(t, h.scope("a"), "ref/f", "g")
	u := h.connect("a")
	u.bash("echo x >ref/f; cat ref/f g")
	for range 3 {
		u.settled()
		h.define("a", "tools: [bash, read_file]\nview: {paths: {\"ref/**\": read, g: hide}}")
		h.must("reload")
		assert.Equal(t, tools.Denied, u.fails("write_file", args{"path": "x", "content": ""}).Code)
		assert.Equal(t, tools.NotFound, u.fails("read_file", args{"path": "g"}).Code)
		out := u.call("bash", args{"command": "cat ref/f; echo y >ref/f; cat g"})
		assert.NotEqual(t, 0.0, out["exit_code"])
		assert.Contains(t, out["stderr"], "ref/f: Permission denied")
		assert.Contains(t, out["stderr"], "g: No such file or directory")
		u.told("less is allowed")
		assert.Len(t, u.list(), 2)

		u.settled()
		h.define("a", "")
		h.must("reload")
		u.call("write_file", args{"path": "x", "content": ""})
		assert.Equal(t, "g", u.call("read_file", args{"path": "g"})["text"])
		u.bash("echo x >ref/f; cat g")
		u.told("more is allowed")
		assert.Contains(t, u.list(), "write_file")
	}

	// What does not load changes nothing.
	h.define("a", "tools: [read_file]")
	h.must("reload")
	u.told("only one")
	u.settled()
	h.define("a", "tools: [raed_file]")
	_, errs, code := h.try("reload")
	assert.Equal(t, 1, code)
	assert.Contains(t, errs, "agents.d/a.md:4: ")
	assert.Equal(t, tools.Denied, u.fails("write_file", args{"path": "x", "content": ""}).Code)
	assert.Equal(t, "g", u.call("read_file", args{"path": "g"})["text"])
	assert.Len(t, u.list(), 1)

	// Who is not defined any more may nothing.
	require.NoError(t, os.Remove(filepath.Join(h.base, "agents.d", "a.md")))
	h.must("reload")
	for _, tool := range []string{"read_file", "scope_info", "bash"} {
		e := u.fails(tool, args{"path": "g"})
		assert.Equal(t, tools.Denied, e.Code, tool)
		assert.Equal(t, audit.Deny, h.last("a", tool).Verdict)
	}
	u.told("nothing is left")
	assert.Empty(t, u.list())
	_, errs, code = h.try("call", "--agent", "a", "read_file", "path=g")
	assert.Equal(t, 1, code, "nor is a new client")
	assert.NotContains(t, errs, "not mounted")

	// And again all, when it is.
	u.settled()
	h.define("a", "")
	h.must("reload")
	assert.Equal(t, "g", u.call("read_file", args{"path": "g"})["text"])
}

// TestToolsReloadWaiting: a call that was allowed, and waits for a place that the
// agent's other calls hold, does not run once its tool is taken away.
func TestToolsReloadWaiting(t *testing.T) {
	h := newHost(t, map[string]string{"a": ""})
	u := h.connect("a")
	plant(t, h.scope("a"), "sparse="+strings.Repeat("line\n", 4000))
	require.NoError(t, os.Truncate(h.scope("a", "sparse"), 300<<30))
	ctx, cancel := context.WithCancel(h.soon())
	defer cancel()
	var reads []chan error
	for range 16 {
		reads = append(reads, u.begin(ctx, "read_file", args{"path": "sparse", "offset": 1_000_000}))
	}
	begun := func(tool string) (n int) {
		for _, e := range h.calls("a", tool) {
			if e.Outcome == "begin" {
				n++
			}
		}
		return n
	}
	h.eventually("all places are taken", func() bool { // the worker's threads have the names of their calls
		names, _ := filepath.Glob("/proc/[0-9]*/task/[0-9]*/comm")
		busy := map[string]bool{}
		for _, name := range names {
			text, _ := os.ReadFile(name)
			busy[strings.TrimSpace(string(text))] = true
		}
		return begun("read_file") == 16 && !slices.ContainsFunc(h.calls("a", "read_file"), func(e audit.Event) bool { return !busy[e.Call] })
	})
	waits := u.begin(h.soon(), "write_file", args{"path": "late", "content": "x"})
	h.eventually("it is on its way", func() bool { return begun("write_file") == 1 })
	h.define("a", "policy: {tools: {exclude: [write_file]}}")
	h.must("reload")
	cancel()
	assert.ErrorContains(t, <-waits, "the rules have changed")
	for _, r := range reads {
		assert.Error(t, <-r)
	}
	assert.NoFileExists(t, h.scope("a", "late"))
}

// TestToolsReloadByItself: a definition that was written is enough.
func TestToolsReloadByItself(t *testing.T) {
	h := newHost(t, map[string]string{"a": ""})
	first, second := h.connect("a"), h.connect("a")
	h.define("a", "tools: [stat]")
	first.told("by itself")
	second.told("all clients")
	assert.Len(t, first.list(), 1)
	assert.Len(t, second.list(), 1)
}

// TestToolsReloadUnderLoad: no call is decided by rules that held before a
// reload that has returned.
func TestToolsReloadUnderLoad(t *testing.T) {
	h := newHost(t, map[string]string{"a": ""})
	u := h.connect("a")
	stop, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-stop:
				return
			default:
				_, _ = u.send(u.soon(), "stat", args{"path": "."})
			}
		}
	}()
	for i := range 20 {
		name := "n" + itoa(i)
		h.define("a", "tools: [stat]")
		h.must("reload")
		assert.Equal(t, tools.Denied, u.fails("make_dir", args{"path": name}).Code)
		h.define("a", "tools: [stat, make_dir]")
		h.must("reload")
		u.call("make_dir", args{"path": name})
	}
	close(stop)
	<-ended
}

// TestToolsReadMode: where the view is only to be read, tools that write are not
// offered, and what writes all the same is refused by the mount.
func TestToolsReadMode(t *testing.T) {
	h := newHost(t, map[string]string{"a": "view: {access: read}\ntools: [\"*\"]"})
	plant(t, h.scope("a"), "f", "d/")
	u := h.connect("a")
	list := u.list()
	for _, tool := range []string{"write_file", "edit_file", "make_dir", "move", "copy", "delete_file", "delete"} {
		assert.NotContains(t, list, tool)
		u.absent("a", tool, args{"path": "f", "content": "", "from": "f", "to": "g"})
		assert.Equal(t, "access: read", h.last("a", tool).Rule)
	}
	assert.Contains(t, list, "bash")
	assert.Equal(t, "f", u.call("read_file", args{"path": "f"})["text"])
	assert.Equal(t, "read", u.call("scope_info", nil)["access"])
	before := picture(t, h.scope("a"))
	for _, command := range []string{"echo x >f", "echo x >>f", "touch new", "mkdir new", "rm f", "rmdir d", "mv f g", "ln f g", "ln -s f g", "chmod 600 f", "truncate -s 0 f", "touch -d 2000-01-01 f", "mkfifo p"} {
		out := u.call("bash", args{"command": command})
		assert.NotEqual(t, 0.0, out["exit_code"], command)
		assert.NotEqual(t, "", out["stderr"], command)
	}
	assert.Equal(t, before, picture(t, h.scope("a")))
	for _, profile := range []string{"claude", "anthropic-editor", "mcp-fs"} {
		for name := range h.connect("a", "--profile", profile).list() {
			for _, word := range []string{"write", "edit", "create", "move", "multiedit"} {
				assert.False(t, strings.HasPrefix(strings.ToLower(name), word), "%s: %s", profile, name)
			}
		}
	}
	assert.Equal(t, tools.Denied, h.connect("a", "--profile", "anthropic-editor").
		fails("str_replace_based_edit_tool", args{"command": "create", "path": "new", "file_text": ""}).Code)
	assert.Equal(t, before, picture(t, h.scope("a")))
}
