package tools

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/audit/trace"
	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/tools"
)

func init() {
	// An MCP server that tells the _meta of its calls.
	harness.Roles["mcp-meta"] = func([]string) error {
		s := mcp.NewServer(&mcp.Implementation{Name: "meta", Version: "v1"}, nil)
		mcp.AddTool(s, &mcp.Tool{Name: "tell", Description: "tells"}, func(_ context.Context, req *mcp.CallToolRequest, _ struct{}) (*mcp.CallToolResult, any, error) {
			text, err := json.Marshal(req.Params.Meta)
			return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: string(text)}}}, nil, err
		})
		return s.Run(context.Background(), &mcp.StdioTransport{})
	}
}

const (
	telling = "mcp_servers: {meta: {command: /workspace/test-program, args: [], env: {" + harness.RoleEnv + ": mcp-meta}}}"
	client  = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01" // from W3C Trace Context
)

// told returns the _meta that the server gets from a call with this _meta.
func told(u *harness.User, meta mcp.Meta) map[string]string {
	u.T.Helper()
	r, err := u.Session.CallTool(u.Soon(), &mcp.CallToolParams{Meta: meta, Name: "mcp__meta__tell", Arguments: args{}})
	require.NoError(u.T, err)
	require.False(u.T, r.IsError, harness.Said(r))
	return tolds(u.T, harness.Said(r))
}

func tolds(t testing.TB, text string) map[string]string {
	all := map[string]any{}
	require.NoError(t, json.Unmarshal([]byte(text), &all), text)
	got := map[string]string{}
	for key, value := range all {
		if s, ok := value.(string); ok && !strings.Contains(key, "/") && key != "progressToken" {
			got[key] = s
		}
	}
	return got
}

// TestTrace: a server gets the trace of the client and the span of the call, which the log has.
func TestTrace(t *testing.T) {
	h := harness.LayOut(t, map[string]string{"a": telling})
	plantServer(h, "a")
	h.Start()
	u := h.Connect("a")

	got := told(u, mcp.Meta{"traceparent": client, "tracestate": "rojo=1, congo=2", "baggage": "user=alice"})
	end := h.Last("a", "mcp:meta:tell")
	assert.Equal(t, client, end.Trace)
	assert.Equal(t, "rojo=1,congo=2", end.TraceState)
	assert.Equal(t, map[string]string{"traceparent": trace.Of(end).String(), "tracestate": "rojo=1,congo=2"}, got)
	assert.Equal(t, client[:36], got["traceparent"][:36], "the client's trace")
	assert.NotEqual(t, client, got["traceparent"], "and the call's own span")
	both := h.Calls("a", "mcp:meta:tell")
	assert.Equal(t, audit.OutcomeBegin, both[0].Outcome)
	assert.Equal(t, client, both[0].Trace)

	got = told(u, mcp.Meta{"traceparent": client[:53] + "00"})
	assert.Equal(t, "00", got["traceparent"][53:], "a client that does not sample")

	got = told(u, nil)
	end = h.Last("a", "mcp:meta:tell")
	assert.Empty(t, end.Trace)
	assert.Equal(t, map[string]string{"traceparent": trace.Of(end).String()}, got)
	assert.Equal(t, trace.OfSession("a", end.Session).ID, trace.Of(end).ID, "one trace a session")

	t.Setenv("TRACEPARENT", client)
	t.Setenv("TRACESTATE", "rojo=1")
	assert.Equal(t, "rojo=1", tolds(t, h.Must("call", "--agent", "a", "mcp:meta:tell"))["tracestate"])
	assert.Equal(t, client, h.Last("a", "mcp:meta:tell").Trace)

	shown := u.Bash("echo $TRACEPARENT")
	assert.Equal(t, trace.Of(h.Last("a", "bash")).String(), shown)
}

// TestTraceHostile: of what a client sends as its trace nothing is recorded or passed on but a trace id.
func TestTraceHostile(t *testing.T) {
	const secret = "sesame4711"
	h := harness.LayOut(t, map[string]string{"a": telling + "\nargument_filters: {\"*\": [" + secret + "]}"})
	plantServer(h, "a")
	h.Start()
	u := h.Connect("a")
	evil := strings.Replace(client, "4bf92f3577", "e"+secret[:9], 1)
	for name, parent := range map[string]any{
		"not hexadecimal": evil,
		"longer":          client + "-evil",
		"a line":          client + "\nevil: 1",
		"NUL":             client + "\x00evil",
		"upper case":      strings.ToUpper(client),
		"zero":            "00-" + strings.Repeat("0", 32) + "-" + strings.Repeat("0", 16) + "-01",
		"a version":       "cc" + client[2:],
		"an object":       map[string]any{"evil": client},
		"a list":          []any{client},
		"a number":        4711,
		"huge":            strings.Repeat("e", 1<<20),
	} {
		t.Run(name, func(t *testing.T) {
			got := told(u, mcp.Meta{"traceparent": parent, "tracestate": "evil=1", "baggage": "evil=1"})
			end := h.Last("a", "mcp:meta:tell")
			assert.Equal(t, map[string]string{"traceparent": trace.Of(end).String()}, got)
			assert.Equal(t, trace.OfSession("a", end.Session).ID, trace.Of(end).ID)
			assert.Empty(t, end.Trace+end.TraceState)
		})
	}
	got := told(u, mcp.Meta{"traceparent": client, "tracestate": "x=" + strings.Repeat("y", 600)})
	assert.Equal(t, map[string]string{"traceparent": trace.Of(h.Last("a", "mcp:meta:tell")).String()}, got)

	for _, state := range []string{"x=" + secret, secret + "=x", "x=%73esame4711"} {
		r, err := u.Session.CallTool(h.Soon(), &mcp.CallToolParams{Meta: mcp.Meta{"traceparent": client, "tracestate": state}, Name: "mcp__meta__tell", Arguments: args{}})
		require.NoError(t, err)
		var e tools.Error
		require.NoError(t, json.Unmarshal([]byte(harness.Said(r)), &e))
		assert.Equal(t, tools.Denied, e.Code, "filters examine a tracestate: %s", state)
	}
	h.Stop()
	for _, e := range h.Events("") {
		assert.NotContains(t, strings.ReplaceAll(string(e.Raw), "argument_filters: *: "+secret, ""), secret)
		assert.NotContains(t, string(e.Raw), "evil")
	}
}

// TestTraceDelegated: what a member does is in the trace of the call that waits for it, whoever's server gets it.
func TestTraceDelegated(t *testing.T) {
	h := harness.LayOut(t, map[string]string{"a": "tools: ['*']\nmembers: [b]", "b": telling + "\nview: {paths: {secret: hide}}"})
	h.Scripted("")
	plantServer(h, "b")
	h.Start()
	u := h.Connect("a")
	r, err := u.Session.CallTool(h.Soon(), &mcp.CallToolParams{Meta: mcp.Meta{"traceparent": client, "tracestate": "a=1"}, Name: "delegate",
		Arguments: args{"member": "b", "task": "echo $TRACEPARENT; scopefs call mcp:meta:tell; scopefs call bash command='cat secret'; true"}})
	require.NoError(t, err)
	require.False(t, r.IsError, harness.Said(r))
	call := h.Last("a", "delegate")
	assert.Equal(t, client, call.Trace)
	own := trace.Of(call).String()
	lines := strings.Split(strings.TrimSpace(harness.Said(r)), "\n")
	assert.Equal(t, own, lines[0], "the runner")
	inner := h.Last("b", "mcp:meta:tell")
	assert.Equal(t, own, inner.Trace)
	assert.Equal(t, map[string]string{"traceparent": trace.Of(inner).String()}, tolds(t, lines[1]), "without the tracestate of another agent")
	assert.True(t, h.Recorded("b", audit.Event{Event: audit.KindFile, Path: "secret", Verdict: audit.Deny}))
	for _, e := range h.Events("b") {
		if e.Session != "" {
			assert.Equal(t, own, e.Trace, "%s", e.Raw)
		}
	}
	assert.True(t, h.Recorded("b", audit.Event{Event: audit.KindSandbox, Outcome: "ended"}))
}
