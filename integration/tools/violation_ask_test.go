package tools

import (
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/scope/beneath"
	"github.com/scopefs/scopefs/tools"
)

// TestViolationIsNotAsked: nobody is asked to approve a call with a path that leads
// outside. It is a violation, and takes nothing of a limit.
func TestViolationIsNotAsked(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"a": `policy: {tools: {ask: ["*"]}}` + "\nrate_limits: {\"*\": 1/hour}", "other": ""})
	harness.Plant(t, h.Scope("other"), "notes.md")
	u := h.Connect("a")
	for _, c := range append(outside(),
		refused{"make_dir", args{"path": "../other/d"}, tools.OutsideScope},
		refused{"move", args{"from": "../other/notes.md", "to": "mine"}, tools.OutsideScope},
		refused{"copy", args{"from": "mine", "to": "../other/mine"}, tools.OutsideScope},
		refused{"delete", args{"path": "../other"}, tools.OutsideScope},
		refused{"stat", args{"path": "../other/notes.md"}, tools.NotFound},
	) {
		assert.Equal(t, c.code, u.Fails(c.tool, c.args).Code, "%s %v", c.tool, c.args)
		e := h.Last("a", c.tool)
		assert.Equal(t, audit.Violation, e.Verdict, "%s %v", c.tool, c.args)
		assert.Equal(t, string(beneath.RulePath), e.Rule, "%s %v", c.tool, c.args)
	}
	// Neither is anybody asked about a link that leads there.
	require.NoError(t, os.Symlink(h.Scope("other"), h.Scope("a", "out")))
	require.NoError(t, os.Symlink("../other/none", h.Scope("a", "absent")))
	for _, c := range []refused{
		{"write_file", args{"path": "out/notes.md", "content": "x"}, tools.OutsideScope},
		{"write_file", args{"path": "absent", "content": "x"}, tools.OutsideScope},
		{"edit_file", args{"path": "out/notes.md", "edits": []args{{"old_text": "a", "new_text": "b"}}}, tools.OutsideScope},
		{"move", args{"from": "out/notes.md", "to": "mine"}, tools.OutsideScope},
		{"move", args{"from": "mine", "to": "out/mine"}, tools.OutsideScope},
		{"delete_file", args{"path": "out/notes.md"}, tools.OutsideScope},
		{"read_file", args{"path": "out/notes.md"}, tools.NotFound},
		{"read_file", args{"path": "absent"}, tools.NotFound},
		{"list_dir", args{"path": "out"}, tools.NotFound},
	} {
		assert.Equal(t, c.code, u.Fails(c.tool, c.args).Code, "%s %v", c.tool, c.args)
	}
	assert.False(t, h.Recorded("a", audit.Event{Event: audit.KindApproval, Outcome: "asked"}))
	assert.Equal(t, "[]\n", h.Must("approvals", "list", "--json"))
	require.NotEmpty(t, u.Waits("write_file", args{"path": "mine", "content": "x"}), "the limit is whole")
}
