package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/integration/harness"
)

// ofAgents has a command line for each command that names an agent, which is A here.
var ofAgents = map[string]struct {
	words  string
	status int // 0: 2, bad usage
	daemon bool
}{
	"run":             {words: "run A -- true", status: 125},
	"call":            {words: "call --agent A read_file path=x"},
	"call --list":     {words: "call --list --agent A"},
	"call --help":     {words: "call read_file --help --agent A"},
	"call with exits": {words: "call --exit-status --agent A bash command=true", status: 125},
	"mcp":             {words: "mcp --agent A"},
	"mcp --install":   {words: "mcp --install claude --agent A"},
	"prompt":          {words: "prompt A"},
	"agents show":     {words: "agents show A"},
	"allow":           {words: "allow --agent A -y example.com"},
	"deny":            {words: "deny --agent A -y example.com"},
	"check":           {words: "check x --agent A"},
	"check --network": {words: "check --network example.com --agent A"},
	"changes":         {words: "changes A"},
	"changes --since": {words: "changes A --since 1h"},
	"branch":          {words: "branch A x"},
	"diff":            {words: "diff A"},
	"commit":          {words: "commit A"},
	"discard":         {words: "discard A --all"},
	"undo":            {words: "undo A x"},
	"redo":            {words: "redo A"},
	"checkpoint":      {words: "checkpoint A"},
	"show":            {words: "show A x@1h"},
	"restore":         {words: "restore A x@1h"},
	"up":              {words: "up A", daemon: true},
	"down":            {words: "down A", daemon: true},
	"token":           {words: "token A", daemon: true},
}

// TestStatusOfAgents: every command that names an agent ends with the same exit status if the
// agent is unknown or does not load, with a daemon and without one.
func TestStatusOfAgents(t *testing.T) {
	h := harness.LayOut(t, map[string]string{"good": ""})
	h.Put("agents.d/broken.md", "---\nname: broken\nnosuch: x\n---\n")
	all := func(t *testing.T, daemon bool) {
		for name, c := range ofAgents {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				for agent, want := range map[string]string{"nosuch": `unknown agent "nosuch"`, "broken": `unknown key "nosuch"`, "No": `invalid agent id "No"`} {
					status := max(c.status, 2)
					if c.daemon && !daemon && agent != "No" {
						status, want = 1, "no daemon is running"
					}
					_, errs, code := h.Try(strings.Fields(strings.Replace(c.words, " A", " "+agent, 1))...)
					assert.Equal(t, status, code, "%s: %s", agent, errs)
					assert.Contains(t, errs, want, agent)
				}
			})
		}
	}
	h.Put("scopefs.yaml", "nosuch: x\n")
	for _, words := range []string{"call --agent good read_file path=x", "prompt good", "check x --agent good", "changes good"} {
		_, errs, code := h.Try(strings.Fields(words)...)
		assert.Equal(t, 2, code, "%s: %s", words, errs)
		assert.Contains(t, errs, `scopefs.yaml:1: unknown key "nosuch"`, words)
	}
	h.Put("scopefs.yaml", "{}\n")
	t.Run("without a daemon", func(t *testing.T) { all(t, false) })
	h.Start()
	t.Run("with a daemon", func(t *testing.T) { all(t, true) })
	_, errs, code := h.Try("audit", "--agent", "nosuch")
	assert.Equal(t, 2, code, errs)
	assert.Contains(t, errs, `unknown agent "nosuch"`)
}

// TestStatusOfPs: ps fails if every agent has failed. A file whose name is no id is listed, and is no agent: neither ps nor reload
// fails for good because of it.
func TestStatusOfPs(t *testing.T) {
	h := harness.LayOut(t, map[string]string{"good": ""})
	h.Start()
	const broken, nameless = "agents.d/broken.md", "agents.d/No Agent.md"
	for _, c := range []struct {
		name   string
		change func()
		status int
	}{
		{"one is mounted", func() {}, 0},
		{"one file of two is of no agent", func() { h.Put(nameless, "---\nname: x\n---\n") }, 0},
		{"one agent of two has failed", func() { h.Put(broken, "---\nname: broken\nnosuch: x\n---\n") }, 0},
		{"the only agent has failed", func() {
			require.NoError(t, os.Remove(filepath.Join(h.Base, "agents.d/good.md")))
			h.Must("down", "good")
		}, 1},
		{"the only file is of no agent", func() { require.NoError(t, os.Remove(filepath.Join(h.Base, broken))) }, 0},
		{"there is none", func() { require.NoError(t, os.Remove(filepath.Join(h.Base, nameless))) }, 0},
	} {
		c.change()
		_, wrong := os.Stat(filepath.Join(h.Base, nameless))
		_, errs, _ := h.Try("reload")
		assert.Equal(t, wrong == nil, strings.Contains(errs, `invalid agent id "No Agent"`), "%s: %s", c.name, errs)
		out, errs, status := h.Try("ps")
		assert.Equal(t, c.status, status, "%s: %s%s", c.name, out, errs)
		assert.Equal(t, wrong == nil, strings.Contains(out, `No Agent.md: invalid agent id`), "%s: %s", c.name, out)
		assert.Empty(t, errs, "%s: the table says it", c.name)
		out, errs, status = h.Try("ps", "--json")
		assert.Equal(t, c.status, status, "%s: %s%s", c.name, out, errs)
		assert.True(t, json.Valid([]byte(out)), "%s: %s", c.name, out)
	}
}

// TestStatusOfAllCommands: the table above has every command that takes an agent.
func TestStatusOfAllCommands(t *testing.T) {
	h := harness.LayOut(t, nil)
	for _, command := range commandsIn(h.Must("help")) {
		help := h.Must("help", command)
		for _, sub := range append(commandsIn(help), "") {
			name, usage := strings.TrimSpace(command+" "+sub), help
			if sub != "" {
				usage = h.Must("help", command, sub)
			}
			_, usage, _ = strings.Cut(usage, "\nUsage:\n")
			line, _, _ := strings.Cut(usage, "\n")
			if strings.Contains(line, "AGENT") {
				assert.Contains(t, ofAgents, name, line)
			}
		}
	}
}

// commandsIn returns the names of the commands that a help text lists.
func commandsIn(help string) (names []string) {
	_, list, _ := strings.Cut(help, "\nAvailable Commands:\n")
	list, _, _ = strings.Cut(list, "\n\n")
	for line := range strings.Lines(list) {
		if words := strings.Fields(line); len(words) > 0 && words[0] != "completion" {
			names = append(names, words[0])
		}
	}
	return names
}

// TestAgentsDirGone: where agents/ has been and is missing, its file system may be: agents check says that, and nothing makes it.
func TestAgentsDirGone(t *testing.T) {
	t.Parallel()
	m := harness.Embed(t, 0, map[string]string{"a": ""})
	require.Zero(t, m.Run("a", "--", "true").Code)
	require.NoError(t, os.RemoveAll(filepath.Join(m.Base, "agents")))
	o := harness.Finish(t, m.Command("agents", "check"))
	assert.Contains(t, o.Stdout, filepath.Join(m.Base, "agents")+" does not exist: mount its file system, or make it (mkdir -m 711)")
	assert.NotZero(t, m.Run("a", "--", "true").Code)
	assert.NoDirExists(t, filepath.Join(m.Base, "agents"))
}
