package daemon

import (
	"context"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/internal/account"
	"github.com/scopefs/scopefs/internal/agent"
	"github.com/scopefs/scopefs/internal/session"
	"github.com/scopefs/scopefs/tools/limit"
)

// TestVolumeWaits: a request about an agent's volumes that is given up while another one runs has done nothing, and the log has nothing
// of it.
func TestVolumeWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, err := audit.Open(t.TempDir(), audit.Options{})
		require.NoError(t, err)
		defer log.Close()
		d := &Daemon{Shared: agent.Shared{Shared: session.Shared{Host: &account.Host{}, Log: log}}, volumes: limit.NewQueue(0, 1, time.Hour)}
		free, err := d.volumes.Take(t.Context(), "a")
		require.NoError(t, err)
		defer free()
		for _, do := range []string{"publish", "rebind", "narrow", "unpublish"} {
			before, err := log.Append(t.Context(), audit.Event{Event: audit.KindDaemon})
			require.NoError(t, err)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			r := httptest.NewRequestWithContext(ctx, "POST", "/v1/volumes", strings.NewReader(`{"do": "`+do+`", "volume": {"agent": "a"}}`))
			_, err = d.volume(nil, r)
			cancel()
			require.ErrorIs(t, err, context.DeadlineExceeded, do)
			after, err := log.Append(t.Context(), audit.Event{Event: audit.KindDaemon})
			require.NoError(t, err)
			assert.Equal(t, before+1, after, do)
		}
	})
}
