package view

import (
	"fmt"
	"net"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/scopefs/scopefs/scope"
	"github.com/stretchr/testify/assert"
)

// TestSetRulesAtOnce: callers of SetRules at the same time all get their view's answer, and
// the view has the rules of the last.
func TestSetRulesAtOnce(t *testing.T) {
	ours, theirs := net.Pipe()
	defer ours.Close()
	defer theirs.Close()
	v := &View{wire: NewWire(ours, MaxFromView), process: &served{}, hurry: make(chan struct{})}
	var last scope.PolicySpec
	go func() {
		for wire := NewWire(theirs, MaxToView); ; {
			var msg ToView
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
