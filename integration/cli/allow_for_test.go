package cli

import (
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/internal/need"
)

// TestAllowFor: a tool under ask and a host that no rule names are allowed until an end, which the log has, and nothing else.
func TestAllowFor(t *testing.T) {
	need.Program(t, "curl")
	m := &harness.Way{Host: harness.NewHost(t, map[string]string{"a": "policy: {tools: {ask: [bash, write_file], exclude: [move]}}\nnetwork: {deny: [denied.invalid], allow: [x.test]}"}), Tmp: t.TempDir()}
	write := func(text string) (errs string, code int) {
		_, errs, code = m.Try("call", "write_file", "path=f", "content="+text, "--agent", "a")
		return errs, code
	}
	for name, want := range map[string]string{
		"move": "policy.tools.exclude", "denied.invalid": "network.deny", "f/x": "is a path", "list_dir": "allowed already", "x.test": "allowed already",
	} {
		_, errs, code := m.Try("allow", name, "--for", "1h", "--agent", "a")
		assert.Equal(t, 1, code, name)
		assert.Contains(t, errs, want)
	}
	_, errs, _ := m.Try("allow", "bash", "--for", "session", "--agent", "a")
	assert.Contains(t, errs, "no session of a runs: give --for 1h")

	errs, code := write("1")
	assert.Equal(t, 1, code)
	assert.Contains(t, errs, "approval_required")
	assert.Regexp(t, `^\w+ write_file of a: stands, until `, m.Must("allow", "write_file", "--for", "1h", "--agent", "a"))
	for _, text := range []string{"1", "2"} {
		errs, code = write(text)
		assert.Zero(t, code, errs)
	}
	assert.Regexp(t, `stands +a +write_file +"all calls"`, m.Must("approvals", "list"))
	m.Must("deny", "write_file", "--yes", "--agent", "a")
	_, code = write("3")
	assert.Equal(t, 1, code)
	assert.NotContains(t, m.Must("approvals", "list"), "stands")

	cmd := m.Command("run", "a", "--", "sh", "-c", "echo >ready; until [ -e go ]; do sleep 0.05; done; curl -sS http://host.invalid")
	ended := make(chan harness.Outcome)
	go func() { ended <- harness.Finish(t, cmd) }()
	m.Eventually("the command runs", func() bool { _, err := os.Stat(m.Scope("a", "ready")); return err == nil })
	m.Must("allow", "host.invalid", "--for", "session", "--agent", "a")
	require.NoError(t, os.WriteFile(m.Scope("a", "go"), nil, 0o644))
	assert.Contains(t, (<-ended).Stdout, "host.invalid cannot be resolved")
	o := m.Run("a", "--", "curl", "-sS", "http://host.invalid")
	assert.Contains(t, o.Stdout, "is not allowed", "the session has ended")

	log := m.Must("audit")
	for _, want := range []string{
		`write_file stands .*standing, until `, `write_file used`, `write_file ended .*: the rules have changed`,
		`network stands \w+, standing, pattern "host.invalid:80,443", until the session ends`, `network used`, `network ended .*: its session has ended`,
		`allow +connect|allow +request begin`,
	} {
		assert.Regexp(t, want, log)
	}
}
