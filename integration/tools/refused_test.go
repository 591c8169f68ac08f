package tools

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/tools"
)

// TestRefusalSaysRule: a file tool that a rule of the operator refuses says so to the model: which rule it is, and what the model can
// do. The rule of a hidden path stays unknown.
func TestRefusalSaysRule(t *testing.T) {
	h := harness.NewHost(t, map[string]string{
		"a": "view: {paths: {ro: read, '**/.env': seal, secret: hide}}\nprotect: ['*']",
	})
	harness.Plant(t, h.Scope("a"), "ro/f", ".env=key", "secret/f", "own")
	u := h.Connect("a")
	for tool, c := range map[string]struct {
		args          args
		message, hint string
	}{
		"write_file": {args{"path": ".envrc", "content": "x"}, ".envrc is protected: files that the host executes",
			`it is the rule "protect shell": use another file, or ask your operator: scopefs allow .envrc`},
		"edit_file": {args{"path": "ro/f", "edits": []args{{"old_text": "", "new_text": "x", "insert_line": 0}}},
			`a rule of the operator denies it: "ro: read"`, "use another file, or ask your operator: scopefs allow ro/f"},
		"delete_file": {args{"path": "ro/f"}, `a rule of the operator denies it: "ro: read"`, "use another file, or ask your operator: scopefs allow ro/f"},
		"read_file":   {args{"path": ".env"}, `a rule of the operator denies it: "**/.env: seal"`, "use another file, or ask your operator: scopefs allow .env"},
		"move": {args{"from": "ro/f", "to": "moved"}, `a rule of the operator denies it: "ro: read"`,
			"use another file, or ask your operator: scopefs allow ro/f"},
	} {
		e := u.Fails(tool, c.args)
		assert.Equal(t, []string{string(tools.Denied), c.message, c.hint}, []string{string(e.Code), e.Message, e.Hint}, tool)
	}
	hidden := u.Fails("write_file", args{"path": "secret/new", "content": "x"})
	assert.NotContains(t, hidden.Message+hidden.Hint, "rule")
}
