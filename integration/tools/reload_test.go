package tools

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/tools"
)

// awaitChange waits until the client hears that its list has changed.
func awaitChange(u *harness.User, what string) {
	u.T.Helper()
	select {
	case <-u.Changed:
	case <-time.After(10 * time.Second):
		u.T.Fatalf("the client is not told: %s", what)
	}
}

// settle forgets what the client was told so far.
func settle(u *harness.User) {
	for len(u.Changed) > 0 {
		<-u.Changed
	}
}

// TestToolsReload: when reload returns, the next call and the next file
// operation are decided by the new rules, and the client hears of it.
func TestToolsReload(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"a": ""})
	harness.Plant(t, h.Scope("a"), "ref/f", "g")
	u := h.Connect("a")
	u.Bash("echo x >ref/f; cat ref/f g")
	for range 3 {
		settle(u)
		h.Define("a", "tools: [bash, read_file]\nview: {paths: {\"ref/**\": read, g: hide}}")
		h.Must("reload")
		assert.Equal(t, tools.Denied, u.Fails("write_file", args{"path": "x", "content": ""}).Code)
		assert.Equal(t, tools.NotFound, u.Fails("read_file", args{"path": "g"}).Code)
		out := u.Call("bash", args{"command": "cat ref/f; echo y >ref/f; cat g"})
		assert.NotEqual(t, 0.0, out["exit_code"])
		assert.Contains(t, out["stderr"], "ref/f: Permission denied")
		assert.Contains(t, out["stderr"], "g: No such file or directory")
		awaitChange(u, "less is allowed")
		assert.Len(t, u.List(), 2)

		settle(u)
		h.Define("a", "")
		h.Must("reload")
		u.Call("write_file", args{"path": "x", "content": ""})
		assert.Equal(t, "g", u.Call("read_file", args{"path": "g"})["text"])
		u.Bash("echo x >ref/f; cat g")
		awaitChange(u, "more is allowed")
		assert.Contains(t, u.List(), "write_file")
	}

	// What does not load changes nothing.
	h.Define("a", "tools: [read_file]")
	h.Must("reload")
	awaitChange(u, "only one")
	settle(u)
	h.Define("a", "tools: [raed_file]")
	_, errs, code := h.Try("reload")
	assert.Equal(t, 1, code)
	assert.Contains(t, errs, "agents.d/a.md:4: ")
	assert.Equal(t, tools.Denied, u.Fails("write_file", args{"path": "x", "content": ""}).Code)
	assert.Equal(t, "g", u.Call("read_file", args{"path": "g"})["text"])
	assert.Len(t, u.List(), 1)

	// Who is not defined any more may nothing.
	require.NoError(t, os.Remove(filepath.Join(h.Base, "agents.d", "a.md")))
	h.Must("reload")
	for _, tool := range []string{"read_file", "scope_info", "bash"} {
		e := u.Fails(tool, args{"path": "g"})
		assert.Equal(t, tools.Denied, e.Code, tool)
		assert.Equal(t, audit.Deny, h.Last("a", tool).Verdict)
	}
	awaitChange(u, "nothing is left")
	assert.Empty(t, u.List())
	_, errs, code = h.Try("call", "--agent", "a", "read_file", "path=g")
	assert.Equal(t, 1, code, "nor is a new client")
	assert.NotContains(t, errs, "not mounted")

	// And again all, when it is.
	settle(u)
	h.Define("a", "")
	h.Must("reload")
	assert.Equal(t, "g", u.Call("read_file", args{"path": "g"})["text"])
}

// TestToolsReloadWaiting: a call that was allowed, and waits for a place that the
// agent's other calls hold, does not run once its tool is taken away.
func TestToolsReloadWaiting(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"a": ""})
	u := h.Connect("a")
	harness.Plant(t, h.Scope("a"), "sparse="+strings.Repeat("line\n", 4000))
	require.NoError(t, os.Truncate(h.Scope("a", "sparse"), 300<<30))
	ctx, cancel := context.WithCancel(h.Soon())
	defer cancel()
	var reads []chan error
	for range 16 {
		reads = append(reads, u.Begin(ctx, "read_file", args{"path": "sparse", "offset": 1_000_000}))
	}
	begun := func(tool string) (n int) {
		for _, e := range h.Calls("a", tool) {
			if e.Outcome == "begin" {
				n++
			}
		}
		return n
	}
	h.Eventually("all places are taken", func() bool { // the worker's threads have the names of their calls
		names, _ := filepath.Glob("/proc/[0-9]*/task/[0-9]*/comm")
		busy := map[string]bool{}
		for _, name := range names {
			text, _ := os.ReadFile(name)
			busy[strings.TrimSpace(string(text))] = true
		}
		return begun("read_file") == 16 && !slices.ContainsFunc(h.Calls("a", "read_file"), func(e audit.Event) bool { return !busy[e.Call] })
	})
	waits := u.Begin(h.Soon(), "write_file", args{"path": "late", "content": "x"})
	h.Eventually("it is on its way", func() bool { return begun("write_file") == 1 })
	h.Define("a", "policy: {tools: {exclude: [write_file]}}")
	h.Must("reload")
	cancel()
	assert.ErrorContains(t, <-waits, "the rules have changed")
	for _, r := range reads {
		assert.Error(t, <-r)
	}
	assert.NoFileExists(t, h.Scope("a", "late"))
}

// TestToolsReloadByItself: a definition that was written is enough.
func TestToolsReloadByItself(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"a": ""})
	first, second := h.Connect("a"), h.Connect("a")
	h.Define("a", "tools: [stat]")
	awaitChange(first, "by itself")
	awaitChange(second, "all clients")
	assert.Len(t, first.List(), 1)
	assert.Len(t, second.List(), 1)
}

// TestToolsReloadUnderLoad: no call is decided by rules that held before a
// reload that has returned.
func TestToolsReloadUnderLoad(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"a": ""})
	u := h.Connect("a")
	stop, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-stop:
				return
			default:
				_, _ = u.Send(u.Soon(), "stat", args{"path": "."})
			}
		}
	}()
	for i := range 20 {
		name := "n" + strconv.Itoa(i)
		h.Define("a", "tools: [stat]")
		h.Must("reload")
		assert.Equal(t, tools.Denied, u.Fails("make_dir", args{"path": name}).Code)
		h.Define("a", "tools: [stat, make_dir]")
		h.Must("reload")
		u.Call("make_dir", args{"path": name})
	}
	close(stop)
	<-ended
}

// TestToolsReadMode: where the view is only to be read, tools that write are not
// offered, and what writes all the same is refused by the mount.
func TestToolsReadMode(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"a": "view: {access: read}\ntools: [\"*\"]"})
	harness.Plant(t, h.Scope("a"), "f", "d/")
	u := h.Connect("a")
	list := u.List()
	for _, tool := range []string{"write_file", "edit_file", "make_dir", "move", "copy", "delete_file", "delete"} {
		assert.NotContains(t, list, tool)
		assertAbsent(u, "a", tool, args{"path": "f", "content": "", "from": "f", "to": "g"})
		assert.Equal(t, "access: read", h.Last("a", tool).Rule)
	}
	assert.Contains(t, list, "bash")
	assert.Equal(t, "f", u.Call("read_file", args{"path": "f"})["text"])
	assert.Equal(t, "read", u.Call("scope_info", nil)["access"])
	before := harness.Picture(t, h.Scope("a"))
	for _, command := range []string{"echo x >f", "echo x >>f", "touch new", "mkdir new", "rm f", "rmdir d", "mv f g", "ln f g", "ln -s f g", "chmod 600 f", "truncate -s 0 f", "touch -d 2000-01-01 f", "mkfifo p"} {
		out := u.Call("bash", args{"command": command})
		assert.NotEqual(t, 0.0, out["exit_code"], command)
		assert.NotEqual(t, "", out["stderr"], command)
	}
	assert.Equal(t, before, harness.Picture(t, h.Scope("a")))
	for _, profile := range []string{"claude", "anthropic-editor", "mcp-fs"} {
		for name := range h.Connect("a", "--profile", profile).List() {
			for _, word := range []string{"write", "edit", "create", "move", "multiedit"} {
				assert.False(t, strings.HasPrefix(strings.ToLower(name), word), "%s: %s", profile, name)
			}
		}
	}
	assert.Equal(t, tools.Denied, h.Connect("a", "--profile", "anthropic-editor").
		Fails("str_replace_based_edit_tool", args{"command": "create", "path": "new", "file_text": ""}).Code)
	assert.Equal(t, before, harness.Picture(t, h.Scope("a")))
}
