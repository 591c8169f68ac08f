package tools

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/internal/need"
)

// curl says hello as a user of the host, and returns the status and the body.
func curl(t *testing.T, uid int, words ...string) (status, said string) {
	t.Helper()
	first, _, _ := strings.Cut(harness.Hello, "\n")
	id := strconv.Itoa(uid)
	out, err := exec.Command("setpriv", append([]string{"--reuid", id, "--regid", id, "--clear-groups", "--", "curl", "-sS", "-m", "20",
		"-w", "\n%{http_code}", "-H", "Content-Type: application/json", "-H", "Accept: application/json, text/event-stream", "-d", first},
		words...)...).CombinedOutput()
	if err != nil {
		return "", string(out)
	}
	at := strings.LastIndexByte(string(out), '\n')
	return string(out[at+1:]), string(out[:at])
}

// TestSocketHTTP: the agent's socket serves streamable HTTP as well, without a token. A page of the web that reaches it through a
// forwarded port is refused, and so is a token that is not of this agent.
func TestSocketHTTP(t *testing.T) {
	h := harness.LayOut(t, map[string]string{"a": "", "b": "tools: [stat]"})
	url := serveHTTP(h)
	a, b := h.ConnectSocket("a"), h.ConnectSocket("b")
	assert.Equal(t, "here", a.Bash("echo here | tee f"))
	assert.FileExists(t, h.Scope("a", "f"))
	assert.Len(t, b.List(), 1)
	assert.Equal(t, "a", a.Call("scope_info", nil)["agent"])
	tokenA, tokenB := h.Token("a"), h.Token("b")
	assert.Equal(t, "here", h.ConnectHTTP(nil, url, tokenA).Bash("cat f"))
	assert.Equal(t, "here", h.Connect("a").Bash("cat f"), "lines on the same socket")

	onB := func(change func(*http.Request)) int {
		return postBy(t, harness.BySocket(h.Door("b")), harness.SocketURL, "", change)
	}
	set := func(name, value string) func(*http.Request) {
		return func(r *http.Request) { r.Header.Set(name, value) }
	}
	host := func(name string) func(*http.Request) { return func(r *http.Request) { r.Host = name } }
	for name, change := range map[string]func(*http.Request){
		"no token": func(*http.Request) {}, "its own": set("Authorization", "Bearer "+tokenB), "a forwarded port": host("localhost:7777"),
		"its address": host("127.0.0.1:7777"), "its page": func(r *http.Request) { r.Host = "localhost:7777"; set("Origin", "http://localhost:7777")(r) },
	} {
		assert.Equal(t, http.StatusOK, onB(change), name)
	}
	for name, change := range map[string]func(*http.Request){
		"a name that leads here": host("evil.example:7777"), "a page": set("Origin", "https://evil.example"),
		"of nowhere": set("Origin", "null"), "as browsers say": set("Sec-Fetch-Site", "cross-site"), "an address of all": host("0.0.0.0:7777"),
	} {
		assert.Equal(t, http.StatusForbidden, onB(change), name)
	}
	for _, bad := range []string{"Bearer " + tokenA, "Bearer x", "Basic " + tokenB, "x"} {
		assert.Equal(t, http.StatusUnauthorized, onB(set("Authorization", bad)), bad)
	}
	resp, err := harness.BySocket(h.Door("b")).Get("http://localhost/v1/agents")
	require.NoError(t, err)
	resp.Body.Close()
	assert.Equal(t, http.StatusNotFound, resp.StatusCode, "the operator's door is not here")
	for _, said := range []string{"GET /mcp HTTP/9\r\n\r\n", "GET\r\n\r\n", "POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\nContent-Length: 8\r\n\r\n"} {
		raw := h.Dial("b")
		_, err := io.WriteString(raw, said)
		require.NoError(t, err)
		assert.Regexp(t, "^HTTP/1.1 (400|505) ", raw.Rest(), said)
	}
	ps := h.Must("ps")
	assert.Contains(t, ps, "tools by socket: "+h.Base+"/run/mcp/AGENT.sock\n")
	assert.Contains(t, ps, "tools by token: "+url+"\n")
	assert.Contains(t, h.Must("doctor"), url)
	assert.NotContains(t, h.Must("token", "list"), tokenA)

	// An agent that is down has no tools, and what waits on the socket ends.
	stream, err := http.NewRequest(http.MethodGet, harness.SocketURL, nil)
	require.NoError(t, err)
	stream.Header.Set("Accept", "text/event-stream")
	stream.Header.Set("Mcp-Session-Id", a.Session.ID())
	heard, err := harness.BySocket(h.Door("a")).Do(stream)
	require.NoError(t, err)
	defer heard.Body.Close()
	h.Must("down", "a")
	_, _ = io.Copy(io.Discard, heard.Body)
	_, err = net.Dial("unix", h.Door("a"))
	assert.Error(t, err)
}

// TestSocketHTTPWhose: another user of the host does not get to the agent, and cannot put a socket of its own in the place. A
// sandbox of another agent sees neither the socket nor the port.
func TestSocketHTTPWhose(t *testing.T) {
	h := harness.LayOut(t, map[string]string{"a": "user: 4321", "b": "user: 4322"})
	for id, uid := range map[string]string{"a": "4321", "b": "4322"} {
		require.NoError(t, exec.Command("chown", "-R", uid+":"+uid, h.Scope(id)).Run())
	}
	url := serveHTTP(h)
	for _, uid := range []int{0, 4321} {
		status, said := curl(t, uid, "--unix-socket", h.Door("a"), harness.SocketURL)
		assert.Equal(t, "200", status, said)
	}
	status, said := curl(t, 4322, "--unix-socket", h.Door("a"), harness.SocketURL)
	assert.Empty(t, status, said)
	require.NoError(t, os.Chmod(h.Door("a"), 0o666))
	status, said = curl(t, 4322, "--unix-socket", h.Door("a"), harness.SocketURL)
	assert.Empty(t, status, "the other end looks who it is: %s", said)

	for _, uid := range []string{"4321", "4322"} {
		script := fmt.Sprintf(`cd %[1]s/run/mcp && for f in a b; do rm -f $f.sock; mv $f.sock x; ln -sf /dev/null $f.sock; done; mv %[1]s/run/mcp %[1]s/run/x`, h.Base)
		out, _ := exec.Command("setpriv", "--reuid", uid, "--regid", uid, "--clear-groups", "--", "sh", "-c", script).CombinedOutput()
		assert.Equal(t, 7, strings.Count(string(out), "ermission denied"), string(out))
	}
	inside := h.Connect("b")
	door := h.Door("a")
	assert.Equal(t, "none", inside.Bash("ls "+door+" 2>/dev/null || curl -sS -m 5 --unix-socket "+door+" "+harness.SocketURL+" 2>/dev/null || echo none"))
	assert.Equal(t, "none", inside.Bash("curl -sS -m 5 "+url+" 2>/dev/null || echo none"))

	// What somebody with root's rights has put there is gone after a restart.
	h.Stop()
	require.NoError(t, os.MkdirAll(filepath.Dir(door), 0o711))
	_ = os.Remove(door)
	require.NoError(t, os.Symlink(h.Door("b"), door))
	h.Start()
	status, said = curl(t, 4321, "--unix-socket", door, harness.SocketURL)
	assert.Equal(t, "200", status, said)
	assert.Equal(t, "a", h.ConnectSocket("a").Call("scope_info", nil)["agent"])
}

// TestTokenOrigin: a token that was copied is of no use to another user of the host, and the log has the attempt.
func TestTokenOrigin(t *testing.T) {
	h := harness.LayOut(t, map[string]string{"a": "user: 4321"})
	require.NoError(t, exec.Command("chown", "-R", "4321:4321", h.Scope("a")).Run())
	url := serveHTTP(h)
	with := func(uid int, token string) string {
		status, _ := curl(t, uid, "-H", "Authorization: Bearer "+token, url)
		return status
	}
	token, other := h.Token("a"), strings.TrimSpace(h.Must("token", "a", "--origin", "4322"))
	for uid, want := range map[int][2]string{0: {"200", "200"}, 4321: {"200", "403"}, 4322: {"403", "200"}, 4323: {"403", "403"}} {
		assert.Equal(t, want, [2]string{with(uid, token), with(uid, other)}, uid)
	}
	var list []struct {
		ID     string
		Origin *uint32
	}
	require.NoError(t, json.Unmarshal([]byte(h.Must("token", "list", "--json")), &list))
	require.Len(t, list, 2)
	var refused []audit.Event
	for _, e := range h.Events("a") {
		if e.Verdict == audit.Violation {
			refused = append(refused, e)
		}
	}
	require.Len(t, refused, 2, "the first of each token in a minute")
	for _, e := range refused {
		assert.Equal(t, "token refused", e.Outcome)
		assert.Contains(t, []uint32{4321, 4322, 4323}, *e.UID)
	}
	_, said, code := h.Try("token", "a", "--origin", "nobody-is-called-so")
	assert.Equal(t, 2, code, said)
	assert.Regexp(t, `(?m)^t\w{9} +a +uid 4322 `, h.Must("token", "list"))
}

// TestTokenRevoked: requests end with their token, and no later one is served, also after a restart and a crash.
func TestTokenRevoked(t *testing.T) {
	h := harness.LayOut(t, map[string]string{"a": "", "b": ""})
	url := serveHTTP(h)
	one := func(agent string) (text, id string) {
		var made struct{ Token, ID string }
		require.NoError(t, json.Unmarshal([]byte(h.Must("token", agent, "--json")), &made))
		return made.Token, made.ID
	}
	first, id := one("a")
	second, _ := one("a")
	ofB, _ := one("b")
	u := h.ConnectHTTP(nil, url, first)
	r, err := http.NewRequest(http.MethodGet, url, nil)
	require.NoError(t, err)
	r.Header.Set("Authorization", "Bearer "+first)
	r.Header.Set("Accept", "text/event-stream")
	r.Header.Set("Mcp-Session-Id", h.ConnectHTTP(nil, url, second).Session.ID())
	stream, err := (&http.Client{}).Do(r)
	require.NoError(t, err)
	defer stream.Body.Close()
	running := u.Begin(h.Soon(), "bash", args{"command": "sleep " + harness.Seconds(8)})
	h.Eventually("it runs", func() bool { return len(harness.Running("sleep", harness.Seconds(8))) == 1 })

	begun := time.Now()
	assert.Equal(t, id+" of a: revoked\n", h.Must("token", "revoke", id))
	_, _ = io.Copy(io.Discard, stream.Body)
	assert.Error(t, <-running)
	assert.Less(t, time.Since(begun), 10*time.Second)
	assert.Equal(t, http.StatusUnauthorized, post(t, url, first, nil))
	assert.Equal(t, http.StatusUnauthorized, postBy(t, harness.BySocket(h.Door("a")), harness.SocketURL, first, nil), "nor with it where none is needed")
	for _, token := range []string{second, ofB} {
		assert.Equal(t, http.StatusOK, post(t, url, token, nil))
	}
	_, said, code := h.Try("token", "revoke", id)
	assert.Equal(t, 2, code)
	assert.Contains(t, said, "scopefs token list lists them")

	h.Kill()
	url = serveHTTP(h)
	assert.Equal(t, http.StatusUnauthorized, post(t, url, first, nil))
	assert.Equal(t, http.StatusOK, post(t, url, second, nil))
	h.Must("token", "revoke", "a")
	h.Terminate()
	url = serveHTTP(h)
	assert.Equal(t, http.StatusUnauthorized, post(t, url, second, nil))
	assert.Equal(t, http.StatusOK, post(t, url, ofB, nil))
	assert.True(t, h.Recorded("a", audit.Event{Event: audit.KindAgent, Outcome: "token made"}))
	assert.True(t, h.Recorded("a", audit.Event{Event: audit.KindAgent, Outcome: "token revoked"}))
}

// TestSocketHTTPFlood: 10,000 connections to one agent's socket take nothing from another's, and leave nothing behind.
func TestSocketHTTPFlood(t *testing.T) {
	need.Once(t)
	h := harness.LayOut(t, map[string]string{"a": "", "b": ""})
	h.Start()
	b := h.ConnectSocket("b")
	files := func() int {
		all, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", h.Cmd.Process.Pid))
		require.NoError(t, err)
		return len(all)
	}
	assert.Equal(t, "here", b.Bash("echo here"))
	before := files()
	var open []net.Conn
	for i := range 10000 {
		conn, err := net.Dial("unix", h.Door("a"))
		if err != nil { // the queue of the kernel is full
			time.Sleep(time.Millisecond)
			continue
		}
		_, _ = io.WriteString(conn, "GET /mcp HTTP/1.1\r\nHost: localhost\r\n")
		if open = append(open, conn); len(open) > 500 {
			open[0].Close()
			open = open[1:]
		}
		if i%2000 == 0 {
			begun := time.Now()
			assert.Equal(t, "here", b.Bash("echo here"))
			assert.Less(t, time.Since(begun), 5*time.Second)
			assert.Less(t, files(), before+100)
		}
	}
	for _, conn := range open {
		conn.Close()
	}
	h.Eventually("there is room again", func() bool {
		return postBy(t, harness.BySocket(h.Door("b")), harness.SocketURL, "", nil) == http.StatusOK && files() < before+8
	})
	assert.Equal(t, "here", h.ConnectSocket("a").Bash("echo here"))
}

// TestHTTPActivated: a socket of systemd is the port. It stays open while no daemon runs, so that clients wait, and nobody else
// can take it.
func TestHTTPActivated(t *testing.T) {
	h := harness.LayOut(t, map[string]string{"a": ""})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	f, err := l.(*net.TCPListener).File()
	require.NoError(t, err)
	defer f.Close()
	url := "http://" + l.Addr().String() + "/mcp"
	l.Close()
	h.Files = []*os.File{f}
	activated := `LISTEN_FDS=1 LISTEN_FDNAMES=http LISTEN_PID=$$ exec`
	h.StartBy(activated)
	token := h.Token("a")
	assert.Equal(t, http.StatusOK, post(t, url, token, nil))
	assert.Contains(t, h.Must("ps"), "tools by token: "+url+"\n")
	assert.NotContains(t, h.ConnectHTTP(nil, url, token).Bash("env"), "LISTEN_")
	h.Terminate()
	status := make(chan int, 1)
	go func() { status <- postAnew(t, url, token) }()
	_, err = net.Listen("tcp", l.Addr().String())
	assert.Error(t, err, "nobody else gets the port")
	h.StartBy(activated)
	assert.Equal(t, http.StatusOK, <-status, "a client has waited")
	h.Stop()

	for name, c := range map[string]struct{ script, flags, want string }{
		"with --http":   {activated, "--http 127.0.0.1:1", "--http and a socket of systemd (LISTEN_FDS): give one of them"},
		"another name":  {`LISTEN_FDS=1 LISTEN_FDNAMES=x LISTEN_PID=$$ exec`, "", "LISTEN_FDS: want one socket with FileDescriptorName=http"},
		"no name":       {`LISTEN_FDS=1 LISTEN_PID=$$ exec`, "", "LISTEN_FDS: want one socket with FileDescriptorName=http"},
		"not loopback":  {activated, "wide", `LISTEN_FDS: --http "0.0.0.0:`},
		"a unix socket": {activated, "unix", "LISTEN_FDS: --http"},
	} {
		file := f
		switch c.flags {
		case "wide":
			wide, err := net.Listen("tcp4", "0.0.0.0:0")
			require.NoError(t, err)
			defer wide.Close()
			file, err = wide.(*net.TCPListener).File()
			require.NoError(t, err)
		case "unix":
			u, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
			require.NoError(t, err)
			defer u.Close()
			file, err = u.(*net.UnixListener).File()
			require.NoError(t, err)
		}
		words := []string{"-c", c.script + ` "$@"`, "sh", harness.Program, "daemon", "--base", h.Base}
		if strings.HasPrefix(c.flags, "--") {
			words = append(words, strings.Fields(c.flags)...)
		}
		cmd := exec.Command("sh", words...)
		cmd.ExtraFiles = []*os.File{file}
		out, err := cmd.CombinedOutput()
		assert.ErrorContains(t, err, "exit status 78", name)
		assert.Contains(t, string(out), c.want, name)
	}
}
