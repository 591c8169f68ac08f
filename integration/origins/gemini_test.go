package origins

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/integration/harness"
)

// mcpServer is an MCP server in Python. Its tool "see" returns what the server sees: its arguments, directory,
// environment and meta, the content of a file beside it, and whether it can write there.
const mcpServer = `#!/usr/bin/python3
import json, os, sys
here = os.path.dirname(os.path.abspath(__file__))
def see(request):
    try: wrote = open(here + "/new", "w") and "wrote"
    except OSError as e: wrote = e.strerror
    return {"args": sys.argv[1:], "cwd": os.getcwd(), "env": dict(os.environ), "rules": open(here + "/rules.txt").read(),
            "wrote": wrote, "call": request["params"].get("arguments"), "meta": request["params"].get("_meta")}
for line in sys.stdin:
    m = json.loads(line)
    if "id" not in m: continue
    if m["method"] == "initialize":
        r = {"protocolVersion": m["params"]["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": {"name": "s", "version": "1"}}
    elif m["method"] == "tools/list":
        r = {"tools": [{"name": n, "description": n, "inputSchema": {"type": "object"}} for n in ("see", "drop")]}
    elif m["method"] == "tools/call":
        r = {"content": [{"type": "text", "text": json.dumps(see(m))}]}
    else: r = {}
    print(json.dumps({"jsonrpc": "2.0", "id": m["id"], "result": r}), flush=True)
`

// seen is what the tool "see" of mcpServer returns.
type seen struct {
	Args              []string
	Cwd, Rules, Wrote string
	Env               map[string]string
	Call, Meta        map[string]any
}

func see(h *harness.Host, agent, server string, more ...string) (s seen) {
	h.T.Helper()
	require.NoError(h.T, json.Unmarshal([]byte(h.Must(append([]string{"call", "--agent", agent, "mcp:" + server + ":see"}, more...)...)), &s))
	return s
}

// license lays out an extension in the document's form, below dir.
func license(t *testing.T, dir string) {
	t.Helper()
	for name, text := range map[string]string{
		"gemini-extension.json": `{
  "name": "license-extension",
  "version": "1.0.0",
  "mcpServers": {
    "header-check": {"command": "python3", "args": ["${extensionPath}${/}check.py", "--root", "${workspacePath}"], "cwd": "${extensionPath}",
      "env": {"LEVEL": "strict"}, "excludeTools": ["drop"], "visibility": "private"},
    "spdx": {"command": "${extensionPath}/check.py"}
  },
  "settings": [{"name": "Key", "description": "of the register", "envVar": "REGISTER_KEY", "sensitive": true}],
  "excludeTools": ["replace"],
  "agents": [{"name": "inspector", "path": "agents/inspector.md"}]
}`,
		"agents/inspector.md": "---\nname: inspector\ndisplay_name: Licence Inspector\ndescription: Reads headers.\n" +
			"tools:\n  - builtin:read_file\n  - mcp:header-check:see\n  - mcp:header-check:drop\n" +
			"policy:\n  tools:\n    allowed: [\"builtin:read_file\", \"mcp:header-check:*\"]\n    exclude: [\"builtin:shell\", \"builtin:write_file\"]\n" +
			"  mcp:\n    allowed: [header-check]\n    excluded: [\"*\"]\n  mcp_servers:\n    header-check: {trust: true}\n---\nYou read headers.\n",
		"GEMINI.md": "Licences are in LICENSES.\n",
		"check.py":  mcpServer,
		"rules.txt": "MIT\n",
	} {
		require.NoError(t, os.MkdirAll(dir+"/agents", 0o755))
		require.NoError(t, os.WriteFile(dir+"/"+name, []byte(text), 0o755))
	}
}

// TestGeminiServers: an extension's server sees its extension's directory, read-only, and no agent does.
func TestGeminiServers(t *testing.T) {
	h := harness.LayOut(t, map[string]string{"lead": "", "other": ""})
	h.Put("scopefs.yaml", "primary: lead\n")
	dir := h.Base + "/extensions.d/license-extension"
	license(t, dir)
	h.Put("extensions.d/license-extension/.env", "REGISTER_KEY=k-1\n")
	h.Start()

	s := see(h, "inspector", "header-check")
	assert.Equal(t, []string{"--root", "/workspace"}, s.Args)
	assert.Equal(t, dir, s.Cwd)
	assert.Equal(t, "strict", s.Env["LEVEL"])
	assert.Equal(t, "k-1", s.Env["REGISTER_KEY"])
	assert.Equal(t, "MIT\n", s.Rules)
	assert.Equal(t, "Read-only file system", s.Wrote)
	_, errs, code := h.Try("call", "--agent", "inspector", "mcp:header-check:drop")
	assert.NotZero(t, code)
	assert.Contains(t, errs, "denied")
	assert.Equal(t, "MIT\n", see(h, "other", "spdx").Rules)
	for _, agent := range []string{"lead", "other"} {
		_, errs, _ := h.Try("call", "--agent", agent, "mcp:header-check:see")
		assert.Contains(t, errs, `"code":"denied"`, agent)
		out, _, _ := h.Try("call", "--agent", agent, "bash", "command=cat "+dir+"/rules.txt; env")
		assert.Contains(t, out, "No such file", agent)
		assert.NotContains(t, out, "k-1")
	}
	assert.Contains(t, h.Must("prompt", "lead"), "Licences are in LICENSES.")
	assert.NotContains(t, h.Must("prompt", "other"), "LICENSES")
	_, errs, _ = h.Try("call", "--agent", "lead", "edit_file", "path=x", "old=a", "new=b")
	assert.Contains(t, errs, `"code":"denied"`)

	// A directory that takes its place has servers of its own, for the next call.
	require.NoError(t, os.Rename(dir, h.Base+"/old"))
	license(t, dir)
	require.NoError(t, os.WriteFile(dir+"/rules.txt", []byte("GPL\n"), 0o644))
	h.Must("reload")
	assert.Equal(t, "GPL\n", see(h, "other", "spdx").Rules)
}

// TestGeminiAgents: the extension's agent is a member of the primary, by its name, without a key of its own.
// A private or internal one is there for agents of the extension alone.
func TestGeminiAgents(t *testing.T) {
	h := echoing(t, map[string]string{"lead": "", "worker": "members: [Licence Inspector]\ntools: [delegate]", "lone": "tools: [delegate]"})
	h.Put("scopefs.yaml", "primary: lead\nrunner: ["+h.Base+"/runner]\nsandbox: {expose: ["+h.Base+"/runner]}\ndelegation: {input: json}\n")
	dir := h.Base + "/extensions.d/license-extension"
	license(t, dir)
	manifest, err := os.ReadFile(dir + "/gemini-extension.json")
	require.NoError(t, err)
	h.Start()
	for _, by := range []string{"inspector", "Licence Inspector"} {
		assert.Contains(t, h.Must("call", "--agent", "lead", "delegate", "member="+by, "task=x"), "You read headers.")
	}
	assert.Contains(t, h.Must("call", "--agent", "worker", "delegate", "member=inspector", "task=x"), "You read headers.")
	_, errs, _ := h.Try("call", "--agent", "lone", "delegate", "member=inspector", "task=x")
	assert.Contains(t, errs, `"code":"not_found"`)
	for _, visibility := range []string{"private", "internal"} {
		h.Put("extensions.d/license-extension/gemini-extension.json", strings.Replace(string(manifest), `agents/inspector.md"`, `agents/inspector.md", "visibility": "`+visibility+`"`, 1))
		h.Must("reload")
		_, errs, _ := h.Try("call", "--agent", "lead", "delegate", "member=inspector", "task=x")
		assert.Contains(t, errs, `"code":"not_found"`, visibility)
	}
}
