package tools

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/tools"
	"github.com/scopefs/scopefs/tools/sandbox"
)

// TestDelegateRules: a member works by its own rules, within those of who calls
// it; what its runner does has no other way to files, commands and the network.
func TestDelegateRules(t *testing.T) {
	const all = "tools: ['*']"
	do := map[string]string{
		"read":    "scopefs call read_file path=note",
		"write":   "scopefs call write_file path=made content=x",
		"bash":    "scopefs call bash command='cat note; echo x >made'",
		"skill":   "scopefs call skill name=style",
		"member":  "scopefs call delegate member=third task='echo hello'",
		"network": "scopefs call bash command='ip -o link | wc -l'",
	}
	for name, c := range map[string]struct {
		caller, member string
		want           map[string]bool // by effect
	}{
		"both may all":                          {all, all, map[string]bool{"read": true, "write": true, "bash": true, "skill": true, "member": true, "network": true}},
		"the member may read":                   {all, "tools: [read_file]", map[string]bool{"read": true}},
		"the member may nothing":                {all, "tools: []", map[string]bool{}},
		"the caller may read":                   {"tools: [read_file, delegate]", all, map[string]bool{"read": true, "member": true}},
		"the caller's view":                     {all + "\nview: {access: read}", all, map[string]bool{"read": true, "bash": true, "skill": true, "member": true}},
		"the caller excludes bash, and filters": {all + "\npolicy: {tools: {exclude: [bash]}}\nargument_filters: {write_file: [made]}", all, map[string]bool{"read": true, "skill": true, "member": true}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := harness.Delegating(t, "", map[string]string{
				"caller": c.caller + "\nmembers: [member]\nnetwork: host",
				"member": c.member + "\nmembers: [third]\nskills: ['*']\nnetwork: host",
				"third":  all,
			})
			h.Put("skills/style/SKILL.md", "---\nname: style\ndescription: how\n---\nbriefly\n")
			h.Must("reload")
			require.NoError(t, os.WriteFile(h.Scope("member", "note"), []byte("text"), 0o644))
			client := h.Connect("caller")
			for effect, script := range do {
				if name == "the caller's view" && effect == "network" {
					continue
				}
				_ = os.Remove(h.Scope("member", "made"))
				r, err := client.Send(h.Soon(), "delegate", args{"member": "member", "task": script})
				require.NoError(t, err, effect)
				assert.Equal(t, c.want[effect], !r.IsError, "%s: %v", effect, harness.Said(r))
				if !c.want["write"] {
					assert.NoFileExists(t, h.Scope("member", "made"), effect)
				}
			}
			h.Stop()
			chained := false
			for _, e := range h.Events("member") {
				chained = chained || e.Event == audit.KindCall && e.Chain == "caller>member"
			}
			assert.Equal(t, len(c.want) > 0 || name == "the member may nothing", chained, "each record names the chain")
		})
	}
}

// TestDelegateRunner: a runner has no view, no network and nobody else's socket. Its own has no HTTP, by which it would be the member
// without its task's bounds.
func TestDelegateRunner(t *testing.T) {
	h := harness.Delegating(t, "", map[string]string{"a": "tools: ['*']\nmembers: [b]", "b": "", "c": ""})
	require.NoError(t, os.WriteFile(h.Scope("b", "secret"), []byte("sesame"), 0o644))
	a := h.Connect("a")
	told := a.Text("delegate", args{"member": "b", "task": `
pwd; ls -A . | wc -l; ls /workspace 2>&1; cat /proc/mounts | grep -c scopefs: ; ls /run/scopefs
ip -o link 2>/dev/null | grep -vc lo:; echo x >scratch; cat scratch; env | grep SCOPEFS; scopefs call --list | grep -c read_file
scopefs call read_file path=secret; ! curl -s -m 5 -o none -w '%{http_code}' --unix-socket $SCOPEFS_MCP http://localhost/mcp`})
	assert.Equal(t, strings.Join([]string{"/scratch", "0", "ls: cannot access '/workspace': No such file or directory", "0", "bin", "ca-certificates.jks", "mcp.sock", "0", "x",
		"SCOPEFS_MCP=/run/scopefs/mcp.sock", "1", "sesame", "000"}, "\n"), strings.TrimSpace(told))
	sockets, _ := filepath.Glob(h.Base + "/run/mcp/task.*")
	assert.Empty(t, sockets, "the task is over")
	assert.NoFileExists(t, h.Scope("b", "scratch"))
}

// TestDelegateBounds: the text for a member names the agent whose rules bound it, and offers nothing beyond them.
func TestDelegateBounds(t *testing.T) {
	h := harness.Delegating(t, "", map[string]string{
		"a": "tools: [read_file, delegate, scope_info]\nview: {access: read}\nmembers: [b]", "b": "tools: ['*']", "c": ""})
	task := "scopefs call scope_info --json"
	a := h.Connect("a")
	var told struct {
		Access, Rules string
		Tools         []struct{ Name string }
	}
	require.NoError(t, json.Unmarshal([]byte(a.Text("delegate", args{"member": "b", "task": task})), &told))
	assert.Equal(t, "read", told.Access)
	assert.Contains(t, told.Rules, "files: read only\nwithin what is allowed to: a\n")
	assert.Len(t, told.Tools, 2, "%v", told.Tools)
	assert.Equal(t, []any{"b"}, a.List()["delegate"].InputSchema.(map[string]any)["properties"].(map[string]any)["member"].(map[string]any)["enum"])
	assert.Equal(t, "write", h.Connect("b").Call("scope_info", nil)["access"])
}

// TestDelegateEnv: `delegation: {env}` is the environment of runners, and of
// nothing else that runs for the member.
func TestDelegateEnv(t *testing.T) {
	t.Setenv("SCOPEFS_TEST_KEY", "key-of-the-model")
	h := harness.Delegating(t, "delegation: {env: {MODEL_KEY: \"${SCOPEFS_TEST_KEY}\", PATH: /opt/none:/usr/bin:/bin, SCOPEFS_MCP: /none}}",
		map[string]string{"a": "tools: ['*']\nmembers: [b]", "b": ""})
	told := h.Connect("a").Text("delegate", args{"member": "b", "task": `
env | grep -E '^(MODEL_KEY|PATH|SCOPEFS_MCP)=' | sort
scopefs call bash command='for at in /proc/[0-9]*; do tr "\\0" "\\n" <$at/environ; done 2>/dev/null | grep -E "^(MODEL_KEY|PATH)=" | sort -u'`})
	assert.Equal(t, []string{"MODEL_KEY=key-of-the-model", "PATH=/run/scopefs/bin:/opt/none:/usr/bin:/bin", "SCOPEFS_MCP=/run/scopefs/mcp.sock",
		"PATH=" + sandbox.DefaultPath}, strings.Split(strings.TrimSpace(told), "\n"))
	h.Stop()
	assert.NotContains(t, h.Log.String(), "key-of-the-model")
	for _, e := range h.Events("b") {
		assert.NotContains(t, string(e.Raw), "key-of-the-model")
	}
}

// TestDelegateChain: three agents in a chain, each in its own files, bounded in
// depth and without circles; what is widened is widened for who is named.
func TestDelegateChain(t *testing.T) {
	h := harness.Delegating(t, "delegation: {depth: 2}", map[string]string{
		"boss":    "tools: [read_file, delegate]\nmembers: {writer: {may: widen}}",
		"writer":  "tools: ['*']\nmembers: [checker, boss]",
		"checker": "tools: ['*']\nmembers: [deeper]",
		"deeper":  "",
	})
	boss := h.Connect("boss")
	told := boss.Text("delegate", args{"member": "writer", "task": `
scopefs call write_file path=draft content=words >/dev/null && scopefs call delegate member=checker task="
scopefs call write_file path=verdict content=good >/dev/null; scopefs call delegate member=deeper task=true; echo checked"
scopefs call delegate member=boss task=true; true`})
	assert.Contains(t, told, "tasks are 2 deep already")
	assert.Contains(t, told, "checked")
	assert.Contains(t, told, `waits for this task already: it is for [boss writer]`)
	assert.Equal(t, "words", string(harness.ReadAll(t, h.Scope("writer", "draft"))))
	assert.Equal(t, "good", string(harness.ReadAll(t, h.Scope("checker", "verdict"))))
	h.Stop()
	deepest := false
	for _, e := range h.Events("checker") {
		deepest = deepest || e.Op == "write_file" && e.Chain == "boss>writer>checker"
	}
	assert.True(t, deepest)
}

// TestDelegateQueue: tasks beyond the bound wait, an agent that delegates much
// leaves room for others, and a cancel reaches the bottom.
func TestDelegateQueue(t *testing.T) {
	h := harness.Delegating(t, "delegation: {parallel: 2}", map[string]string{
		"a": "tools: ['*']\nmembers: [b]", "b": "tools: ['*']\nmembers: [d]", "c": "tools: ['*']\nmembers: [b]", "d": ""})
	a, c := h.Connect("a"), h.Connect("c")
	hold := func(n int) args {
		return args{"member": "b", "task": fmt.Sprintf("scopefs call write_file path=begun%d content=x; until scopefs call read_file path=stop 2>/dev/null; do sleep 0.1; done", n)}
	}
	first := a.Begin(h.Soon(), "delegate", hold(1))
	begun := func(n int) func() bool {
		return func() bool { _, err := os.Stat(h.Scope("b", fmt.Sprintf("begun%d", n))); return err == nil }
	}
	h.Eventually("it is at work", begun(1))
	second := a.Begin(h.Soon(), "delegate", hold(2))
	other := c.Begin(h.Soon(), "delegate", hold(3))
	h.Eventually("the other agent's, too", begun(3))
	assert.False(t, begun(2)(), "half of the places are one agent's")
	harness.Plant(t, h.Scope("b"), "stop")
	for _, ended := range []<-chan error{first, second, other} {
		assert.NoError(t, <-ended)
	}
	assert.True(t, begun(2)())

	ctx, cancel := context.WithCancel(h.Soon())
	deep := a.Begin(ctx, "delegate", args{"member": "b", "task": `scopefs call delegate member=d task="scopefs call write_file path=begun content=x; sleep ` + harness.Seconds(14) + `"`})
	h.Eventually("the bottom is reached", func() bool { _, err := os.Stat(h.Scope("d", "begun")); return err == nil })
	cancel()
	<-deep
	m := &harness.Way{Host: h}
	h.Eventually("nothing of it is left", func() bool { return m.Sandboxed(harness.Seconds(14)) == 0 })
}

// TestDelegateDown: whom the operator took down no delegation brings back.
func TestDelegateDown(t *testing.T) {
	h := harness.Delegating(t, "", map[string]string{"a": "members: [b]", "b": ""})
	a := h.Connect("a")
	task := args{"member": "b", "task": "true"}
	a.Call("delegate", task)
	h.Must("down", "b")
	e := a.Fails("delegate", task)
	assert.Equal(t, tools.Denied, e.Code)
	assert.Contains(t, e.Message, `taken "b" down`)
	assert.Equal(t, "down", h.Agent("b").State)
	assert.NoFileExists(t, h.Door("b"))
	h.Must("up", "b")
	a.Call("delegate", task)
}
