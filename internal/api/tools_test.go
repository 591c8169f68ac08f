package api

import (
	"context"
	"encoding/json"
	"errors"

	"net/http"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/internal/client"
	"github.com/scopefs/scopefs/internal/config"
)

// TestToolsOfStarting: a client of an agent that the daemon is about to mount waits for its socket, and one of an agent that
// has failed or is down does not.
func TestToolsOfStarting(t *testing.T) {
	p := config.Paths{Base: t.TempDir(), Run: t.TempDir()}
	l, err := Listen(p.Socket())
	require.NoError(t, err)
	var state atomic.Pointer[Agent]
	asked := make(chan struct{}, 1)
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = json.NewEncoder(w).Encode([]Agent{*state.Load()})
		select {
		case asked <- struct{}{}:
		default:
		}
	})}
	go func() { _ = server.Serve(l) }()
	defer server.Close()

	for want, s := range map[string]Agent{
		`"a" is not mounted: scopefs up a`:                   {ID: "a", State: Down},
		`"a" is not mounted: its directory is gone`:          {ID: "a", State: Failed, Error: "its directory is gone"},
		`unknown agent "a": define it in agents.d/a.md`:      {ID: "b", State: Starting},
		`"a" is not mounted: line 3: there is no key tooool`: {ID: "a", State: Failed, Error: "line 3: there is no key tooool", NotLoaded: true},
	} {
		state.Store(&s)
		_, err := client.Tools(t.Context(), p, "a", Hello{})
		assert.EqualError(t, err, want)
	}

	state.Store(&Agent{ID: "a", State: Starting})
	<-asked
	ctx, cancel := context.WithCancelCause(t.Context())
	given := make(chan error, 1)
	go func() {
		_, err := client.Tools(ctx, p, "a", Hello{})
		given <- err
	}()
	<-asked
	cancel(errors.New("the client has ended"))
	assert.ErrorContains(t, <-given, "the client has ended")

	for len(asked) > 0 {
		<-asked
	}
	go func() {
		conn, err := client.Tools(t.Context(), p, "a", Hello{Once: true})
		if err == nil {
			conn.Close()
		}
		given <- err
	}()
	<-asked
	socket := p.ToolSocket("a")
	require.NoError(t, os.MkdirAll(filepath.Dir(socket), 0o700))
	tools, err := Listen(socket)
	require.NoError(t, err)
	defer tools.Close()
	state.Store(&Agent{ID: "a", State: Mounted})
	conn, err := tools.Accept()
	require.NoError(t, err)
	defer conn.Close()
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(20*time.Second)))
	said := make([]byte, 16)
	n, err := conn.Read(said)
	assert.NoError(t, err)
	assert.Equal(t, "once\n", string(said[:n]))
	assert.NoError(t, <-given)
}
