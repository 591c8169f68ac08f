package tools

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/tools"
	"github.com/scopefs/scopefs/tools/approvals"
)

// declare declares a call with these properties.
func declare(h *harness.Host, name, properties string) {
	h.Put("activities.d/"+name+".json", fmt.Sprintf(`{"description": "does %s", "inputSchema": {"type": "object", "additionalProperties": false, "properties": {%s}}}`, name, properties))
}

// line is what scopefs call prints for a call of a file.
type line struct {
	Call   int
	Tool   string
	Result struct {
		Mode, Guidance string
		Call           json.RawMessage
		Context        map[string]json.RawMessage
	}
	Error *tools.Error
}

// batch runs a file of calls with a context.
func batch(t *testing.T, h *harness.Host, context, calls string, flags ...string) (lines []line, code int) {
	t.Helper()
	h.Put("env.json", context)
	h.Put("calls.json", calls)
	out, errs, code := h.Try(append([]string{"call", "--agent", "a", "--context", h.Base + "/env.json", h.Base + "/calls.json"}, flags...)...)
	for text := range strings.Lines(out) {
		var l line
		require.NoError(t, json.Unmarshal([]byte(text), &l), "%s %s", text, errs)
		lines = append(lines, l)
	}
	return lines, code
}

// seesBob requires that a call saw the input, and nothing else.
func seesBob(t *testing.T, l line) {
	t.Helper()
	require.Len(t, l.Result.Context, 1)
	assert.JSONEq(t, `[{"type":"input","mentionedUser":"Bob"}]`, string(l.Result.Context["input"]))
}

// recorded returns the first event of an operation with an outcome.
func recorded(h *harness.Host, op, outcome string) (e audit.Event) {
	for _, e = range h.Events("a") {
		if e.Op == op && e.Outcome == outcome {
			return e
		}
	}
	require.Fail(h.T, "no event "+op+" "+outcome)
	return e
}

const people = `[{"type": "state", "currentUser": "Alice"}, {"type": "input", "mentionedUser": "Bob"}]`

// TestDisambiguation is the protocol's example of a call that means the user of the
// input, not that of the state.
func TestDisambiguation(t *testing.T) {
	h := harness.LayOut(t, map[string]string{"a": "tools: [sendMessage]\nscopes: {enum: [state, input]}"})
	declare(h, "sendMessage", `"text": {"type": "string"}, "_scopes": {"const": ["input"]}`)
	h.Start()
	lines, code := batch(t, h, people, `{"_tool": "sendMessage", "_scopes": ["input"], "text": "hello"}`)
	require.Equal(t, 0, code)
	require.Len(t, lines, 1)
	assert.Equal(t, "latent", lines[0].Result.Mode)
	assert.Contains(t, lines[0].Result.Guidance, "no boundary")
	assert.JSONEq(t, `{"text":"hello"}`, string(lines[0].Result.Call))
	seesBob(t, lines[0])
	begin := recorded(h, "sendMessage", audit.OutcomeBegin)
	require.Len(t, begin.Context, 1)
	assert.Equal(t, "input", begin.Context[0].Name)
	assert.NotContains(t, string(begin.Raw), "Bob")
	// The same by one call, as text for the model.
	text := h.Must("call", "sendMessage", "text=hi", "--agent", "a", "--context", h.Base+"/env.json")
	assert.Contains(t, text, "<context from=\"a\">\n[{\"type\":\"input\",\"mentionedUser\":\"Bob\"}]\n</context>")
	assert.NotContains(t, text, "Alice")
	// And the prompt, as a runner would hand it to a model.
	assert.Contains(t, h.Must("prompt", "a", "--context", h.Base+"/env.json"), "Alice")
	assert.NotContains(t, h.Must("prompt", "a", "--context", h.Base+"/env.json", "--scopes", "input"), "Alice")
	_, _, code = h.Try("prompt", "a", "--context", h.Base+"/env.json", "--scopes", "secret")
	assert.Equal(t, 2, code)
}

// TestBatch requires a line for each call in order, whatever fails.
func TestBatch(t *testing.T) {
	h := harness.LayOut(t, map[string]string{"a": "tools: [translate, stat]\nscopes: {enum: [state, input]}"})
	declare(h, "translate", `"n": {"type": "integer"}, "_scopes": {"type": "array", "items": {"enum": ["state", "secret"]}}`)
	h.Start()
	const states = `[{"type": "state", "_instance": "①", "text": "Hello"}, {"type": "state", "_instance": "②", "text": "Bonjour"}, {"type": "state", "all": 1}]`
	calls := []string{
		`{"_tool": "translate", "_scopes": ["state"], "_instance": "①"}`,
		`{"_tool": "translate", "_scopes": ["state"], "_instance": "②"}`,
		`{"_tool": "translate", "_scopes": ["secret"]}`,
		`{"_tool": "translate", "_scopes": ["input"]}`,
		`{"_tool": "translate", "_scopes": ["state"], "_scopes": []}`,
		`{"_tool": "translate", "n": "x"}`,
		`{"_tool": "stat", "path": "x", "_scopes": ["state"]}`,
		`{"_tool": "translate", "_tool": "stat"}`,
		`{"_scopes": []}`,
		`7`,
		`{"_tool": "none"}`,
	}
	for i := range 200 {
		calls = append(calls, fmt.Sprintf(`{"_tool": "translate", "_scopes": ["state"], "_instance": "①", "n": %d}`, i))
	}
	lines, code := batch(t, h, states, `{"calls": [`+strings.Join(calls, ",")+`]}`)
	require.Equal(t, 1, code)
	require.Len(t, lines, len(calls))
	assert.JSONEq(t, `[{"type":"state","_instance":"①","text":"Hello"},{"type":"state","all":1}]`, string(lines[0].Result.Context["state"]))
	assert.JSONEq(t, `[{"type":"state","_instance":"②","text":"Bonjour"},{"type":"state","all":1}]`, string(lines[1].Result.Context["state"]))
	var errs []string
	for i, l := range lines {
		assert.Equal(t, i, l.Call)
		if l.Error != nil {
			errs = append(errs, fmt.Sprint(i, " ", l.Error.Code, " ", l.Error.Path))
		}
	}
	assert.Equal(t, []string{"2 denied /_scopes/0", "3 denied /_scopes/0", "4 invalid /_scopes", "5 invalid ", "6 invalid /_scopes", "7 invalid /_tool", "8 invalid /_tool", "9 invalid ", "10 denied "}, errs)
	for i := range 200 {
		assert.JSONEq(t, fmt.Sprintf(`{"n":%d}`, i), string(lines[11+i].Result.Call))
	}
	lines, _ = batch(t, h, `[{"type": "state", "n": 12345678901234567890.10, "a": 1.0}]`, calls[11])
	assert.Equal(t, `[{"type":"state","n":12345678901234567890.10,"a":1.0}]`, string(lines[0].Result.Context["state"]), "no number changes: it may be the next context")
	_, _, code = h.Try("call", "--agent", "a", "--context", h.Base+"/calls.json", h.Base+"/calls.json")
	assert.Equal(t, 2, code, "a context that is none")
}

// TestDynamicContext is the protocol's example of a context that is requested and
// approved: the operator grants less than the call asks for.
func TestDynamicContext(t *testing.T) {
	h := harness.LayOut(t, map[string]string{"a": "tools: [analyze]\nscopes: {enum: [state, input], ask: [state]}"})
	declare(h, "analyze", `"_scopes": {"type": "array", "items": {"enum": ["state", "input"]}}`)
	h.Start()
	const call = `{"_tool": "analyze", "_scopes": ["state", "input"]}`
	lines, code := batch(t, h, people, call)
	require.Equal(t, 1, code)
	require.NotNil(t, lines[0].Error)
	require.Equal(t, tools.ApprovalRequired, lines[0].Error.Code)
	id := lines[0].Error.ApprovalID
	var shown approvals.Approval
	require.NoError(t, json.Unmarshal([]byte(h.Must("approvals", "show", id)), &shown))
	require.Len(t, shown.Context, 2)
	assert.Contains(t, shown.Preview, "Alice")
	assert.NotContains(t, h.Must("approvals", "--json"), "Alice")
	_, _, code = h.Try("approvals", "approve", id, "--scopes", "secret")
	assert.Equal(t, 1, code)
	_, _, code = h.Try("approvals", "approve", id, "--scopes", "")
	assert.Equal(t, 1, code)
	assert.Regexp(t, `analyze +"{}, sees input \(40 bytes\), state \(40 bytes\)"`, h.Must("approvals"))
	_, errs, _ := h.Try("call", "analyze", "--agent", "a", `_scopes:=["state","input"]`, "--context", h.Base+"/env.json")
	assert.Contains(t, errs, id, "the same call, said otherwise")
	h.Must("approvals", "approve", id, "--scopes", "input")
	lines, _ = batch(t, h, strings.Replace(people, "Alice", "Mallory", 1), call)
	require.NotNil(t, lines[0].Error, "another state")
	lines, code = batch(t, h, people, call)
	require.Equal(t, 0, code)
	seesBob(t, lines[0])
	used := recorded(h, "analyze", "used")
	assert.Contains(t, used.Detail, "narrowed from input state")
	require.Len(t, used.Context, 1)
	// Without the scope that asks there is no question.
	_, code = batch(t, h, people, `{"_tool": "analyze", "_scopes": ["input"]}`)
	assert.Equal(t, 0, code)
}

// TestContextOverMCP requires that any client can give a context: with a call, and by
// context_set for its session, without a byte changed.
func TestContextOverMCP(t *testing.T) {
	h := harness.LayOut(t, map[string]string{"a": "tools: [sendMessage, context_set, bash]\nscopes: {enum: [state, input], set: [state, input]}", "b": ""})
	declare(h, "sendMessage", `"text": {}, "_scopes": {"type": "array", "items": {"enum": ["state", "input", "secret"]}}`)
	h.Start()
	u := h.Connect("a")
	send := func(meta mcp.Meta, a args) map[string]any {
		t.Helper()
		r, err := u.Session.CallTool(h.Soon(), &mcp.CallToolParams{Meta: meta, Name: "sendMessage", Arguments: a})
		require.NoError(t, err)
		if r.IsError {
			return map[string]any{"error": harness.Said(r)}
		}
		return r.StructuredContent.(map[string]any)
	}
	const odd = `[{"type":"input","n":12345678901234567890123,"s":"<&>\u2028"}]`
	r := send(mcp.Meta{"scopefs/context": json.RawMessage(odd), "scopefs/scopes": []string{"input"}}, args{})
	text, err := json.Marshal(r["context"])
	require.NoError(t, err)
	assert.Contains(t, string(text), "1.2345678901234568e+22", "this client's own reading")
	r = send(mcp.Meta{"scopefs/context": json.RawMessage(odd)}, args{"_scopes": []string{"input"}, "text": 1})
	assert.NotContains(t, r, "error")
	assert.Empty(t, send(nil, args{"_scopes": []string{"input"}})["context"].(map[string]any)["input"], "it was that call's")
	u.Call("context_set", args{"messages": []args{{"type": "input", "x": 1}}})
	assert.Len(t, send(nil, args{"_scopes": []string{"input"}})["context"].(map[string]any)["input"], 1)
	assert.Equal(t, "[{\"type\":\"input\",\"x\":1}]\n", u.Text("bash", args{"command": "cat /context/input.json", "_scopes": []string{"input"}}))
	assert.Empty(t, h.Connect("a").Call("sendMessage", args{"_scopes": []string{"input"}})["context"].(map[string]any)["input"], "another session has none")
	for _, bad := range []mcp.Meta{
		{"scopefs/context": []any{map[string]any{"type": "../x"}}}, {"scopefs/context": "[]"}, {"scopefs/other": 1},
		{"scopefs/context": json.RawMessage(`[{"type":"a","a":1,"a":2}]`)},
	} {
		assert.Contains(t, send(bad, args{})["error"], `"code":"invalid"`)
	}
	assert.Contains(t, send(mcp.Meta{"scopefs/scopes": []string{"secret"}}, args{})["error"], `"code":"denied"`)
	assert.Equal(t, tools.Invalid, u.Fails("context_set", args{"messages": []args{{"type": "a/b"}}}).Code)
	assert.NotContains(t, h.Connect("b").List(), "context_set", "an agent without scopes")
	assert.Contains(t, h.Connect("b").List(), "sendMessage")
}

// TestActivitiesAreReloaded requires that a declaration holds from when it is there
// until it is gone, for clients that are connected.
func TestActivitiesAreReloaded(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"a": ""})
	u := h.Connect("a")
	assert.Equal(t, tools.Denied, u.Fails("later", nil).Code)
	declare(h, "later", `"_scopes": {"const": ["x"]}`)
	h.Must("reload")
	assert.Contains(t, u.List(), "later")
	assert.Equal(t, "latent", u.Call("later", nil)["mode"])
	declare(h, "Read", "")
	_, refused, _ := h.Try("reload")
	assert.Contains(t, refused, "Read is the name of a tool of --profile claude")
	assert.Contains(t, h.Connect("a", "--profile", "claude").List(), "later")
	require.NoError(t, os.Remove(h.Base+"/activities.d/Read.json"))
	h.Put("activities.d/later.json", "{\n]")
	_, errs, _ := h.Try("reload")
	assert.Contains(t, errs, "activities.d/later.json:2:")
	assert.Equal(t, "latent", u.Call("later", nil)["mode"], "the last good one")
	declare(h, "later", `"_scopes": {"const": ["y"]}`)
	h.Put("agents.d/c.md", "---\nname: c\ndescription: d\ntools: [later]\n---\n")
	h.Must("reload")
	require.NoError(t, os.RemoveAll(h.Base+"/activities.d"))
	h.Must("reload")
	assert.Equal(t, tools.Denied, u.Fails("later", nil).Code)
}
