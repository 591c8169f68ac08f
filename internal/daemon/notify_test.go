package daemon

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/internal/account"
	"github.com/scopefs/scopefs/internal/agent"
	"github.com/scopefs/scopefs/internal/session"
)

// TestHealth: a daemon whose lock is held does not answer that it is healthy.
func TestHealth(t *testing.T) {
	log, err := audit.Open(t.TempDir(), audit.Options{})
	require.NoError(t, err)
	defer log.Close()
	d := &Daemon{Shared: agent.Shared{Shared: session.Shared{Host: &account.Host{}, Log: log}}}
	d.mu.Lock()
	done := make(chan struct{})
	go func() { d.checkHealth(); close(done) }()
	select {
	case <-done:
		t.Error("it is healthy")
	case <-time.After(50 * time.Millisecond):
	}
	d.mu.Unlock()
	<-done
}
