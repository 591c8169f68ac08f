package imports

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"

	"github.com/scopefs/scopefs/scope/agents"
)

// capability is a scopefs tool, the words by which a source grants it, and the further words by which a source denies
// it. It is independent of toolWords.
type capability struct {
	ours          string
	grant, denial string
}

var capabilities = map[Format][]capability{
	Gemini: {
		{"bash", "run_shell_command builtin:shell builtin:run_shell_command builtin:bash shell", "Bash builtin:Shell"},
		{"read_file", "read_file read_many_files builtin:read_file", ""}, {"edit_file", "replace builtin:edit_file", ""},
		{"write_file", "write_file builtin:write_file", ""}, {"delete_file", "", "write_file builtin:write_file"}, {"copy", "", "write_file"}, {"make_dir", "", "builtin:write_file"},
		{"grep", "grep_search search_file_content", ""}, {"list_dir", "list_directory builtin:list_dir", ""}, {"skill", "activate_skill", ""},
		{"remember", "", "save_memory"}, {"delegate", "builtin:delegate", "invoke_agent"},
		{"mcp:own:rm", "mcp_own_rm own__rm mcp:own:rm mcp_own_* mcp_* mcp:own:*", "mcp_own"}, {"mcp:own:a.b", "mcp:own:a.b mcp_own_* mcp:own:* mcp_*", "mcp_own_a_b own__a_b"},
		{"mcp:host:rm", "mcp_host_rm mcp_* mcp:host:rm", "mcp_host"},
	},
	Claude: {
		{"bash", "Bash", "PowerShell"}, {"read_file", "Read", "NotebookRead"}, {"edit_file", "Edit MultiEdit", "NotebookEdit"}, {"write_file", "Write", ""},
		{"delete_file", "", "Write"}, {"move", "", "Write"}, {"grep", "Grep", ""}, {"list_dir", "LS", ""}, {"skill", "Skill", "SlashCommand"}, {"delegate", "Task Agent", ""},
		{"mcp:own:rm", "mcp__own__rm mcp__own mcp__own__*", ""}, {"mcp:own:a.b", "mcp__own mcp__own__*", "mcp__own__a_b"}, {"mcp:host:rm", "mcp__host__rm mcp__host", ""},
	},
}

// narrowCase is a source, the tools of ours that it denies, and where its server own is:
// nowhere if scopefs cannot speak to it.
type narrowCase struct {
	format Format
	text   string
	denied []string
	server agents.Server
}

// place picks where the server own of a source is, as keys.
func (c *narrowCase) place(p picker) string {
	far := agents.Server{URL: "https://h.example/mcp", Headers: map[string]string{"Authorization": "Bearer x"}}
	const headers = ", headers: {Authorization: Bearer x}"
	type place struct {
		keys   string
		server agents.Server
	}
	places := map[Format][]place{
		Gemini: {
			{"httpUrl: 'https://h.example/mcp', timeout: 5000" + headers, far}, {"url: 'https://h.example/mcp'" + headers, far},
			{"url: 'https://h.example/mcp', type: http" + headers, far}, {"url: 'https://h.example/mcp', type: sse", agents.Server{}},
			{"httpUrl: 'http://h.example/mcp'", agents.Server{}}, {"tcp: 'h.example:1'", agents.Server{}}, {"command: x, httpUrl: 'https://h.example/mcp'", agents.Server{}},
		},
		Claude: {
			{"type: http, url: 'https://h.example/mcp'" + headers, far}, {"type: sse, url: 'https://h.example/mcp'", agents.Server{}},
			{"url: 'https://h.example/mcp'", agents.Server{}}, {"type: http, url: 'ftp://h.example'", agents.Server{}}, {"type: http", agents.Server{}},
		},
		ScopedMCP: {{"url: 'https://h.example/mcp'", agents.Server{URL: far.URL}}, {"url: 'http://h.example/mcp'", agents.Server{}}, {"url: 'https://h.example/mcp', command: x", agents.Server{}}},
	}[c.format]
	at := place{"command: x", agents.Server{Command: "x"}}
	if p.yes(50) {
		at = places[p.IntN(len(places))]
	}
	c.server = at.server
	return at.keys
}

type picker struct{ *rand.Rand }

func (p picker) yes(percent int) bool { return p.IntN(100) < percent }

func (p picker) some(words []string, most int) (list []string) {
	for range p.IntN(most + 1) {
		list = addTo(list, words[p.IntN(len(words))])
	}
	return list
}

func quoted(list []string) string {
	all := make([]string, len(list))
	for i, s := range list {
		all[i] = strconv.Quote(s)
	}
	return "[" + strings.Join(all, ", ") + "]"
}

// agentCase makes an agent file of gemini-cli or Claude Code.
func agentCase(p picker, format Format) narrowCase {
	c := narrowCase{format: format}
	var grants, denials []string
	for _, cp := range capabilities[format] {
		grants = addTo(grants, strings.Fields(cp.grant)...)
		denials = addTo(denials, strings.Fields(cp.grant+" "+cp.denial)...)
	}
	denials = append(denials, "nonsense", "Bash(rm:*)", "run_shell_command(rm)")
	lists := map[string][]string{}
	add := func(key string, percent int, words []string) {
		if p.yes(percent) {
			lists[key] = append([]string{}, p.some(words, 6)...)
		}
	}
	add("tools", 50, grants)
	add("exclude", 70, denials)
	keys := []string{"name: a"}
	if list, ok := lists["tools"]; ok {
		keys = append(keys, "tools: "+quoted(list))
	}
	var server []string // of own
	ownDenied := ""     // "all", or the tool
	switch p.IntN(6) {
	case 0:
		server, ownDenied = []string{"disabled: true"}, "all"
	case 1:
		server, ownDenied = []string{"excludeTools: [rm]"}, "rm"
	case 2:
		server, ownDenied = []string{"includeTools: [get]"}, "rm a.b"
	}
	spec := "{" + strings.Join(append([]string{c.place(p)}, server...), ", ") + "}"
	if c.server.Command == "" && c.server.URL == "" {
		ownDenied = "all"
	}
	var mcpAllowed, mcpExcluded []string
	if format == Gemini {
		keys = append(keys, "kind: local", "mcpServers: {own: "+spec+"}")
		add("allowed", 30, grants)
		add("core", 20, grants)
		var tools, mcp []string
		for _, key := range []string{"exclude", "allowed", "core"} {
			if list, ok := lists[key]; ok {
				tools = append(tools, key+": "+quoted(list))
			}
		}
		if p.yes(30) {
			mcpAllowed = append([]string{}, p.some([]string{"own", "host"}, 2)...)
			mcp = append(mcp, "allowed: "+quoted(mcpAllowed))
		}
		if p.yes(30) {
			mcpExcluded = p.some([]string{"own", "host", "*"}, 2)
			mcp = append(mcp, "excluded: "+quoted(mcpExcluded))
		}
		trust := ""
		if p.yes(30) {
			trust = ", mcp_servers: {own: {trust: true}}"
		}
		keys = append(keys, "policy: {tools: {"+strings.Join(tools, ", ")+"}, mcp: {"+strings.Join(mcp, ", ")+"}"+trust+"}")
	} else {
		if list, ok := lists["exclude"]; ok {
			keys = append(keys, "disallowedTools: "+quoted(list))
		}
		keys = append(keys, "mcpServers: [{own: "+spec+"}]")
		if p.yes(20) {
			keys = append(keys, "permissionMode: plan")
			c.denied = append(c.denied, "write_file", "edit_file", "bash")
		}
	}
	all := false
	if p.yes(5) {
		keys, all = append(keys, "forbid: [everything]"), true
	}
	for _, w := range lists["exclude"] {
		all = all || w == "nonsense" || format == Gemini && w == "PowerShell"
	}
	for _, cp := range capabilities[format] {
		names := strings.Fields(cp.grant)
		has := func(key string) bool {
			list, ok := lists[key]
			return !ok || slices.ContainsFunc(names, func(n string) bool { return slices.Contains(list, n) })
		}
		excluded := slices.ContainsFunc(lists["exclude"], func(w string) bool {
			name, _ := cutArgument(w)
			return slices.Contains(strings.Fields(cp.grant+" "+cp.denial), name)
		})
		name, tool, isMCP := strings.Cut(strings.TrimPrefix(cp.ours, "mcp:"), ":")
		if isMCP {
			excluded = excluded || mcpAllowed != nil && !slices.Contains(mcpAllowed, name) || slices.Contains(mcpExcluded, name) ||
				len(mcpAllowed) == 0 && slices.Contains(mcpExcluded, "*") ||
				name == "own" && (ownDenied == "all" || slices.Contains(strings.Fields(ownDenied), tool))
		}
		if all || excluded || !has("tools") || !has("allowed") || !has("core") {
			c.denied = append(c.denied, cp.ours)
		}
	}
	c.text = "---\n" + strings.Join(keys, "\n") + "\n---\nYou work.\n"
	return c
}

// manifestCase makes a manifest of scoped-mcp.
func manifestCase(p picker) narrowCase {
	c := narrowCase{format: ScopedMCP, denied: []string{"bash", "edit_file", "delegate", "skill", "remember", "mcp:host:rm"}}
	lines := []string{"agent_type: a", "modules:"}
	writes := false
	if p.yes(70) {
		mode := []string{"read", "write"}[p.IntN(2)]
		writes = mode == "write"
		lines = append(lines, "  filesystem: {mode: "+mode+"}")
	} else {
		c.denied = append(c.denied, "read_file")
	}
	if !writes {
		c.denied = append(c.denied, "write_file", "delete_file")
	}
	allow, deny := p.some([]string{"rm", "get", "a.b"}, 2), p.some([]string{"rm", "a/b", "a.b"}, 2)
	lines = append(lines, fmt.Sprintf("  own: {type: mcp_proxy, config: {%s, tool_allowlist: %s, tool_denylist: %s}}", c.place(p), quoted(allow), quoted(deny)))
	for _, tool := range []string{"rm", "a.b"} {
		if c.server.Command == "" && c.server.URL == "" || slices.Contains(deny, tool) || slices.Contains(deny, "a/b") || len(allow) > 0 && !slices.Contains(allow, tool) {
			c.denied = append(c.denied, "mcp:own:"+tool)
		}
	}
	switch p.IntN(6) {
	case 0:
		lines = append(lines, "hitl: {approval_required: ['*_file', own_*]}")
		c.denied = append(c.denied, "read_file", "write_file", "mcp:own:rm", "mcp:own:a.b")
	case 1:
		lines = append(lines, "hitl: {shadow: [filesystem_write_file, own_rm]}")
		c.denied = append(c.denied, "write_file", "mcp:own:rm")
	case 2:
		lines = append(lines, "rate_limits: {per_tool: {filesystem_write_file: 0/hour, own_a_b: 0/hour}}")
		c.denied = append(c.denied, "write_file", "mcp:own:a.b")
	case 3:
		lines = append(lines, "argument_filters: [{name: f, pattern: '(?!a)b'}]")
		c.denied = append(c.denied, "read_file", "write_file", "mcp:own:rm", "mcp:own:a.b")
	case 4:
		lines = append(lines, "forbid: [everything]")
		c.denied = append(c.denied, "read_file", "write_file", "list_dir", "mcp:own:rm", "mcp:own:a.b")
	}
	c.text = strings.Join(lines, "\n") + "\n"
	return c
}

// scopesCase makes an agent in whose lists empty means unrestricted, and whose
// empty tools are computed from the others.
func scopesCase(p picker) narrowCase {
	c := narrowCase{format: Scopes, server: agents.Server{Command: "x"}}
	tools, skills, mcps, members := p.some([]string{"bash", "read_file", "skill", "delegate", "mcp", "mcp:own:*"}, 3), p.some([]string{"s1", "s2"}, 1), p.some([]string{"own", "host"}, 1), p.some([]string{"b", "c"}, 1)
	exclude := p.some([]string{"builtin:shell", "bash", "read_file", "mcp:own:rm"}, 2)
	c.text = fmt.Sprintf("name: a\ntools: %s\nskills: %s\nmcps: %s\nmembers: %s\nmcp_servers: {own: {command: x}}\npolicy: {tools: {exclude: %s}}\n", quoted(tools), quoted(skills), quoted(mcps), quoted(members), quoted(exclude))
	all := p.yes(5)
	if all {
		c.text += "forbid: [everything]\n"
	}
	computed := len(tools) == 0 && len(skills)+len(mcps)+len(members) > 0
	if computed {
		tools = append(tools, "bash", "ask_user", "remember") // the host has memory
		for tool, list := range map[string][]string{"skill": skills, "mcp": mcps, "delegate": members} {
			if len(list) > 0 {
				tools = append(tools, tool)
			}
		}
	}
	if len(tools) > 0 && len(skills) > 0 {
		tools = append(tools, "skill")
	}
	for _, tool := range []string{"bash", "read_file", "write_file", "grep", "skill", "delegate", "remember", "mcp:own:rm", "mcp:own:a.b", "mcp:host:rm"} {
		name, _, isMCP := strings.Cut(strings.TrimPrefix(tool, "mcp:"), ":")
		listed := len(tools) == 0 || slices.ContainsFunc(tools, func(t string) bool { return ours(nil).Match(t, tool) })
		if all || !listed || slices.Contains(exclude, tool) || tool == "bash" && slices.Contains(exclude, "builtin:shell") || isMCP && len(mcps) > 0 && !slices.Contains(mcps, name) {
			c.denied = append(c.denied, tool)
		}
	}
	for id, list := range map[string][]string{"skill:": skills, "member:": members} {
		for _, name := range map[string][]string{"skill:": {"s1", "s2"}, "member:": {"b", "c"}}[id] {
			if (len(list) > 0 || id == "member:") && !slices.Contains(list, name) {
				c.denied = append(c.denied, id+name)
			}
		}
	}
	return c
}
