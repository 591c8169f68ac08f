package integration

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/tools"
)

// TestToolsFilters: arguments that the operator does not allow are refused in
// every disguise, and the log has the rule, not the value.
func TestToolsFilters(t *testing.T) {
	h := newHost(t, map[string]string{"a": "tools: [\"*\"]\nargument_filters: {\"*\": [\"pass[w]ord=\"]}"})
	u := h.connect("a")
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
		e := u.fails(c.tool, c.args)
		assert.Equal(t, tools.Denied, e.Code, name)
		assert.NotContains(t, e.Message+e.Path+e.Hint, "hunter2", name)
		last := h.last("a", c.tool)
		assert.Equal(t, audit.Deny, last.Verdict, name)
		assert.True(t, strings.HasPrefix(last.Rule, "argument_filters: "), last.Rule)
		for _, value := range []string{"hunter2", "aHVudGVyMg", "%70assword"} {
			assert.NotContains(t, string(last.Raw), value, name)
		}
	}
	u.bash("echo fine")
	assert.Equal(t, tools.Invalid, u.fails("bash", args{"command": "password=hunter2", "nonsense": 1}).Code)
	assert.NotContains(t, string(h.last("a", "bash").Raw), "hunter2", "whyever it is refused")
}

// TestToolsRates: the limit is the agent's, not a client's.
func TestToolsRates(t *testing.T) {
	h := newHost(t, map[string]string{"a": "rate_limits: {stat: 3/hour, \"read_*\": 1/hour}"})
	first, second := h.connect("a"), h.connect("a", "--profile", "claude")
	first.call("stat", args{"path": "."})
	third := h.connect("a")
	third.call("stat", args{"path": "."})
	third.call("stat", args{"path": "."})
	e := first.fails("stat", args{"path": "."})
	assert.Equal(t, tools.RateLimited, e.Code)
	assert.Contains(t, e.Hint, "try again in ")
	assert.Equal(t, "rate_limits: stat: 3 per 1h0m0s", h.last("a", "stat").Rule)
	assert.Equal(t, tools.NotFound, second.fails("Read", args{"file_path": "none"}).Code)
	assert.Equal(t, tools.RateLimited, second.fails("Read", args{"file_path": "none"}).Code, "by whatever name")
	assert.Equal(t, tools.RateLimited, first.fails("read_file", args{"path": "none"}).Code)
	h.define("a", "rate_limits: {stat: 4/hour}")
	h.must("reload")
	first.call("stat", args{"path": "."})
}
