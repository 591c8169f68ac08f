package widening_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/internal/need"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/agents"
	"github.com/scopefs/scopefs/scope/catalog"
	"github.com/scopefs/scopefs/scope/widening"
)

// What users and repositories write, for each key. Any of them may be absent.
var (
	toolLists   = []string{"[]", "['*']", "[bash, ask_user]", "['read_*', mcp]", "['mcp:*:*']", "['mcp:github:*']", "['mcp:github:get_*', stat]", "['mcp:git*:*', 'm*']", "['builtin:shell']", "[read_file, 'mcp:*:write']"}
	nameLists   = []string{"[]", "['*']"}
	policyLists = []string{"{tools: {exclude: ['*']}}", "{tools: {exclude: ['mcp:github:*']}}", "{tools: {allowed: ['*'], exclude: [bash]}}", "{tools: {allowed: ['mcp:github:*', bash]}}",
		"{tools: {ask: ['*']}}", "{tools: {ask: [mcp], exclude: [bash]}}", "{tools: {allowed: [bash], exclude: ['*']}}", "{mcp: {excluded: ['*']}}", "{mcp: {allowed: [github]}}", "{mcp: {allowed: ['*'], excluded: [github]}}", "{mcp: {allowed: [], excluded: ['*']}}"}
	networks = []string{"none", "{allow: ['*.example.org']}", "{allow: [{host: '*.example.org', methods: [GET]}]}", "{allow: [api.example.org]}", "{allow: [{host: api.example.org, methods: [GET], ports: [443]}, '*']}",
		"{allow: ['*', {host: api.example.org, paths: [/x/**]}]}", "{ask: ['*']}", "{ask: true}", "{ask: [api.example.org], allow: ['*.example.org']}", "{deny: [api.example.org], allow: ['*']}", "{ask: ['*.example.org'], allow: [{host: '*', methods: [GET]}]}",
		"{allow: [{host: '*.org', ports: [8443]}, {host: api.example.org, ports: [8443], methods: [GET]}]}", "{allow: [API.example.org.], presets: [npm, openai]}", "{allow: [{host: chatgpt.com, methods: [GET]}]}"}
	views = []string{"{access: read}", "{access: write, paths: {'**/a': write}}", "{paths: {'secret/**': hide, '*.key': seal}}", "{paths: {'**': read, 'secret/**': write}}", "{paths: {secret: hide}, hardlinks: deny}", "{access: read, paths: {'secret/a': write}}"}
	files = map[string][]string{
		"tools": toolLists, "skills": append(nameLists, "[check]", "['c*']"), "mcps": append(nameLists, "[github]", "['g*']", "[search]"), "members": append(nameLists, "[m]", "['m*']"),
		"policy": policyLists, "network": networks, "view": views, "protect": {"['*']", "[editor]", "{lists: ['*'], answer: hold}"}, "env": {"{A: x}", "{A: y, B: z}"}, "delegate": {"{changes: held}"},
	}
	users = map[string][]string{"policy": append(policyLists, "{mcp_servers: {github: {trust: true}}, tools: {ask: ['*']}}"), "network": append(networks, "host")}
	// A repository has these, too.
	proposed = map[string][]string{
		"mcp_servers": {"{own: {command: x, network: {allow: ['*']}}}", "{github: {command: evil}}"},
		"agents":      {"{r: {}}", "{r: {tools: ['mcp:github:*'], network: {allow: [api.example.org], ask: ['*']}, members: ['*']}, s: {}}", "{r: {policy: {tools: {allowed: ['mcp:*:*'], ask: ['*']}}}}"},
	}
)

// definition returns random keys of lists, which replace those of an earlier one.
func definition(r *rand.Rand, lists ...map[string][]string) string {
	all := map[string][]string{}
	for _, list := range lists {
		for key, values := range list {
			all[key] = values
		}
	}
	keys := []string{}
	for key := range all {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	text := ""
	for _, key := range keys {
		if n := r.IntN(2 * len(all[key])); n < len(all[key]) {
			text += key + ": " + all[key][n] + "\n"
		}
	}
	return text
}

// TestNothingUntold: whatever an agent may do with a repository's file and may not by the user's definition, as the functions
// that decide about it say, has a line.
func TestNothingUntold(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 2))
	tools := catalog.Tools{
		{Name: "bash", Aliases: []string{"shell"}, Listed: catalog.ListedBase}, {Name: "ask_user", Listed: catalog.ListedBase}, {Name: "skill", Listed: catalog.ListedSkills}, {Name: "delegate", Listed: catalog.ListedMembers},
		{Name: "checkpoint", Listed: catalog.ListedHeld}, {Name: "read_file"}, {Name: "stat"}, {Name: "move", Writes: true}, {Name: "kv_get"}, {Name: "metrics_query"},
	}
	host := agents.Host{Tools: tools, Servers: agents.Servers{"github": {Command: "gh"}, "search": {Command: "search", Include: []string{"get_*"}}}}
	tried := 0
	for range need.Rounds("SCOPEFS_TEST_DEFINITIONS", 15, 40) {
		base := t.TempDir()
		keys := definition(r, files, users)
		for name, text := range map[string]string{"agents.d/a.md": "---\nname: a\n" + keys + "---\n", "agents.d/m.md": "---\nname: m\n---\n", "skills/check/SKILL.md": "x"} {
			require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(base, name)), 0o755))
			require.NoError(t, os.WriteFile(filepath.Join(base, name), []byte(text), 0o644))
		}
		all, errs := agents.Load(base, host)
		if errs != nil {
			continue // such as changes: held without members
		}
		for range 20 {
			file := definition(r, files, proposed)
			if file == "" {
				continue
			}
			p, errs := all.Propose("a", []byte(file))
			if errs != nil {
				continue
			}
			tried++
			lines := widening.Team(p)
			for _, a := range append(p.Team, p.With) {
				own := lines
				if a != p.With {
					own = nil
					for _, line := range lines {
						if rest, ok := strings.CutPrefix(line, "agents: "+string(a.Name)+": "); ok {
							own = append(own, rest)
						}
					}
				}
				if untold := untold(a, p.Without, own); untold != nil {
					t.Fatalf("%s may do more than a alone:\n%s\nby the user's\n%s\nand the repository's\n%s\nLines:\n%s", a.Name, strings.Join(untold, "\n"), keys, file, strings.Join(lines, "\n"))
				}
			}
		}
	}
	require.Greater(t, tried, 200)
}

// untold returns what a may do, before may not, and no line says.
func untold(a, before *agents.Agent, lines []string) (all []string) {
	wider := func(now, was scope.Decision) bool {
		return now.Allow && !was.Allow || now.Ask && !was.Ask && !was.Allow
	}
	told := func(prefixes ...string) bool {
		return slices.ContainsFunc(lines, func(line string) bool {
			return slices.ContainsFunc(prefixes, func(prefix string) bool { return strings.HasPrefix(line, prefix) })
		})
	}
	note := func(format string, v ...any) { all = append(all, fmt.Sprintf(format, v...)) }
	now, was := a.Grants, before.Grants
	for _, tool := range now.ToolNames() {
		if wider(now.Tool(tool), was.Tool(tool)) && !told("tools: "+tool+": ") {
			note("tool %s", tool)
		}
	}
	for _, server := range []string{"github", "search", "own"} {
		for _, tool := range []string{"get_x", "write", "anything"} {
			name := "mcp:" + server + ":" + tool
			if wider(now.Tool(name), was.Tool(name)) && !told("tools: mcp: ", "not compared: tools: ", "mcp_servers: "+server+": ") {
				note("%s: %+v before %+v", name, now.Tool(name), was.Tool(name))
			}
		}
	}
	for _, name := range []string{"m", "r", "s"} {
		if wider(now.Member(name), was.Member(name)) && !told("members: gives tasks to "+name) {
			note("member %s", name)
		}
	}
	if wider(now.Skill("check"), was.Skill("check")) && !told("skills: check") {
		note("skill")
	}
	for name, value := range a.Env {
		if old, ok := before.Env[name]; (!ok || old != value) && !told("env: sandboxes have "+name+"="+value) {
			note("env %s", name)
		}
	}
	for _, login := range []string{"", "codex"} {
		in, _ := now.Hosts().For(login)
		of, _ := was.Hosts().For(login)
		for _, host := range []string{"api.example.org", "x.example.org", "example.org", "other.test", "registry.npmjs.org", "chatgpt.com", "api.openai.com"} {
			for _, port := range []uint16{443, 80, 8443} {
				reached, _ := in.Connect(host, port)
				could, _ := of.Connect(host, port)
				if wider(reached, could) && !told("network: ") {
					note("connection to %s %d", host, port)
				}
				for _, method := range []string{"GET", "DELETE"} {
					for _, path := range []string{"/", "/x/y"} {
						d, _ := in.Request(host, port, method, path)
						old, _ := of.Request(host, port, method, path)
						if !wider(d, old) {
							continue
						}
						if limited := could.Allow && old.Kind == scope.KindRequest && login == ""; limited && !told("not compared: network: ") || !told("network: ", "not compared: network: ") {
							note("%s %s:%d%s: %+v before %+v", method, host, port, path, d, old)
						}
					}
				}
			}
		}
	}
	may, err := scope.Compile(a.View.PolicySpec())
	might, wrong := scope.Compile(before.View.PolicySpec())
	if err != nil || wrong != nil {
		note("%v %v", err, wrong)
		return all
	}
	for _, path := range []string{"a", "b/a", "secret", "secret/a", "secret/b", "x.key", ".vscode/tasks.json", ".git/hooks/pre-commit", ".git/config"} {
		for _, op := range []scope.Op{scope.OpLookup, scope.OpOpen, scope.OpOpenWrite, scope.OpUnlink, scope.OpLink} {
			if d, old := may.File(op, path), might.File(op, path); wider(d, old) {
				note("%v %s: %+v before %+v", op, path, d, old)
			}
		}
	}
	return all
}
