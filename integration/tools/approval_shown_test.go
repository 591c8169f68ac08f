package tools

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/integration/harness"
	control "github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/tools/approvals"
)

func clientOf(h *harness.Host) *control.Client {
	return control.NewClient(config.Paths{Base: h.Base, State: h.Base + "/state", Run: h.Base + "/run"})
}

// TestApprovalsWithHash: an approval of what the operator saw does not approve what the file has become; what waits now is in
// the answer, once.
func TestApprovalsWithHash(t *testing.T) {
	h := newWaiting(t, map[string]string{"a": harness.AskWrite})
	harness.Plant(t, h.Scope("a"), "f=one")
	client := clientOf(h)
	write := h.Connect("a").Begin(h.Soon(), "write_file", args{"path": "f", "content": "two"})
	shown, err := client.Approval(h.Soon(), waiting(h, 1)[0])
	require.NoError(t, err)
	assert.Len(t, shown.Hash, 64)
	assert.Contains(t, shown.Changes.Diff, "-one")
	brief, err := client.Approvals(h.Soon())
	require.NoError(t, err)
	assert.Equal(t, shown.Hash, brief[0].Hash)

	harness.Plant(t, h.Scope("a"), "f=other")
	_, err = client.Approve(h.Soon(), shown.ID, control.DecideRequest{Shown: shown.Hash})
	refused, is := errors.AsType[*control.Error](err)
	require.True(t, is, "%v", err)
	assert.Equal(t, control.Conflict, refused.Kind)
	assert.Equal(t, approvals.Changed, refused.Outcome)
	require.NotNil(t, refused.Approval)
	assert.Contains(t, control.ApprovalOf(refused).Changes.Diff, "-other")
	assert.Equal(t, []string{control.ApprovalOf(refused).ID}, waiting(h, 1))
	_, out, code := h.Try("approvals", "approve", control.ApprovalOf(refused).ID, "--shown", shown.Hash)
	assert.Equal(t, 1, code)
	assert.Contains(t, out, "is not the one that was shown: look at it again")
	h.Must("approvals", "approve", control.ApprovalOf(refused).ID, "--shown", control.ApprovalOf(refused).Hash)
	assert.NoError(t, <-write)
	assert.Equal(t, "two", harness.ReadAll(t, h.Scope("a", "f")))
	asked := 0
	for _, e := range h.Events("a") {
		if e.Event == audit.KindApproval && e.Outcome == "asked" {
			asked++
		}
	}
	assert.Equal(t, 2, asked, "the log has what waited in its place")
}

// TestApprovalsReason: the agent reads why the operator has denied its call, as one line, by MCP and by scopefs call.
func TestApprovalsReason(t *testing.T) {
	h := newWaiting(t, map[string]string{"a": harness.AskWrite})
	client := clientOf(h)
	call := h.Connect("a").Begin(h.Soon(), "bash", args{"command": "make deploy"})
	id := waiting(h, 1)[0]
	_, out, code := h.Try("approvals", "deny", id, "--reason", strings.Repeat("x", 501))
	assert.Equal(t, 1, code)
	assert.Contains(t, out, "the reason has 501 characters: write at most 500")
	h.Must("approvals", "deny", id, "--reason", "not on\x1b[2J Friday:\nmake test first")
	err := <-call
	assert.ErrorContains(t, err, "the operator has denied this call of bash: not on [2J Friday: make test first")
	event := h.Last("a", "bash")
	assert.Equal(t, "denied", event.Outcome)

	said := make(chan string, 1)
	go func() {
		out, errs, _ := h.Try("call", "--agent", "a", "bash", "command=make clean")
		said <- out + errs
	}()
	_, err = client.Deny(h.Soon(), waiting(h, 1)[0], control.DecideRequest{Reason: "use rm", As: "phone"})
	require.NoError(t, err)
	assert.Contains(t, <-said, "the operator has denied this call of bash: use rm")
	var reasons []string
	for _, e := range h.Events("a") {
		if e.Event == audit.KindApproval && e.Outcome == "denied" {
			_, reason, _ := strings.Cut(e.Detail, ", ")
			reasons = append(reasons, reason)
			assert.NotNil(t, e.UID)
		}
	}
	assert.Equal(t, []string{`reason "not on [2J Friday: make test first"`, `reason "use rm", as "phone"`}, reasons)
}

// TestApprovalsTimeOut: what nobody decided is timed out for the agent and in the log, and nothing says that somebody denied it.
func TestApprovalsTimeOut(t *testing.T) {
	h := harness.LayOut(t, map[string]string{"a": harness.AskWrite})
	h.Put("scopefs.yaml", "approvals: {wait: 300ms}\n")
	h.Start()
	err := <-h.Connect("a").Begin(h.Soon(), "bash", args{"command": "true"})
	assert.ErrorContains(t, err, "timed out: nobody has decided about this call of bash within 300ms")
	assert.NotContains(t, err.Error(), "denied")
	event := h.Last("a", "bash")
	assert.Equal(t, "approval_required", event.Outcome)
	assert.Contains(t, event.Detail, ", timed out")
}

// TestApprovalsRace: of two operators who decide at once one decides, and the other learns what was decided.
func TestApprovalsRace(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"a": harness.AskWrite, "b": harness.AskWrite})
	users, client := []*harness.User{h.Connect("a"), h.Connect("b")}, clientOf(h) // 64 calls of an agent may wait
	for round := range 100 {
		p, err := client.Approval(h.Soon(), users[round%2].Waits("bash", args{"command": fmt.Sprint("true ", round)}))
		require.NoError(t, err)
		var both sync.WaitGroup
		errs := [2]error{}
		both.Go(func() {
			_, errs[0] = client.Approve(h.Soon(), p.ID, control.DecideRequest{Shown: p.Hash, As: "first"})
		})
		both.Go(func() { _, errs[1] = client.Deny(h.Soon(), p.ID, control.DecideRequest{Shown: p.Hash, As: "second"}) })
		both.Wait()
		require.True(t, (errs[0] == nil) != (errs[1] == nil), "%v", errs)
		lost := errors.Join(errs[:]...)
		winner, state := "first", "approved"
		if errs[1] == nil {
			winner, state = "second", "denied"
		}
		require.ErrorContains(t, lost, state+" already by user ")
		require.ErrorContains(t, lost, "("+winner+")")
		refused, _ := errors.AsType[*control.Error](lost)
		require.Equal(t, control.Conflict, refused.Kind)
		require.Equal(t, state, refused.Outcome)
	}
}
