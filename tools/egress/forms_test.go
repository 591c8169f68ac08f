package egress

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/internal/credential"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/network"
)

// TestAttackForms: a request whose method, path or host a server may read in another way than the
// rules is refused and recorded as a denial, in HTTP/1 and HTTP/2.
func TestAttackForms(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var reached []string
	rule, _ := host(t, "good.example", true, func(_ http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		reached = append(reached, r.Method+" "+r.RequestURI)
	})
	rule.Methods, rule.Paths = []string{"GET", "POST"}, []string{"/ok/**"}
	l, roots := intercepting(t, []network.HostRule{rule}, nil)
	conf := roots.Clone()
	conf.NextProtos = []string{"h2"}

	type request struct {
		method, path string
		fields       []string // names and values
		only         string   // the protocol that can carry it; "": both
	}
	requests := map[string]request{
		"two Host fields":     {"GET", "/ok/x", []string{"host", "good.example", "host", "evil.example"}, "h2"},
		"a blank in a method": {"GE T", "/ok/x", nil, "h2"},
		"a blank in a query":  {"GET", "/ok/x?a b", nil, "h2"},
		"a blank in a path":   {"GET", "/ok/x y", nil, "h2"},
		"a tab in a query":    {"GET", "/ok/x?a\tb", nil, "h2"},

		"a number sign in a path":  {"GET", "/ok/x#a", nil, ""},
		"a number sign in a query": {"GET", "/ok/x?a#b", nil, ""},
		"two User-Agent fields":    {"GET", "/ok/x", []string{"user-agent", "a", "user-agent", "b"}, ""},
	}
	for _, name := range []string{
		"X-HTTP-Method-Override", "X_HTTP_Method_Override", "X-HTTP_Method-Override", "X.HTTP.Method.Override", "X-HTTP-Method", "X-Method-Override", "X-Method",
		"X-Original-URL", "X_Original_URL", "X-Original-URI", "X-Rewrite-URL", "X-Forwarded-Uri", "X-Forwarded-Prefix", "X-Forwarded-Path", "X-Forwarded-Method",
		"X-Envoy-Original-Path", "X-Script-Name", "SCRIPT_NAME", "Destination", "X-Waws-Unencoded-Url",
		"X-Http-Path-Override", "Http-Method-Override", "X-WP-Method-Override", "X-Client-Method", "X-HTTPMethod", "X-Requested-Method",
		"X-GData-Method-Override", "X-Matched-Path", "X-Invoke-Path", "X-Nextjs-Rewritten-Path", "X-Now-Route-Matches", "X-Middleware-Subrequest",
		"X-Proxy-Uri", "Proxy-Url", "X-Uri", "X-Path", "Request-Uri", "X-RequestUri", "X-Path-Info", "X-Sveltekit-Pathname",
		"X-Amz-Copy-Source", "X-Copy-From", "X-Ms-Rename-Source",
	} {
		requests[name] = request{"POST", "/ok/x", []string{strings.ToLower(name), "/admin"}, ""}
	}
	for _, path := range []string{
		"/ok/../admin", "/ok/%2e%2e/admin", "/ok/.%2e/admin", "/ok/..%2fadmin", "/ok/..%5cadmin", "/ok/%252e%252e/admin", "/ok/..;x/admin", "/ok/..%3bx/admin",
		"/ok/..%20/admin", "/ok/%20../admin", "/ok/..%09/admin", "/ok/..%23/admin", "/ok/..%3f/admin", "/ok/...%2f/admin", "/ok//admin", "/ok/x%00", "/ok/..%00/admin",
		"/ok/%c0%ae%c0%ae/admin", "/ok/..%c0%afadmin", "/ok/%e0%80%ae%e0%80%ae/admin", "/ok/%c1%9cadmin", "/ok/%u002e%u002e/admin",
		"/ok/%ef%bc%8e%ef%bc%8e/admin", "/ok/..%ef%bc%8fadmin", "/ok/%e2%80%a5/admin", "/ok/..%e2%88%95admin", "/ok/..%e2%81%84admin", "/ok/%c2%85/admin",
		"/ok/.%e2%80%8b./admin", "/ok/%e2%80%8b../admin", "/ok/..%ef%bb%bf/admin", "/ok/%e2%80%8b/admin", "/ok/.%c2%ad./admin", "/ok/.%cc%81./admin",
		"/ok/.%e2%81%a0%ef%bc%8e/admin", "/ok/.%ef%b8%8f./admin", "/ok/%ef%bc%8e%ef%bc%8e%ef%bc%8fadmin", "/ok/.%c2%a0./admin", "/ok/.%e3%85%a4./admin",
		"/ok/..%c2%a5admin", "/ok/..%e2%82%a9admin", "/ok/%f3%a0%80%ae../admin", "/ok/.%ee%80%80./admin",
		"/ok/%25zz/%252e%252e/admin", "/ok/%20/admin",
	} {
		requests[path] = request{"GET", path, nil, ""}
	}
	for name, r := range requests {
		for _, proto := range []string{"HTTP/1.1", "h2"} {
			if r.only != "" && r.only != proto {
				continue
			}
			before := len(l.log())
			if proto == "h2" {
				fields := append([]string{":method", r.method, ":scheme", "https", ":path", r.path, ":authority", "good.example"}, r.fields...)
				assert.Contains(t, []string{"400", "403", ""}, status2(t, l, conf, fields), "%s: %s", proto, name)
			} else {
				c := l.tls(t, "good.example", roots)
				fmt.Fprintf(c, "%s %s HTTP/1.1\r\nHost: good.example\r\nContent-Length: 0\r\n", r.method, r.path)
				for i := 0; i < len(r.fields); i += 2 {
					fmt.Fprintf(c, "%s: %s\r\n", r.fields[i], r.fields[i+1])
				}
				_, _ = io.WriteString(c, "\r\n")
				res, err := http.ReadResponse(bufio.NewReader(c), nil)
				require.NoError(t, err, name)
				assert.Contains(t, []int{400, 403}, res.StatusCode, "%s: %s", proto, name)
				c.Close()
			}
			assert.Zero(t, count(l.log()[before:], func(e audit.Event) bool { return e.Op == "request" && !denial(e) }), "%s: %s: recorded as allowed", proto, name)
		}
	}
	ordinary := []string{
		"/ok/What%3F%20a%25?q=1", "/ok/.gitignore", "/ok/..a", "/ok/caf%c3%a9/%d1%82%d0%b5%d0%ba%d1%81%d1%82.txt", "/ok/.%d1%82", "/ok/%f0%9f%91%a9%e2%80%8d%f0%9f%92%bb",
	}
	for _, path := range ordinary {
		assert.Equal(t, "200", status2(t, l, conf, []string{
			":method", "GET", ":scheme", "https", ":path", path, ":authority", "good.example", "x-forwarded-for", "1.2.3.4",
			"x-amz-security-token", "1", "x-stainless-helper-method", "stream", "access-control-request-method", "GET", "hx-current-url", "/ok/y", "next-url", "/", "next-router-state-tree", "1", "mcp-method", "tools/call",
		}), path)
	}
	mu.Lock()
	defer mu.Unlock()
	for i, path := range ordinary {
		ordinary[i] = "GET " + path
	}
	assert.Equal(t, ordinary, reached)
}

// TestAttackOverrideParameter: where a rule divides methods, no parameter of the query or of a form changes the method.
func TestAttackOverrideParameter(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var reached []string
	serve := func(_ http.ResponseWriter, r *http.Request) {
		if body, err := io.ReadAll(r.Body); err == nil {
			mu.Lock()
			defer mu.Unlock()
			reached = append(reached, r.URL.RawQuery+string(body))
		}
	}
	rule, _ := host(t, "good.example", true, serve)
	rule.Methods = []string{"GET", "POST"}
	free, _ := host(t, "free.example", true, serve)
	free.Intercept = true
	l, roots := intercepting(t, []network.HostRule{rule, free}, nil)
	client := l.client(t, roots)
	const form, data, object = "application/x-www-form-urlencoded", "multipart/form-data; boundary=b", "application/json"
	part := func(name string) string {
		return "--b\r\nContent-Disposition: form-data; " + name + "\r\n\r\nDELETE\r\n--b--\r\n"
	}
	send := func(host, query, kind, body string) int {
		r, err := http.NewRequest("POST", "https://"+host+"/x?"+query, iotest.OneByteReader(strings.NewReader(body)))
		require.NoError(t, err)
		r.ContentLength = int64(len(body))
		if kind != "" {
			r.Header.Set("Content-Type", kind)
		}
		res, err := client.Do(r)
		if err != nil {
			return 0 // the connection ends with the body
		}
		res.Body.Close()
		return res.StatusCode
	}
	type request struct{ query, kind, body string }
	for _, r := range []request{
		{"_method=DELETE", "", ""}, {"a=1&%5fMethod=delete", "", ""}, {"a;_method=PUT", "", ""}, {"X-HTTP-Method-Override=PUT", "", ""},
		{"", form, "_method=DELETE"}, {"", form + "; charset=utf-8", "a=1&%5fmethod=DELETE"}, {"", form, "a=_method;_METHOD=DELETE"}, {"", "", "_method=DELETE"},
		{"", form, ".method=DELETE"}, {"", form, "+++%20_method[]=DELETE"}, {"", form, "[method=DELETE"}, {"", form, "_method%00x=DELETE"},
		{"", form, strings.Repeat("%20", 5000) + "_method=DELETE"},
		{"", data, part(`name="_method"`)}, {"", data, part(`name=_method`)}, {"", data, part(`name='_method'`)}, {"", data, part("filename=x;\r\n\tname=\"_method\"")},
		{"", data, part(`name*=UTF-8''%5Fmethod`)}, {"", data, strings.Replace(part(`NAME="_Method"`), "Content-D", "CONTENT-d", 1)}, {"", data, part(`name="_method`)},
		{"", data, part(`x="` + strings.Repeat("y", 20_000) + `"; name="_method"`)},
		{"", object, `{"_method": "DELETE"}`}, {"", "application/vnd.api+json", `{"a": [{"b": "}"}], "\u005fmethod" : "DELETE"}`}, {"", object, `{"a":"\\","_method":"DELETE"}`},
	} {
		before := len(l.log())
		assert.Contains(t, []int{0, 403}, send("good.example", r.query, r.kind, r.body), "%+.200v", r)
		refused := func(e audit.Event) bool { return e.Verdict == audit.Deny && e.RuleKind == string(scope.KindField) }
		require.Eventually(t, func() bool { return count(l.log()[before:], refused) == 1 }, 20*time.Second, time.Millisecond, "%+.200v", r)
		assert.Equal(t, 200, send("free.example", r.query, r.kind, r.body), "every method is allowed there")
	}
	mu.Lock()
	reached = nil
	mu.Unlock()
	var want []string
	for _, r := range []request{
		{"a=_method&method=1&my_method=2", "", ""}, {"", form, "a=_method&x_method=1&b=?_method"}, {"", "text/plain", "_method=DELETE"},
		{"", data, part(`name="method"`) + "_method=1"}, {"", data, part(`name="a"; filename="_method"`)},
		{"", object, `{"a": {"_method": 1}, "b": "_method", "c": "\"_method\": 1", "method": "tools/call"}`}, {"", object, `["_method", {"_method": 1}]`},
		{"", form, `{"_method": 1}`}, {"", object, "a=1&_method=DELETE"},
	} {
		assert.Equal(t, 200, send("good.example", r.query, r.kind, r.body), r)
		want = append(want, r.query+r.body)
	}
	mu.Lock()
	defer mu.Unlock()
	assert.Equal(t, want, reached)
}

// status2 sends a request in HTTP/2. It returns "" if the proxy resets it.
func status2(t *testing.T, l *lab, conf *tls.Config, fields []string) string {
	c := l.tls(t, "good.example", conf)
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(30 * time.Second))
	f := begin2(t, c)
	require.NoError(t, f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block(fields...), EndStream: true, EndHeaders: true}))
	f.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	for {
		frame, err := f.ReadFrame()
		if err != nil {
			return ""
		}
		switch frame := frame.(type) {
		case *http2.MetaHeadersFrame:
			return frame.PseudoValue("status")
		case *http2.RSTStreamFrame:
			return ""
		}
	}
}

// TestOverrideWithoutRules: where the rules allow every method and path, no field changes what they mean.
func TestOverrideWithoutRules(t *testing.T) {
	t.Parallel()
	rule, _ := host(t, "good.example", false, hello)
	l := start(t, network.Spec{Allow: []network.HostRule{rule}}, nil)
	assert.Contains(t, l.raw(t, "POST http://good.example/x HTTP/1.1\r\nHost: good.example\r\nContent-Length: 0\r\nConnection: close\r\nX_Key: 1\r\nX-HTTP-Method-Override: GET\r\n\r\n"), "200 ")
}

// TestAttackUpgradeThatFails: after a request for a protocol that the proxy does not know and a
// failure of the host, nothing more of the connection is read.
func TestAttackUpgradeThatFails(t *testing.T) {
	t.Parallel()
	rule, _ := host(t, "good.example", false, func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	l := start(t, network.Spec{Allow: []network.HostRule{rule}}, nil)
	for _, upgrade := range []string{"xwebsocket", "websocket", "websocket2"} {
		c := l.dial(t)
		fmt.Fprintf(c, "GET http://good.example/1 HTTP/1.1\r\nHost: good.example\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n", upgrade)
		r := bufio.NewReader(c)
		res, err := http.ReadResponse(r, nil)
		require.NoError(t, err)
		assert.Equal(t, 502, res.StatusCode)
		_, _ = io.Copy(io.Discard, res.Body)
		fmt.Fprint(c, "POST http://good.example/2 HTTP/1.1\r\nHost: good.example\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n")
		_ = c.SetReadDeadline(time.Now().Add(20 * time.Second))
		_, err = http.ReadResponse(r, nil)
		assert.Error(t, err, "%s: the connection goes on", upgrade)
	}
	assert.Zero(t, count(l.log(), func(e audit.Event) bool { return strings.Contains(e.Target, "/2") }))
}

// TestAttackSecretInNames: a placeholder does not leave in the name of a trailer, and the value does
// not come back in the name of a field, or divided by a part that nobody asked for.
func TestAttackSecretInNames(t *testing.T) {
	t.Parallel()
	const value = "Value-0123456789"
	var mu sync.Mutex
	var trailers []string
	plain, _ := host(t, "plain.example", true, func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		mu.Lock()
		defer mu.Unlock()
		for name := range r.Trailer {
			trailers = append(trailers, name)
		}
	})
	plain.Intercept = true
	rule, _ := host(t, "good.example", true, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/part" {
			w.Header().Set("Content-Range", "bytes 0-5/16")
			w.WriteHeader(http.StatusPartialContent)
			_, _ = io.WriteString(w, value[:6])
			return
		}
		w.Header().Set("X-"+value, "1")
		w.Header().Set("Trailer", "Y-"+value)
		_, _ = io.WriteString(w, "text")
		w.Header().Set("Y-"+value, "1")
	})
	rule.Secret = "token"
	placeholder, file := NewPlaceholder(), filepath.Join(t.TempDir(), "key")
	require.NoError(t, os.WriteFile(file, []byte(value), 0o600))
	l, roots := intercepting(t, []network.HostRule{rule, plain}, func(_ *Options, c *Tenant) {
		c.Secrets = func() map[string]Secret {
			return map[string]Secret{"token": {Placeholder: placeholder, Read: credential.Source{File: file}.Read}}
		}
	})
	for _, proto := range []string{"http/1.1", "h2"} {
		conf := roots.Clone()
		conf.NextProtos = []string{proto}
		client := l.client(t, conf)
		client.Transport.(*http.Transport).ForceAttemptHTTP2 = proto == "h2"
		res, err := client.Get("https://good.example/")
		require.NoError(t, err)
		_, _ = io.Copy(io.Discard, res.Body)
		res.Body.Close()
		assert.NotContains(t, strings.ToLower(fmt.Sprint(res.Header, res.Trailer)), strings.ToLower(value), proto)
		status, _ := get(t, client, "https://good.example/part")
		assert.Equal(t, http.StatusBadGateway, status, proto)
	}
	for _, trailer := range []string{placeholder, "End"} {
		c := l.tls(t, "plain.example", roots)
		fmt.Fprintf(c, "POST / HTTP/1.1\r\nHost: plain.example\r\nTransfer-Encoding: chunked\r\nTrailer: X-%[1]s\r\n\r\n1\r\na\r\n0\r\nX-%[1]s: 1\r\n\r\n", trailer)
		res, err := http.ReadResponse(bufio.NewReader(c), nil)
		require.NoError(t, err)
		assert.Equal(t, http.StatusOK, res.StatusCode, trailer)
	}
	mu.Lock()
	defer mu.Unlock()
	assert.Empty(t, trailers)
}

// TestAttackSOCKSName: a name with a character that ends or divides it for another program is
// refused, whatever is before the character.
func TestAttackSOCKSName(t *testing.T) {
	t.Parallel()
	l := start(t, network.Spec{Allow: []network.HostRule{{Host: "*"}, {Host: "good.example"}}}, nil)
	for _, mark := range []string{"\x00", "\x01", "\t", "\n", "\r\n", " ", "\x7f", "\x80", "\xff", "\u0085", "\u00a0", "/", "\\", "@", ":", "#", "?", "%00", ";", ",", "\x1b["} {
		for _, name := range []string{"good.example" + mark, "good.example" + mark + ".evil.example", "evil.example" + mark + "good.example", mark + "good.example"} {
			before := len(l.log())
			assert.NotEqual(t, 0, socks(l.dial(t), name, 443), "%q", name)
			events := l.log()[before:]
			require.NotEmpty(t, events, "%q", name)
			assert.Zero(t, count(events, func(e audit.Event) bool { return e.Outcome == audit.OutcomeBegin }), "%q", name)
		}
	}
}
