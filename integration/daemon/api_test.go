package daemon

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/integration/harness"
)

func init() { // the one place where roles can be put into the harness's map
	harness.Roles["ask"] = func(args []string) error {
		status, body, err := ask(args[0], args[1], args[2], "")
		fmt.Printf("%d %s", status, body)
		return err
	}
}

// ask sends one request to a control socket.
func ask(socket, method, path, body string) (status int, answer string, err error) {
	c := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(context.Context, string, string) (net.Conn, error) {
		return net.Dial("unix", socket)
	}}}
	req, err := http.NewRequest(method, "http://scopefs"+path, strings.NewReader(body))
	if err != nil {
		return 0, "", err
	}
	resp, err := c.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(text), err
}

func TestDaemonAPI(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"a": ""})
	socket := filepath.Join(h.Base, "run", "control.sock")
	info, err := os.Stat(socket)
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	for name, c := range map[string]struct {
		method, path, body string
		status             int
		answer             string
	}{
		"agents":        {"GET", "/v1/agents", "", 200, `[{"agent":"a","state":"mounted",`},
		"up":            {"POST", "/v1/agents/a/up", "", 200, `{"at":"` + h.View("a") + `"}`},
		"unknown agent": {"POST", "/v1/agents/b/up", "{}", 404, `"kind":"unknown_agent"`},
		"bad id":        {"POST", "/v1/agents/A..B/up", "{}", 400, `"kind":"invalid"`},
		"escaped id":    {"POST", "/v1/agents/..%2f..%2fetc/up", "{}", 400, `"kind":"invalid"`},
		"relative":      {"POST", "/v1/agents/a/up", `{"at":"x"}`, 400, `"kind":"invalid"`},
		"unknown field": {"POST", "/v1/agents/a/up", `{"to":"x"}`, 400, `"kind":"invalid"`},
		"not JSON":      {"POST", "/v1/agents/a/run", `argv=x`, 400, `"kind":"invalid"`},
		"no command":    {"POST", "/v1/agents/a/run", `{}`, 400, `"kind":"invalid"`},
		"empty command": {"POST", "/v1/agents/a/run", `{"argv":[""]}`, 400, `"kind":"invalid"`},
		"NUL":           {"POST", "/v1/agents/a/run", `{"argv":["a\u0000b"]}`, 400, `"kind":"invalid"`},
		"large":         {"POST", "/v1/agents/a/run", `{"argv":["` + strings.Repeat("x", 5<<20) + `"]}`, 400, `"kind":"invalid"`},
		"no such path":  {"GET", "/v2", "", 404, ""},
		"wrong method":  {"GET", "/v1/agents/a/up", "", 405, ""},
	} {
		t.Run(name, func(t *testing.T) {
			status, answer, err := ask(socket, c.method, c.path, c.body)
			require.NoError(t, err)
			assert.Equal(t, c.status, status, answer)
			assert.Contains(t, answer, c.answer)
		})
	}
	assert.Empty(t, h.Agent("a").Sandboxes)
}

// Who may: the daemon's user and root, by what the kernel says of the peer, even
// when somebody has opened the socket's permissions.
func TestDaemonAPIPeer(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"a": ""})
	socket := filepath.Join(h.Base, "run", "control.sock")
	cmd := harness.Role("ask", socket, "GET", "/v1/agents")
	cmd.Path = harness.TestBinary(t, h)
	as(cmd, 1234)
	cmd.Stderr = nil
	assert.Contains(t, harness.Finish(t, cmd).Stderr, "permission denied")

	require.NoError(t, os.Chmod(socket, 0o666))
	for _, path := range []string{"/v1/agents", "/v1/agents/a/up"} {
		cmd = harness.Role("ask", socket, "POST", path)
		cmd.Path = harness.TestBinary(t, h)
		as(cmd, 1234)
		assert.Contains(t, harness.Finish(t, cmd).Stdout, `403 {"error":"only the daemon's user and root may"`)
	}
}

// run is good from the first moment, and while the daemon ends: there or, where
// none answers yet, without it.
func TestDaemonRunAtStart(t *testing.T) {
	h := harness.LayOut(t, map[string]string{"a": "", "b": ""})
	for range 3 {
		cmd := exec.Command(harness.Program, "daemon", "--base", h.Base)
		require.NoError(t, cmd.Start())
		for range 3 {
			_, errs, code := h.Try("run", "b", "--", "touch", "x")
			assert.Zero(t, code, errs)
		}
		require.NoError(t, cmd.Process.Signal(syscall.SIGINT))
		o := harness.Await(t, cmd, &bytes.Buffer{}, &bytes.Buffer{})
		assert.Zero(t, o.Code)
		assert.Zero(t, h.Mounted(h.Base))
	}
}

// as makes a command an ordinary user's.
func as(cmd *exec.Cmd, uid uint32) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
}
