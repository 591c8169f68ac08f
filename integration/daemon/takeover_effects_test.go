package daemon

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/scope/effect"
)

// TestTakeOverEffects: the next daemon's answer to a call has what the call changed before the last daemon died, and so has an answer about
// a process in the background.
func TestTakeOverEffects(t *testing.T) {
	h := harness.LayOut(t, map[string]string{"a": "view: {changes: kept}"})
	harness.Plant(t, h.Scope("a"), "one", "two")
	h.Start()
	c := greetedBridge(h, "a")
	there := func(name string) bool { _, err := os.Stat(h.Scope("a", name)); return err == nil }
	c.call(10, "bash", map[string]any{"background": true, "command": "rm two; until [ -e stop ]; do sleep 0.05; done"})
	process := c.ran(10).ProcessID
	c.call(20, "bash", map[string]any{"command": "rm one; until [ -e go ]; do sleep 0.05; done"})
	h.Eventually("both are removed", func() bool { return !there("one") && !there("two") })
	lasts(h, 2)
	h.Kill()
	h.Start()
	assert.Contains(t, c.back(), inSameSandbox)
	harness.Plant(t, h.Scope("a"), "go")
	effects := func(id int) (out struct{ Effects effect.Effects }) {
		m := c.answer(id)
		require.NotNil(t, m.Result, "%+v", m.Error)
		text, err := json.Marshal(m.Result.StructuredContent)
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(text, &out))
		return out
	}
	assert.Equal(t, []effect.Object{{Path: "one"}}, effects(20).Effects.Removed)
	c.call(30, "process_read", map[string]any{"id": process})
	assert.Equal(t, []effect.Object{{Path: "two"}}, effects(30).Effects.Removed)
}
