package tools

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/internal/need"
)

// The agent programs of the example, from where .ci/clients puts them.
var agentPrograms = map[string]map[string]string{
	"amd64": {"claude": "@anthropic-ai/claude-code-linux-x64/claude", "codex": "@openai/codex-linux-x64/vendor/x86_64-unknown-linux-musl/bin/codex"},
	"arm64": {"claude": "@anthropic-ai/claude-code-linux-arm64/claude", "codex": "@openai/codex-linux-arm64/vendor/aarch64-unknown-linux-musl/bin/codex"},
}

// onLoopback puts what the test serves and starts from now on into a network of
// its own, which has loopback and nothing else.
func onLoopback(t *testing.T) {
	runtime.LockOSThread() // for good: the thread ends with the test
	require.NoError(t, unix.Unshare(unix.CLONE_NEWNET))
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	defer unix.Close(socket)
	lo, err := unix.NewIfreq("lo")
	require.NoError(t, err)
	lo.SetUint16(unix.IFF_UP)
	require.NoError(t, unix.IoctlIfreq(socket, unix.SIOCSIFFLAGS, lo))
}

// TestClientsExample runs the example of docs/delegation.md with Claude Code as
// the writer and Codex as the checker. Their models are scripts on loopback, and
// there is no other network.
func TestClientsExample(t *testing.T) {
	need.Once(t)
	needClients(t)
	h := harness.LayOut(t, nil)
	onLoopback(t)
	require.NoError(t, os.CopyFS(h.Base, os.DirFS(filepath.Join("../..", "docs", "examples", "delegation"))))
	opt := filepath.Join(h.Base, "opt")
	require.NoError(t, os.MkdirAll(filepath.Join(opt, "node_modules", ".bin"), 0o755))
	for _, name := range []string{"runner-models.sh", "runner-claude.sh", "runner-codex.sh"} {
		require.NoError(t, os.Rename(filepath.Join(h.Base, name), filepath.Join(opt, name)))
		require.NoError(t, os.Chmod(filepath.Join(opt, name), 0o755))
	}
	installed, err := filepath.Abs("../../bin/clients/node_modules")
	require.NoError(t, err)
	for name, at := range agentPrograms[runtime.GOARCH] {
		require.NoError(t, os.Symlink(filepath.Join(installed, at), filepath.Join(opt, "node_modules", ".bin", name)))
	}

	call := func(tool string, input any) func(string) turn {
		return func(string) turn { return turn{tool: tool, input: input} }
	}
	// Each model tries first what its program could do without MCP.
	writer := serveClaude(t,
		call("Write", args{"file_path": "/scratch/own.txt", "content": "x"}),
		call("Bash", args{"command": "cat /etc/passwd"}),
		call("mcp__scopefs__write_file", args{"path": "draft.txt", "content": "Tea is a drink."}),
		call("mcp__scopefs__delegate", args{"member": "checker", "task": "check: Tea is a drink."}),
		func(last string) turn {
			var result struct{ Answer string }
			assert.NoError(t, json.Unmarshal([]byte(last), &result))
			return turn{answer: "The draft is in draft.txt; the checker says: " + result.Answer}
		},
	)
	checker := serveCodex(t,
		call("exec", `text(ALL_TOOLS.map(t => t.name).sort().join(" "))`),
		call("exec", `text(await tools.apply_patch("*** Begin Patch\n*** Add File: own.txt\n+x\n*** End Patch"))`),
		call("exec", `text(await tools.mcp__scopefs__read_file({path: "rules.txt"}))`),
		call("exec", `text(await tools.mcp__scopefs__write_file({path: "checked.txt", content: "checked: Tea is a drink."}))`),
		func(string) turn { return turn{answer: "it is short enough."} },
	)
	t.Setenv("ANTHROPIC_API_KEY", "key-of-claude")
	t.Setenv("OPENAI_API_KEY", "key-of-codex")
	text := harness.ReadAll(t, filepath.Join(h.Base, "scopefs-models.yaml"))
	for _, change := range [][2]string{
		{"/opt/scopefs-example", opt},
		{"expose: [" + opt, "expose: [" + opt + ", " + installed},
		{"\n    ANTHROPIC_API_KEY", fmt.Sprintf("\n    ANTHROPIC_BASE_URL: %q\n    OPENAI_BASE_URL: %q\n    ANTHROPIC_API_KEY", writer.url, checker.url+"/v1")},
	} {
		require.Contains(t, text, change[0])
		text = strings.ReplaceAll(text, change[0], change[1])
	}
	h.Put("scopefs.yaml", text)
	require.NoError(t, os.MkdirAll(h.Scope("checker"), 0o755))
	require.NoError(t, os.WriteFile(h.Scope("checker", "rules.txt"), []byte("Be short."), 0o644))
	h.Start()
	out := h.Must("call", "delegate", "--agent", "editor", "member=writer", "task=write about tea")
	t.Logf("the chain: %s", out)
	assert.Equal(t, "The draft is in draft.txt; the checker says: it is short enough.\n", out)
	assert.Equal(t, "Tea is a drink.", harness.ReadAll(t, h.Scope("writer", "draft.txt")))
	assert.Equal(t, "checked: Tea is a drink.", harness.ReadAll(t, h.Scope("checker", "checked.txt")))

	assert.Equal(t, []string{"mcp__scopefs__delegate", "mcp__scopefs__read_file", "mcp__scopefs__scope_info", "mcp__scopefs__write_file"}, writer.tools)
	require.Len(t, writer.results, 4)
	assert.Contains(t, writer.results[0], "No such tool available: Write")
	assert.Contains(t, writer.results[1], "No such tool available: Bash")
	assert.Equal(t, []string{"functions.exec", "functions.wait", "clock.sleep"}, checker.tools)
	require.Len(t, checker.results, 4)
	_, functions, _ := strings.Cut(checker.results[0], "Output:\n")
	assert.Equal(t, "apply_patch clock__curr_time list_mcp_resource_templates list_mcp_resources mcp__scopefs__read_file mcp__scopefs__scope_info mcp__scopefs__write_file read_mcp_resource", functions)
	assert.Contains(t, checker.results[1], "writing is blocked by read-only sandbox")
	assert.Contains(t, checker.results[2], "Be short.")
	assert.Equal(t, map[string]bool{"key-of-claude": true}, writer.keys)
	assert.Equal(t, map[string]bool{"Bearer key-of-codex": true}, checker.keys)

	h.Stop()
	for agent, want := range map[string]struct {
		chain string
		calls []string
	}{
		"writer":  {"editor>writer", []string{"scope_info", "write_file", "delegate"}},
		"checker": {"editor>writer>checker", []string{"scope_info", "read_file", "write_file"}},
	} {
		var calls []string
		for _, e := range h.Events(agent) {
			assert.NotContains(t, string(e.Raw), "key-of-")
			if e.Event != audit.KindCall {
				continue
			}
			t.Logf("%s %s %s %s %s", e.Chain, e.Op, e.Path, e.Verdict, e.Outcome)
			assert.Equal(t, want.chain, e.Chain)
			if e.Outcome == "ok" {
				calls = append(calls, e.Op)
			}
		}
		assert.Equal(t, want.calls, calls)
	}
	entries, err := filepath.Glob(h.Base + "/agents/*/*")
	require.NoError(t, err)
	assert.Equal(t, []string{h.Scope("checker", "checked.txt"), h.Scope("checker", "rules.txt"), h.Scope("writer", "draft.txt")}, entries)
}
