package agent

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/internal/account"
	"github.com/scopefs/scopefs/internal/session"
	"github.com/scopefs/scopefs/internal/view"
	"github.com/scopefs/scopefs/scope/agents"
)

// shared returns what an agent needs at least.
func shared() *Shared { return &Shared{Shared: session.Shared{Host: &account.Host{}}} }

// TestResponsive: Responsive waits for the lock of the agent.
func TestResponsive(t *testing.T) {
	a := New(shared(), "a")
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

// TestFreezeReplaced: a view that a reload has put in the place of the one that a request is about is not frozen for it: its hold is
// another one.
func TestFreezeReplaced(t *testing.T) {
	one, two := &view.View{}, &view.View{} // with a definition of nil, waiting for their mount
	for name, c := range map[string]struct {
		meant, now *view.View
		def        *agents.Definition
		want       string
	}{
		"the same":                   {one, one, &agents.Definition{}, "context canceled"},
		"another":                    {one, two, &agents.Definition{}, "repeat the request"},
		"another, same definition":   {one, two, nil, "context canceled"},
		"none any more":              {one, nil, nil, "repeat the request"},
		"a first one":                {nil, two, &agents.Definition{}, "repeat the request"},
		"a first one as it is meant": {nil, two, nil, "context canceled"},
	} {
		t.Run(name, func(t *testing.T) {
			a := New(shared(), "a")
			a.view = c.now
			ctx, cancel := context.WithCancel(t.Context())
			if c.now != nil {
				cancel()
			}
			defer cancel()
			_, err := a.freeze(ctx, c.meant, c.def)
			require.ErrorContains(t, err, c.want)
		})
	}
}
