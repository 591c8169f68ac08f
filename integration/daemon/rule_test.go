package daemon

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/config"
)

// TestDaemonRule: the daemon writes a change of a definition that the operator has seen, and no other; then the rules hold.
func TestDaemonRule(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"a": "policy: {tools: {exclude: [bash]}}\nview: {paths: {secret: hide}}"})
	client := api.NewClient(config.Paths{Base: h.Base, State: h.Base + "/state", Run: h.Base + "/run"})
	u := h.Connect("a")
	assert.NotContains(t, u.List(), "bash")
	first, err := client.Rule(h.Soon(), "a", api.RuleRequest{Name: "bash"})
	require.NoError(t, err)
	assert.Equal(t, []string{"policy.tools.exclude: bash"}, first.InTheWay)
	assert.Equal(t, first.Before, first.After)
	_, err = client.Rule(h.Soon(), "a", api.RuleRequest{Name: "bash", Shown: first.Hash})
	assert.ErrorContains(t, err, "is not the one that was shown")

	lift := api.RuleRequest{Name: "bash", RemoveDeny: true}
	shown, err := client.Rule(h.Soon(), "a", lift)
	require.NoError(t, err)
	assert.NotEqual(t, shown.Before, shown.After)
	assert.Empty(t, shown.Reloaded)
	assert.NotContains(t, u.List(), "bash", "nothing is written")
	again, err := client.Rule(h.Soon(), "a", lift)
	require.NoError(t, err)
	assert.Equal(t, shown.Hash, again.Hash)
	lift.Shown = shown.Hash

	h.Define("a", "policy: {tools: {exclude: [bash, make_dir]}}")
	h.Must("reload")
	_, err = client.Rule(h.Soon(), "a", lift)
	refused, ok := errors.AsType[*api.Error](err)
	require.True(t, ok, "%v", err)
	assert.Equal(t, api.Conflict, refused.Kind)
	assert.NotContains(t, h.Connect("a").List(), "bash")

	lift.Shown = ""
	shown, err = client.Rule(h.Soon(), "a", lift)
	require.NoError(t, err)
	lift.Shown, lift.As = shown.Hash, "phone"
	done, err := client.Rule(h.Soon(), "a", lift)
	require.NoError(t, err)
	assert.NotEmpty(t, done.Reloaded)
	assert.Contains(t, h.Connect("a").List(), "bash")
	assert.True(t, h.Recorded("a", audit.Event{Event: audit.KindAgent, Outcome: "rule"}))
	_, err = client.Rule(h.Soon(), "a", lift)
	assert.ErrorContains(t, err, "is not the one that was shown", "a second time")

	for _, wrong := range []api.RuleRequest{{}, {Name: "x", Kind: "y"}, {Name: "../x", Kind: "path"}, {Name: "f", Kind: "path", Access: "all"}, {Name: "a\nb", Kind: "tool"}} {
		_, err := client.Rule(h.Soon(), "a", wrong)
		assert.Error(t, err, "%+v", wrong)
	}

	// The command does the same.
	out := h.Must("deny", "make_dir", "--agent", "a", "--dry-run")
	assert.Contains(t, out, "is denied already")
	out = h.Must("deny", "bash", "--agent", "a", "--dry-run")
	assert.Regexp(t, `(?m)^hash [0-9a-f]{64}$`, out)
	_, errs, code := h.Try("deny", "bash", "--agent", "a", "--shown", shown.Hash)
	assert.Equal(t, 1, code)
	assert.Contains(t, errs, "look at it again with --dry-run")
	denied, err := client.Rule(h.Soon(), "a", api.RuleRequest{Name: "bash", Deny: true})
	require.NoError(t, err)
	assert.Contains(t, out, denied.Hash)
	h.Must("deny", "bash", "--agent", "a", "--shown", denied.Hash)
	assert.NotContains(t, h.Connect("a").List(), "bash")
}
