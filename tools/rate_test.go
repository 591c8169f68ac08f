package tools

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/tools/approvals"
)

// All sessions of an agent together hold so much of arguments and no more; what
// has ended holds nothing.
func TestArgumentsUnderWayAreBounded(t *testing.T) {
	d := &desk{}
	gate := d.gate(t, "")
	set, err := NewSet(gate, echo(t, "bash", Hints{}, nil))
	require.NoError(t, err)
	var all []func()
	for range maxHeld / maxArguments {
		release, full := gate.Rates.hold(maxArguments) // by another session
		require.Empty(t, full)
		all = append(all, release)
	}
	call := Call{Tool: "bash", Args: json.RawMessage(`{"path":"` + strings.Repeat("x", 100) + `"}`)}
	ends := func() { // refused until what is held has ended
		_, err = set.Call(context.Background(), call)
		assert.Equal(t, RateLimited, code(t, err))
		for _, release := range all {
			release()
		}
		_, err = set.Call(context.Background(), call)
		assert.NoError(t, err)
	}
	ends()
	assert.Zero(t, gate.Rates.held.Held())

	all = nil
	for range maxAgentRunning {
		release, full := gate.Rates.hold(0)
		require.Empty(t, full)
		all = append(all, release)
	}
	ends()
	assert.Zero(t, gate.Rates.running.Held())
}

// A call that is refused uses nothing up. A call that waits for the operator is
// counted once, when it is first made, so an approved call always runs.
func TestRatesCountWhatMayRun(t *testing.T) {
	d := &desk{}
	gate := d.gate(t, "rate_limits: {bash: 1/hour}\nargument_filters: {bash: [\"s3cret\"]}\npolicy: {tools: {ask: [bash]}}")
	call := caller(t, gate, echo(t, "bash", Hints{}, nil))
	assert.Equal(t, Invalid, code(t, call("bash", `{}`)))
	assert.Equal(t, Denied, code(t, call("bash", `{"path":"s3cret"}`)))
	first := call("bash", `{"path":"x"}`)
	require.Equal(t, ApprovalRequired, code(t, first), "%v", first)
	assert.Equal(t, ApprovalRequired, code(t, call("bash", `{"path":"x"}`)), "it waits still")
	assert.Equal(t, RateLimited, code(t, call("bash", `{"path":"y"}`)), "another call is one too many")
	_, err := gate.Approvals.Decide(first.(*Error).ApprovalID, true, approvals.Answer{}, ok)
	require.NoError(t, err)
	assert.NoError(t, call("bash", `{"path":"x"}`))
	assert.Equal(t, RateLimited, code(t, call("bash", `{"path":"x"}`)), "once")
	assert.Len(t, gate.Approvals.List(), 0)

	call = caller(t, (&desk{}).gate(t, "rate_limits: {bash: 1/hour}\nargument_filters: {bash: [\"s3cret\"]}"), echo(t, "bash", Hints{}, nil))
	assert.Equal(t, Invalid, code(t, call("bash", `{}`)))
	assert.Equal(t, Denied, code(t, call("bash", `{"path":"s3cret"}`)))
	assert.NoError(t, call("bash", `{"path":"x"}`))
	assert.Equal(t, RateLimited, code(t, call("bash", `{"path":"x"}`)))
}
