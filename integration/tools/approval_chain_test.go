package tools

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/tools/approvals"
)

// TestApprovalChain: the operator sees for which chain of agents a call waits. What
// is approved for one chain is approved for no other, also where a member may widen.
func TestApprovalChain(t *testing.T) {
	h := harness.Delegating(t, "", map[string]string{
		"editor":  "tools: ['*']\nmembers: {writer: {may: widen}}",
		"writer":  "tools: ['*']\nmembers: {checker: {may: widen}}",
		"checker": "tools: ['*']\npolicy: {tools: {ask: [write_file]}}",
	})
	const write = "scopefs call write_file path=f content=x 2>&1; true"
	editor, writer, checker := h.Connect("editor"), h.Connect("writer"), h.Connect("checker")
	list := func() map[string]string {
		var all []approvals.Approval
		require.NoError(t, json.Unmarshal([]byte(h.Must("approvals", "--json")), &all))
		ids := map[string]string{}
		for _, p := range all {
			assert.Equal(t, "checker", string(p.Agent))
			ids[p.Chain] = p.ID
		}
		return ids
	}
	far := args{"member": "writer", "task": `scopefs call delegate member=checker task="` + write + `"`}
	assert.Contains(t, editor.Text("delegate", far), "approval_required")
	ids := list()
	id := ids["editor>writer>checker"]
	require.NotEmpty(t, id)
	assert.Regexp(t, id+` +waits +editor>writer>checker +write_file `, h.Must("approvals"))
	var shown approvals.Approval
	require.NoError(t, json.Unmarshal([]byte(h.Must("approvals", "show", id)), &shown))
	assert.Equal(t, "editor>writer>checker", shown.Chain)
	assert.Contains(t, h.Must("approvals", "approve", id), "write_file of editor>writer>checker")
	assert.True(t, h.Recorded("checker", audit.Event{Event: audit.KindApproval, Outcome: "approved", Chain: "editor>writer>checker"}))

	near := args{"member": "checker", "task": write}
	assert.Contains(t, writer.Text("delegate", near), "approval_required")
	checker.Waits("write_file", args{"path": "f", "content": "x"})
	ids = list()
	assert.Len(t, ids, 3)
	assert.NotEmpty(t, ids["writer>checker"])
	assert.NotEmpty(t, ids[""], "a client that works for nobody has no chain")
	assert.NoFileExists(t, h.Scope("checker", "f"))
	assert.NotContains(t, editor.Text("delegate", far), "approval_required")
	assert.FileExists(t, h.Scope("checker", "f"))
}
