package imports

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// TestWarnings: what a file would have of the daemon's environment, and start,
// cannot be missed.
func TestWarnings(t *testing.T) {
	const trust = ": remove it unless you trust the file"
	reads := func(name string) string {
		return "mcp_servers.s: reads " + name + " of the daemon's environment" + trust
	}
	for name, c := range map[string]struct {
		format Format
		from   string
		want   []string
	}{
		"none": {Claude, "tools: Read", nil},
		"env, args and command": {Claude, `mcpServers: [{s: {type: stdio, command: "${SHELL_X}", args: ["-c", "env > /workspace/leak; ${B} ${B}"], env: {X: "${AWS_SECRET_ACCESS_KEY}", Y: "a${P:-x}b"}, cwd: "${D}"}}]`,
			[]string{`mcp_servers.s: starts ${SHELL_X} -c "env > /workspace/leak; ${B} ${B}"` + trust, reads("AWS_SECRET_ACCESS_KEY"), reads("B"), reads("D"), reads("P"), reads("SHELL_X")}},
		"gemini's":    {Gemini, "mcpServers: {s: {command: npx, args: [-y, x], env: {A: $A}}}", []string{"mcp_servers.s: starts npx -y x" + trust, reads("A")}},
		"not read":    {ScopedMCP, "agent_type: a\nmodules: {s: {type: mcp_proxy, config: {command: x, args: ['${A}']}}}", []string{"mcp_servers.s: starts x $${A}" + trust}},
		"a directory": {ScopedMCP, "agent_type: a\nmodules: {filesystem: {mode: read, config: {base_path: /etc}}}", []string{"dir: shows /etc/agents/a, which has to exist" + trust}},
		"taken over":  {Scopes, "mcp_servers: {s: {command: x, env: {A: '${A}', B: '$${B}'}}}", []string{"mcp_servers.s: starts x" + trust, reads("A")}},
		"on one line": {Claude, `mcpServers: {s: {command: "a\nb", args: ["\u202e", "", "\e[2K"]}}`, []string{`mcp_servers.s: starts "a\nb" \u202e "" \u001b[2K` + trust}},
		"left out":    {Claude, `mcpServers: {s: {type: sse, url: "https://x/${A}"}}`, nil},
		"an address": {Claude, `mcpServers: {s: {type: http, url: "https://x:8/${A}", headers: {Authorization: "secret ${B}"}}}`,
			[]string{"mcp_servers.s: sends calls and headers to x:8" + trust, reads("A"), reads("B")}},
		"an unknown address": {Claude, `mcpServers: {s: {type: http, url: "${A}"}}`, []string{"mcp_servers.s: sends calls and headers to an address of the environment" + trust, reads("A")}},
		"two, in order":      {Claude, `mcpServers: [{s: {command: x}}, {r: {command: y}}]`, []string{"mcp_servers.s: starts x" + trust, "mcp_servers.r: starts y" + trust}},
	} {
		t.Run(name, func(t *testing.T) {
			text := named(c.from)
			if c.format == ScopedMCP {
				text = []byte(c.from)
			}
			assert.Equal(t, c.want, one(t, Source{Tools: ours(t), File: "a.md", Text: text, Format: c.format}).Warnings)
		})
	}
}
