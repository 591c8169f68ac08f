package metrics

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/internal/credential"
	"github.com/scopefs/scopefs/internal/need"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/agents"
	"github.com/scopefs/scopefs/tools"
)

// The users of the tests' server.
const (
	admin    = "scopefs"
	plain    = "plain" // without privileges
	password = "s3cret-word"
)

// influxd is an InfluxDB 1.x server on a free port of the loopback interface.
type influxd struct {
	dir, address string
	cmd          *exec.Cmd
}

func startInfluxd(t *testing.T, dir, settings string) *influxd {
	t.Helper()
	need.Program(t, "influxd")
	s := &influxd{dir: dir, address: "127.0.0.1:0"}
	t.Cleanup(s.kill)
	s.start(t, settings)
	for _, text := range []string{
		"CREATE USER " + admin + " WITH PASSWORD '" + password + "' WITH ALL PRIVILEGES",
		"CREATE USER " + plain + " WITH PASSWORD '" + password + "'",
	} {
		s.ask(t, text)
	}
	return s
}

var listening = regexp.MustCompile(`Listening on HTTP.*addr=([0-9.:]+)`)

// start starts the server, again on the same port.
func (s *influxd) start(t *testing.T, settings string) {
	t.Helper()
	config := filepath.Join(s.dir, "conf")
	require.NoError(t, os.WriteFile(config, fmt.Appendf(nil, `reporting-disabled = true
bind-address = "127.0.0.1:0"
[meta]
dir = "%[1]s/meta"
[data]
dir = "%[1]s/data"
wal-dir = "%[1]s/wal"
max-values-per-tag = 50
%[3]s
[coordinator]
max-select-buckets = 5000
[monitor]
store-enabled = false
[http]
bind-address = "%[2]s"
auth-enabled = true
log-enabled = false
[continuous_queries]
enabled = false
`, s.dir, s.address, settings), 0o600))
	log, err := os.Create(filepath.Join(s.dir, "log"))
	require.NoError(t, err)
	defer log.Close()
	s.cmd = exec.Command("influxd", "-config", config)
	s.cmd.Stderr, s.cmd.Env = log, append(os.Environ(), "GOMAXPROCS=2")
	require.NoError(t, s.cmd.Start())
	require.Eventually(t, func() bool {
		text, _ := os.ReadFile(log.Name())
		if m := listening.FindSubmatch(text); m != nil {
			s.address = string(m[1])
		}
		res, err := http.Get("http://" + s.address + "/ping")
		if err == nil {
			res.Body.Close()
		}
		return err == nil
	}, 30*time.Second, 10*time.Millisecond, "influxd does not answer")
}

func (s *influxd) kill() {
	s.cmd.Process.Kill()
	s.cmd.Wait()
}

// ask runs a statement as the administrator.
func (s *influxd) ask(t *testing.T, text string) string {
	t.Helper()
	req, err := http.NewRequest(http.MethodPost, "http://"+s.address+"/query", strings.NewReader(url.Values{"q": {text}}.Encode()))
	require.NoError(t, err)
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	req.SetBasicAuth(admin, password)
	res, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer res.Body.Close()
	answer, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	require.NotContains(t, string(answer), "error", text)
	return string(answer)
}

// settings are those of the server for a user, with a time limit.
func (s *influxd) settings(t *testing.T, user string, limit time.Duration) Server {
	t.Helper()
	secret := filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(secret, []byte(password+"\n"), 0o600))
	return Server{URL: &url.URL{Scheme: "http", Host: s.address}, Version: 1, User: user,
		Credential: &credential.Source{File: secret}, Retention: year, Timeout: limit}
}

const year = 365 * 24 * time.Hour

// client calls the tools as one agent.
type client struct {
	set    *tools.Set
	mu     sync.Mutex
	events []audit.Event
}

func newClient(t *testing.T, s Server, id, front string) *client {
	t.Helper()
	store, err := Open(s)
	require.NoError(t, err)
	t.Cleanup(func() { store.Close() })
	ours, err := New(store, s.Retention)
	require.NoError(t, err)
	base := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(base, "agents.d"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(base, "agents.d", id+".md"), []byte("---\nname: "+id+"\ndescription: test\n"+front+"\n---\n"), 0o644))
	all, errs := agents.Load(base, agents.Host{})
	require.Empty(t, errs)
	c := &client{}
	c.set, err = tools.NewSet(tools.Gate{
		Agent: scope.ID(id), Session: "s", Rates: &tools.Rates{},
		Rules: func() tools.Rules { return all.Agents[scope.ID(id)].Grants },
		Record: func(_ context.Context, e audit.Event) error {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.events = append(c.events, e)
			return nil
		},
	}, ours...)
	require.NoError(t, err)
	return c
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
	text, err := json.Marshal(in)
	require.NoError(t, err)
	r, err := c.set.Call(t.Context(), tools.Call{Tool: tool, Args: text})
	if err == nil && out != nil {
		require.NoError(t, json.Unmarshal(r.Structured, out))
	}
	return err
}

// code returns the code of an agent's error, "" for nil.
func code(err error) tools.Code {
	if err == nil {
		return ""
	}
	e, ok := errors.AsType[*tools.Error](err)
	if !ok {
		return tools.Code("no tools.Error: " + err.Error())
	}
	return e.Code
}

// hint returns the hint of an agent's error.
func hint(err error) string {
	if e, ok := errors.AsType[*tools.Error](err); ok {
		return e.Hint
	}
	return ""
}
