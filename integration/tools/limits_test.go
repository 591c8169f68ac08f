package tools

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/tools"
)

// TestToolsFilters: arguments that the operator does not allow are refused in
// every disguise, and the log has the rule, not the value.
func TestToolsFilters(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"a": "tools: [\"*\"]\nargument_filters: {\"*\": [\"pass[w]ord=\"]}"})
	u := h.Connect("a")
	for name, c := range map[string]struct {
		tool string
		args args
	}{
		"plain":    {"bash", args{"command": "echo password=hunter2"}},
		"base64":   {"bash", args{"command": "echo cGFzc3dvcmQ9aHVudGVyMg== | base64 -d"}},
		"URL":      {"bash", args{"command": "echo %70assword%3Dhunter2"}},
		"a path":   {"stat", args{"path": "password=hunter2"}},
		"nested":   {"edit_file", args{"path": "f", "edits": []args{{"old_text": "x", "new_text": "password=hunter2"}}}},
		"a task":   {"delegate", args{"member": "x", "task": "password=hunter2"}},
		"question": {"ask_user", args{"question": "password=hunter2?"}},
	} {
		e := u.Fails(c.tool, c.args)
		assert.Equal(t, tools.Denied, e.Code, name)
		assert.NotContains(t, e.Message+e.Path+e.Hint, "hunter2", name)
		last := h.Last("a", c.tool)
		assert.Equal(t, audit.Deny, last.Verdict, name)
		assert.True(t, strings.HasPrefix(last.Rule, "argument_filters: "), last.Rule)
		for _, value := range []string{"hunter2", "aHVudGVyMg", "%70assword"} {
			assert.NotContains(t, string(last.Raw), value, name)
		}
	}
	u.Bash("echo fine")
	assert.Equal(t, tools.Invalid, u.Fails("bash", args{"command": "password=hunter2", "nonsense": 1}).Code)
	assert.NotContains(t, string(h.Last("a", "bash").Raw), "hunter2", "whyever it is refused")
}

// TestToolsRates: the limit is the agent's, not a client's.
func TestToolsRates(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"a": "rate_limits: {stat: 3/hour, \"read_*\": 1/hour}"})
	first, second := h.Connect("a"), h.Connect("a", "--profile", "claude")
	first.Call("stat", args{"path": "."})
	third := h.Connect("a")
	third.Call("stat", args{"path": "."})
	third.Call("stat", args{"path": "."})
	e := first.Fails("stat", args{"path": "."})
	assert.Equal(t, tools.RateLimited, e.Code)
	assert.Contains(t, e.Hint, "try again in ")
	assert.Equal(t, "rate_limits: stat: 3 per 1h0m0s", h.Last("a", "stat").Rule)
	assert.Equal(t, tools.NotFound, second.Fails("Read", args{"file_path": "none"}).Code)
	assert.Equal(t, tools.RateLimited, second.Fails("Read", args{"file_path": "none"}).Code, "by whatever name")
	assert.Equal(t, tools.RateLimited, first.Fails("read_file", args{"path": "none"}).Code)
	h.Define("a", "rate_limits: {stat: 4/hour}")
	h.Must("reload")
	first.Call("stat", args{"path": "."})
}
