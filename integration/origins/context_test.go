package origins

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/integration/harness"
)

// answered is the line that scopefs call prints for a call that a member does.
type answered struct {
	Tool   string
	Result struct {
		Member, Answer string
	}
	Error json.RawMessage
}

// calls writes a file and makes its calls.
func calls(h *harness.Host, text string) (all []answered) {
	h.T.Helper()
	h.Put("calls.json", text)
	out, errs, code := h.Try("call", "--agent", "orchestrator", h.Base+"/calls.json")
	require.Zero(h.T, code, "%s%s", out, errs)
	for line := range strings.Lines(out) {
		var a answered
		require.NoError(h.T, json.Unmarshal([]byte(line), &a), line)
		all = append(all, a)
	}
	return all
}

// contextOf returns the context that a runner was given.
func contextOf(t *testing.T, a answered) (messages []map[string]any) {
	t.Helper()
	var request struct{ Context []map[string]any }
	require.NoError(t, json.Unmarshal([]byte(a.Result.Answer), &request), a.Result.Answer)
	return request.Context
}

const orchestrator = "tools: [reviewReport, ReviewReport, translate, delegate]\nmembers: [ReviewerAgent, translatorDelegate]\nscopes: {enum: [state, input]}"

func orchestrating(t *testing.T) *harness.Host {
	h := echoing(t, map[string]string{
		"orchestrator": orchestrator,
		"reviewer":     "display_name: ReviewerAgent\nmodel: small-1\ntemperature: 0.5\nmax_turns: 7\ntimeout: 5m",
		"translator":   "display_name: translatorDelegate",
	})
	declare := func(name, properties string) {
		h.Put("activities.d/"+name+".json", `{"description": "d", "inputSchema": {"type": "object", "properties": {`+properties+`}}}`)
	}
	declare("reviewReport", `"_scopes": {"type": "array", "items": {"enum": ["state", "input"]}}, "_delegate": {"type": "string"}, "_module": {"type": ["string", "boolean"]}`)
	declare("ReviewReport", `"_scopes": {"const": ["state"]}, "_module": {"const": "ReviewerAgent"}`)
	declare("translate", `"_scopes": {"const": ["state"]}, "_delegate": {"const": "translatorDelegate"}`)
	h.Start()
	return h
}

// TestContextDelegate: messages and the call stand in one array. The member has a display name, its own system message
// comes first, and only what the call selects follows.
func TestContextDelegate(t *testing.T) {
	h := orchestrating(t)
	done := calls(h, `[
		{"type": "state", "reportText": "a long report"},
		{"type": "input", "secret": "not for the reviewer"},
		{"_tool": "reviewReport", "_delegate": "ReviewerAgent", "_scopes": ["state"]}
	]`)
	require.Len(t, done, 1)
	assert.Equal(t, "reviewer", done[0].Result.Member)
	given := contextOf(t, done[0])
	require.Len(t, given, 2)
	assert.Equal(t, "system", given[0]["type"])
	assert.Contains(t, given[0]["message"], "prompt")
	assert.Equal(t, map[string]any{"type": "state", "reportText": "a long report"}, given[1])
	var request map[string]any
	require.NoError(t, json.Unmarshal([]byte(done[0].Result.Answer), &request))
	assert.Equal(t, "small-1", request["model"])
	assert.InDelta(t, 0.5, request["temperature"], 0)
	assert.EqualValues(t, 7, request["max_turns"])
	assert.EqualValues(t, 300, request["timeout"])
	assert.Equal(t, map[string]any{"_tool": "reviewReport"}, request["call"])
	assert.Contains(t, h.Must("agents", "show", "reviewer"), "small-1, temperature 0.5, max_turns 7, timeout 5m0s")
}

// TestContextModule: _module with the member's name alone has the member do the call, without a prompt of its own.
func TestContextModule(t *testing.T) {
	h := orchestrating(t)
	done := calls(h, `[{"type": "state", "n": 1},
		{"_tool": "reviewReport", "_module": "ReviewerAgent", "_scopes": ["state"]},
		{"_tool": "ReviewReport"}]`)
	require.Len(t, done, 2)
	for _, one := range done {
		assert.Equal(t, []map[string]any{{"type": "state", "n": 1.0}}, contextOf(t, one), one.Tool)
	}
}

// TestContextInstances: two calls of one array, each with the state of its instance.
func TestContextInstances(t *testing.T) {
	h := orchestrating(t)
	done := calls(h, `[{"type": "state", "_instance": "①", "text": "Good morning"}, {"type": "state", "_instance": "②", "text": "Guten Morgen"},
		{"calls": [
			{"_tool": "translate", "_delegate": "translatorDelegate", "_instance": "①", "_scopes": ["state"]},
			{"_tool": "translate", "_delegate": "translatorDelegate", "_instance": "②", "_scopes": ["state"]}]}]`)
	require.Len(t, done, 2)
	for i, want := range []string{"Good morning", "Guten Morgen"} {
		given := contextOf(t, done[i])
		require.Len(t, given, 2)
		assert.Equal(t, map[string]any{"type": "state", "text": want}, given[1])
	}
}

// TestContextNames: a name that two agents have is no member; one of an agent that is no member neither.
func TestContextNames(t *testing.T) {
	h := echoing(t, map[string]string{"orchestrator": "tools: [delegate]\nmembers: [one]", "one": "display_name: Twin", "two": "display_name: Twin", "three": "display_name: Lone"})
	h.Start()
	for _, name := range []string{"Twin", "Lone", "two"} {
		_, errs, code := h.Try("call", "--agent", "orchestrator", "delegate", "member="+name, "task=x")
		assert.NotZero(t, code)
		assert.Contains(t, errs, `"code":"not_found"`, name)
	}
	h.Put("agents.d/ambiguous.md", "---\nname: ambiguous\nmembers: [Twin]\n---\n")
	out, errs, code := h.Try("agents", "check")
	assert.Equal(t, 1, code)
	assert.Contains(t, out+errs, `members: "Twin" is the display name of one and two: write the id`)
}

// TestContextActivity: a program takes a value of the state from the object form.
func TestContextActivity(t *testing.T) {
	h := harness.LayOut(t, map[string]string{"orchestrator": "tools: [logEvent]\nscopes: {enum: [state]}"})
	h.Put("activities.d/logEvent.json", `{"description": "d", "inputSchema": {"type": "object", "properties": {"eventName": {"type": "string"}, "_scopes": {"const": ["state"]}}}}`)
	h.Put("activities.d/logEvent", "#!/usr/bin/python3\nimport json, sys\nasked = json.load(sys.stdin)\n"+
		"def activity(call, state, **rest): return {'event': call['eventName'], 'user': state['userId']}\n"+
		"print(json.dumps(activity(asked['call'], **asked['scopes'])))\n")
	require.NoError(t, os.Chmod(h.Base+"/activities.d/logEvent", 0o755))
	h.Start()
	h.Put("calls.json", `[{"type": "state", "userId": "u-1", "theme": "dark"}, {"type": "state", "theme": "light"}, {"_tool": "logEvent", "eventName": "login", "_scopes": ["state"]}]`)
	assert.Contains(t, h.Must("call", "--agent", "orchestrator", h.Base+"/calls.json"), `"result":{"event":"login","user":"u-1"}`)
}

// TestContextTools: the agent's definition says what calls of any tool see, const or enum. A server's tool gets its context
// in _meta, and its arguments hold no member of the protocol.
func TestContextTools(t *testing.T) {
	h := harness.LayOut(t, map[string]string{"orchestrator": `tools: [write_file, read_file, "mcp:desk:*"]
mcp_servers: {desk: {command: /usr/bin/python3, args: [server.py]}}
scopes:
  enum: [state, input, notes]
  ask: [notes]
  tools:
    write_file: {const: [input]}
    "mcp:desk:see": {enum: [state, notes]}
    "mcp:*:*": {const: [input]}`})
	harness.Executable(t, h.Scope("orchestrator", "server.py"), []byte(mcpServer))
	require.NoError(t, os.WriteFile(h.Scope("orchestrator", "rules.txt"), nil, 0o644))
	h.Start()
	run := func(call string) (a struct {
		Result json.RawMessage
		Error  struct{ Code, Message, Path string }
	}) {
		t.Helper()
		h.Put("calls.json", `[{"type": "state", "_instance": "①", "plan": "x"}, {"type": "input", "user": "Eve"}, {"type": "notes", "n": 1}, `+call+`]`)
		out, errs, _ := h.Try("call", "--agent", "orchestrator", h.Base+"/calls.json")
		require.NoError(t, json.Unmarshal([]byte(out), &a), "%s%s", out, errs)
		return a
	}
	assert.Empty(t, run(`{"_tool": "write_file", "path": "a", "content": "x"}`).Error)
	begun := h.Calls("orchestrator", "write_file")
	require.NotEmpty(t, begun)
	require.Len(t, begun[0].Context, 1)
	assert.Equal(t, "input", begun[0].Context[0].Name)
	assert.Equal(t, "invalid", run(`{"_tool": "write_file", "path": "a", "content": "x", "_scopes": ["state"]}`).Error.Code)
	assert.Equal(t, "invalid", run(`{"_tool": "read_file", "path": "a", "_scopes": ["state"]}`).Error.Code)

	served := func(call string) (s seen) {
		t.Helper()
		a := run(call)
		require.Empty(t, a.Error)
		var answer struct{ Text string }
		require.NoError(t, json.Unmarshal(a.Result, &answer), "%s", a.Result)
		require.NoError(t, json.Unmarshal([]byte(answer.Text), &s))
		return s
	}
	s := served(`{"_tool": "mcp:desk:see", "_scopes": ["state"], "_instance": "①", "q": 1}`)
	assert.Equal(t, map[string]any{"q": 1.0}, s.Call)
	assert.Equal(t, []any{map[string]any{"type": "state", "plan": "x"}}, s.Meta["scopefs/context"])
	assert.Empty(t, served(`{"_tool": "mcp:desk:see"}`).Meta["scopefs/context"])
	assert.Equal(t, []any{map[string]any{"type": "input", "user": "Eve"}}, served(`{"_tool": "mcp:desk:drop"}`).Meta["scopefs/context"])
	assert.Equal(t, "denied", run(`{"_tool": "mcp:desk:see", "_scopes": ["input"]}`).Error.Code)
	assert.Contains(t, h.Must("why", fmt.Sprint(h.Last("orchestrator", "mcp:desk:see").Seq)), "add the scope to mcp:desk:see in scopes.tools")
	assert.Equal(t, "approval_required", run(`{"_tool": "mcp:desk:see", "_scopes": ["notes"]}`).Error.Code)

	h.Put("agents.d/wrong.md", "---\nname: wrong\nscopes: {enum: [state], tools: {bash: {const: [input]}}}\n---\n")
	out, errs, _ := h.Try("agents", "check")
	assert.Contains(t, out+errs, `wrong.md:3: scopes: tools: "bash": "input" is no scope of enum or const: add it there, or remove it here`)
}

// TestContextScratch: instances that run at the same time share the view at most. Each has a scratch directory.
func TestContextScratch(t *testing.T) {
	h := echoing(t, map[string]string{
		"orchestrator": "tools: [resize, measure, delegate]\nmembers: [worker]\nscopes: {enum: [state]}", "worker": "",
	})
	declare := func(name, more, program string) {
		h.Put("activities.d/"+name+".json", `{"description": "d", "inputSchema": {"type": "object", "properties": {"_scopes": {"const": ["state"]}}}`+more+`}`)
		h.Put("activities.d/"+name, "#!/bin/sh\nid=$(grep -o '\"text\":\"[a-z]*\"' | head -1 | cut -d'\"' -f4)\n"+program)
		require.NoError(t, os.Chmod(h.Base+"/activities.d/"+name, 0o755))
	}
	// Both wait for each other by the view that they share.
	declare("resize", "", `touch $TMPDIR/mine-$id ~/mine-$id /workspace/here-$id
while [ "$(ls /workspace | wc -l)" -lt 2 ]; do sleep 0.05; done
echo $(ls $TMPDIR ~ | grep mine) $(ls /workspace)`)
	declare("measure", `, "workspace": "none"`, `pwd; touch mine-$id $TMPDIR/mine-$id; ls . $TMPDIR | grep mine; ls /workspace 2>&1 || true`)
	h.Start()
	run := func(call string) string {
		t.Helper()
		h.Put("calls.json", `[{"type": "state", "_instance": "①", "text": "east"}, {"type": "state", "_instance": "②", "text": "west"}, {"calls": [`+
			strings.ReplaceAll(call, "{", `{"_instance": "①", `)+", "+strings.ReplaceAll(call, "{", `{"_instance": "②", `)+`]}]`)
		return h.Must("call", "--agent", "orchestrator", h.Base+"/calls.json")
	}
	shared := run(`{"_tool": "resize"}`)
	assert.Contains(t, shared, `mine-east mine-east here-east here-west`)
	assert.Contains(t, shared, `mine-west mine-west here-east here-west`)
	alone := run(`{"_tool": "measure"}`)
	assert.Contains(t, alone, `/scratch\nmine-east\nmine-east\nls: cannot access '/workspace'`)
	assert.Contains(t, alone, `/scratch\nmine-west\nmine-west\nls: cannot access '/workspace'`)

	h.Put("runner", "#!/bin/sh\ncat >/dev/null\ntouch /scratch/$$ /tmp/mine-$$\necho $(pwd) $(ls /scratch | wc -l) $(ls /tmp | grep -c mine)\n")
	for range 2 {
		assert.Contains(t, h.Must("call", "--agent", "orchestrator", "delegate", "member=worker", "task=x"), "/scratch 1 1")
	}
	h.Put("activities.d/measure.json", `{"description": "d", "inputSchema": {"type": "object"}, "workspace": "all"}`)
	out, errs, _ := h.Try("reload")
	assert.Contains(t, out+errs, `measure.json:1: workspace: unknown "all": want one of [none read write]`)
}
