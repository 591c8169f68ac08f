package widening_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/internal/need"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/agents"
	"github.com/scopefs/scopefs/scope/catalog"
	"github.com/scopefs/scopefs/scope/hosts"
	"github.com/scopefs/scopefs/scope/network"
	"github.com/scopefs/scopefs/scope/widening"
)

// random writes definitions, and names for what their rules may decide about.
type random struct{ *rand.Rand }

func (r random) of(parts ...string) string { return parts[r.IntN(len(parts))] }

// text returns one to n parts, joined.
func (r random) text(n int, parts ...string) (text string) {
	for range 1 + r.IntN(n) {
		text += r.of(parts...)
	}
	return text
}

// list returns up to n different texts as a list of YAML.
func (r random) list(n int, text func() string) string {
	var all []string
	for range r.IntN(n + 1) {
		if one := "'" + text() + "'"; !slices.Contains(all, one) && !strings.Contains(one, "**'") {
			all = append(all, one)
		}
	}
	return "[" + strings.Join(all, ", ") + "]"
}

func (r random) server() string { return r.text(3, "git", "hub", "s", "_", "e") }
func (r random) tool() string   { return r.text(3, "get_", "a", "b", ":", "x") }
func (r random) path() string   { return r.text(3, "a", "b", "/a", "/b", "/.git", ".x", "A") }
func (r random) url() string {
	return "/" + r.text(4, "x", "y", "/x", "/y", "%2f", ";x", "?")
}
func (r random) host() string {
	return r.text(2, "a.", "b.") + r.of("org", "a.org", "example")
}
func (r random) method() string { return r.of("GET", "DELETE", "PUT", "POST") }

func (r random) toolPattern() string {
	wild := func(name string) string {
		return r.of(name, name+"*", "*"+name, "*", name[:1]+"*")
	}
	return r.of("bash", "*", "mcp", "m*", "builtin:shell", "read_*", "stat", "*a*", "ask_user", "mcp:"+wild(r.server())+":"+wild(r.tool()), "mcp:github:"+wild(r.tool()), "mcp:*:"+wild(r.tool()))
}

func (r random) hostRule(ask bool) string {
	host := r.of(r.host(), r.host(), "*."+r.host(), "*.org", "*", "192.0.2.1")
	if ask || r.IntN(2) == 0 {
		return host
	}
	path := func() string { return "/" + r.text(3, "x", "y", "/x", "/*", "*", "/**/y") + r.of("", "/**", "*") }
	all := "{host: '" + host + "'"
	for key, value := range map[string]string{"methods": "[" + r.of("GET", "GET, PUT", "DELETE") + "]", "ports": "[" + r.of("443", "8443", "80, 8443") + "]", "paths": strings.ReplaceAll(r.list(2, path), "[]", "[/x/**]")} {
		if r.IntN(2) == 0 {
			all += ", " + key + ": " + value
		}
	}
	return all + "}"
}

// raw is list without quotes.
func (r random) raw(n int, text func() string) string {
	var all []string
	for range r.IntN(n + 1) {
		if one := text(); one[0] != '*' {
			all = append(all, one)
		} else {
			all = append(all, "'"+one+"'")
		}
	}
	return "[" + strings.Join(all, ", ") + "]"
}

func (r random) network() string {
	if r.IntN(8) == 0 {
		return "none"
	}
	ask := r.raw(2, func() string { return r.hostRule(true) })
	if r.IntN(3) == 0 {
		ask = "true"
	}
	return fmt.Sprintf("{allow: %s, ask: %s, deny: %s, presets: %s}", r.raw(4, func() string { return r.hostRule(false) }), ask,
		r.raw(r.IntN(2), func() string { return r.hostRule(true) }), r.of("[]", "[]", "[npm]", "[openai]"))
}

func (r random) view() string {
	paths := map[string]string{}
	for range r.IntN(4) {
		paths[r.of("**/", "", "")+strings.Trim(r.text(3, "a", "b", "/a", "*", "/*", "[ab]", "A", "{a,b}", ".x"), "/")+r.of("", "/**")] = r.of("write", "hold", "read", "seal", "hide")
	}
	var all []string
	for pattern, access := range paths {
		if !strings.Contains(pattern, "**") || strings.HasPrefix(pattern, "**/") {
			all = append(all, "'"+pattern+"': "+access)
		}
	}
	slices.Sort(all)
	return fmt.Sprintf("{access: %s, hardlinks: %s, paths: {%s}}", r.of("read", "write"), r.of("allow", "read", "deny"), strings.Join(all, ", "))
}

// keys returns keys that the user and a repository may set. Any of them may be absent.
func (r random) keys() string {
	tools := func(n int) string { return r.list(n, r.toolPattern) }
	servers := func() string { return r.list(2, func() string { return r.of("github", "g*", "*", "search", "*e*") }) }
	all := map[string]string{
		"tools": tools(4), "skills": r.of("[]", "['*']", "[check]", "['c*']"), "mcps": servers(),
		"members": r.of("[]", "['*']", "[m]", "['m*']"),
		"policy": fmt.Sprintf("{tools: {allowed: %s, exclude: %s, ask: %s}, mcp: {allowed: %s, excluded: %s}}", r.of(tools(2), "['*']"), tools(1), tools(1), r.of(servers(), "['*']"),
			r.of("[]", servers())),
		"network": r.network(), "view": r.view(), "protect": r.of("[scopefs]", "{lists: [scopefs], answer: hold}", "[scopefs, git-config]"),
		"env": r.of("{A: x}", "{A: y, B: z}"), "delegate": "{changes: held}", "limits": r.of("{pids: 5}", "{pids: 9, cpu: 2}"),
		"rate_limits": "{bash: 3/minute}",
	}
	text := ""
	for key, value := range all {
		if r.IntN(2) == 0 {
			text += key + ": " + value + "\n"
		}
	}
	return text
}

// TestNothingUntold: whatever an agent may do with a repository's file is allowed by the user's definition, or told. The functions
// that decide say what it may do, asked about names that the procedure did not choose.
func TestNothingUntold(t *testing.T) {
	t.Parallel()
	r := random{rand.New(rand.NewPCG(1, 2))}
	tools := catalog.Tools{
		{Name: "bash", Aliases: []string{"shell"}, Listed: catalog.ListedBase}, {Name: "ask_user", Listed: catalog.ListedBase}, {Name: "skill", Listed: catalog.ListedSkills}, {Name: "delegate", Listed: catalog.ListedMembers},
		{Name: "checkpoint", Listed: catalog.ListedHeld}, {Name: "read_file"}, {Name: "stat"}, {Name: "move", Writes: true}, {Name: "kv_get"}, {Name: "metrics_query"},
	}
	host := agents.Host{Tools: tools, Servers: agents.Servers{"github": {Command: "gh"}, "search": {Command: "search", Include: []string{"get_*"}}}}
	check := func(a, before *agents.Agent, keys, file string) int {
		var lines []string
		for _, e := range widening.Of(a, before) {
			lines = append(lines, e.String())
		}
		if untold := r.untold(a, before, lines); untold != nil {
			t.Fatalf("%s may do more than a alone:\n%s\nby the user's\n%s\nand\n%s\nLines:\n%s", a.Name, strings.Join(untold, "\n"), keys, file, strings.Join(lines, "\n"))
		}
		return min(len(lines), 1)
	}
	pairs, wider := 0, 0
	all := 10_000 // with the race detector; TestMutations has 300 notice each mutation
	if need.Again() {
		all = 100_000
	}
	for most := need.Rounds("SCOPEFS_TEST_DEFINITIONS", 500, all); pairs < most; {
		base := t.TempDir()
		keys := r.keys()
		other := r.keys()
		for name, text := range map[string]string{"agents.d/a.md": "---\nname: a\n" + keys + "---\n", "agents.d/b.md": "---\nname: b\n" + other + "---\n", "agents.d/m.md": "---\nname: m\n---\n", "skills/check/SKILL.md": "x"} {
			require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(base, name)), 0o755))
			require.NoError(t, os.WriteFile(filepath.Join(base, name), []byte(text), 0o644))
		}
		all, errs := agents.Load(base, host)
		if errs != nil {
			continue // such as changes: held without members
		}
		for range 20 {
			file := r.keys()
			if r.IntN(3) == 0 {
				file += "mcp_servers: {own: {command: x}, github: {command: evil}}\n"
			}
			if r.IntN(3) == 0 {
				file += "agents: {r: {" + strings.ReplaceAll(strings.TrimSpace(r.keys()), "\n", ", ") + "}, s: {}}\n"
			}
			p, errs := all.Propose("a", []byte(file))
			if errs != nil {
				continue
			}
			pairs++
			for _, a := range append(p.Team, p.With) {
				wider += check(a, p.Without, keys, file)
			}
		}
		pairs++
		check(all.Agents["b"], all.Agents["a"], keys, other) // two definitions of the user's: neither is within the other
	}
	require.Greater(t, wider, pairs/4)
}

// untold returns what a may do, before may not, and no line says.
func (r random) untold(a, before *agents.Agent, lines []string) (all []string) {
	told := func(prefixes ...string) bool {
		return slices.ContainsFunc(lines, func(line string) bool {
			return slices.ContainsFunc(prefixes, func(prefix string) bool { return strings.HasPrefix(line, prefix) })
		})
	}
	note := func(format string, v ...any) { all = append(all, fmt.Sprintf(format, v...)) }
	now, was := a.Grants, before.Grants
	wider := func(d, old scope.Decision) bool {
		return d.Allow && !old.Allow || d.Ask && !old.Ask && !old.Allow
	}
	for _, tool := range append(now.ToolNames(), r.text(3, "a", "read_", "stat", "m")) {
		if tool != "mcp" && wider(now.Tool(tool), was.Tool(tool)) && !told("tools: "+tool+": ", "tools: tools that come later: ") {
			note("tool %s", tool)
		}
	}
	for range 8 {
		server := r.of("github", "search", "own", r.server())
		name := "mcp:" + server + ":" + r.tool()
		d, old := now.Among(server, "", "").Tool(name), was.Among(server, "", "").Tool(name)
		if wider(d, old) && !told("tools: tools of "+server+": ", "mcp_servers: "+server+": ", "tools: tools of servers that come later: ") {
			note("%s: %+v before %+v", name, d, old)
		}
	}
	for _, name := range []string{"m", "r", "s", "mx", "other"} {
		d, old := now.Member(name), was.Member(name)
		if len(name) > 1 {
			d, old = now.Among("", "", scope.ID(name)).Member(name), was.Among("", "", scope.ID(name)).Member(name)
		}
		if wider(d, old) && !told("members: gives tasks to "+name, "members: gives tasks to agents that you define later") {
			note("member %s", name)
		}
	}
	for _, name := range []string{"check", "cx", "other"} {
		if wider(now.Among("", name, "").Skill(name), was.Among("", name, "").Skill(name)) && !told("skills: "+name, "skills: skills that come later") {
			note("skill %s", name)
		}
	}
	for name, value := range a.Env {
		if old, ok := before.Env[name]; (!ok || old != value) && !told("env: sandboxes have "+name+"="+value) {
			note("env %s", name)
		}
	}
	r.hosts(now.Hosts(), was.Hosts(), note)
	may, err := scope.Compile(a.View.PolicySpec())
	might, wrong := may, err
	if !reflect.DeepEqual(a.View.PolicySpec(), before.View.PolicySpec()) {
		might, wrong = scope.Compile(before.View.PolicySpec())
	}
	if err != nil || wrong != nil {
		note("%v %v", err, wrong)
		return all
	}
	for range 12 {
		path := strings.Trim(r.path(), "/")
		for _, op := range []scope.Op{scope.OpLookup, scope.OpOpen, scope.OpOpenWrite, scope.OpUnlink, scope.OpLink} {
			if d, old := may.Linked(op, path, 2), might.Linked(op, path, 2); path != "" && wider(d, old) && !told("view: ") {
				note("%v %s: %+v before %+v", op, path, d, old)
			}
		}
	}
	return all
}

// hosts notes connections and requests that now allows, was denies, and Excess has no rule of.
func (r random) hosts(now, was *hosts.Policy, note func(format string, v ...any)) {
	excess := now.Excess(was)
	told := func(host string, port uint16, asks bool) bool {
		return slices.ContainsFunc(excess, func(e hosts.Excess) bool {
			pattern, err := network.ParseHostPattern(e.Allows.Host)
			return e.Asks == asks && (e.Allows.Host == "" || err == nil && pattern.Match(host) && slices.Contains(e.Allows.Ports, port)) || e.Undecided && pattern.Match(host)
		})
	}
	for range 30 {
		login := r.of("", "", "codex")
		in, _ := now.For(login)
		of, _ := was.For(login)
		host, port, method, path := r.of(r.host(), "other.test", "registry.npmjs.org", "chatgpt.com", "api.openai.com", "192.0.2.1"), []uint16{443, 80, 8443}[r.IntN(3)], r.method(), r.url()
		d, _ := in.Request(host, port, method, path)
		old, _ := of.Request(host, port, method, path)
		if d.Wider(old) && !told(host, port, d.Ask) {
			note("%s %s:%d%s: %+v before %+v", method, host, port, path, d, old)
		}
	}
}
