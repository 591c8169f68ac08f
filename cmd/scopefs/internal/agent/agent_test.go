package agent

import (
	"sync"
	"testing"
	"time"
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
