package agents

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/scope"
)

// TestTeamInNoList: an agent that a repository names is in no list of the operator's, by a pattern or by its id: it is not the
// primary agent, sees no private server and no private agent of an extension, and is a member of nobody but its own team. What
// narrows the agent of its directory narrows it.
func TestTeamInNoList(t *testing.T) {
	for _, entry := range []string{"r-*", "r-docs", "*"} {
		base := t.TempDir()
		writeFile(t, base, "agents.d/a.md", "---\nname: a\n---\n")
		writeFile(t, base, "agents.d/m.md", "---\nname: m\nmembers: ['*']\n---\n")
		writeFile(t, base, "agents.d/n.md", "---\nname: n\ndisplay_name: r-shown\n---\n")
		writeFile(t, base, TrustedName("a"), "members: [r-docs]\nagents: {r-docs: {members: ['*']}, s: {}}\n")
		writeFile(t, base, "extensions.d/e.yaml", "name: e\nagents: ["+`"`+entry+`"`+", m, {name: hidden, path: e/hidden.md}]\nmcp_servers: {private: {command: x}}\n")
		writeFile(t, base, "extensions.d/e/hidden.md", "---\nname: hidden\n---\n")
		writeFile(t, base, "extensions.d/g/gemini-extension.json", `{"name": "g", "version": "1", "agents": ["a"], "excludeTools": ["bash"]}`)
		all, errs := Load(base, Host{Tools: ours(), Primary: "r-docs"})
		if entry != "*" { // the entry is about nobody, and says so
			require.NotEmpty(t, errs, entry)
			assert.ErrorContains(t, errs[0], `agents: "`+entry+`" matches no`)
		}
		r := all.Agents["r-docs"]
		require.NotNil(t, r, entry)
		assert.Equal(t, scope.Principal{ID: "r-docs"}, r.Grants.Principal())
		assert.False(t, r.Grants.Primary())
		assert.NotContains(t, r.Grants.Servers(), "private", entry)
		assert.False(t, r.Grants.Member("hidden").Allow, entry)
		assert.Contains(t, r.Grants.Tool("bash").Rule, "excludeTools", "as a")
		assert.Equal(t, []scope.ID{"a", "m", "n", "s"}, r.Grants.Members(), entry)
		assert.Equal(t, []scope.ID{"r-docs"}, all.Agents["a"].Grants.Members(), "by the repository's own list")
		assert.NotContains(t, all.Agents["m"].Grants.Members(), scope.ID("r-docs"), entry)
		assert.False(t, all.Agents["m"].Grants.Member("r-docs").Allow, entry)
		assert.Nil(t, r.Grants.Delegated(all.Agents["m"].Grants))

		// A list of the user's own definition is about the operator's agents, and bounds the repository's.
		for list, want := range map[string]string{"[m]": "", "['*']": "", "[" + entry + "]": "matches no other agent"} {
			base := t.TempDir()
			writeFile(t, base, "agents.d/a.md", "---\nname: a\nmembers: "+strings.ReplaceAll(list, "[*]", "['*']")+"\n---\n")
			writeFile(t, base, "agents.d/m.md", "---\nname: m\n---\n")
			writeFile(t, base, TrustedName("a"), "members: ['*']\nagents: {r-docs: {}}\n")
			all, errs := Load(base, Host{Tools: ours()})
			if want != "" && entry != "*" {
				require.NotEmpty(t, errs)
				assert.ErrorContains(t, errs[0], want)
				continue
			}
			require.Empty(t, errs)
			assert.Equal(t, []scope.ID{"m"}, all.Agents["a"].Grants.Members(), list)
		}
	}
}

// TestTeamIsNotBrought: an agent of a repository with the id of an agent that an extension brings is not that agent.
func TestTeamIsNotBrought(t *testing.T) {
	base := t.TempDir()
	writeFile(t, base, "agents.d/a.md", "---\nname: a\n---\n")
	writeFile(t, base, TrustedName("a"), "agents: {r-docs: {members: ['*']}}\n")
	writeFile(t, base, "extensions.d/e.yaml", "name: e\nagents: [{name: r-docs, path: e/r-docs.md}, {name: hidden, path: e/hidden.md}]\nmcp_servers: {private: {command: x}}\n")
	writeFile(t, base, "extensions.d/e/r-docs.md", "---\nname: r-docs\n---\n")
	writeFile(t, base, "extensions.d/e/hidden.md", "---\nname: hidden\n---\n")
	all, errs := Load(base, Host{Tools: ours()})
	require.Len(t, errs, 1)
	assert.ErrorContains(t, errs[0], `agent "r-docs" is in agents.d/a.trusted.yaml already`)
	r := all.Agents["r-docs"]
	require.NotNil(t, r)
	assert.NotContains(t, r.Grants.Servers(), "private")
	assert.False(t, r.Grants.Member("hidden").Allow)
}

// TestBranchOfTeam: a branch of an agent of a repository is in no list of the operator's either.
func TestBranchOfTeam(t *testing.T) {
	base := t.TempDir()
	writeFile(t, base, "agents.d/a.md", "---\nname: a\n---\n")
	writeFile(t, base, "agents.d/r-a.md", "---\nname: r-a\n---\n")
	writeFile(t, base, "agents.d/m.md", "---\nname: m\nmembers: ['r-*']\n---\n")
	writeFile(t, base, "agents.d/r-docs-b.md", "---\nname: r-docs-b\nbranch: r-docs\n---\n")
	writeFile(t, base, TrustedName("a"), "agents: {r-docs: {members: ['*']}}\n")
	writeFile(t, base, "extensions.d/e.yaml", "name: e\nagents: ['r-*', {name: hidden, path: e/hidden.md}]\nmcp_servers: {private: {command: x}}\n")
	writeFile(t, base, "extensions.d/e/hidden.md", "---\nname: hidden\n---\n")
	all, errs := Load(base, Host{Tools: ours()})
	require.Empty(t, errs)
	b := all.Agents["r-docs-b"].Grants
	assert.Equal(t, scope.Principal{ID: "r-docs-b"}, b.Principal())
	assert.NotContains(t, b.Servers(), "private")
	assert.False(t, b.Member("hidden").Allow)
	assert.Equal(t, []scope.ID{"r-a"}, all.Agents["m"].Grants.Members())
	assert.False(t, all.Agents["m"].Grants.Member("r-docs-b").Allow)
}

// TestExtensionInNoList: an agent that an extension names is in a list of the operator's only with the extension's name, whatever
// id it takes, is not the primary agent, and sees private servers of its own extension alone.
func TestExtensionInNoList(t *testing.T) {
	base := t.TempDir()
	writeFile(t, base, "agents.d/research-1.md", "---\nname: research-1\n---\n")
	writeFile(t, base, "extensions.d/sec.yaml", "name: sec\nagents: [{name: research-x, path: sec/x.md}]\nmcp_servers: {private: {command: x}}\n")
	writeFile(t, base, "extensions.d/sec/x.md", "---\nname: research-x\n---\n")
	writeFile(t, base, "extensions.d/other.yaml", "name: other\nagents: ['research-*']\nmcp_servers: {theirs: {command: x}}\n")
	all, errs := Load(base, Host{Tools: ours(), Primary: "research-x"})
	require.Empty(t, errs)
	x := all.Agents["research-x"]
	require.NotNil(t, x)
	assert.False(t, x.Grants.Primary())
	assert.Contains(t, x.Grants.Servers(), "private")
	assert.NotContains(t, x.Grants.Servers(), "theirs")
	assert.Contains(t, all.Agents["research-1"].Grants.Servers(), "theirs")
	for entry, want := range map[string][2]bool{
		"research-*": {true, false}, "*": {true, false}, "research-x": {}, "sec/research-x": {false, true}, "sec/*": {false, true}, "*/research-x": {false, true},
		"other/research-x": {}, "sec*": {}, "sec/": {}, "/": {}, "": {},
	} {
		list := IDs{entry}
		assert.Equal(t, want, [2]bool{list.Holds(all.Agents["research-1"].Grants.Principal()), list.Holds(x.Grants.Principal())}, entry)
		assert.False(t, list.Holds(scope.Principal{ID: "research-1"}), entry)
	}
	text := []byte("---\nname: research-x\ntools: []\n---\n")
	tried, errs, _ := all.Try(filepath.Join(base, "extensions.d/sec/x.md"), text)
	require.Empty(t, errs)
	assert.Equal(t, x.Grants.Principal(), tried.Grants.Principal())
}
