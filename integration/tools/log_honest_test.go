package tools

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/integration/harness"
)

// TestRefusedCallIsDenied: the end of a call that failed because the view refused its path
// has the rule that refused, and is among the denials. why says what reached the agent.
func TestRefusedCallIsDenied(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"a": `view: {paths: {"**/.env": hide, ro: read}}`, "other": ""})
	harness.Plant(t, h.Scope("other"), "notes.md")
	harness.Plant(t, h.Scope("a"), ".env", "ro/f", "plain", "out => ../other/notes.md")
	u := h.Connect("a")
	for _, c := range []struct {
		tool    string
		args    args
		verdict audit.Verdict
		rule    string
		reached string
	}{
		{"read_file", args{"path": ".env"}, audit.Deny, "**/.env: hide", "nothing but the error not_found"},
		{"read_file", args{"path": "/workspace/.env"}, audit.Deny, "**/.env: hide", "nothing but the error not_found"},
		{"write_file", args{"path": "ro/new", "content": "x"}, audit.Deny, "ro: read", "nothing but the error denied"},
		{"read_file", args{"path": "out"}, audit.Deny, "resolution: link leads outside", "nothing but the error not_found"},
		{"write_file", args{"path": "out", "content": "x"}, audit.Deny, "resolution: ", "nothing but the error outside_scope"},
		{"read_file", args{"path": "none"}, audit.Allow, "no rule", "nothing but the error not_found; the tool may have done a part"},
		{"read_file", args{"path": "plain"}, audit.Allow, "no rule", "the result of the call, "},
	} {
		_, _ = u.Send(u.Soon(), c.tool, c.args)
		e := h.Last("a", c.tool)
		assert.Equal(t, c.verdict, e.Verdict, "%s %v", c.tool, c.args)
		assert.Contains(t, e.Rule, c.rule, "%s %v", c.tool, c.args)
		assert.Equal(t, c.verdict != audit.Allow, strings.Contains(h.Must("audit", "--denied", "--json"), fmt.Sprintf(`{"seq":%d,`, e.Seq)), "%s %v", c.tool, c.args)
		assert.Contains(t, h.Must("why", fmt.Sprint(e.Seq)), "reached the agent: "+c.reached, "%s %v", c.tool, c.args)
	}
	u.Bash("cat .env plain; true")
	for _, e := range h.Events("a") {
		if e.Event == audit.KindFile && e.Program == "cat" {
			assert.Contains(t, h.Must("why", fmt.Sprint(e.Seq)), "reached the agent: nothing of it: the view refused with ENOENT. The call around it returned")
			return
		}
	}
	t.Error("no denial of cat is recorded")
}

// TestBashRecordsExit: the end of a command's call has its exit status.
func TestBashRecordsExit(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"a": ""})
	u := h.Connect("a")
	for command, want := range map[string]int{"true": 0, "exit 3": 3, "kill -9 $$": 137, "sleep 100": 137} {
		u.Call("bash", args{"command": command, "timeout_ms": 500})
		e := h.Last("a", "bash")
		assert.Equal(t, "ok", e.Outcome)
		if assert.NotNil(t, e.Exit, command) {
			assert.Equal(t, want, *e.Exit, command)
		}
	}
	assert.Contains(t, h.Must("audit"), `(no rule) exit 3 call`)
	u.Call("bash", args{"command": "sleep 100", "background": true})
	assert.Nil(t, h.Last("a", "bash").Exit)
	u.Call("process_stop", args{"id": "p1", "signal": "KILL"})
	assert.Equal(t, new(137), h.Last("a", "process_stop").Exit)
}

// TestDenialsFold: equal denials are one line for people. The name of a program, which the
// agent chooses, is neither an escape sequence nor other words of the line.
func TestDenialsFold(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"a": `view: {paths: {"**/.env": hide}}`})
	harness.Plant(t, h.Scope("a"), ".env")
	u := h.Connect("a")
	u.Bash("for i in 1 2 3 4 5; do cat .env; cat no; done; true")
	for _, e := range h.Events("a") {
		if e.Event == audit.KindFile {
			assert.NotEmpty(t, e.Session)
			assert.Equal(t, "cat", e.Program)
		}
	}
	out := h.Must("audit", "--denied")
	assert.Regexp(t, `deny +×5 lookup \.env ENOENT \(\*\*/\.env: hide\) by cat, \d+\.\d s\n`, out)
	assert.Equal(t, 1, strings.Count(out, "\n"))
	assert.Equal(t, 5, strings.Count(h.Must("audit", "--denied", "--json"), `"program":"cat"`))

	u.Bash(`p=$(printf '/tmp/x, 3 s\n\033[2J'); cp $(command -v cat) "$p"; for i in 1 2; do "$p" .env; done; true`)
	out = h.Must("audit", "--denied")
	assert.NotContains(t, out, "\033")
	assert.Regexp(t, `×2 lookup \.env ENOENT \(\*\*/\.env: hide\) by "x, 3 s\\x0a\\x1b\[2J", \d+\.\d s\n`, out)
	assert.Equal(t, 2, strings.Count(out, "\n"))
}

// TestQuietRule: of equal lookups in a minute one is recorded, and the number of the others
// when the view ends. A change, and another path, are recorded each.
func TestQuietRule(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"a": `view: {paths: {"**/.env": {access: hide, quiet: true}}}`})
	harness.Plant(t, h.Scope("a"), ".env", "d/.env")
	u := h.Connect("a")
	u.Bash("for i in 1 2 3 4 5 6 7 8 9; do stat .env; done; stat d/.env; echo x > .env; rm .env; true")
	sum := func() (records, left int64) {
		for _, e := range h.Events("a") {
			if e.Op == "lookup" && e.Path == ".env" {
				records, left = records+1, left+e.Unrecorded
			}
		}
		return records, left
	}
	records, left := sum()
	assert.EqualValues(t, 1, records)
	assert.Zero(t, left)
	assert.True(t, h.Recorded("a", audit.Event{Op: "lookup", Path: "d/.env", Verdict: audit.Deny}), "a probe of another path")
	assert.True(t, h.Recorded("a", audit.Event{Op: "create", Path: ".env", Verdict: audit.Deny}), "a change")
	h.Must("down", "a")
	records, left = sum()
	assert.EqualValues(t, 2, records)
	assert.GreaterOrEqual(t, left, int64(8), "and those of the changes")
	assert.Contains(t, h.Must("audit", "--denied"), fmt.Sprintf("lookup repeated .env ENOENT (**/.env: hide) and %d unrecorded", left))
}

// TestContextOfAnotherCall: a process that reads the context of a call that has ended is
// refused, and that is recorded once a minute with the number of the others.
func TestContextOfAnotherCall(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"a": "scopes: {enum: [state]}"})
	u := h.Connect("a")
	u.Call("context_set", args{"messages": []args{{"type": "state", "secret": 1}}})
	u.Text("bash", args{"command": "{ touch held; until [ -e go ]; do sleep 0.02; done; cat <&3; cat <&3; touch done; sleep 100; } 3< /context/state.json > /dev/null 2>&1 & until [ -e held ]; do sleep 0.02; done",
		"_scopes": []string{"state"}})
	u.Bash("touch go; until [ -e done ]; do sleep 0.02; done")
	want := audit.Event{Event: audit.KindSandbox, Op: "read", Path: "/context", Verdict: audit.Deny}
	h.Eventually("the refusal is recorded", func() bool { return h.Recorded("a", want) })
	assert.Contains(t, h.Must("audit", "--denied"), "(context: of another call, or of one that has ended) by cat")
	h.Must("down", "a")
	want.Outcome = "repeated"
	h.Eventually("the others are counted", func() bool { return h.Recorded("a", want) })
}
