package imports

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// FuzzConvert checks that every definition from Convert parses.
func FuzzConvert(f *testing.F) {
	formats := []Format{"", Gemini, Claude, ScopedMCP, Scopes}
	for _, seed := range []string{
		"", "# x", "---\n---\n", "---\nname: a\ntools: Read, Bash(git:*)\nmcpServers: [x, {y: {command: z}}]\n---\nb",
		"---\nname: a\nkind: local\ntools: [mcp_a_b, '*']\nmcpServers: {a: {command: x, includeTools: [b]}}\npolicy: {tools: {core: [glob]}}\n---\n",
		"agent_type: a\nmodules: {filesystem: , s: {type: mcp_proxy, config: {command: x}}}\nrate_limits: {per_tool: {'*': 1/hour}}\nargument_filters: [{pattern: '[\\d$]'}]\nhitl: {shadow: ['[s_x]']}",
		"agents: [{name: a, tools: [], members: []}, {name: b, policy: {tools: {ask: [x]}}}]",
	} {
		for i := range formats {
			f.Add(seed, uint8(i))
		}
	}
	f.Fuzz(func(t *testing.T, text string, format uint8) {
		all, err := Convert(Source{Tools: ours(t), File: "f.md", Text: []byte(text), Format: formats[int(format)%len(formats)]})
		assert.Equal(t, err != nil, len(all) == 0)
		for _, r := range all {
			parsed(t, r)
			what(r)
		}
	})
}
