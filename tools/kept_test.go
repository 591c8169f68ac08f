package tools

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// drawer is a store of approvals that outlives those who use it.
type drawer struct {
	approvals map[string]Approval
	err       error
}

func (d *drawer) Put(p Approval) error {
	if d.err == nil {
		d.approvals[p.ID] = p
	}
	return d.err
}

func (d *drawer) Remove(p Approval) error {
	if _, ok := d.approvals[p.ID]; !ok {
		return fs.ErrNotExist
	}
	if d.err == nil {
		delete(d.approvals, p.ID)
	}
	return d.err
}

// restart returns approvals as the next daemon has them.
func (d *drawer) restart() *Approvals {
	var all []Approval
	for _, p := range d.approvals {
		all = append(all, p)
	}
	return NewApprovals(d, all...)
}

func TestApprovalsOutliveTheDaemon(t *testing.T) {
	kept, desk := &drawer{approvals: map[string]Approval{}}, &desk{hash: "h"}
	gate := desk.gate(t, asks)
	ran := 0
	call := func() error {
		gate.Approvals = kept.restart() // before each call
		set, err := NewSet(gate, echo(t, "bash", Hints{}, func(context.Context, Env, echoIn) (echoOut, error) {
			ran++
			return echoOut{}, nil
		}))
		require.NoError(t, err)
		_, err = set.Call(context.Background(), Call{Tool: "bash", Args: json.RawMessage(`{"path":"x"}`)})
		return err
	}
	id := call().(*Error).ApprovalID
	require.NotEmpty(t, id)
	assert.Equal(t, id, call().(*Error).ApprovalID, "it waits still")
	_, err := kept.restart().Decide(id, true, nil, ok)
	require.NoError(t, err)
	desk.hash = "other"
	assert.Equal(t, ApprovalRequired, code(t, call()), "it is for the content that it was for")
	desk.hash = "h"
	require.NoError(t, call())
	assert.Equal(t, 1, ran)
	second := call()
	assert.Equal(t, ApprovalRequired, code(t, second), "used is used")
	assert.NotEqual(t, id, second.(*Error).ApprovalID)

	_, err = kept.restart().Decide(second.(*Error).ApprovalID, false, nil, ok)
	require.NoError(t, err)
	assert.Equal(t, Denied, code(t, call()), "denied is denied")
	a := kept.restart()
	require.NoError(t, a.Forget("a"))
	assert.Empty(t, kept.approvals)
}

// Time goes on while no daemon runs, and an approval does not gain by a clock
// that is set back.
func TestKeptApprovalsExpire(t *testing.T) {
	kept := &drawer{approvals: map[string]Approval{}}
	p, _, err := kept.restart().ask(Approval{Agent: "a", Tool: "bash"}, free)
	require.Nil(t, err)
	for _, after := range []time.Duration{approvalTime + time.Second, -time.Second} {
		a := kept.restart()
		a.now = func() time.Time { return p.Asked.Add(after) }
		assert.Empty(t, a.List(), after)
		assert.Empty(t, kept.approvals, after)
		kept.approvals[p.ID] = p
	}
	assert.Len(t, kept.restart().List(), 1)
}

// What cannot be stored does not happen.
func TestApprovalsNotStored(t *testing.T) {
	kept, desk := &drawer{approvals: map[string]Approval{}}, &desk{}
	gate := desk.gate(t, asks)
	gate.Approvals = kept.restart()
	ran := false
	set, err := NewSet(gate, echo(t, "bash", Hints{}, func(context.Context, Env, echoIn) (echoOut, error) {
		ran = true
		return echoOut{}, nil
	}))
	require.NoError(t, err)
	call := func() error {
		_, err := set.Call(context.Background(), Call{Tool: "bash", Args: json.RawMessage(`{"path":"x"}`)})
		return err
	}
	kept.err = errors.New("disk full")
	assert.Equal(t, Unavailable, code(t, call()))
	assert.Empty(t, gate.Approvals.List())
	kept.err = nil
	id := call().(*Error).ApprovalID
	kept.err = errors.New("disk full")
	_, err = gate.Approvals.Decide(id, true, nil, ok)
	assert.Error(t, err)
	kept.err = nil
	_, err = gate.Approvals.Decide(id, true, nil, ok)
	require.NoError(t, err)
	kept.err = errors.New("disk full")
	assert.Equal(t, Unavailable, code(t, call()))
	kept.err = nil
	assert.False(t, ran)
	id = call().(*Error).ApprovalID
	_, err = gate.Approvals.Decide(id, true, nil, ok)
	require.NoError(t, err)
	delete(kept.approvals, id) // by the operator's hand, or another daemon's
	assert.Equal(t, Unavailable, code(t, call()))
	assert.False(t, ran)
}
