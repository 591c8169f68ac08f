package session

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/scopefs/scopefs/internal/account"
	"github.com/scopefs/scopefs/internal/outlive"
)

// TestClaimed: a task that the last daemon has left is there until somebody ends it, once, whether its client returns or not.
func TestClaimed(t *testing.T) {
	a := &Agent{Shared: &Shared{Host: &account.Host{}}, Daemon: nothing{}, id: "a"}
	box := &Sandbox{agent: a, Earlier: &outlive.Item{Sandbox: outlive.Sandbox{Task: &outlive.Task{Caller: "b"}}}}
	a.left.Store(box, nil)
	assert.True(t, box.Claim(), "the client has not returned")
	assert.False(t, box.Claim())
	a.left.Range(func(key, _ any) bool { return assert.Fail(t, "it is still there") })
}
