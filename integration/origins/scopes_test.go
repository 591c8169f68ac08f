package origins

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/scopefs/scopefs/integration/harness"
)

// TestScopesBlock: the block has exactly the document's three lines.
func TestScopesBlock(t *testing.T) {
	h := harness.LayOut(t, map[string]string{
		"lead":   "skills: [check-mail, digest]\nmcps: [search]\nmembers: [finder, scribe]\nmcp_servers: {search: {command: /bin/cat}}",
		"finder": "", "scribe": "",
	})
	h.Put("skills/check-mail/SKILL.md", "do")
	h.Put("skills/digest/SKILL.md", "do")
	assert.Equal(t, "prompt\n\n<scope>\nskills: check-mail, digest\nmcp servers: search\nmembers: finder, scribe\n</scope>\n", h.Must("prompt", "lead"))
}

// TestScopesWarnings: lists that do not restrict, and those that no tool reaches; an empty mapping is no setting.
func TestScopesWarnings(t *testing.T) {
	h := harness.LayOut(t, map[string]string{
		"boss": "tools: [bash]\nmembers: {worker: {}}", "worker": "tools: [read_file, \"list_*\"]",
		"narrow": "tools: [bash, delegate]\nmembers: {worker: {}}", "wide": "tools: [bash, delegate]\nmembers: {worker: {may: widen}}", "idle": "tools: [bash]\nskills: []\nmembers: [worker]",
	})
	h.Put("scopefs.yaml", "primary: boss\n")
	out, errs, code := h.Try("agents", "check")
	assert.Zero(t, code)
	for _, want := range []string{
		"warning: agents.d/boss.md:4: tools: the list does not restrict the primary agent",
		"warning: agents.d/narrow.md:5: members: worker keeps none of its tools in a task of this agent",
		"warning: agents.d/idle.md:6: members: the agent cannot delegate to them",
	} {
		assert.Contains(t, out+errs, want)
	}
	assert.NotContains(t, out+errs, "wide.md")
}

// TestScopesBroken: an agent that delegates to a member that does not load learns that, and nothing of the operator's file. The
// log has the error.
func TestScopesBroken(t *testing.T) {
	h := echoing(t, map[string]string{"lead": "members: [worker]", "worker": "toolz: [bash]"})
	h.Start()
	_, errs, code := h.Try("call", "--agent", "lead", "delegate", "member=worker", "task=x")
	assert.NotZero(t, code)
	assert.Contains(t, errs, "unavailable")
	for _, own := range []string{"worker.md", "toolz", ":4", "tools,", h.Base} {
		assert.NotContains(t, errs, own)
	}
	assert.Contains(t, h.Must("audit", "--op", "delegate"), `agents.d/worker.md:4: unknown key`)
}

// TestScopesTOML: agents in TOML, with empty lists as the document means them.
func TestScopesTOML(t *testing.T) {
	h := harness.LayOut(t, map[string]string{"scribe": ""})
	h.Put("skills/digest/SKILL.md", "do")
	h.Put("agents.toml", "[agents.Finder]\ndescription = \"finds\"\ntools = []\nskills = [\"digest\"]\nmembers = [\"scribe\"]\nmcps = []\n\n[agents.plain]\nskills = []\n")
	h.Must("agents", "import", "--from", "scopes", h.Base+"/agents.toml")
	assert.Contains(t, h.Must("prompt", "finder"), "<scope>\nskills: digest\nmembers: scribe\n</scope>")
	assert.Contains(t, h.Must("agents", "show", "finder"), "Finder")
	h.Put("bad.toml", "[agents\n")
	_, errs, code := h.Try("agents", "import", "--from", "scopes", h.Base+"/bad.toml")
	assert.NotZero(t, code)
	assert.Contains(t, errs, "bad.toml: line 1: is no TOML")
}

// TestScopesMembers: an agent that lists members alone has the computed tools, and its member keeps its own.
func TestScopesMembers(t *testing.T) {
	h := echoing(t, map[string]string{"lead": "members: [worker]", "worker": "tools: [read_file, \"list_*\"]", "broken": ""})
	h.Put("runner", "#!/bin/sh\ncat >/dev/null\nscopefs call --list | cut -d' ' -f1 | sort | tr '\\n' ' '\n")
	h.Start()
	answer := h.Must("call", "--agent", "lead", "delegate", "member=worker", "task=x")
	assert.Contains(t, answer, "list_dir")
	assert.Contains(t, answer, "read_file")
	assert.NotContains(t, answer, "bash")
}
