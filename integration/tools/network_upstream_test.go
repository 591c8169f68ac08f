package tools

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/internal/need"
	"github.com/scopefs/scopefs/internal/servertest"
)

// companyProxy is a proxy that leads every name to one server, whatever the port, and returns what it was asked for.
func companyProxy(t *testing.T, to net.Addr) (at string, asked func() []string) {
	var mu sync.Mutex
	var all []string
	at = servertest.Answer(t, func(c net.Conn) {
		r := bufio.NewReader(c)
		req, err := http.ReadRequest(r)
		if err != nil {
			return
		}
		mu.Lock()
		all = append(all, req.Method+" "+req.RequestURI)
		mu.Unlock()
		up, err := net.Dial("tcp", to.String())
		if err != nil {
			return
		}
		defer up.Close()
		fmt.Fprint(c, "HTTP/1.1 200 OK\r\n\r\n")
		go func() { _, _ = io.Copy(up, r); up.Close() }()
		_, _ = io.Copy(c, up)
	})
	return at, func() []string {
		mu.Lock()
		defer mu.Unlock()
		return append([]string(nil), all...)
	}
}

// TestNetworkUpstream: an agent's connections go out by the company's proxy, which ends their TLS, and programs trust the
// company's CA. No address is asked for, and the record names the proxy. A repository cannot give one.
func TestNetworkUpstream(t *testing.T) {
	t.Parallel()
	need.Program(t, "curl")
	repo := t.TempDir()
	for _, words := range [][]string{
		{"git", "init", "-q", "-b", "main", repo + "/x.git"}, {"git", "-C", repo + "/x.git", "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "--allow-empty", "-m", "x"},
		{"git", "-C", repo + "/x.git", "update-server-info"},
	} {
		out, err := exec.Command(words[0], words[1:]...).CombinedOutput()
		require.NoError(t, err, string(out))
	}
	require.NoError(t, os.WriteFile(repo+"/f", []byte("content\n"), 0o644))
	server, ca := secureServer(t, http.FileServer(http.Dir(repo)).ServeHTTP, "tunnel.test", "decided.test")
	at, asked := companyProxy(t, server)
	h := harness.LayOut(t, nil)
	h.Put("company.pem", ca)
	h.Put("scopefs.yaml", fmt.Sprintf("network: {upstream: 'http://%s', ca: %s/company.pem}\n", at, h.Base))
	for id, network := range map[string]string{
		"a":    `{allow: [tunnel.test, {host: decided.test, paths: ["/**"]}, {host: "*", ports: [8080]}, 93.184.216.34]}`,
		"host": "host",
	} {
		h.Define(id, "network: "+network)
		require.NoError(t, os.MkdirAll(h.Scope(id), 0o755))
	}
	h.Start()
	const connect = `const http = require("http"), https = require("https");
http.request({host: "127.0.0.1", port: 3128, method: "CONNECT", path: "tunnel.test:443", headers: {host: "tunnel.test:443"}}).on("connect", (_, socket) =>
  https.get("https://tunnel.test/f", {createConnection: () => require("tls").connect({socket, servername: "tunnel.test"})}, r => r.pipe(process.stdout))).end()`
	for program, script := range map[string]string{
		"curl":    "curl -sS -m 20 https://tunnel.test/f https://decided.test/f",
		"git":     "git ls-remote https://tunnel.test/x.git/.git && curl -sS https://tunnel.test/f",
		"python3": `/usr/bin/python3 -c 'import urllib.request as u; print(u.urlopen("https://tunnel.test/f").read())'`,
		"wget":    "wget -q -O - https://tunnel.test/f",
		"node":    "node -e '" + connect + "'",
	} {
		if _, err := exec.LookPath(program); err != nil {
			t.Log("not here: ", program)
			continue
		}
		out, errs, code := h.Try("run", "a", "--", "sh", "-c", script)
		assert.Zero(t, code, "%s: %s%s", program, out, errs)
		assert.Contains(t, out, "content", program)
	}
	bundle, _, _ := h.Try("run", "host", "--", "sh", "-c", "cat $SSL_CERT_FILE")
	assert.Contains(t, bundle, strings.TrimSpace(ca), "network: host trusts the company, too")
	before := len(asked())
	for _, url := range []string{"https://93.184.216.34/", "http://127.0.0.1:8080/", "http://localhost:8080/", "http://a.localhost:8080/", "http://[::1]:8080/", "http://0x7f000001:8080/"} {
		out, errs, _ := h.Try("run", "a", "--", "curl", "-sS", "-m", "20", "--noproxy", "", url)
		assert.Regexp(t, `"error":|response 403`, out+errs, url)
	}
	assert.Len(t, asked(), before)
	assert.Subset(t, []string{"CONNECT tunnel.test:443", "CONNECT decided.test:443"}, asked())
	h.Stop()
	by := map[string]bool{}
	for _, e := range networkEvents(h, "a") {
		if e.Outcome == "end" && e.Verdict == audit.Allow {
			by[e.Target] = true
			if e.Op == "request" || strings.HasPrefix(e.Target, "tunnel") {
				assert.Equal(t, "at "+at+", for network.upstream", e.Detail, e.Target)
			}
		}
	}
	assert.Contains(t, by, "tunnel.test:443")
	assert.Contains(t, by, "GET https://decided.test/f")
	for _, text := range []string{"network: {upstream: 'http://127.0.0.1:1'}", "network: {ca: /etc/passwd}"} {
		h.Define("a", text)
		out, errs, code := h.Try("agents", "check")
		assert.NotZero(t, code, out)
		assert.Regexp(t, "(upstream|ca).*unknown|unknown.*(upstream|ca)", errs+out)
	}
}
