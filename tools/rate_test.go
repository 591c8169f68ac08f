package tools

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
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
	_, err = set.Call(context.Background(), call)
	assert.Equal(t, RateLimited, code(t, err))
	for _, release := range all {
		release()
	}
	_, err = set.Call(context.Background(), call)
	assert.NoError(t, err)
	assert.Zero(t, gate.Rates.held.Load())

	all = nil
	for range maxAgentRunning {
		release, full := gate.Rates.hold(0)
		require.Empty(t, full)
		all = append(all, release)
	}
	_, err = set.Call(context.Background(), call)
	assert.Equal(t, RateLimited, code(t, err))
	for _, release := range all {
		release()
	}
	_, err = set.Call(context.Background(), call)
	assert.NoError(t, err)
	assert.Zero(t, gate.Rates.running.Load())
}
