package tools

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/scope/beneath"
	"github.com/scopefs/scopefs/tools"
)

// refused is a call with the code of its error.
type refused struct {
	tool string
	args args
	code tools.Code
}

// outside returns calls with paths that lead outside.
func outside() []refused {
	return []refused{
		{"write_file", args{"path": "../other/notes.md", "content": "x"}, tools.OutsideScope},
		{"write_file", args{"path": "/etc/none", "content": "x"}, tools.OutsideScope},
		{"edit_file", args{"path": "../other/notes.md", "edits": []args{{"old_text": "a", "new_text": "b"}}}, tools.OutsideScope},
		{"move", args{"from": "mine", "to": "../other/mine"}, tools.OutsideScope},
		{"copy", args{"from": "../other/notes.md", "to": "stolen"}, tools.NotFound},
		{"delete_file", args{"path": "../other/notes.md"}, tools.OutsideScope},
		{"read_file", args{"path": "../other/notes.md"}, tools.NotFound},
		{"list_dir", args{"path": "../other"}, tools.NotFound},
		{"grep", args{"pattern": "x", "path": "/etc"}, tools.NotFound},
		{"glob", args{"pattern": "../other/*"}, tools.NotFound},
	}
}

// TestCallViolations: a call with a path that leads outside is a violation in the
// log. To the agent what is outside reads like what does not exist.
func TestCallViolations(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"a": "", "other": ""})
	harness.Plant(t, h.Scope("other"), "notes.md")
	require.NoError(t, os.WriteFile(filepath.Join(h.Scope("a"), "mine"), []byte("x"), 0o644))
	u := h.Connect("a")
	for _, c := range append(outside(),
		refused{"read_file", args{"path": "../other/nothing"}, tools.NotFound},
		refused{"glob", args{"pattern": "/etc/*"}, tools.NotFound},
	) {
		assert.Equal(t, c.code, u.Fails(c.tool, c.args).Code, "%s %v", c.tool, c.args)
		e := h.Last("a", c.tool)
		assert.Equal(t, audit.Violation, e.Verdict, "%s %v", c.tool, c.args)
		assert.Equal(t, string(beneath.RulePath), e.Rule, "%s %v", c.tool, c.args)
		assert.Equal(t, string(c.code), e.Outcome, "%s %v", c.tool, c.args)
		assert.Contains(t, h.Must("audit", "--denied", "--json"), e.Call)
		assert.Contains(t, h.Must("why", strconv.Itoa(int(e.Seq))), "nothing allows it")
	}

	none, outside := u.Fails("read_file", args{"path": "nothing"}), u.Fails("read_file", args{"path": "../other/notes.md"})
	none.Path, outside.Path = "", ""
	assert.Equal(t, none, outside)
	for _, c := range []struct {
		tool string
		args args
	}{
		{"read_file", args{"path": "nothing"}},
		{"read_file", args{"path": "sub/../nothing"}},
		{"grep", args{"pattern": "../x", "path": "nothing"}},
	} {
		assert.Equal(t, tools.NotFound, u.Fails(c.tool, c.args).Code)
		assert.Equal(t, audit.Allow, h.Last("a", c.tool).Verdict, "%s %v", c.tool, c.args)
	}
}
