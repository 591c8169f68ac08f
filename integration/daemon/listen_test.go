package daemon

import (
	"encoding/json"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/integration/harness"
)

// TestPortTaken: another user of the host may take each port of the daemon while no daemon runs. The daemon starts all the
// same, ps has an error for each port, and the daemon takes the port when it is free.
func TestPortTaken(t *testing.T) {
	t.Parallel()
	h := harness.LayOut(t, map[string]string{"a": ""})
	var flags []string
	taken := map[string]net.Listener{}
	for _, flag := range []string{"http", "metrics", "console"} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		defer l.Close()
		taken[flag] = l
		flags = append(flags, "--"+flag, l.Addr().String())
	}
	h.Start(flags...)
	assert.Equal(t, "here\n", h.Must("call", "--agent", "a", "bash", "command=echo here"))
	failures := func() (errs []string) {
		var all []struct{ Agent, State, Error string }
		require.NoError(t, json.Unmarshal([]byte(h.Must("ps", "--json")), &all))
		for _, a := range all {
			if a.Agent == "" {
				assert.Equal(t, "failed", a.State)
				errs = append(errs, a.Error)
			}
		}
		return errs
	}
	assert.Len(t, failures(), len(taken))
	table := h.Must("ps")
	for flag, l := range taken {
		want := flag + ": listen tcp " + l.Addr().String() + ": bind: address already in use: end the program that has the port (ss -ltnp shows it), or give another address"
		assert.Contains(t, strings.Join(failures(), "\n"), want)
		assert.Contains(t, table, want)
		l.Close()
	}
	h.Eventually("every port is taken", func() bool { return len(failures()) == 0 })
	assert.NotContains(t, h.Must("ps"), "address already in use")
	token := strings.TrimSpace(h.Must("token", "a"))
	for path, l := range map[string]net.Listener{"/mcp": taken["http"], "/metrics": taken["metrics"], "/": taken["console"]} {
		r, err := http.NewRequest(http.MethodGet, "http://"+l.Addr().String()+path, nil)
		require.NoError(t, err)
		r.Header.Set("Authorization", "Bearer "+token)
		resp, err := http.DefaultClient.Do(r)
		require.NoError(t, err)
		resp.Body.Close()
		assert.NotEqual(t, http.StatusUnauthorized, resp.StatusCode, path)
	}
}
