package agent

import (
	"testing"
	"time"

	"github.com/scopefs/scopefs/internal/session"
)

// TestResponsive: Responsive waits for the lock of the agent.
func TestResponsive(t *testing.T) {
	a := New(&session.Shared{}, "a")
	a.mu.Lock()
	done := make(chan struct{})
	go func() { a.Responsive(); close(done) }()
	select {
	case <-done:
		t.Error("it did not wait")
	case <-time.After(50 * time.Millisecond):
	}
	a.mu.Unlock()
	<-done
}
