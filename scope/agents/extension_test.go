package agents

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/scope"
)

const sec = "{\n\t\"name\": \"sec\", \"version\": \"1.0.0\", \"description\": \"a \\ud83d\\ude00 b\",\n" +
	"\t\"mcpServers\": {\n\t\t\"scan\": {\"command\": \"node\", \"args\": [\"${extensionPath}${/}scan.js\", \"\\\\ud83d\"], \"trust\": true, \"timeout\": 1500, \"visibility\": \"private\", \"excludeTools\": [\"rm\"]},\n" +
	"\t\t\"open\": {\"command\": \"y\", \"visibility\": \"public\", \"includeTools\": [\"get\"]}},\n" +
	"\t\"agents\": [\n\t\t{\"name\": \"auditor\", \"path\": \"agents/audit.md\", \"visibility\": \"public\"},\n\t\t{\"name\": \"helper\", \"path\": \"./helper.md\", \"visibility\": \"private\"},\n\t\t\"friend\"]\n}\n"

// secBase has an extension in a directory of its own, beside one in a file.
func secBase(t *testing.T) string {
	t.Helper()
	base := testBase{agents: map[string]string{"friend": "members: [\"*\"]", "other": "members: [\"*\"]"}}.make(t)
	writeFile(t, base, "extensions.d/sec/gemini-extension.json", sec)
	writeFile(t, base, "extensions.d/sec/agents/audit.md", "---\nname: auditor\nmembers: [helper]\ntools: [mcp, delegate]\n---\nYou audit.\n")
	writeFile(t, base, "extensions.d/sec/helper.md", "---\nname: helper\n---\n")
	writeFile(t, base, "extensions.d/sec/package.json", "{}")
	writeFile(t, base, "extensions.d/sec/more.yml", "no: extension")
	writeFile(t, base, "extensions.d/two.yml", "name: two\nagents: [sec/auditor]\nmcp_servers: {t: {command: t}}\n")
	writeFile(t, base, "extensions.d/three/three.yaml", "name: three\nmcp_servers: {u: {command: u, visibility: public}}\n")
	writeFile(t, base, "extensions.d/README", "no extension")
	return base
}

func TestExtensionBringsAgents(t *testing.T) {
	base := secBase(t)
	all, errs := Load(base, Host{Tools: ours()})
	require.Empty(t, errs)
	require.Empty(t, all.Warnings)
	require.Len(t, all.Agents, 4)
	a := all.Agents["auditor"]
	assert.Equal(t, "You audit.", a.Prompt)
	scan := a.Grants.Servers()["scan"]
	assert.Equal(t, []string{base + "/extensions.d/sec/scan.js", `\ud83d`}, scan.Args)
	assert.Equal(t, "extensions.d/sec/gemini-extension.json", scan.From)
	assert.Equal(t, "1.5s", scan.Timeout.String())
	servers := func(id scope.ID) string {
		var names []string
		for _, name := range []string{"open", "scan", "t", "u"} {
			if all.Agents[id].Grants.Server(name).Allow {
				names = append(names, name)
			}
		}
		return strings.Join(names, " ")
	}
	assert.Equal(t, "open scan t u", servers("auditor"))
	assert.Equal(t, "open scan u", servers("helper"))
	assert.Equal(t, "open scan u", servers("friend"))
	assert.Equal(t, "open u", servers("other"))
	assert.Equal(t, "exclude_tools: rm", a.Grants.Tool("mcp:scan:rm").Rule)
	assert.True(t, a.Grants.Tool("mcp:scan:ls").Allow)
	assert.True(t, a.Grants.Tool("mcp:open:get").Allow)
	assert.Equal(t, "include_tools: [get]", a.Grants.Tool("mcp:open:put").Rule)

	// Who sees a private agent.
	assert.Equal(t, []scope.ID{"helper"}, a.Grants.Members())
	assert.Equal(t, []scope.ID{"auditor", "helper", "other"}, all.Agents["friend"].Grants.Members())
	other := all.Agents["other"].Grants
	assert.Equal(t, []scope.ID{"auditor", "friend"}, other.Members())
	assert.Equal(t, other.Member("nobody").Rule, other.Member("helper").Rule)
	writeFile(t, base, "agents.d/other.md", "---\nname: other\nmembers: [helper]\n---\n")
	_, errs = all.Reload(base, Host{Tools: ours()})
	require.Len(t, errs, 1)
	requireDefinitionError(t, errs[0], `agents.d/other.md:3: members: "helper" matches no other agent (there is auditor, friend)`)
	assert.Equal(t, []string{"extensions.d/sec", "extensions.d/sec/agents", "extensions.d/three"}, all.Directories())
}

// TestExtensionDirChanges: a reload sees each change, and what is wrong leaves
// the last good one.
func TestExtensionDirChanges(t *testing.T) {
	base := secBase(t)
	all, errs := Load(base, Host{Tools: ours()})
	require.Empty(t, errs)
	again, errs := later(all).Reload(base, Host{Tools: ours()})
	require.Empty(t, errs)
	assert.Same(t, all.Agents["auditor"], again.Agents["auditor"])
	require.True(t, later(again).Current(base, "auditor"))

	writeFile(t, base, "extensions.d/sec/agents/audit.md", "---\nname: auditor\n---\nYou audit now.\n")
	assert.False(t, again.Current(base, "auditor"))
	assert.True(t, again.Current(base, "helper"))
	next, errs := again.Reload(base, Host{Tools: ours()})
	require.Empty(t, errs)
	assert.Equal(t, "You audit now.", next.Agents["auditor"].Prompt)

	writeFile(t, base, "extensions.d/sec/gemini-extension.json", strings.Replace(sec, "version", "verzion", 1))
	assert.False(t, later(next).Current(base, "helper"))
	bad, errs := next.Reload(base, Host{Tools: ours()})
	require.Len(t, errs, 1)
	requireDefinitionError(t, errs[0], `extensions.d/sec/gemini-extension.json:2: unknown key "verzion"`)
	assert.Equal(t, "You audit now.", bad.Agents["auditor"].Prompt)
	assert.Len(t, bad.Agents, 4)

	require.NoError(t, os.RemoveAll(filepath.Join(base, "extensions.d/sec")))
	assert.False(t, later(bad).Current(base, "helper"))
	gone, errs := bad.Reload(base, Host{Tools: ours()})
	require.Empty(t, errs)
	assert.Len(t, gone.Agents, 2)
	require.Len(t, gone.Warnings, 1)
	requireDefinitionError(t, gone.Warnings[0], `extensions.d/two.yml:2: agents: "sec/auditor" matches no agent`)
}

func TestExtensionDirErrors(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"no JSON":  {"{\n\"name\": \"e\",\n}", "gemini-extension.json:3: is no JSON, "},
		"key":      {`{"name": "e", "excludes": ["run_shell_command"]}`, `:1: unknown key "excludes": did you mean excludeTools`},
		"exclude":  {`{"name": "e", "excludeTools": ["rune_shell"]}`, `:1: excludeTools: "rune_shell" matches no tool: correct it to`},
		"context":  {`{"name": "e", "contextFileName": "../x.md"}`, `:1: contextFileName: "../x.md" is no file of the extension: write a name without directories`},
		"no file":  {`{"name": "e", "contextFileName": "X.md"}`, `:1: contextFileName: X.md: open: no such file or directory`},
		"setting":  {`{"name": "e", "settings": [{"name": "Key", "envVar": "A-B"}]}`, `:1: settings: envVar: "A-B" is no name of a variable`},
		"cwd":      {`{"name": "e", "mcpServers": {"s": {"command": "x", "cwd": "${extensionPath}/.."}}}`, `:1: mcp_servers: s: cwd: `},
		"name":     {`{"name": "f"}`, `:1: name: "f" is not what its directory is named: write e, or rename the directory`},
		"path":     {`{"name": "e", "agents": [{"name": "x", "path": "../x.md"}]}`, `:1: agents: "../x.md" is no file of the extension: write a path to an .md file, relative to extensions.d/e`},
		"absolute": {`{"name": "e", "agents": [{"name": "x", "path": "/x.md"}]}`, `"/x.md" is no file of the extension`},
		"no path":  {`{"name": "e", "agents": [{"name": "x"}]}`, `agents: an agent has no name or no path: add it`},
		"missing":  {`{"name": "e", "agents": [{"name": "x", "path": "x.md"}]}`, "extensions.d/e/x.md: open: no such file or directory"},
		"link":     {`{"name": "e", "agents": [{"name": "x", "path": "link/x.md"}]}`, "extensions.d/e/link/x.md: open: is a symbolic link"},
		"taken":    {`{"name": "e", "agents": [{"name": "a", "path": "a.md"}]}`, `gemini-extension.json:1: agents: agent "a" is in agents.d/a.md already: rename one`},
		"id":       {`{"name": "e", "agents": [{"name": "wrong", "path": "a.md"}]}`, `extensions.d/e/a.md:2: name: "a" is not what`},
		"seen":     {`{"name": "e", "agents": [{"name": "x", "path": "a.md", "visibility": "all"}]}`, `visibility: unknown "all": want one of [public private internal]`},
	} {
		t.Run(name, func(t *testing.T) {
			base := testBase{agents: map[string]string{"a": ""}}.make(t)
			writeFile(t, base, "extensions.d/e/gemini-extension.json", c.text)
			writeFile(t, base, "extensions.d/e/a.md", "---\nname: a\n---\n")
			writeFile(t, base, "agents/a/x.md", "---\nname: x\n---\n")
			require.NoError(t, os.Symlink("../../agents/a", filepath.Join(base, "extensions.d/e/link")))
			all, errs := Load(base, Host{Tools: ours()})
			require.Len(t, errs, 1, "%v", errs)
			requireDefinitionError(t, errs[0], c.want)
			assert.Len(t, all.Agents, 1)
		})
	}
	base := testBase{agents: map[string]string{"a": ""}}.make(t)
	require.NoError(t, os.MkdirAll(filepath.Join(base, "agents/a"), 0o755))
	require.NoError(t, os.Mkdir(filepath.Join(base, "extensions.d"), 0o755))
	require.NoError(t, os.Symlink("../agents/a", filepath.Join(base, "extensions.d/e")))
	_, errs := Load(base, Host{Tools: ours()})
	require.Len(t, errs, 1)
	requireDefinitionError(t, errs[0], "extensions.d/e: is a symbolic link: put the directory itself here")
}

// TestExtensionGemini: what a gemini-extension.json may say, in gemini-cli's words.
func TestExtensionGemini(t *testing.T) {
	t.Setenv("WIKI_HOST", "wiki.example")
	base := testBase{agents: map[string]string{"lead": "", "plain": "tools: [\"*\"]\nmembers: [clerk]", "named": ""}}.make(t)
	writeFile(t, base, "extensions.d/wiki/gemini-extension.json", `{"name": "wiki", "version": "2.1.0", "contextFileName": "NOTES.md",
		"mcpServers": {
			"pages": {"command": "${extensionPath}${/}bin${/}pages", "cwd": "${extensionPath}/bin", "env": {"HOST": "$WIKI_HOST", "KEY": "${WIKI_KEY}"}},
			"near": {"command": "x", "cwd": "${workspacePath}${/}docs", "visibility": "internal"},
			"far": {"httpUrl": "https://${WIKI_HOST}/mcp"}},
		"settings": [{"name": "Key", "description": "of the wiki", "envVar": "WIKI_KEY", "sensitive": true}, {"name": "None", "envVar": "WIKI_NONE"}],
		"excludeTools": ["run_shell_command(rm)", "write_file", "mcp:pages:drop"],
		"agents": [{"name": "clerk", "path": "clerk.md"}, "named"]}`)
	writeFile(t, base, "extensions.d/wiki/.env", "# ours\nWIKI_KEY='s3 cret'\nOTHER=1\n")
	writeFile(t, base, "extensions.d/wiki/NOTES.md", "The wiki is slow.\n")
	writeFile(t, base, "extensions.d/wiki/clerk.md", "---\nname: clerk\n---\nYou file.\n")
	host := Host{Tools: ours(), Primary: "lead"}
	all, errs := Load(base, host)
	require.Empty(t, errs)
	dir := base + "/extensions.d/wiki"
	servers := all.Agents["plain"].Grants.Servers()
	require.Len(t, all.Warnings, 1)
	requireDefinitionError(t, all.Warnings[0], "extensions.d/wiki/gemini-extension.json:1: settings: WIKI_NONE has no value: write WIKI_NONE=VALUE into extensions.d/wiki/.env")
	assert.NotContains(t, servers, "near")
	assert.Equal(t, "https://wiki.example/mcp", servers["far"].URL)
	assert.Empty(t, servers["far"].Env)
	pages := servers["pages"]
	assert.Equal(t, []string{dir, dir + "/bin/pages", dir + "/bin"}, []string{pages.Dir, pages.Command, pages.Cwd})
	assert.Equal(t, map[string]string{"HOST": "wiki.example", "KEY": "s3 cret", "WIKI_KEY": "s3 cret"}, pages.Env)
	assert.Equal(t, "docs", all.Agents["clerk"].Grants.Servers()["near"].Cwd)
	assert.NotContains(t, all.Agents["lead"].Grants.Servers(), "near")
	assert.Contains(t, all.Agents["lead"].Grants.Members(), scope.ID("clerk"))
	for id, restricted := range map[scope.ID]bool{"lead": true, "clerk": true, "named": true, "plain": false} {
		g := all.Agents[id].Grants
		assert.Equal(t, restricted, g.Tool("bash").Ask, id)
		for _, tool := range []string{"write_file", "make_dir", "delete", "mcp:pages:drop"} {
			assert.Equal(t, !restricted, g.Tool(tool).Allow, "%s %s", id, tool)
		}
		assert.True(t, g.Tool("edit_file").Allow)
		assert.Equal(t, restricted, strings.HasSuffix(all.Agents[id].Prompt, "The wiki is slow."), id)
	}
	assert.Equal(t, "excludeTools of extensions.d/wiki/gemini-extension.json: write_file", all.Agents["named"].Grants.Tool("write_file").Rule)

	writeFile(t, base, "extensions.d/wiki/.env", "WIKI_KEY=new\n")
	assert.False(t, later(all).Current(base, "plain"))
	next, errs := all.Reload(base, host)
	require.Empty(t, errs)
	assert.Equal(t, "new", next.Agents["plain"].Grants.Servers()["pages"].Env["KEY"])
	assert.False(t, next.Agents["plain"].Grants.Equal(all.Agents["plain"].Grants))
	assert.NotEqual(t, all.Agents["named"].Grants.Version(), compileGrants(all.Agents["named"].Definition, all.known, nil).Version())
}
