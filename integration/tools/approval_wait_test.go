package tools

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/tools/approvals"
)

// newWaiting starts a host where calls wait for the operator.
func newWaiting(t *testing.T, agents map[string]string) *harness.Host {
	h := harness.LayOut(t, agents)
	h.Put("scopefs.yaml", "approvals: {wait: 5m}\n")
	h.Start()
	return h
}

// waiting returns the ids of the calls that wait, when there are n.
func waiting(h *harness.Host, n int) (ids []string) {
	h.T.Helper()
	h.Eventually("calls wait", func() bool {
		ids = nil
		var list []approvals.Approval
		require.NoError(h.T, json.Unmarshal([]byte(h.Must("approvals", "--json")), &list))
		for _, p := range list {
			if p.State == approvals.Waits {
				ids = append(ids, p.ID)
			}
		}
		return len(ids) == n
	})
	return ids
}

// TestApprovalsWait: a call goes on when the operator approves it, and the client sees
// meanwhile what it waits for.
func TestApprovalsWait(t *testing.T) {
	h := newWaiting(t, map[string]string{"a": harness.AskWrite})
	harness.Plant(t, h.Scope("a"), "f=one")
	said := make(chan string, 100)
	u := h.ConnectWith(&mcp.ClientOptions{ProgressNotificationHandler: func(_ context.Context, r *mcp.ProgressNotificationClientRequest) { said <- r.Params.Message }}, "a")
	ended := make(chan *mcp.CallToolResult, 1)
	go func() {
		params := &mcp.CallToolParams{Name: "bash", Arguments: args{"command": "echo x >>ran"}}
		params.SetProgressToken("p")
		r, err := u.Session.CallTool(h.Soon(), params)
		assert.NoError(t, err)
		ended <- r
	}()
	id := waiting(h, 1)[0]
	for want := "bash waits for the operator to decide about approval " + id; <-said != want; { // on a busy host the call is running first
	}
	assert.NoFileExists(t, h.Scope("a", "ran"))
	h.Must("approvals", "approve", id)
	assert.False(t, (<-ended).IsError)
	assert.Equal(t, "x\n", harness.ReadAll(t, h.Scope("a", "ran")))

	denied := u.Begin(h.Soon(), "bash", args{"command": "echo y >>ran"})
	h.Must("approvals", "deny", waiting(h, 1)[0])
	assert.ErrorContains(t, <-denied, "the operator has denied this call")

	// Content that changed while the operator decided is asked about anew.
	write := u.Begin(h.Soon(), "write_file", args{"path": "f", "content": "two"})
	id = waiting(h, 1)[0]
	harness.Plant(t, h.Scope("a"), "f=other")
	h.Must("approvals", "approve", id)
	second := waiting(h, 1)[0]
	assert.NotEqual(t, id, second)
	assert.Equal(t, "other", harness.ReadAll(t, h.Scope("a", "f")))
	h.Must("approvals", "approve", second)
	assert.NoError(t, <-write)
	assert.Equal(t, "two", harness.ReadAll(t, h.Scope("a", "f")))

	// A reload decides about calls that wait.
	gone := u.Begin(h.Soon(), "bash", args{"command": "echo z >>ran"})
	waiting(h, 1)
	h.Define("a", "policy: {tools: {exclude: [bash]}}")
	h.Must("reload")
	assert.ErrorContains(t, <-gone, "there is no tool")

	// A client that goes takes its calls with it, and what it asked stays.
	h.Define("a", harness.AskWrite)
	h.Must("reload")
	ctx, cancel := context.WithCancel(h.Soon())
	left := h.Connect("a").Begin(ctx, "bash", args{"command": "echo w >>ran"})
	asked := waiting(h, 2)
	cancel()
	assert.Error(t, <-left)
	for _, id := range asked {
		h.Must("approvals", "approve", id)
	}
	assert.Equal(t, "x\n", harness.ReadAll(t, h.Scope("a", "ran")))
	h.Eventually("the call has ended", func() bool {
		last := h.Last("a", "bash")
		return last.Outcome == "internal" && strings.Contains(last.Detail, "cancel")
	})
}

// TestApprovalsWaitUntilTheEnd: a daemon that ends answers the calls that wait with the ids
// of their approvals.
func TestApprovalsWaitUntilTheEnd(t *testing.T) {
	h := newWaiting(t, map[string]string{"a": harness.AskWrite})
	call := h.Connect("a").Begin(h.Soon(), "bash", args{"command": "echo x >>ran"})
	first := waiting(h, 1)[0]
	said := make(chan string, 1)
	go func() {
		out, errs, _ := h.Try("call", "--agent", "a", "bash", "command=echo y >>ran")
		said <- out + errs
	}()
	both := waiting(h, 2)
	h.Stop()
	err := <-call
	assert.ErrorContains(t, err, "approval_required")
	assert.ErrorContains(t, err, first)
	text := <-said
	assert.Contains(t, text, "approval_required")
	assert.Regexp(t, strings.Join(both, "|"), strings.ReplaceAll(text, first, ""))
	assert.NotContains(t, h.Log.String(), "level=WARN")
}
