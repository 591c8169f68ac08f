package view

import (
	"context"
	"fmt"
	"net"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/view/wire"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/agents"
)

// TestSetRulesAtOnce: callers of SetRules at the same time all get their view's answer, and
// the view has the rules of the last.
func TestSetRulesAtOnce(t *testing.T) {
	ours, theirs := net.Pipe()
	defer ours.Close()
	defer theirs.Close()
	v := &View{wire: wire.New(ours, wire.MaxFromView), process: &served{}, hurry: make(chan struct{})}
	var last scope.PolicySpec
	go func() {
		for w := wire.New(theirs, wire.MaxToView); ; {
			var msg wire.ToView
			if w.Receive(&msg) != nil {
				return
			}
			for range 100 { // the other callers go as far as they can
				runtime.Gosched()
			}
			last = *msg.Policy
			v.acked(msg.ID, "")
		}
	}()
	var callers sync.WaitGroup
	for i := range 50 {
		callers.Go(func() {
			_, err := v.SetRules(scope.PolicySpec{Access: scope.Read, Paths: []scope.PathRule{{Pattern: fmt.Sprint(i), Access: scope.Write}}})
			assert.NoError(t, err)
		})
	}
	callers.Wait()
	assert.Equal(t, v.rules.Paths, last.Paths)
}

// TestResponsive: Responsive waits for the lock of the view.
func TestResponsive(t *testing.T) {
	v := &View{}
	v.mu.Lock()
	done := make(chan struct{})
	go func() { v.Responsive(); close(done) }()
	select {
	case <-done:
		t.Error("it did not wait")
	case <-time.After(50 * time.Millisecond):
	}
	v.mu.Unlock()
	<-done
}

// quietAgent is an Agent without sandboxes.
type quietAgent struct{ Agent }

func (quietAgent) EndSandboxes() (wait func()) { return func() {} }
func (quietAgent) Event(audit.Event)           {}

// TestLeaveDying: a process that ends after Leave has marked the view, and before Leave has stopped it, is no death with a
// reason: keep ends, and Leave returns.
func TestLeaveDying(t *testing.T) {
	life, cancel := context.WithCancel(t.Context())
	stopping := make(chan struct{})
	v := &View{host: &Host{}, of: quietAgent{}, def: &agents.Definition{Name: "a"}, done: make(chan struct{}), changed: make(chan struct{}),
		state: api.Starting, mayLeave: true}
	v.stop = func() {
		close(stopping)
		select {
		case <-v.done:
		case <-time.After(20 * time.Second):
			t.Error("keep goes on")
		}
		cancel()
	}
	go v.keep(life, func(context.Context) (mounted bool, err error) {
		v.set(api.Mounted, 1, nil)
		<-stopping // the process dies now
		return true, nil
	})
	require.NoError(t, v.Wait(t.Context()))
	assert.True(t, v.Leave())
	assert.ErrorContains(t, v.Wait(t.Context()), "down")
}
