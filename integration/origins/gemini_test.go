package origins

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

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
      "env": {"LEVEL": "strict", "KEY": "$REGISTER_KEY"}, "excludeTools": ["drop"], "visibility": "private"},
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
		harness.Executable(t, dir+"/"+name, []byte(text))
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
	assert.Equal(t, []string{"k-1", "k-1"}, []string{s.Env["REGISTER_KEY"], s.Env["KEY"]})
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

	// A directory that takes its place has servers of its own, for the next call of a session.
	u := h.Connect("other")
	assert.Contains(t, u.Text("mcp__spdx__see", nil), "MIT")
	next := h.Base + "/next"
	license(t, next)
	h.Put("next/.env", "REGISTER_KEY=k-1\n")
	h.Put("next/rules.txt", "GPL\n")
	require.NoError(t, unix.Renameat2(unix.AT_FDCWD, next, unix.AT_FDCWD, dir, unix.RENAME_EXCHANGE))
	h.Must("reload")
	assert.Contains(t, u.Text("mcp__spdx__see", nil), "GPL")
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

// TestGeminiImport: an extension comes from a directory, an archive or a repository. An update keeps the operator's
// settings, and one that does not load changes nothing.
func TestGeminiImport(t *testing.T) {
	h := harness.LayOut(t, map[string]string{"lead": ""})
	h.Put("scopefs.yaml", "primary: lead\n")
	source, marker := t.TempDir()+"/source", t.TempDir()+"/ran"
	license(t, source)
	run := func(words ...string) {
		t.Helper()
		cmd := exec.Command(words[0], words[1:]...)
		cmd.Dir, cmd.Env = source, append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@example.org", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@example.org")
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	put := func(rel, text string) {
		t.Helper()
		harness.Executable(t, source+"/"+rel, []byte(text))
	}
	place := h.Base + "/extensions.d/license-extension"
	assert.Contains(t, h.Must("agents", "import", "--dry-run", "--json", source), `"extension":`)
	require.NoFileExists(t, place+"/check.py")
	out, errs, code := h.Try("agents", "import", source)
	require.Zero(t, code, errs)
	assert.Equal(t, place+"\n", out)
	assert.Contains(t, errs, "WARNING: mcp_servers.header-check: starts python3 ${extensionPath}${/}check.py --root ${workspacePath}")
	assert.NotContains(t, errs, "reads extensionPath")
	assert.Contains(t, errs, "WARNING: extensions.d/license-extension/gemini-extension.json:1: settings: REGISTER_KEY has no value: write REGISTER_KEY=VALUE into extensions.d/license-extension/.env")
	h.Put("extensions.d/license-extension/.env", "REGISTER_KEY=k-2\n")
	h.Start()
	assert.Equal(t, "k-2", see(h, "lead", "spdx").Env["REGISTER_KEY"])

	// A repository whose configuration, attributes and hooks name programs.
	run("git", "init", "-q", "-b", "main")
	put("rules.txt", "BSD\n")
	put(".gitattributes", "rules.txt filter=evil\n")
	put(".env", "REGISTER_KEY=theirs\n")
	run("git", "add", "-A")
	run("git", "commit", "-qm", "one")
	run("git", "tag", "v2")
	for _, key := range []string{"filter.evil.smudge", "filter.evil.process", "core.fsmonitor", "uploadpack.packObjectsHook", "core.sshCommand", "tar.tar.command", "core.pager"} {
		run("git", "config", key, "touch "+marker)
	}
	for _, hook := range []string{"post-checkout", "pre-receive", "reference-transaction", "post-index-change"} {
		put(".git/hooks/"+hook, "#!/bin/sh\ntouch "+marker+"\n")
	}
	put("rules.txt", "not committed\n")
	_, errs, code = h.Try("agents", "import", "--ref", "v2", source)
	assert.NotZero(t, code)
	assert.Contains(t, errs, "exists: give --force")
	h.Must("agents", "import", "--force", "--ref", "v2", source)
	assert.NoFileExists(t, marker)
	h.Must("reload")
	s := see(h, "lead", "spdx")
	assert.Equal(t, "BSD\n", s.Rules)
	assert.Equal(t, "k-2", s.Env["REGISTER_KEY"])

	archive := t.TempDir() + "/license.tar.gz"
	run("tar", "--transform=s,^[.],license-2.0,", "--exclude=.git", "-czf", archive, ".")
	h.Must("agents", "import", "--force", archive)
	h.Must("reload")
	assert.Equal(t, "not committed\n", see(h, "lead", "spdx").Rules)

	put("gemini-extension.json", `{"name": "license-extension", "agents": [{"name": "lead", "path": "agents/inspector.md"}]}`)
	_, errs, code = h.Try("agents", "import", "--force", source)
	assert.NotZero(t, code)
	assert.Contains(t, errs, `agent "lead" is in agents.d/lead.md already`)
	h.Must("reload")
	assert.Equal(t, "not committed\n", see(h, "lead", "spdx").Rules)
	put("gemini-extension.json", `{"name": "a-license", "mcpServers": {"spdx": {"command": "x"}}}`)
	_, errs, code = h.Try("agents", "import", source)
	assert.NotZero(t, code, "a server of that name is there")
	assert.Contains(t, errs, `agent "lead" would see two servers "spdx"`)
	assert.NoDirExists(t, h.Base+"/extensions.d/a-license")
	if os.Getuid() == 0 {
		run("chown", "-R", "1234", ".")
		_, errs, code = h.Try("agents", "import", "--ref", "v2", source)
		assert.NotZero(t, code)
		assert.Contains(t, errs, "belongs to another user: clone it as yourself, and import the clone")
		run("chown", "-R", "0", ".")
	}
	left, err := filepath.Glob(h.Base + "/extensions.d/.*")
	require.NoError(t, err)
	assert.Empty(t, left)

	large := source + "/large.md"
	require.NoError(t, os.WriteFile(large, nil, 0o600))
	require.NoError(t, os.Truncate(large, 4<<30))
	for _, name := range []string{large, source} {
		_, errs, code = h.Try("agents", "import", "--force", name)
		assert.NotZero(t, code)
		assert.Contains(t, errs, "is larger than")
	}
	run("rm", "large.md")
	fifo := t.TempDir() + "/agent.md"
	run("mkfifo", fifo, source+"/pipe")
	for _, name := range []string{fifo, source} {
		_, errs, code = h.Try("agents", "import", "--force", name)
		assert.NotZero(t, code)
		assert.Contains(t, errs, "is no")
	}
}

// TestGeminiBackground: a command in the background lives until the session ends. The session lists, reads and ends it.
func TestGeminiBackground(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"lead": ""})
	u := h.Connect("lead")
	assert.Contains(t, u.Text("process_read", nil), "no processes")
	said := u.Text("bash", args{"command": "echo begun; exec sleep 4718", "background": true})
	assert.Contains(t, said, "running in the background as p1, until the session ends")
	u.Text("bash", args{"command": "exec sleep 4719", "background": true})
	listed := u.Text("process_read", nil)
	assert.Regexp(t, `^p1  running  \d+s  echo begun; exec sleep 4718\np2  running  \d+s  exec sleep 4719\n$`, listed)
	assert.Contains(t, u.Text("process_read", args{"id": "p1", "wait_ms": 5000}), "begun")
	u.Text("process_stop", args{"id": "p1"})
	assert.Contains(t, u.Text("process_read", nil), "p1  exit status 143 (SIGTERM)")
	assert.Contains(t, h.Connect("lead").Text("process_read", nil), "no processes", "another session")
	h.Eventually("the session's command runs", func() bool { return len(harness.Running("sleep", "4719")) > 0 })
	require.NoError(t, u.Session.Close())
	h.Eventually("the session's command has ended", func() bool { return len(harness.Running("sleep", "4719")) == 0 })

	_, errs, code := h.Try("call", "--agent", "lead", "bash", "command=sleep 4719", "background:=true")
	assert.Zero(t, code)
	assert.Contains(t, errs, "p1 ends now, with the session of this command")
}

// TestGeminiStarting: a list of tools names the servers that are still starting.
func TestGeminiStarting(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"lead": "mcp_servers: {slow: {command: sleep, args: [\"4717\"]}}"})
	out, errs, code := h.Try("call", "--agent", "lead", "--list")
	assert.Zero(t, code)
	assert.Contains(t, out, "read_file")
	assert.Contains(t, errs, "MCP server slow is still starting: its tools are not listed yet")
}

type args = map[string]any

// TestGeminiDocs: the example of docs/agents.md runs, with a server in another language.
func TestGeminiDocs(t *testing.T) {
	text, err := os.ReadFile("../../docs/agents.md")
	require.NoError(t, err)
	_, rest, _ := strings.Cut(string(text), `    {"name": "sec"`)
	manifest, _, found := strings.Cut(`{"name": "sec"`+rest, "\n\n")
	require.True(t, found)
	h := harness.LayOut(t, map[string]string{"reviewer-a": "", "other": ""})
	h.Put("extensions.d/sec/gemini-extension.json", strings.Replace(manifest, `"node"`, `"python3"`, 1))
	h.Put("extensions.d/sec/agents/auditor.md", "---\nname: auditor\n---\nYou audit.\n")
	h.Put("extensions.d/sec/scan.js", mcpServer)
	h.Put("extensions.d/sec/rules.txt", "r")
	h.Start()
	assert.Equal(t, "r", see(h, "auditor", "scan").Rules)
	assert.Equal(t, "r", see(h, "reviewer-a", "scan").Rules)
	_, errs, _ := h.Try("call", "--agent", "other", "mcp:scan:see")
	assert.Contains(t, errs, `"code":"denied"`)
}
