package console

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/integration/harness"
)

// TestStrangers: no page from elsewhere, name that leads here, used link or guessed path gets anything.
func TestStrangers(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"bob": ""})
	s := serve(t, h)
	root := s.root()
	at := root[:strings.LastIndex(root, "/")]
	cookie := enter(t, s.link)
	_, token, _ := strings.Cut(s.link, "/enter/")
	assert.Equal(t, http.StatusForbidden, post(t, root+"/enter", "token="+token, nil).StatusCode, "a link works once")

	get := func(url string, change func(*http.Request)) (int, string) {
		r, err := http.NewRequest(http.MethodGet, url, nil)
		require.NoError(t, err)
		r.AddCookie(cookie)
		if change != nil {
			change(r)
		}
		resp := send(t, r)
		text, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		return resp.StatusCode, string(text)
	}
	code, text := get(root+"/", nil)
	require.Equal(t, http.StatusOK, code)
	require.Contains(t, text, "bob")
	for what, change := range map[string]func(*http.Request){
		"rebound name":      func(r *http.Request) { r.Host = "rebound.example" },
		"rebound, our port": func(r *http.Request) { r.Host = "rebound.example" + r.URL.Host[strings.LastIndex(r.URL.Host, ":"):] },
		"another port":      func(r *http.Request) { r.Host = "127.0.0.1:1" },
		"no cookie":         func(r *http.Request) { r.Header.Del("Cookie") },
		"another cookie":    func(r *http.Request) { r.Header.Set("Cookie", cookie.Name+"=AAAA") },
		"another site":      func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "cross-site") },
		"another origin":    func(r *http.Request) { r.Header.Set("Origin", "http://127.0.0.1:1") },
		"same site":         func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "same-site") },
	} {
		code, text := get(root+"/", change)
		assert.Equal(t, http.StatusForbidden, code, what)
		assert.NotContains(t, text, "bob", what)
		code, _ = get(root+"/live", change)
		assert.Equal(t, http.StatusForbidden, code, what)
		r := post(t, root+"/sessions/x/end", "", func(r *http.Request) { r.AddCookie(cookie); change(r) })
		assert.Equal(t, http.StatusForbidden, r.StatusCode, what)
	}
	for _, path := range []string{"", "/", "/log", "/v1/agents", root[len(at):] + "x/"} {
		code, text := get(at+path, nil)
		assert.Equal(t, http.StatusForbidden, code, path)
		assert.NotContains(t, text, root[len(at):], path)
	}
	conn, err := net.Dial("tcp", strings.TrimPrefix(at, "http://"))
	require.NoError(t, err)
	defer conn.Close()
	_, _ = fmt.Fprintf(conn, "GET %s/ HTTP/1.1\r\nHost: %s\r\nX: %s\r\n\r\n", root[len(at):], strings.TrimPrefix(at, "http://"), strings.Repeat("a", 1<<20))
	answer, _ := io.ReadAll(io.LimitReader(conn, 64))
	assert.NotContains(t, string(answer), "200")
}

// TestSecrets: neither a link nor a cookie is where another process of the host can read it.
func TestSecrets(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"bob": ""})
	s := serve(t, h)
	cookie := enter(t, s.link)
	_, token, _ := strings.Cut(s.link, "/enter/")
	secrets := []string{token, cookie.Value, s.root()[strings.LastIndex(s.root(), "/")+1:]}
	exes, err := filepath.Glob("/proc/[0-9]*/exe")
	require.NoError(t, err)
	found := 0
	for _, exe := range exes {
		if to, err := os.Readlink(exe); err != nil || !strings.HasPrefix(to, harness.Program) {
			continue
		}
		found++
		for _, name := range []string{"cmdline", "environ", "comm"} {
			text, _ := os.ReadFile(filepath.Join(filepath.Dir(exe), name))
			for _, secret := range secrets {
				assert.NotContains(t, string(text), secret, "%s", exe)
			}
		}
	}
	assert.Greater(t, found, 1)
	require.NoError(t, filepath.WalkDir(h.Base, func(name string, d os.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return nil
		}
		text, _ := os.ReadFile(name)
		for _, secret := range secrets {
			assert.NotContains(t, string(text), secret, name)
		}
		return nil
	}))
}

// TestSandboxes: no network of an agent but the host's own reaches the console.
func TestSandboxes(t *testing.T) {
	h := harness.NewHost(t, map[string]string{
		"none": "tools: [bash]", "all": "tools: [bash]\nnetwork: {allow: ['*']}",
	})
	s := serve(t, h)
	at := strings.TrimPrefix(s.root()[:strings.LastIndex(s.root(), "/")], "http://")
	_, port, _ := strings.Cut(at, ":")
	for _, agent := range []string{"none", "all"} {
		for _, url := range []string{s.link, "http://localhost:" + port + "/", "http://[::1]:" + port + "/"} {
			out, _, _ := h.Try("call", "--agent", agent, "bash", "command=curl -sS -m 10 -o /dev/null -w 'status %{http_code}' '"+url+"' 2>&1; curl -sS --noproxy '*' -m 10 '"+url+"' 2>&1; true")
			assert.NotContains(t, out, "scopefs console", "%s %s", agent, url)
			assert.NotContains(t, out, "status 200", "%s %s", agent, url)
		}
	}
}

// TestListen: the console listens where nobody else can, and the daemon's own console gives links on request.
func TestListen(t *testing.T) {
	h := harness.LayOut(t, map[string]string{"bob": ""})
	h.Start("--console", "127.0.0.1:0")
	for range 2 {
		link := strings.TrimSpace(h.Must("console"))
		assert.NotEmpty(t, enter(t, link).Value)
	}
	link, errs, code := h.Try("console", "pair")
	assert.Zero(t, code)
	assert.Contains(t, link, "http://localhost:")
	assert.Contains(t, errs, "scopefs: only a browser of this host can open this link: for a phone scopefs console pair --listen ADDRESS:PORT")
	for _, address := range []string{"0.0.0.0:0", "example.com:80", "unix:relative", "127.0.0.1"} {
		_, errs, code := h.Try("console", "--listen", address)
		assert.Equal(t, 2, code, errs)
		assert.Contains(t, errs, "--listen")
	}
	socket := filepath.Join(t.TempDir(), "console.sock")
	s := serve(t, h, "--listen", "unix:"+socket)
	info, err := os.Stat(socket)
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	assert.True(t, strings.HasPrefix(s.link, "http://localhost:PORT/"), s.link)
}
