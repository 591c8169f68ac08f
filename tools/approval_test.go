package tools

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/audit"
)

const asks = "policy: {tools: {ask: [bash]}}"

func askingSet(t *testing.T, d *desk) (*Set, Gate) {
	t.Helper()
	gate := d.gate(t, asks)
	set, err := NewSet(gate, echo(t, "bash", Hints{}, nil))
	require.NoError(t, err)
	return set, gate
}

func ok(Approval) error { return nil }

// free is a count without limits.
func free() *Error { return nil }

func TestApprovalIsForOneCall(t *testing.T) {
	d := &desk{hash: "h1"}
	set, gate := askingSet(t, d)
	call := func(args string) error {
		_, err := set.Call(context.Background(), Call{Tool: "bash", Args: json.RawMessage(args)})
		return err
	}
	err := call(`{"path":"x","text":"1"}`)
	require.Equal(t, ApprovalRequired, code(t, err))
	id := err.(*Error).ApprovalID
	require.NotEmpty(t, id)
	again := call(`{"text":"1", "path":"x"}`)
	assert.Equal(t, id, again.(*Error).ApprovalID, "the same call asks once, however it is written")
	_, err = gate.Approvals.Decide(id, true, nil, ok)
	require.NoError(t, err)
	assert.Equal(t, ApprovalRequired, code(t, call(`{"path":"x","text":"2"}`)), "other arguments")
	d.hash = "h2"
	assert.Equal(t, ApprovalRequired, code(t, call(`{"path":"x","text":"1"}`)), "other content")
	d.hash, d.inode = "h1", "2"
	assert.Equal(t, ApprovalRequired, code(t, call(`{"path":"x","text":"1"}`)), "another file of the same content")
	d.inode = ""
	assert.NoError(t, call(`{"path":"x","text":"1"}`))
	assert.Equal(t, ApprovalRequired, code(t, call(`{"path":"x","text":"1"}`)), "once")
	assert.Equal(t, "approval bash asked", d.told()[0])
	assert.Contains(t, d.told(), "approval bash used")
}

func TestApprovalDeniedAndOver(t *testing.T) {
	d := &desk{}
	set, gate := askingSet(t, d)
	now := time.Now()
	gate.Approvals.now = func() time.Time { return now }
	call := func() error {
		_, err := set.Call(context.Background(), Call{Tool: "bash", Args: json.RawMessage(`{"path":"x"}`)})
		return err
	}
	id := call().(*Error).ApprovalID
	_, err := gate.Approvals.Decide(id, false, nil, ok)
	require.NoError(t, err)
	assert.Equal(t, Denied, code(t, call()))
	_, err = gate.Approvals.Decide(id, true, nil, ok)
	assert.ErrorIs(t, err, ErrNoApproval, "decided is decided")
	now = now.Add(approvalTime + time.Second)
	id = call().(*Error).ApprovalID
	_, err = gate.Approvals.Decide(id, true, nil, ok)
	require.NoError(t, err)
	now = now.Add(approvalTime + time.Second)
	assert.Equal(t, ApprovalRequired, code(t, call()), "a grant expires")
}

func TestApprovalNotRecordedIsNone(t *testing.T) {
	d := &desk{}
	set, gate := askingSet(t, d)
	_, err := set.Call(context.Background(), Call{Tool: "bash", Args: json.RawMessage(`{"path":"x"}`)})
	id := err.(*Error).ApprovalID
	_, err = gate.Approvals.Decide(id, true, nil, func(Approval) error { return errors.New("disk full") })
	assert.Error(t, err)
	_, err = set.Call(context.Background(), Call{Tool: "bash", Args: json.RawMessage(`{"path":"x"}`)})
	assert.Equal(t, ApprovalRequired, code(t, err))
}

func TestHeadlessDenies(t *testing.T) {
	d := &desk{}
	gate := d.gate(t, asks)
	gate.Approvals = nil
	set, err := NewSet(gate, echo(t, "bash", Hints{}, nil))
	require.NoError(t, err)
	_, err = set.Call(context.Background(), Call{Tool: "bash", Args: json.RawMessage(`{"path":"x"}`)})
	assert.Equal(t, Denied, code(t, err))
}

func TestApprovalsAreBounded(t *testing.T) {
	a := NewApprovals(nil)
	for i := range maxWaiting {
		_, first, err := a.ask(Approval{Agent: "a", Path: string(rune('a' + i))}, free)
		require.Nil(t, err)
		require.True(t, first)
	}
	_, _, err := a.ask(Approval{Agent: "a", Path: "one more"}, free)
	assert.Equal(t, RateLimited, err.Code)
	_, _, err = a.ask(Approval{Agent: "b"}, free)
	assert.Nil(t, err, "each agent has its own bound")
}

// What was approved is not run by rules that have gone while its file was hashed.
func TestApprovalDoesNotOutliveRules(t *testing.T) {
	d := &desk{}
	gate := d.gate(t, asks)
	rules, hashed := gate.Rules(), func() {}
	gate.Rules = func() Rules { return rules }
	gate.Object = func(context.Context, string, string, bool) (Object, error) {
		hashed()
		return Object{Content: "h"}, nil
	}
	set, err := NewSet(gate, echo(t, "bash", Hints{}, nil))
	require.NoError(t, err)
	call := func() error {
		_, err := set.Call(context.Background(), Call{Tool: "bash", Args: json.RawMessage(`{"path":"x"}`)})
		return err
	}
	_, err = gate.Approvals.Decide(call().(*Error).ApprovalID, true, nil, ok)
	require.NoError(t, err)
	forbidden := load(t, "policy: {tools: {exclude: [bash]}}").Grants
	hashed = func() { rules = forbidden }
	assert.Equal(t, Conflict, code(t, call()))
	assert.Equal(t, Denied, code(t, call()))
	assert.NotContains(t, d.told(), "call bash ok")
}

// A call that is allowed, and then waits, does not run by rules that have gone.
func TestStill(t *testing.T) {
	d := &desk{}
	gate := d.gate(t, "")
	first, record := gate.Rules(), gate.Record
	rules := first
	gate.Rules = func() Rules { return rules }
	change := first
	gate.Record = func(ctx context.Context, e audit.Event) error {
		if e.Outcome == audit.OutcomeBegin {
			rules = change
		}
		return record(ctx, e)
	}
	ran := 0
	set, err := NewSet(gate, echo(t, "bash", Hints{}, func(context.Context, Env, echoIn) (echoOut, error) {
		ran++
		return echoOut{}, nil
	}))
	require.NoError(t, err)
	call := func() error {
		_, err := set.Call(context.Background(), Call{Tool: "bash", Args: json.RawMessage(`{"path":"x"}`)})
		return err
	}
	for yaml, want := range map[string]Code{
		"policy: {tools: {exclude: [bash]}}":        Conflict,
		"policy: {tools: {ask: [bash]}}":            Conflict,
		`argument_filters: {"*": [secret]}`:         Conflict,
		"policy: {tools: {exclude: [delete_file]}}": "",
	} {
		rules, change = first, load(t, yaml).Grants
		before := ran
		if err := call(); want == "" {
			assert.NoError(t, err, yaml)
			assert.Equal(t, before+1, ran, yaml)
		} else {
			assert.Equal(t, want, code(t, err), yaml)
			assert.Equal(t, before, ran, yaml)
		}
	}
	assert.Contains(t, d.told(), "call bash conflict")
}

// What one agent asks for is bounded, and its beginning is what a list shows.
func TestApprovalsOfLongArguments(t *testing.T) {
	a := NewApprovals(nil)
	long := func(c string) Approval {
		return Approval{Agent: "a", Tool: "t", Arguments: json.RawMessage(`{"x":"` + strings.Repeat(c, 6<<20) + `"}`)}
	}
	for _, c := range []string{"a", "b"} {
		_, first, err := a.ask(long(c), free)
		assert.True(t, first)
		assert.Nil(t, err)
	}
	_, _, err := a.ask(long("c"), free)
	require.NotNil(t, err)
	assert.Equal(t, RateLimited, err.Code)
	for _, p := range a.List() {
		text, err := json.Marshal(p.Brief())
		require.NoError(t, err)
		assert.Less(t, len(text), 4<<10)
		assert.Greater(t, len(p.Arguments), 6<<20, "only there")
	}
}
