package agent

import (
	"fmt"
	"net"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/scopefs/scopefs/internal/viewer"
	"github.com/scopefs/scopefs/scope"
)

// TestResponsive: Responsive waits for the locks of the agent and of its view.
func TestResponsive(t *testing.T) {
	a, v := New(&Shared{}, "a"), &view{}
	a.view = v
	for name, lock := range map[string]sync.Locker{"agent": &a.mu, "view": &v.mu} {
		t.Run(name, func(t *testing.T) {
			lock.Lock()
			done := make(chan struct{})
			go func() { a.Responsive(); close(done) }()
			select {
			case <-done:
				t.Error("it did not wait")
			case <-time.After(50 * time.Millisecond):
			}
			lock.Unlock()
			<-done
		})
	}
}

// TestSetRulesAtOnce: callers of setRules at the same time all get their view's answer, and
// the view has the rules of the last.
func TestSetRulesAtOnce(t *testing.T) {
	ours, theirs := net.Pipe()
	defer ours.Close()
	defer theirs.Close()
	v := &view{wire: viewer.NewWire(ours, viewer.MaxFromView), hurry: make(chan struct{})}
	var last scope.PolicySpec
	go func() {
		for wire := viewer.NewWire(theirs, viewer.MaxToView); ; {
			var msg viewer.ToView
			if wire.Receive(&msg) != nil {
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
			_, err := v.setRules(scope.PolicySpec{Access: scope.Read, Paths: []scope.PathRule{{Pattern: fmt.Sprint(i), Access: scope.Write}}})
			assert.NoError(t, err)
		})
	}
	callers.Wait()
	assert.Equal(t, v.rules.Paths, last.Paths)
}
