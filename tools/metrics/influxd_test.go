package metrics

import (
	"errors"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/internal/agenttest"
	"github.com/scopefs/scopefs/internal/credential"
	"github.com/scopefs/scopefs/internal/servertest"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/tools"
)

// plain is a user of the tests' server without privileges.
const (
	plain    = "plain"
	admin    = servertest.Admin
	password = "s3cret-word"
)

// influxd is an InfluxDB 1.x server.
type influxd struct{ *servertest.Metrics }

func startInfluxd(t *testing.T, dir string) *influxd {
	t.Helper()
	s := &influxd{servertest.StartMetrics(t, dir, password)}
	s.Query(t, "CREATE USER "+plain+" WITH PASSWORD '"+password+"'")
	return s
}

// settings are those of the server for a user, with a time limit.
func (s *influxd) settings(t *testing.T, user string, limit time.Duration) Server {
	t.Helper()
	secret := filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(secret, []byte(password+"\n"), 0o600))
	return Server{URL: &url.URL{Scheme: "http", Host: s.Address}, Version: 1, User: user,
		Credential: &credential.Source{File: secret}, Retention: year, Timeout: limit}
}

const year = 365 * 24 * time.Hour

// client calls the tools as one agent.
type client struct{ *agenttest.Agent }

func newClient(t *testing.T, s Server, id, front string) *client {
	t.Helper()
	store, err := Open(s)
	require.NoError(t, err)
	t.Cleanup(func() { store.Close() })
	ours, err := New(store, s.Retention, Buckets{})
	require.NoError(t, err)
	return &client{agenttest.New(t, tools.Gate{Agent: scope.ID(id)}, front, ours)}
}

type args map[string]any

// write writes one point or several.
func (c *client) write(t *testing.T, points ...args) error {
	t.Helper()
	return c.call(t, "metrics_write", args{"points": points}, nil)
}

// query returns a result. It fails the test if the call fails.
func (c *client) query(t *testing.T, in args) (out found) {
	t.Helper()
	require.NoError(t, c.call(t, "metrics_query", in, &out))
	return out
}

func (c *client) call(t *testing.T, tool string, in args, out any) error {
	t.Helper()
	return c.Call(t.Context(), t, tool, in, out)
}

var code = agenttest.Code

// hint returns the hint of an agent's error.
func hint(err error) string {
	if e, ok := errors.AsType[*tools.Error](err); ok {
		return e.Hint
	}
	return ""
}
