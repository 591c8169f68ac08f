package tools

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/tools/approvals"
)

const asks = "policy: {tools: {ask: [bash]}}"

// asking returns the gate of an agent that needs approvals for bash, and calls bash.
func asking(t *testing.T, d *desk) (Gate, func(args string) error) {
	gate := d.gate(t, asks)
	call := caller(t, gate, echo(t, "bash", Hints{}, nil))
	return gate, func(args string) error { return call("bash", args) }
}

func ok(approvals.Approval) error { return nil }

type shellIn struct {
	Command string `json:"command"`
	Stdin   string `json:"stdin,omitempty"`
}

func (in shellIn) Shell() (string, bool) { return in.Command, in.Stdin == "" }

func TestApprovalIsForOneCall(t *testing.T) {
	d := &desk{hash: "h1"}
	gate, call := asking(t, d)
	err := call(`{"path":"x","text":"1"}`)
	require.Equal(t, ApprovalRequired, code(t, err))
	id := err.(*Error).ApprovalID
	require.NotEmpty(t, id)
	again := call(`{"text":"1", "path":"x"}`)
	assert.Equal(t, id, again.(*Error).ApprovalID, "the same call asks once, however it is written")
	_, err = gate.Approvals.Decide(id, true, approvals.Answer{}, ok)
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

// noDisk is a store of approvals on a full disk.
type noDisk struct{ approvals.Store }

func (noDisk) Put(approvals.Approval) error { return errors.New("disk full") }

// TestApprovalNotAsked: a call that cannot be stored, and one too many, do not wait.
func TestApprovalNotAsked(t *testing.T) {
	gate, call := asking(t, &desk{})
	for i := range 64 {
		require.Equal(t, ApprovalRequired, code(t, call(fmt.Sprintf(`{"path":"%d"}`, i))))
	}
	assert.EqualError(t, call(`{"path":"x"}`), "rate_limited: 64 calls wait for the operator already")
	gate.Approvals = approvals.NewSet(noDisk{})
	err := caller(t, gate, echo(t, "bash", Hints{}, nil))("bash", `{"path":"x"}`)
	assert.EqualError(t, err, "unavailable: what the operator is to approve cannot be stored, so the call did not run (try again; the operator's log has the cause)")
	assert.EqualError(t, Cause(err), "disk full")
}

// TestStandingApproval: a standing approval covers calls by their command, if they have nothing
// more, or by the objects that their paths lead to. Filters hold as well.
func TestStandingApproval(t *testing.T) {
	d, elsewhere := &desk{}, ""
	gate := d.gate(t, "policy: {tools: {ask: [bash, write_file]}}\nargument_filters: {\"*\": [secret]}")
	gate.Object = func(_ context.Context, _, path string, _ bool) (approvals.Object, error) {
		return approvals.Object{Path: cmp.Or(elsewhere, path)}, nil
	}
	shell, err := New("bash", "", Hints{}, func(context.Context, Env, shellIn) (echoOut, error) { return echoOut{}, nil })
	require.NoError(t, err)
	call := caller(t, gate, shell, echo(t, "write_file", Hints{Writes: true}, nil))
	stand := func(tool, args, pattern string) {
		err := call(tool, args)
		require.Equal(t, ApprovalRequired, code(t, err))
		_, err = gate.Approvals.Stand(err.(*Error).ApprovalID, approvals.Terms{Pattern: pattern}, approvals.Answer{}, ok)
		require.NoError(t, err)
	}
	stand("bash", `{"command":"git status"}`, "git *")
	assert.NoError(t, call("bash", `{"command":"git log"}`))
	assert.Contains(t, d.told(), "approval bash used")
	assert.Equal(t, ApprovalRequired, code(t, call("bash", `{"command":"git log","stdin":"x"}`)))
	assert.Equal(t, Denied, code(t, call("bash", `{"command":"git secret"}`)), "a filter")
	stand("write_file", `{"path":"src/x"}`, "src/**")
	assert.NoError(t, call("write_file", `{"path":"src/y"}`))
	elsewhere = "lib/y"
	assert.Equal(t, ApprovalRequired, code(t, call("write_file", `{"path":"src/y"}`)))
}

func TestApprovalNotRecordedIsNone(t *testing.T) {
	gate, call := asking(t, &desk{})
	id := call(`{"path":"x"}`).(*Error).ApprovalID
	_, err := gate.Approvals.Decide(id, true, approvals.Answer{}, func(approvals.Approval) error { return errors.New("disk full") })
	assert.Error(t, err)
	assert.Equal(t, ApprovalRequired, code(t, call(`{"path":"x"}`)))
}

func TestHeadlessDenies(t *testing.T) {
	gate := (&desk{}).gate(t, asks)
	gate.Approvals = nil
	assert.Equal(t, Denied, code(t, caller(t, gate, echo(t, "bash", Hints{}, nil))("bash", `{"path":"x"}`)))
}

// What was approved is not run by rules that have gone while its file was hashed.
func TestApprovalDoesNotOutliveRules(t *testing.T) {
	d := &desk{}
	gate := d.gate(t, asks)
	rules, hashed := gate.Rules(), func() {}
	gate.Rules = func() Rules { return rules }
	gate.Object = func(context.Context, string, string, bool) (approvals.Object, error) {
		hashed()
		return approvals.Object{Content: "h"}, nil
	}
	call := caller(t, gate, echo(t, "bash", Hints{}, nil))
	_, err := gate.Approvals.Decide(call("bash", `{"path":"x"}`).(*Error).ApprovalID, true, approvals.Answer{}, ok)
	require.NoError(t, err)
	forbidden := load(t, "policy: {tools: {exclude: [bash]}}").Grants
	hashed = func() { rules = forbidden }
	assert.Equal(t, Conflict, code(t, call("bash", `{"path":"x"}`)))
	assert.Equal(t, Denied, code(t, call("bash", `{"path":"x"}`)))
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
	call := caller(t, gate, echo(t, "bash", Hints{}, func(context.Context, Env, echoIn) (echoOut, error) {
		ran++
		return echoOut{}, nil
	}))
	for yaml, want := range map[string]Code{
		"policy: {tools: {exclude: [bash]}}":        Conflict,
		"policy: {tools: {ask: [bash]}}":            Conflict,
		`argument_filters: {"*": [secret]}`:         Conflict,
		"policy: {tools: {exclude: [delete_file]}}": "",
	} {
		rules, change = first, load(t, yaml).Grants
		before := ran
		if err := call("bash", `{"path":"x"}`); want == "" {
			assert.NoError(t, err, yaml)
			assert.Equal(t, before+1, ran, yaml)
		} else {
			assert.Equal(t, want, code(t, err), yaml)
			assert.Equal(t, before, ran, yaml)
		}
	}
	assert.Contains(t, d.told(), "call bash conflict")
}
