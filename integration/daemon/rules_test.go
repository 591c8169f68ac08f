package daemon

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/integration/harness"
)

// TestReloadGrants: what an agent may do beside files changes while its view
// stays up, wherever it is written, and without being asked for.
func TestReloadGrants(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"a": "", "b": ""})
	pid := h.PS()[0].ViewPID
	outcomes := func() (n int) {
		for _, e := range h.Events("a") {
			if e.Event == audit.KindAgent && e.Outcome == "new rules hold" {
				n++
			}
		}
		return n
	}
	// By itself or asked, whichever is first: it is told once.
	for i, keys := range []string{"tools: [bash]", "tools: [bash, stat]", "rate_limits: {bash: 1/minute}", "members: [b]", "members: [b]\nscopes: {enum: [x]}"} {
		h.Define("a", keys)
		h.Must("reload")
		assert.Equal(t, i+1, outcomes(), keys)
	}
	assert.Empty(t, h.Must("reload"), "nothing has changed")

	// Extensions and skills are watched, also when their directory is new.
	h.Put("skills/sing/SKILL.md", "la")
	h.Eventually("the skill is seen", func() bool { return outcomes() == 6 })
	h.Put("skills/dance/notes.md", "no skill yet")
	h.Put("skills/dance/SKILL.md", "one, two")
	h.Eventually("so is another", func() bool { return outcomes() == 7 })
	h.Put("extensions.d/e.yaml", "name: e\nmcp_servers: {search: {command: x, visibility: public}}\n")
	h.Eventually("so is the extension", func() bool { return outcomes() == 8 })
	h.Put("extensions.d/e.yaml", "name: e\nagents: [b]\nmcp_servers: {search: {command: x}}\n")
	h.Eventually("and that it is not for all", func() bool { return outcomes() == 9 })

	// What does not load changes nothing, and says why.
	h.Define("a", "tools: [bsh]")
	_, errs, code := h.Try("reload")
	assert.Equal(t, 1, code)
	assert.Contains(t, errs, `not loaded, the last good definition holds: agents.d/a.md:4: tools: "bsh" matches no tool`)
	h.Put("extensions.d/e.yaml", "nam: e\n")
	_, errs, code = h.Try("reload")
	assert.Equal(t, 1, code)
	assert.Contains(t, errs, "extensions.d/e.yaml:1: unknown key")
	list := h.PS()
	require.Len(t, list, 3, "the extension, and the agents")
	assert.Contains(t, list[0].Error, "extensions.d/e.yaml:1: ")
	assert.Equal(t, "mounted", list[1].State)
	assert.Equal(t, pid, list[1].ViewPID, "its view has stayed")
	assert.True(t, strings.HasPrefix(list[1].Error, "agents.d/a.md:4: "), list[1].Error)
}
