package fs

import (
	"context"
	"errors"
	"testing"

	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/audit/event"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/beneath"
)

type nothing struct{}

func (nothing) Record(context.Context, event.Event) error { return nil }
func (nothing) Err() error                                { return nil }

type broken struct{ nothing }

func (broken) Record(context.Context, event.Event) error { return errors.New("the daemon is gone") }

// TestUnrecordedDenialIsNotAnswered: a decision that cannot be recorded is answered with
// EIO.
func TestUnrecordedDenialIsNotAnswered(t *testing.T) {
	policy, err := scope.Compile(scope.PolicySpec{Paths: []scope.PathRule{{Pattern: "f", Access: scope.Hide}}})
	require.NoError(t, err)
	for name, op := range map[string]scope.Op{"hidden": scope.OpLookup, "denied": scope.OpCreate} {
		t.Run(name, func(t *testing.T) {
			v := &View{opt: Options{Recorder: nothing{}}}
			v.policy.Store(policy)
			a := request{head: &fuse.InHeader{}, op: op}
			recorded := v.decide(&a, "f")
			require.Error(t, recorded)
			assert.NotEqual(t, fuse.EIO, status(recorded))
			v.opt.Recorder = broken{}
			assert.Equal(t, fuse.EIO, status(v.decide(&a, "f")))
			assert.Equal(t, fuse.EIO, status(v.outcome(&a, "l", &beneath.Violation{Target: "/etc/shadow"})))
			assert.Equal(t, fuse.EIO, status(v.forbid(a.head, scope.OpIoctl, "f", "")))
		})
	}
}

// TestNoNameIsNoPermission: a node without a name that leads to the root is denied.
func TestNoNameIsNoPermission(t *testing.T) {
	policy, err := scope.Compile(scope.PolicySpec{})
	require.NoError(t, err)
	v := &View{opt: Options{Recorder: nothing{}}}
	v.policy.Store(policy)
	a := request{head: &fuse.InHeader{}, op: scope.OpSetattr}
	v.nodes.init(dir(1).ID())
	f := found(t, &v.nodes, v.nodes.root, "f", file(4, 1), false)
	assert.NoError(t, v.decideNode(&a, f, 1))
	assert.ErrorIs(t, v.decideNode(&a, &node{}, 1), beneath.ErrStale)
}
