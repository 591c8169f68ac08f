package tools

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/tools"
)

// What a new user found.

// TestFoundLogReaderGoes: that nobody reads its log any more is no reason for a
// daemon to end and leave its mounts.
func TestFoundLogReaderGoes(t *testing.T) {
	h := harness.LayOut(t, map[string]string{"a": ""})
	r, w, err := os.Pipe()
	require.NoError(t, err)
	r.Close()
	h.Stderr = w
	h.Start("--trace")
	w.Close()
	require.NoError(t, os.WriteFile(h.View("a", "f"), []byte("x"), 0o644))
	h.Define("a", "tools: [nonsense]")
	_, _, code := h.Try("reload")
	assert.Equal(t, 1, code)
	h.Must("ps")
	out := h.Must("run", "a", "--", "sed", "-n", "s/^SigIgn:\t//p", "/proc/self/status")
	ignored, err := strconv.ParseUint(strings.TrimSpace(out), 16, 64)
	require.NoError(t, err)
	assert.Zero(t, ignored&(1<<(unix.SIGPIPE-1)), "what it starts is not deaf to SIGPIPE")
}

// TestFoundRemoved: an agent whose definition is gone, and that is mounted still,
// is seen, and its clients are told.
func TestFoundRemoved(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"a": "", "b": ""})
	require.NoError(t, os.Remove(filepath.Join(h.Base, "agents.d", "a.md")))
	h.Must("reload")
	out := h.Must("ps")
	assert.Contains(t, out, "mounted until scopefs down")
	require.Len(t, h.PS(), 2)

	for _, words := range [][]string{{"mcp", "--agent", "a"}, {"call", "--agent", "a", "stat", "path=."}} {
		cmd := exec.Command(harness.Program, append([]string{"--base", h.Base}, words...)...)
		in, err := cmd.StdinPipe()
		require.NoError(t, err)
		var said, errs strings.Builder
		cmd.Stdout, cmd.Stderr = &said, &errs
		require.NoError(t, cmd.Start())
		_, _ = io.WriteString(in, `{"jsonrpc":"2.0","id":1,"method":"ping"}`+"\n")
		assert.Error(t, cmd.Wait(), words[0])
		in.Close()
		assert.Equal(t, 1, cmd.ProcessState.ExitCode(), words[0])
		if words[0] == "mcp" {
			assert.JSONEq(t, `{"jsonrpc":"2.0","id":1,"error":{"code":-32000,"message":"unknown agent","data":{"code":"unavailable","effect":"none"}}}`, said.String())
		} else {
			assert.Empty(t, said.String())
		}
		assert.Regexp(t, `^scopefs: .*\n$`, errs.String())
		assert.NotContains(t, errs.String(), "invalid character")
	}
	h.Must("down", "a")
	assert.Len(t, h.PS(), 1)
}

// TestFoundNoMessage: what is no message is answered as JSON-RPC has it, and the session
// goes on.
func TestFoundNoMessage(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"a": ""})
	cmd := exec.Command(harness.Program, "--base", h.Base, "mcp", "--agent", "a")
	cmd.Stdin = strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}
not json
{"jsonrpc":"2.0","id":3,"method":5}
{"jsonrpc":"2.0","method":"notifications/initialized"}
{"jsonrpc":"2.0","id":2,"method":"tools/list"}
`)
	out, err := cmd.Output()
	assert.NoError(t, err)
	assert.Contains(t, string(out), `"id":null,"error":{"code":-32700`)
	assert.Contains(t, string(out), `"id":3,"error":{"code":-32600`)
	assert.Contains(t, string(out), `"id":1,"result"`)
	assert.Contains(t, string(out), `"id":2,"result"`)
}

// TestFoundDenialsWithin: what a tool does not do because a list forbids it is a
// denial in the log, with its rule, and why says what would allow it.
func TestFoundDenialsWithin(t *testing.T) {
	h := harness.LayOut(t, map[string]string{"a": "members: [b]\nskills: [one]\nscopes: {enum: [plan]}", "b": "", "c": ""})
	for _, name := range []string{"one", "two"} {
		dir := filepath.Join(h.Base, "skills", name)
		require.NoError(t, os.MkdirAll(dir, 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(dir, "SKILL.md"), []byte("---\nname: "+name+"\ndescription: d\n---\n"), 0o644))
	}
	h.Start()
	u := h.Connect("a")
	for _, c := range []struct {
		tool   string
		args   args
		code   tools.Code
		rule   string
		remedy string
	}{
		{"delegate", args{"member": "c", "task": "t"}, tools.NotFound, "members", "add c to members"},
		{"delegate", args{"member": "b", "task": "t", "_scopes": []string{"diary"}}, tools.Denied, "scopes", "add diary to scopes.enum"},
		{"skill", args{"name": "two"}, tools.NotFound, "skills", "add two to skills"},
	} {
		assert.Equal(t, c.code, u.Fails(c.tool, c.args).Code)
		e := h.Last("a", c.tool)
		assert.Equal(t, audit.Deny, e.Verdict)
		assert.Contains(t, e.Rule, c.rule)
		assert.Contains(t, h.Must("audit", "--denied"), c.tool)
		assert.Contains(t, h.Must("why", strconv.Itoa(int(e.Seq))), c.remedy)
	}
}
