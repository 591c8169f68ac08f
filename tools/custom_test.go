package tools

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/agents"
	"github.com/scopefs/scopefs/scope/catalog"
)

// A definition may name the tools that a program adds. In a view with access: read
// the set does not offer those that say of themselves that they change files.
func TestCustomTools(t *testing.T) {
	base := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(base, "agents.d"), 0o755))
	put := func(id, front string) {
		text := "---\nname: " + id + "\ndescription: test\n" + front + "\n---\n"
		require.NoError(t, os.WriteFile(filepath.Join(base, "agents.d", id+".md"), []byte(text), 0o644))
	}
	put("a", `tools: ["kv_*"]`)
	put("ro", "tools: [kv_get, kv_put]\nview: {access: read}\npolicy: {tools: {ask: [kv_put]}}")
	_, errs := agents.Load(base, agents.Host{})
	require.NotEmpty(t, errs, "a typo, where nobody has these tools")
	host := agents.Host{Tools: catalog.Tools{{Name: "kv_get"}, {Name: "kv_put", Writes: true}}}
	all, errs := agents.Load(base, host)
	require.Empty(t, errs)
	put("typo", "tools: [kv_gte]")
	_, errs = all.Reload(base, host)
	require.Len(t, errs, 1)
	assert.Contains(t, errs[0].Error(), `"kv_gte" matches no tool`)
	assert.Contains(t, errs[0].Error(), "kv_get")

	kv := []Tool{echo(t, "kv_get", Hints{}, nil), echo(t, "kv_put", Hints{Writes: true}, nil)}
	for id, want := range map[scope.ID][]string{"a": {"kv_get", "kv_put"}, "ro": {"kv_get"}} {
		d := &desk{}
		gate := d.gate(t, "")
		gate.Rules = func() Rules { return all.Agents[id].Grants }
		set, err := NewSet(gate, kv...)
		require.NoError(t, err)
		var listed []string
		for _, tool := range set.List() {
			listed = append(listed, tool.Name)
		}
		assert.Equal(t, want, listed, id)
		_, err = set.Call(context.Background(), Call{Tool: "kv_get", Args: json.RawMessage(`{"path":"x"}`)})
		assert.NoError(t, err)
		_, err = set.Call(context.Background(), Call{Tool: "kv_put", Args: json.RawMessage(`{"path":"x"}`)})
		if id == "a" {
			assert.NoError(t, err)
			continue
		}
		require.Equal(t, Denied, code(t, err))
		last := d.events[len(d.events)-1]
		assert.Equal(t, audit.Deny, last.Verdict)
		assert.Equal(t, "access: read", last.Rule)
	}
}
