package fs

import (
	"testing"

	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/scope"
)

type nothing struct{}

func (nothing) Record(audit.Event) error { return nil }
func (nothing) Err() error               { return nil }

// A node whose names lead nowhere, as deep as a path may be moved, must not be
// decided on by none.
func TestNoNameIsNoPermission(t *testing.T) {
	policy, err := scope.Compile(scope.PolicySpec{})
	require.NoError(t, err)
	v := &View{opt: Options{Recorder: nothing{}}}
	v.policy.Store(policy)
	a := ask{head: &fuse.InHeader{}, op: scope.OpSetattr}
	assert.NoError(t, v.decide(&a, []string{"f"}, 1))
	assert.ErrorIs(t, v.decide(&a, nil, 1), scope.ErrStale)
}
