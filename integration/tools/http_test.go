package tools

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/internal/need"
	"github.com/scopefs/scopefs/internal/servertest"
)

// serveHTTP starts the daemon with a port of the loopback interface and returns the URL.
func serveHTTP(h *harness.Host) string {
	h.T.Helper()
	address := servertest.FreeAddress(h.T)
	h.Start("--http", address)
	return "http://" + address + "/mcp"
}

// TestHTTP: the same tools by streamable HTTP, whose they are by their token.
func TestHTTP(t *testing.T) {
	h := harness.LayOut(t, map[string]string{"a": "", "b": "tools: [stat]"})
	url := serveHTTP(h)
	a, b := h.ConnectHTTP(nil, url, h.Token("a")), h.ConnectHTTP(nil, url, h.Token("b"))
	assert.Equal(t, "here", a.Bash("echo here | tee f"))
	assert.FileExists(t, h.Scope("a", "f"))
	assert.Len(t, b.List(), 1)
	assertAbsent(b, "b", "bash", args{"command": "touch ran"})
	assert.Equal(t, "not_found", string(b.Fails("stat", args{"path": "f"}).Code))
	assert.Equal(t, "a", a.Call("scope_info", nil)["agent"])

	// Live, as by the socket.
	settle(b)
	h.Define("b", "tools: [stat, bash]")
	h.Must("reload")
	assert.Equal(t, "here", b.Bash("echo here"))
	awaitChange(b, "more is allowed")
	assert.Len(t, b.List(), 2)

	// A call that is given up ends.
	ctx, cancel := context.WithCancel(h.Soon())
	ended := a.Begin(ctx, "bash", args{"command": family(harness.Seconds(6))})
	h.Eventually("all four run", func() bool { return len(harness.Running("sleep", harness.Seconds(6))) == 4 })
	cancel()
	assert.Error(t, <-ended)
	h.Eventually("none runs", func() bool { return len(harness.Running("sleep", harness.Seconds(6))) == 0 })

	// Who is down has no tools.
	token := h.Token("a")
	assert.Equal(t, http.StatusOK, post(t, url, token, nil))
	h.Must("down", "a")
	assert.Equal(t, http.StatusServiceUnavailable, post(t, url, token, nil))
	_, err := a.Send(h.Soon(), "bash", args{"command": "touch ran"})
	assert.Error(t, err)
	assert.Empty(t, h.Agent("a").Sandboxes)
	h.Must("up", "a")
	assert.Equal(t, "here", h.ConnectHTTP(nil, url, token).Bash("echo here"))
	assert.NoFileExists(t, h.Scope("a", "ran"))
	h.Stop()
	assert.Empty(t, harness.Running("sleep", harness.Seconds(6)))
}

// post says hello with a token and returns the status.
func post(t *testing.T, url, token string, change func(r *http.Request)) int {
	t.Helper()
	return postBy(t, http.DefaultClient, url, token, change)
}

// postAnew is post by a connection of its own.
func postAnew(t *testing.T, url, token string) int {
	t.Helper()
	return postBy(t, &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}, url, token, nil)
}

func postBy(t *testing.T, by *http.Client, url, token string, change func(r *http.Request)) int {
	t.Helper()
	first, _, _ := strings.Cut(harness.Hello, "\n")
	r, err := http.NewRequest(http.MethodPost, url, strings.NewReader(first))
	require.NoError(t, err)
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json, text/event-stream")
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	if change != nil {
		change(r)
	}
	resp, err := by.Do(r)
	require.NoError(t, err)
	resp.Body.Close()
	return resp.StatusCode
}

// TestTokenEnds: a token ends, one of an earlier release too, and the refusal says how to make another.
func TestTokenEnds(t *testing.T) {
	h := harness.LayOut(t, map[string]string{"a": ""})
	url := serveHTTP(h)
	refused := func(token string) (text string, ok bool) {
		r, err := http.NewRequest(http.MethodGet, url, nil)
		require.NoError(t, err)
		r.Header.Set("Authorization", "Bearer "+token)
		resp, err := http.DefaultClient.Do(r)
		require.NoError(t, err)
		defer resp.Body.Close()
		said, _ := io.ReadAll(io.LimitReader(resp.Body, 4096))
		return string(said), resp.StatusCode == http.StatusUnauthorized
	}
	const remedy = ": make another with scopefs token a\n"
	ends := func(flags ...string) (token string, left time.Duration) {
		out, said, code := h.Try(append([]string{"token", "a"}, flags...)...)
		require.Zero(t, code, said)
		words := strings.Fields(said)
		require.Equal(t, []string{"scopefs:", "the", "token", "ends"}, words[:4])
		at, err := time.Parse(time.RFC3339, strings.TrimSuffix(words[4], ":"))
		require.NoError(t, err)
		return strings.TrimSpace(out), time.Until(at)
	}
	token, left := ends()
	assert.InDelta(t, 30*24, left.Hours(), 1)
	assert.Equal(t, http.StatusOK, post(t, url, token, nil))
	token, left = ends("--for", "2d")
	assert.InDelta(t, 2*24, left.Hours(), 1)
	assert.Equal(t, http.StatusOK, post(t, url, token, nil))
	token, _ = ends("--for", "1s")
	h.Eventually("it ends", func() bool {
		said, ended := refused(token)
		return ended && strings.HasPrefix(said, "the token of a ended ") && strings.HasSuffix(said, remedy)
	})
	for _, bad := range []string{"0s", "-1h", "0d", "soon"} {
		_, said, code := h.Try("token", "a", "--for", bad)
		assert.Equal(t, 2, code, said)
	}
	assert.Contains(t, h.Must("token", "a", "--json"), `"ends"`)

	// A token of an earlier release has no end. It is valid for 30 days from the first start of this one on.
	key, err := os.ReadFile(filepath.Join(h.Base, "state", "http.key"))
	require.NoError(t, err)
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte("scopefs mcp a"))
	old := "a." + hex.EncodeToString(mac.Sum(nil))
	assert.Equal(t, http.StatusOK, post(t, url, old, nil))
	first := filepath.Join(h.Base, "state", "http.old")
	at, err := time.Parse(time.RFC3339, strings.TrimSpace(harness.ReadAll(t, first)))
	require.NoError(t, err)
	assert.InDelta(t, 30*24, time.Until(at).Hours(), 1)
	h.Stop()
	require.NoError(t, os.WriteFile(first, []byte("2020-01-02T03:04:05Z\n"), 0o600))
	url = serveHTTP(h)
	said, ended := refused(old)
	assert.True(t, ended)
	assert.Equal(t, "the token of a ended 2020-01-02T03:04:05Z"+remedy, said)
	assert.Equal(t, "2020-01-02T03:04:05Z\n", harness.ReadAll(t, first), "another start is not the first")
}

// TestHTTPRefused: without the token nothing, and nothing for a page of the web.
func TestHTTPRefused(t *testing.T) {
	h := harness.LayOut(t, map[string]string{"a": "", "b": ""})
	url := serveHTTP(h)
	a, b := h.Token("a"), h.Token("b")
	assert.NotEqual(t, a, b)
	assert.Equal(t, http.StatusOK, post(t, url, a, nil))
	_, sum, _ := strings.Cut(a, ".")
	for _, token := range []string{"", "x", "a", "a.", "b." + sum, a[:len(a)-1], a + "0", strings.ToUpper(a), "none." + sum, "../a." + sum, " " + a} {
		assert.Equal(t, http.StatusUnauthorized, post(t, url, token, nil), "%q", token)
	}
	set := func(name, value string) func(*http.Request) {
		return func(r *http.Request) { r.Header.Set(name, value) }
	}
	for name, change := range map[string]func(*http.Request){
		"a name that leads here": func(r *http.Request) { r.Host = "evil.example" },
		"with our port":          func(r *http.Request) { r.Host = "evil.example:80" },
		"that begins like us":    func(r *http.Request) { r.Host += ".evil.example" },
		"that begins with us":    func(r *http.Request) { r.Host = "127.0.0.1.evil.example" + r.Host[strings.IndexByte(r.Host, ':'):] },
		"before ours":            func(r *http.Request) { r.Host = "evil.example@" + r.Host },
		"another address":        func(r *http.Request) { r.Host = "127.0.0.2" + r.Host[strings.IndexByte(r.Host, ':'):] },
		"an address of all":      func(r *http.Request) { r.Host = "0.0.0.0" + r.Host[strings.IndexByte(r.Host, ':'):] },
		"no port":                func(r *http.Request) { r.Host = "127.0.0.1" },
		"another's port":         func(r *http.Request) { r.Host = "127.0.0.1:1" },
		"localhost without port": func(r *http.Request) { r.Host = "localhost" },
		"a page":                 set("Origin", "https://evil.example"),
		"a page of nowhere":      set("Origin", "null"),
		"another port":           set("Origin", "http://127.0.0.1:1"),
		"a page that begins so":  set("Origin", strings.TrimSuffix(url, "/mcp")+".evil.example"),
		"a page on localhost":    set("Origin", "http://localhost"),
		"not the same origin":    set("Sec-Fetch-Site", "same-site"),
		"as browsers say":        set("Sec-Fetch-Site", "cross-site"),
	} {
		status := post(t, url, a, change)
		assert.Equal(t, http.StatusForbidden, status, name)
	}
	for name, change := range map[string]func(*http.Request){
		"its own page":     set("Origin", strings.TrimSuffix(url, "/mcp")),
		"localhost":        func(r *http.Request) { r.Host = "localhost" + r.Host[strings.IndexByte(r.Host, ':'):] },
		"lower case":       set("Authorization", "bearer "+a),
		"upper case":       set("Authorization", "BEARER "+a),
		"a browser's user": set("Sec-Fetch-Site", "none"),
	} {
		assert.Equal(t, http.StatusOK, post(t, url, a, change), name)
	}
	for _, scheme := range []string{"Basic ", "Bearers ", "Bearer", ""} {
		assert.Equal(t, http.StatusUnauthorized, post(t, url, a, set("Authorization", scheme+a)), "%q", scheme)
	}
	// Reading is refused as writing is.
	for _, change := range []func(*http.Request){set("Origin", "https://evil.example"), set("Sec-Fetch-Site", "cross-site"), func(r *http.Request) { r.Host += ".evil.example" }} {
		assert.Equal(t, http.StatusForbidden, post(t, url, a, func(r *http.Request) { r.Method = http.MethodGet; change(r) }))
	}
	resp, err := http.Get(strings.TrimSuffix(url, "/mcp") + "/v1/agents")
	require.NoError(t, err)
	resp.Body.Close()
	assert.Equal(t, http.StatusNotFound, resp.StatusCode, "the operator's door is not here")

	// The session of one agent is no way to the other's tools.
	ua := h.ConnectHTTP(nil, url, a)
	require.NotEmpty(t, ua.Session.ID())
	ua.Bash("echo here")
	for _, said := range []string{harness.Hello, harness.Request(1, "bash", `{"command":"touch ran"}`), `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`} {
		status := post(t, url, b, func(r *http.Request) {
			r.Header.Set("Mcp-Session-Id", ua.Session.ID())
			r.Header.Set("Mcp-Protocol-Version", "2025-11-25")
			first, _, _ := strings.Cut(said, "\n")
			r.Body, r.ContentLength = io.NopCloser(strings.NewReader(first)), int64(len(first))
		})
		assert.Equal(t, http.StatusNotFound, status, said)
	}
	for _, method := range []string{http.MethodGet, http.MethodDelete} {
		status := post(t, url, b, func(r *http.Request) {
			r.Method = method
			r.Header.Set("Mcp-Session-Id", ua.Session.ID())
		})
		assert.Equal(t, http.StatusNotFound, status, method)
	}
	assert.NoFileExists(t, h.Scope("a", "ran"))
	large, err := http.NewRequest(http.MethodPost, url, strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"`+strings.Repeat("x", 17<<20)+`"}`))
	require.NoError(t, err)
	large.ContentLength = -1
	large.Header.Set("Authorization", "Bearer "+a)
	large.Header.Set("Content-Type", "application/json")
	large.Header.Set("Accept", "application/json, text/event-stream")
	if resp, err := http.DefaultClient.Do(large); err == nil { // else the connection was closed before all was sent
		resp.Body.Close()
		assert.GreaterOrEqual(t, resp.StatusCode, 400)
	}
	assert.Equal(t, "here", ua.Bash("echo here"))
}

// TestHTTPStrangers: those who have no token hold neither connections nor descriptors.
func TestHTTPStrangers(t *testing.T) {
	need.Once(t)
	t.Parallel()
	h := harness.LayOut(t, map[string]string{"a": ""})
	address := strings.TrimSuffix(strings.TrimPrefix(serveHTTP(h), "http://"), "/mcp")
	stranger := func(says string) net.Conn {
		conn, err := net.Dial("tcp", address)
		require.NoError(t, err)
		t.Cleanup(func() { conn.Close() })
		_, err = io.WriteString(conn, says)
		require.NoError(t, err)
		require.NoError(t, conn.SetReadDeadline(time.Now().Add(20*time.Second)))
		return conn
	}
	for _, says := range []string{
		"GET /mcp HTTP/1.1\r\nHost: " + address + "\r\n\r\n",                          // and no more
		"POST /mcp HTTP/1.1\r\nHost: " + address + "\r\nContent-Length: 100\r\n\r\n{", // nor the rest
	} {
		answer, err := io.ReadAll(stranger(says))
		assert.NoError(t, err, "it hangs up")
		assert.Contains(t, string(answer), "401")
	}
	// A request of which only the beginning comes.
	for _, says := range []string{"", "POST /mcp HTTP/1.1\r\nHost: " + address + "\r\n"} {
		_, err := io.ReadAll(stranger(says))
		assert.NoError(t, err, "it hangs up")
	}
	assert.Equal(t, "here", h.Connect("a").Bash("echo here"))
}

// TestHTTPSlowLoris: 1,000 connections that send nothing, or a byte now and
// then, close no connection that has a token and delay no new one.
func TestHTTPSlowLoris(t *testing.T) {
	need.Once(t)
	t.Parallel()
	h := harness.LayOut(t, map[string]string{"a": "", "b": ""})
	url := serveHTTP(h)
	address := strings.TrimSuffix(strings.TrimPrefix(url, "http://"), "/mcp")
	u, token := h.ConnectHTTP(nil, url, h.Token("a")), h.Token("b")
	assert.Equal(t, "here", u.Bash("echo here"))
	begin := "POST /mcp HTTP/1.1\r\nHost: " + address + "\r\nX-Slow: "
	conns := make([]net.Conn, 1000)
	for i := range conns {
		conn, err := net.Dial("tcp", address)
		require.NoError(t, err)
		t.Cleanup(func() { conn.Close() })
		conns[i] = conn
		if i%2 == 0 {
			_, _ = io.WriteString(conn, begin)
		}
	}
	for round := range 5 {
		for i := 0; i < len(conns); i += 2 {
			_, _ = io.WriteString(conns[i], "x") // fails where the connection was evicted
		}
		begun := time.Now()
		assert.Equal(t, http.StatusOK, postAnew(t, url, token), "round %d: a new connection", round)
		assert.Equal(t, "here", u.Bash("echo here"), "round %d: an old connection", round)
		assert.Less(t, time.Since(begun), 10*time.Second)
	}
	h.Eventually("every stranger is gone", func() bool {
		for _, conn := range conns {
			require.NoError(t, conn.SetReadDeadline(time.Now().Add(time.Millisecond)))
			if _, err := conn.Read(make([]byte, 1)); errors.Is(err, os.ErrDeadlineExceeded) {
				return false
			}
		}
		return true
	})
	assert.Equal(t, "here", u.Bash("echo here"))
}

// TestHTTPHoarder: who has a token takes from no other agent what all share.
func TestHTTPHoarder(t *testing.T) {
	h := harness.LayOut(t, map[string]string{"a": "", "b": ""})
	url := serveHTTP(h)
	a, b := h.Token("a"), h.Token("b")
	address := strings.TrimSuffix(strings.TrimPrefix(url, "http://"), "/mcp")
	hold := func(what string) {
		conn, err := net.Dial("tcp", address)
		require.NoError(t, err)
		t.Cleanup(func() { conn.Close() })
		_, _ = io.WriteString(conn, "POST /mcp HTTP/1.1\r\nHost: "+address+"\r\nAuthorization: Bearer "+a+"\r\nContent-Type: "+what+"\r\nContent-Length: 100\r\n\r\n") // it may be closed already
	}
	const valid = "application/json\r\nAccept: application/json, text/event-stream"
	for i := range 512 {
		hold([]string{valid, "nonsense"}[i%2])
	}
	h.Eventually("its own requests are too many", func() bool {
		hold(valid) // a busy daemon may have closed many above before it read their tokens
		r, err := http.NewRequest(http.MethodPost, url, strings.NewReader("{}"))
		require.NoError(t, err)
		r.Header.Set("Authorization", "Bearer "+a)
		resp, err := http.DefaultClient.Do(r)
		if err != nil { // those that are refused still hold all connections
			return false
		}
		resp.Body.Close()
		return resp.StatusCode == http.StatusTooManyRequests
	})
	assert.Equal(t, http.StatusOK, post(t, url, b, nil))
}

// TestHTTPDown: what is under way ends with the agent, and does not bring it back.
func TestHTTPDown(t *testing.T) {
	h := harness.LayOut(t, map[string]string{"a": ""})
	u := h.ConnectHTTP(nil, serveHTTP(h), h.Token("a"))
	ended := u.Begin(h.Soon(), "bash", args{"command": "sleep " + harness.Seconds(7)})
	h.Eventually("it runs", func() bool { return len(harness.Running("sleep", harness.Seconds(7))) == 1 })
	h.Must("down", "a")
	<-ended
	h.Define("a", "mcp_servers: {s: {command: cat}}") // which its client would start
	h.Must("reload")
	assert.Never(t, func() bool { return h.Agent("a").State != "down" }, 500*time.Millisecond, 50*time.Millisecond)
	assert.Zero(t, len(harness.Running("sleep", harness.Seconds(7))))
}

// TestHTTPAddress: what is not the loopback interface is not listened at.
func TestHTTPAddress(t *testing.T) {
	h := harness.LayOut(t, nil)
	for _, address := range []string{"0.0.0.0:1", ":1", "[::]:1", "192.0.2.1:1", "example.com:1", "nonsense", "127.0.0.1"} {
		out, errs, code := h.Try("daemon", "--http", address)
		assert.Equal(t, 78, code, address)
		assert.Empty(t, out)
		assert.Equal(t, 1, strings.Count(errs, "\n"), errs)
		assert.True(t, strings.HasPrefix(errs, `scopefs: --http "`+address), errs)
	}
	assert.Zero(t, h.Mounted(h.Base))
}
