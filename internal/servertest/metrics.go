package servertest

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/internal/need"
)

// Admin is the user of a metrics server that may do everything.
const Admin = "scopefs"

// Metrics is an InfluxDB 1.x server.
type Metrics struct {
	*Server
	Address  string // host and port
	password string
}

var listening = regexp.MustCompile(`Listening on HTTP.*addr=([0-9.:]+)`)

// StartMetrics starts an InfluxDB server on a free port of the loopback interface, with
// its data in dir. password is the one of Admin.
func StartMetrics(t testing.TB, dir, password string) *Metrics {
	t.Helper()
	need.All(t, "an InfluxDB server")
	program := need.Program(t, "influxd")
	config, log := filepath.Join(dir, "conf"), filepath.Join(dir, "log")
	m := &Metrics{Address: "127.0.0.1:0", password: password}
	m.Server = Start(t, func() *exec.Cmd { // again on the same port
		require.NoError(t, os.WriteFile(config, fmt.Appendf(nil, `reporting-disabled = true
bind-address = "127.0.0.1:0"
[meta]
dir = "%[1]s/meta"
[data]
dir = "%[1]s/data"
wal-dir = "%[1]s/wal"
max-values-per-tag = 50
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
`, dir, m.Address), 0o600))
		stderr, err := os.Create(log)
		require.NoError(t, err)
		t.Cleanup(func() { stderr.Close() })
		cmd := exec.Command(program, "-config", config)
		cmd.Stderr, cmd.Env = stderr, append(os.Environ(), "GOMAXPROCS=2")
		return cmd
	}, func() bool {
		text, _ := os.ReadFile(log)
		if found := listening.FindSubmatch(text); found != nil {
			m.Address = string(found[1])
		}
		res, err := http.Get("http://" + m.Address + "/ping")
		if err == nil {
			res.Body.Close()
		}
		return err == nil
	})
	m.Query(t, "CREATE USER "+Admin+" WITH PASSWORD '"+password+"' WITH ALL PRIVILEGES")
	return m
}

// Query runs a statement as Admin and returns the response, which must hold no error.
func (m *Metrics) Query(t testing.TB, text string) string {
	t.Helper()
	req, err := http.NewRequest(http.MethodPost, "http://"+m.Address+"/query", strings.NewReader(url.Values{"q": {text}}.Encode()))
	require.NoError(t, err)
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	req.SetBasicAuth(Admin, m.password)
	res, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer res.Body.Close()
	answer, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	require.NotContains(t, string(answer), "error", text)
	return string(answer)
}
