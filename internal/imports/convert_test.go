package imports

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// conversion is the keys of a source, the keys of its definition (except name), and the losses.
type conversion struct {
	from string
	want keys
	lost []string
}

func convertAll(t *testing.T, format Format, source func(string) []byte, all map[string]conversion) {
	t.Helper()
	for name, c := range all {
		t.Run(name, func(t *testing.T) {
			r := one(t, Source{Tools: ours(t), File: "a.md", Text: source(c.from), Format: format, Name: "a"})
			accepted(t, r)
			got, _ := parsed(t, r)
			delete(got, "name")
			assert.Equal(t, c.want, got, "%s", r.Text)
			lost := append([]string{}, c.lost...)
			assert.ElementsMatch(t, lost, what(r), "%v", r.Lost)
		})
	}
}

func named(from string) []byte { return agent("name: a\n" + from) }

func TestGemini(t *testing.T) {
	ask := func(tools string) keys { return keys{"tools": keys{"ask": words(tools)}} }
	convertAll(t, Gemini, named, map[string]conversion{
		"absent inherits": {"description: d", keys{"description": "d"}, nil},
		"none":            {"tools: []", keys{"tools": words("")}, []string{"tools"}},
		"all":             {"tools: ['*']", keys{"tools": words("*")}, nil},
		"tools": {"tools: [read_file, read_many_files, list_directory, glob, search_file_content, grep_search, write_file, replace, run_shell_command, activate_skill, ask_user]",
			keys{"tools": words("read_file list_dir glob grep write_file edit_file bash skill ask_user")}, nil},
		"no such tool":   {"tools: [save_memory, web_fetch, x]", keys{"tools": words("")}, []string{"tools: save_memory", "tools: web_fetch", "tools: x"}},
		"some arguments": {"tools: ['run_shell_command(git status)']", keys{"tools": words("bash"), "policy": ask("bash")}, []string{"tools: run_shell_command(git status)"}},
		"servers' tools": {"tools: [mcp_*, mcp_s_*, mcp_s_do_it, s__do, s__*]", keys{"tools": words("mcp mcp:s:* mcp:s:do_it mcp:s:do")}, []string{"mcp server s"}},
		"limits":         {"timeout_mins: 15", keys{"limits": keys{"timeout": "15m"}, "timeout": "15m"}, nil},
		"half a minute":  {"timeout_mins: 0.5", keys{"limits": keys{"timeout": "30s"}, "timeout": "30s"}, nil},
		"a model's":      {"kind: local\nmodel: x\ntemperature: 1\nmax_turns: 3\ndisplay_name: A\nnew: 1\nicon: x", keys{"policy": ask("*"), "kind": "local", "model": "x", "temperature": 1, "max_turns": 3, "display_name": "A"}, []string{"icon", "new"}},
		"no model's":     {"model: [x]\ntemperature: 9\nmax_turns: many", keys{}, []string{"model", "temperature", "max_turns"}},
		"server": {"mcpServers: {my_s: {command: npx, args: [-y, x], cwd: d, trust: true, timeout: 5, env: {A: $A, B: 'x${B:-c}', C: '${C}'}}}\ntools: [mcp_my_s_do]",
			keys{"tools": words("mcp:my_s:do"), "policy": keys{"mcp": keys{"mcp_servers": keys{"my_s": keys{"trust": true}}}},
				"mcp_servers": keys{"my_s": keys{"command": "npx", "args": words("-y x"), "cwd": "d", "env": keys{"A": "${A}", "B": "x${B}", "C": "${C}"}, "timeout": "5ms"}}},
			[]string{"mcpServers.my_s.env.B"}},
		"server elsewhere": {"mcpServers: {s: {command: x, cwd: /srv}}\ntools: [mcp_s_do]", keys{"tools": words("mcp:s:do"), "mcp_servers": keys{"s": keys{"command": "x"}}}, []string{"mcpServers.s.cwd"}},
		"far server": {"mcpServers: {s: {httpUrl: 'https://x/$A?k=${B}', headers: {Authorization: 'Bearer $C', Host: y, X-A: \"a\\n\"}, timeout: 90000, trust: true, env: {A: b}}}\ntools: [glob, mcp_s_do]",
			keys{"tools": words("glob mcp:s:do"), "policy": keys{"mcp": keys{"mcp_servers": keys{"s": keys{"trust": true}}}},
				"mcp_servers": keys{"s": keys{"url": "https://x/${A}?k=${B}", "headers": keys{"Authorization": "Bearer ${C}"}, "timeout": "1m30s"}}},
			[]string{"mcpServers.s.headers.Host", "mcpServers.s.headers.X-A", "mcpServers.s"}},
		"far by url": {"mcp_servers: {s: {url: 'https://x', timeout: 1.5}, r: {url: 'http://localhost:1', type: http}}",
			keys{"mcp_servers": keys{"s": keys{"url": "https://x"}, "r": keys{"url": "http://localhost:1"}}}, []string{"mcpServers.s.timeout", "mcpServers.s.url"}},
		"far by SSE":      {"mcpServers: {s: {url: 'https://x', type: sse}, r: {tcp: 'x:1'}}\ntools: [glob, mcp_s_do]", keys{"tools": words("glob")}, []string{"mcpServers.s", "mcpServers.r", "tools: mcp:s:do"}},
		"far and near":    {"mcpServers: {s: {httpUrl: 'https://x', command: y}}\ntools: [mcp_s_do]", keys{"tools": words("")}, []string{"mcpServers.s", "tools: mcp:s:do"}},
		"far, no address": {"mcpServers: {s: {httpUrl: 'https://u:p@x'}, r: {httpUrl: 'http://x'}}\ntools: [glob]", keys{"tools": words("glob")}, []string{"mcpServers.s", "mcpServers.r"}},
		"near, of far":    {"mcpServers: {s: {command: x, headers: {A: b}}}\ntools: [mcp_s_do]", keys{"tools": words("mcp:s:do"), "mcp_servers": keys{"s": keys{"command": "x"}}}, []string{"mcpServers.s.headers"}},
		"two servers":     {"mcpServers: {a: {command: x}, a_b: {command: x}}\ntools: [mcp_a_b_c]", keys{"tools": words(""), "mcp_servers": keys{"a": keys{"command": "x"}, "a_b": keys{"command": "x"}}}, []string{"tools: mcp_a_b_c"}},
		"included": {"mcpServers: {s: {command: x, includeTools: [p, q], excludeTools: [q]}}\ntools: [glob, mcp_s_*, mcp_s_r]",
			keys{"tools": words("glob mcp:s:p mcp:s:q"), "policy": keys{"tools": keys{"exclude": words("mcp:s:q")}}, "mcp_servers": keys{"s": keys{"command": "x"}}}, []string{"tools: mcp:s:r"}},
		"included of all": {"mcpServers: {s: {command: x, includeTools: [p]}, r: {command: x}}\ntools: [mcp_*]",
			keys{"tools": words("mcp:s:p mcp:r:*"), "mcp_servers": keys{"s": keys{"command": "x"}, "r": keys{"command": "x"}}}, []string{"tools"}},
		"included nothing": {"mcpServers: {s: {command: x, includeTools: []}}\ntools: [mcp_s_*]", keys{"tools": words(""), "mcp_servers": keys{"s": keys{"command": "x"}}}, nil},
		"policy": {"policy: {tools: {core: [read_file, run_shell_command(ls), glob], exclude: [write_file, web_fetch], allowed: ['builtin:read_file', 'builtin:shell', mcp_s_*]}, mcp: {allowed: [s], excluded: [r]}, mcpServers: {s: {trust: true}}}",
			keys{"policy": keys{"tools": keys{"allowed": words("read_file bash"), "exclude": words("write_file make_dir move copy delete_file delete"), "ask": words("bash")},
				"mcp": keys{"allowed": words("s"), "excluded": words("r"), "mcp_servers": keys{"s": keys{"trust": true}}}}},
			[]string{"policy.tools.core: run_shell_command(ls)", "mcp server s", "mcp server r"}},
		"excluded by our names": {"policy: {tools: {exclude: ['builtin:shell', 'builtin:write_file']}}", keys{"policy": keys{"tools": keys{"exclude": words("bash write_file make_dir move copy delete_file delete")}}}, nil},
		"allowed alone":         {"policy: {tools: {allowed: ['builtin:read_file']}}", keys{"policy": keys{"tools": keys{"allowed": words("read_file")}}}, nil},
		"allowed nothing":       {"policy: {tools: {allowed: [x]}}", keys{"policy": keys{"tools": keys{"allowed": words("")}}}, []string{"policy.tools.allowed: x"}},
		"excluded and unknown":  {"policy: {tools: {exclude: [x, 'builtin:s*']}}", keys{"policy": keys{"tools": keys{"exclude": words("grep remember memory forget skill bash stat scope_info"), "ask": words("*")}}}, []string{"policy.tools.exclude: x"}},
		"excluded of a server": {"mcpServers: {my.s: {command: x}}\npolicy: {tools: {exclude: [mcp_my_s_do_it, mcp_other_x_y]}}", keys{"policy": keys{"tools": keys{"exclude": words("mcp:my.s:do*it mcp")}},
			"mcp_servers": keys{"my.s": keys{"command": "x"}}}, nil},
		"disabled":          {"mcpServers: {s: {command: x, disabled: true}, r: {command: y}}", keys{"policy": keys{"mcp": keys{"allowed": words("r")}}, "mcp_servers": keys{"r": keys{"command": "y"}}}, []string{"mcpServers.s", "mcp servers"}},
		"server's key":      {"mcpServers: {s: {command: x, oauth: {}, trust: true}}", keys{"policy": ask("mcp:s:*"), "mcp_servers": keys{"s": keys{"command": "x"}}}, []string{"mcpServers.s.oauth", "trust of s"}},
		"unknown policy":    {"policy: {deny: [x]}", keys{"policy": ask("*")}, []string{"policy.deny"}},
		"rules elsewhere":   {"policy: {policyPaths: [x.toml]}", keys{"policy": ask("*")}, []string{"policy.policyPaths"}},
		"trusted and asked": {"policy: {policyPaths: [x.toml], mcpServers: {s: {trust: true}}}", keys{"policy": ask("*")}, []string{"policy.policyPaths", "trust of s"}},
		"no variable":       {"mcpServers: {s: {command: x, args: ['${', '${A:-b}', '$1'], env: {'A.B': c}}}", keys{"mcp_servers": keys{"s": keys{"command": "x", "args": words("$${ ${A} $1")}}}, []string{"mcpServers.s.args", "mcpServers.s.env.A.B"}},
	})
	for _, text := range []string{"---\nkind: remote\nname: a\nagent_card_url: x\n---\n", "---\n- {kind: remote, name: a}\n---\n"} {
		_, err := Convert(Source{Tools: ours(t), Text: []byte(text), Format: Gemini})
		assert.ErrorContains(t, err, "remote agent")
	}
	_, err := Convert(Source{Tools: ours(t), Text: named("tools: {a: b}"), Format: Gemini})
	assert.ErrorContains(t, err, "tools: line 3: want a list")
}

func TestIncludedOfEverythingNeverMeansEverything(t *testing.T) {
	r := one(t, Source{Tools: ours(t), Text: named("mcpServers: {s: {command: x, includeTools: [p]}}"), Format: Gemini})
	got, _ := parsed(t, r)
	assert.Contains(t, got["tools"], "mcp:s:p")
	assert.Contains(t, got["tools"], "read_file")
	for _, wide := range []string{"*", "mcp:s:*", "mcp", "delegate"} {
		assert.NotContains(t, got["tools"], wide)
	}
	assert.Equal(t, []string{"tools"}, what(r))
}

func TestClaude(t *testing.T) {
	policy := func(kind, tools string) keys { return keys{"tools": keys{kind: words(tools)}} }
	const writing = "bash write_file edit_file make_dir move copy delete_file delete"
	convertAll(t, Claude, named, map[string]conversion{
		"absent inherits": {"model: opus\ncolor: red", keys{"model": "opus"}, []string{"color", "members"}},
		"no value":        {"tools:", keys{"tools": words("")}, []string{"tools"}},
		"one text":        {"tools: Read, Write,Edit, MultiEdit, Glob, Grep, LS, Bash", keys{"tools": words("read_file write_file edit_file glob grep list_dir bash")}, nil},
		"list":            {"tools: [Read, Skill, KillShell]", keys{"tools": words("read_file skill process_stop")}, nil},
		"no such tool":    {"tools: WebFetch, NotebookEdit, TodoWrite, Nope", keys{"tools": words("")}, []string{"tools: WebFetch", "tools: NotebookEdit", "tools: TodoWrite", "tools: Nope"}},
		"some arguments":  {"tools: Bash(git:*), Bash(npm run test, x), Read", keys{"tools": words("bash read_file"), "policy": policy("ask", "bash")}, []string{"tools: Bash(git:*)", "tools: Bash(npm run test, x)"}},
		"some and all":    {"tools: Bash(git:*), Bash", keys{"tools": words("bash")}, nil},
		"any agent":       {"tools: Task", keys{"tools": words("delegate")}, []string{"tools: Task"}},
		"these agents":    {"tools: Agent(Code_Reviewer, writer), Read", keys{"tools": words("delegate read_file"), "members": words("code-reviewer writer")}, nil},
		"servers' tools":  {"tools: mcp__s__do_it, mcp__r, mcp__r__*", keys{"tools": words("mcp:s:do_it mcp:r:*")}, []string{"mcp server s", "mcp server r"}},
		"denied": {"disallowedTools: Write, Bash, WebFetch, mcp__s, mcp__r__x, Nope",
			keys{"policy": keys{"tools": keys{"ask": words("*"), "exclude": words("write_file make_dir move copy delete_file delete bash mcp:s:* mcp:r:x")}, "mcp": keys{"excluded": words("s")}}},
			[]string{"members", "disallowedTools: Nope", "mcp server s", "mcp server r"}},
		"denied in part": {"tools: Bash\ndisallowedTools: [Bash(rm:*)]", keys{"tools": words("bash"), "policy": policy("ask", "bash")}, []string{"disallowedTools: Bash(rm:*)"}},
		"skills":         {"tools: Read, Skill\nskills: [check-feeds]", keys{"tools": words("read_file skill"), "skills": words("check-feeds")}, []string{"skills"}},
		"skills alone":   {"skills: check-feeds, b", keys{"skills": words("check-feeds b")}, []string{"members", "skills", "tools"}},
		"mode plan":      {"tools: Read, Bash\npermissionMode: plan", keys{"view": keys{"access": "read"}, "tools": words("read_file bash"), "policy": policy("ask", "bash")}, []string{"permissionMode"}},
		"mode default":   {"permissionMode: default", keys{"policy": policy("ask", writing+" mcp")}, []string{"members", "permissionMode"}},
		"mode edits":     {"tools: Write, Bash, mcp__s__x\npermissionMode: acceptEdits", keys{"tools": words("write_file bash mcp:s:x"), "policy": policy("ask", "bash mcp:s:x")}, []string{"permissionMode", "mcp server s"}},
		"mode bypass":    {"tools: Read\npermissionMode: bypassPermissions", keys{"tools": words("read_file")}, nil},
		"hook on some":   {"tools: Bash, Write, Read\nhooks: {PreToolUse: [{matcher: Edit|Write, hooks: []}]}", keys{"tools": words("bash write_file read_file"), "policy": policy("ask", "write_file")}, []string{"hooks"}},
		"hook on all":    {"tools: Bash\nhooks: {PreToolUse: [{matcher: 'B.*'}]}", keys{"tools": words("bash"), "policy": policy("ask", "*")}, []string{"hooks"}},
		"hook after":     {"tools: Bash\nhooks: {PostToolUse: [{matcher: Bash}]}", keys{"tools": words("bash")}, []string{"hooks"}},
		"servers": {"tools: mcp__s, mcp__far__x\nmcpServers: [github, {s: {type: stdio, command: npx, env: {A: $A}}}, {far: {type: http, url: x}}]",
			keys{"tools": words("mcp:s:*"), "mcp_servers": keys{"s": keys{"command": "npx", "env": keys{"A": "$A"}}}}, []string{"mcpServers.far", "tools: mcp:far:x", "mcp server github"}},
		"far servers": {"tools: mcp__s, mcp__r\nmcpServers: [{s: {type: http, url: 'https://h/${A:-h}', headers: {Authorization: 'Bearer ${B}', X-A: $A}}}, {r: {type: sse, url: 'https://x'}}, {q: {url: 'https://x'}}]",
			keys{"tools": words("mcp:s:*"), "mcp_servers": keys{"s": keys{"url": "https://h/${A}", "headers": keys{"Authorization": "Bearer ${B}", "X-A": "$A"}}}},
			[]string{"mcpServers.s.url", "mcpServers.r", "mcpServers.q", "tools: mcp:r:*"}},
	})
}

func TestClaudeDescriptionWithoutQuotes(t *testing.T) {
	r := one(t, Source{Tools: ours(t), Text: named(`description: Use it when: "x". It's <example>user: 'y'</example>` + "\ntools: Read")})
	got, prompt := parsed(t, r)
	assert.Equal(t, `Use it when: "x". It's <example>user: 'y'</example>`, got["description"])
	assert.Equal(t, "You work.", prompt)
	assert.Equal(t, []string{"description"}, what(r))
}

func TestManifest(t *testing.T) {
	manifest := func(from string) []byte { return []byte("agent_type: a\n" + from) }
	want := func(more keys) keys {
		all := keys{"view": keys{"access": "read"}, "tools": words(""), "skills": words(""), "mcps": words("")}
		for k, v := range more {
			all[k] = v
		}
		return all
	}
	const files = "modules: {filesystem: {mode: write}, s: {type: mcp_proxy, config: {command: x}}, r: {type: mcp_proxy, config: {command: x, tool_allowlist: [get-it, put]}}}\n"
	withFiles := func(more keys) keys {
		all := want(keys{"view": keys{"access": "write"}, "tools": words("read_file list_dir write_file delete_file mcp:s:* mcp:r:get-it mcp:r:put"), "mcps": words("s r"),
			"mcp_servers": keys{"s": keys{"command": "x"}, "r": keys{"command": "x"}}})
		for k, v := range more {
			all[k] = v
		}
		return all
	}
	tools := func(kind, list string) keys { return keys{"policy": keys{"tools": keys{kind: words(list)}}} }
	rates := func(r keys) keys { return withFiles(keys{"rate_limits": r}) }
	filters := func(f ...any) keys { return withFiles(keys{"argument_filters": keys{"*": f}}) }
	convertAll(t, ScopedMCP, manifest, map[string]conversion{
		"read":         {"modules: {filesystem: {mode: read, config: {base_path: /d}}}", want(keys{"dir": "/d/agents/a", "tools": words("read_file list_dir")}), nil},
		"no directory": {"modules: {filesystem: {mode: read, config: {base_path: data}}}", want(keys{"tools": words("read_file list_dir")}), []string{"modules.filesystem.config.base_path"}},
		"two directories": {"modules: {f: {type: filesystem, mode: read, config: {base_path: /d/}}, g: {type: filesystem, mode: read, config: {base_path: /e}}, h: {type: filesystem, mode: read, config: {base_path: /d}}}",
			want(keys{"dir": "/d/agents/a", "tools": words("read_file list_dir")}), []string{"modules.g.config.base_path"}},
		"unknown keys": {"modules: {filesystem: {mode: read, config: {max_size: 1}}, redis: {mode: read, config: {ttl: 3}}, s: {type: mcp_proxy, config: {url: 'https://x', tool_allowlist: [a], retries: 2}}}",
			want(keys{"tools": words("read_file list_dir kv_get kv_list mcp:s:a"), "mcps": words("s"), "mcp_servers": keys{"s": keys{"url": "https://x"}},
				"policy": keys{"tools": keys{"ask": words("read_file list_dir kv_get kv_list mcp:s:*")}}}),
			[]string{"modules.filesystem.config.max_size", "modules.redis.config.ttl", "modules.redis", "modules.redis", "modules.s.config.retries"}},
		"a module's": {"modules: {f: {retries: 3, type: filesystem, mode: read}, s: {type: mcp_proxy, retries: 3, config: {url: 'https://x', tool_allowlist: [a]}}, redis: {mode: read, retries: 3}, mqtt: {retries: 3}}",
			want(keys{"tools": words("read_file list_dir mcp:s:a kv_get kv_list"), "mcps": words("s"), "mcp_servers": keys{"s": keys{"url": "https://x"}},
				"policy": keys{"tools": keys{"ask": words("read_file list_dir write_file delete_file mcp:s:* kv_get kv_list kv_set kv_delete")}}}),
			[]string{"modules.f.retries", "modules.s.retries", "modules.redis.retries", "modules.redis", "modules.redis", "modules.mqtt.retries", "modules.mqtt"}},
		"any mode":      {"modules: {filesystem: {}}", want(keys{"view": keys{"access": "write"}, "tools": words("read_file list_dir write_file delete_file")}), nil},
		"other modules": {"modules: {mqtt: , grafana: {mode: write}}\ncredentials: {source: env}\nstate_backend: {}\nnew: 1", want(tools("ask", "*")), []string{"modules.mqtt", "modules.grafana", "credentials", "state_backend", "new"}},
		"stores, read": {"modules: {filesystem: {mode: write}, sqlite: {mode: read}, redis: {mode: read}, influxdb: {mode: read}, nats: {mode: read}, http_proxy: {mode: read, config: {allowed_services: [{name: s, base_url: 'https://s'}]}}}",
			want(keys{"view": keys{"access": "write"}, "tools": words("read_file list_dir write_file delete_file sql_query sql_tables kv_get kv_list metrics_query subscribe http_request")}),
			[]string{"modules.sqlite", "modules.redis", "modules.redis", "modules.influxdb", "modules.influxdb", "modules.influxdb", "modules.nats", "modules.nats", "modules.nats", "modules.http_proxy"}},
		"stores, write": {"modules: {filesystem: {mode: read}, sqlite: {mode: write}, redis: , slack: , discord_webhook: }",
			want(keys{"view": keys{"access": "write", "paths": keys{"**": "read"}}, "tools": words("read_file list_dir sql_query sql_tables sql_execute create_table kv_get kv_list kv_set kv_delete notify")}),
			[]string{"modules.sqlite", "modules.redis", "modules.redis", "modules.slack", "modules.discord_webhook"}},
		"stores, guarded": {"modules: {slack: {}, ntfy: {mode: read}, redis: {mode: write}}\nrate_limits: {per_tool: {slack_send: 2/hour, redis.set_key: 3/hour}}\nhitl: {approval_required: ['redis_delete*'], shadow: [slack_send]}",
			want(keys{"view": keys{"access": "write", "paths": keys{"**": "read"}}, "tools": words("notify kv_get kv_list kv_set kv_delete"),
				"policy": keys{"tools": keys{"ask": words("kv_delete"), "exclude": words("notify")}}, "rate_limits": keys{"notify": "2/hour", "kv_set": "3/hour"}}),
			[]string{"modules.slack", "modules.ntfy", "modules.redis", "modules.redis", "hitl.shadow: slack_send"}},
		"proxies":       {files, withFiles(nil), []string{"network"}},
		"proxied URL":   {"modules: {s: {type: mcp_proxy, config: {url: http://x, tool_allowlist: [a]}}}", want(nil), []string{"modules.s"}},
		"proxied HTTPS": {"modules: {s: {type: mcp_proxy, config: {url: 'https://x/y', tool_allowlist: [a]}}}", want(keys{"tools": words("mcp:s:a"), "mcps": words("s"), "mcp_servers": keys{"s": keys{"url": "https://x/y"}}}), nil},
		"no variables": {"modules: {s: {type: mcp_proxy, config: {command: x, args: ['${A}', '$B'], tool_allowlist: [p]}}}",
			want(keys{"tools": words("mcp:s:p"), "mcps": words("s"), "mcp_servers": keys{"s": keys{"command": "x", "args": words("$${A} $B")}}}), []string{"network"}},
		"denied tools": {"modules: {s: {type: mcp_proxy, config: {command: x, args: [a], tool_allowlist: [p, q, '*'], tool_denylist: [q], discovery_timeout_seconds: 3}}}",
			want(keys{"tools": words("mcp:s:p"), "mcps": words("s"), "mcp_servers": keys{"s": keys{"command": "x", "args": words("a")}}, "policy": keys{"tools": keys{"exclude": words("mcp:s:q")}}}),
			[]string{"network", "modules.s.config.discovery_timeout_seconds", "modules.s.config.tool_allowlist: *"}},
		"limits": {files + "rate_limits: {global: 200/minute, per_tool: {filesystem_write_file: 20/minute, s_*: 5/second, s_a_b: 1/hour, filesystem.delete_file: 2/hour, r_get_it: 3/hour}}",
			rates(keys{"*": "200/minute", "write_file": "20/minute", "mcp:s:*": "5/second", "mcp:s:a*b": "1/hour", "delete_file": "2/hour", "mcp:r:get-it": "3/hour"}), []string{"network"}},
		"limit of several": {files + "rate_limits: {global: 200/second, per_tool: {filesystem_*: 300/minute, none: 1/hour}}",
			rates(keys{"*": "200/minute"}), []string{"network", "rate_limits.per_tool.filesystem_*", "rate_limits.per_tool.filesystem_*", "rate_limits.per_tool.none"}},
		"limit of none": {files + "rate_limits: {per_tool: {filesystem_write_file: 0/hour}}", withFiles(tools("exclude", "write_file")), []string{"network", "rate_limits.per_tool.filesystem_write_file"}},
		"filters": {files + `argument_filters: [{name: f, pattern: "(password|key)", action: block, decode: [base64], case_insensitive: true}, {name: g, pattern: '\.\./', fields: [path]}, {name: w, pattern: x, action: warn}]`,
			filters("(?i)(password|key)", `\.\./`), []string{"network", "argument_filters.g.fields", "argument_filters.w"}},
		"filter of Python's": {files + "argument_filters: [{name: f, pattern: '(?!a)b'}]", withFiles(tools("ask", "*")), []string{"network", "argument_filters.f"}},
		"approvals": {files + "hitl: {approval_required: ['filesystem_delete_*', '*_put', mcp_proxy.*], timeout_seconds: 3, notify: {type: log}}",
			withFiles(tools("ask", "delete_file mcp:r:put mcp:s:* mcp:r:get-it")), []string{"network", "hitl.timeout_seconds", "hitl.notify"}},
		"shadow": {files + "hitl: {shadow: ['filesystem_write_*', x_y]}", withFiles(tools("exclude", "write_file")), []string{"network", "hitl.shadow: filesystem_write_*", "hitl.shadow: x_y"}},
	})
	for text, why := range map[string]string{
		"agent_type: a": "needs agent_type and modules", "modules: {}": "needs agent_type and modules",
		"agent_type: a\nmodules: {filesystem: {mode: x}}":                         `modules: filesystem: mode is "x"`,
		"agent_type: a\nmodules: {}\nrate_limits: {global: 3/day}":                "is not a limit",
		"agent_type: a\nmodules: {f: {type: mcp_proxy, config: {command: [x]}}}":  "want a string",
		"---\nagent_type: a\nmodules: {}\n---\nbody":                              "has a body",
		"agent_type: a\nmodules: {}\nargument_filters: [{case_insensitive: yes}]": "want true or false",
	} {
		_, err := Convert(Source{Tools: ours(t), Text: []byte(text), Format: ScopedMCP})
		assert.ErrorContains(t, err, why, text)
	}
}

func TestScopes(t *testing.T) {
	convertAll(t, Scopes, named, map[string]conversion{
		"empty is all":    {"tools: []\nskills: []\nmcps: []", keys{}, nil},
		"members is none": {"members: []", keys{"members": words("")}, []string{"tools"}},
		"no value":        {"tools:\nmembers:", keys{"members": words("")}, []string{"tools"}},
		"lists":           {"tools: [bash, 'mcp:s:*']\nskills: [x]\nmcps: [s]\nmembers: [b, '*', C_d, ü]", keys{"tools": words("bash mcp:s:* skill"), "skills": words("x"), "mcps": words("s"), "members": words("b * c-d")}, []string{"members: C_d", "members: ü", "mcp server s"}},
		"skills":          {"tools: [bash]\nskills: [x]", keys{"tools": words("bash skill"), "skills": words("x")}, nil},
		"computed":        {"skills: [x]", keys{"skills": words("x")}, nil},
		"and computed":    {"tools: []\nskills: [x]\nmembers: [ü]", keys{"skills": words("x"), "members": words("")}, []string{"members: ü"}},
		"and no members":  {"tools: []\nmembers: []\nskills: []", keys{"tools": words("*"), "members": words("")}, nil},
		"twice":           {"tools: [bash, bash]", keys{"tools": words("bash")}, nil},
		"the rest": {"view: {access: read, paths: {'**/.env': hide}}\nlimits: {pids: 3}\nnetwork: none\npolicy: {tools: {exclude: [bash]}}\nx: 1",
			keys{"view": keys{"access": "read", "paths": keys{"**/.env": "hide"}}, "limits": keys{"pids": 3}, "network": "none", "policy": keys{"tools": keys{"exclude": words("bash"), "ask": words("*")}}}, []string{"x"}},
		"nobody is trusted": {"policy: {tools: {ask: [bash]}, mcp: {allowed: [s], mcp_servers: {s: {trust: true}}}, mcp_servers: {s: {trust: true}}}\nx: 1",
			keys{"policy": keys{"tools": keys{"ask": words("* bash")}, "mcp": keys{"allowed": words("s")}}}, []string{"x"}},
	})
	for name, text := range map[string]string{
		"list":    "[{name: a, tools: []}, {name: b, members: [a], prompt: p}]",
		"agents":  "agents: [{name: a}, {name: b, members: [a], system_prompt: p}]",
		"mapping": "agents: {a: {tools: []}, b: {members: [a], prompt: p}}",
		"JSON":    `{"agents": {"a": {"tools": []}, "b": {"members": ["a"], "prompt": "p"}}}`,
	} {
		t.Run(name, func(t *testing.T) {
			all, err := Convert(Source{Tools: ours(t), Text: []byte(text), Format: Scopes})
			require.NoError(t, err)
			require.Len(t, all, 2)
			assert.Equal(t, "---\nname: a\n---\n", string(all[0].Text))
			assert.Equal(t, "---\nname: b\nmembers: [a]\n---\np\n", string(all[1].Text))
		})
	}
	for text, why := range map[string]string{
		"[]": "has no agents", "[{tools: []}]": "agent 1: name is missing", "agents: {}": "has no agents", "{agents: [], x: 1}": "keys beside agents",
		"[{name: a_b}, {name: a-b}]": "two agents that would be called a-b", "{tools: bash}": "tools: line 1: want a list", "x": "want keys with values",
	} {
		_, err := Convert(Source{Tools: ours(t), Text: []byte(text), Format: Scopes, File: "f.yml"})
		assert.ErrorContains(t, err, why, text)
	}
	_, err := Convert(Source{Tools: ours(t), Text: []byte("[{name: a}, {name: b}]"), Format: Scopes, Name: "c"})
	assert.ErrorContains(t, err, "--name")
}
