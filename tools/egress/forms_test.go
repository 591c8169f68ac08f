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
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/internal/credential"
	"github.com/scopefs/scopefs/scope"
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
	l, roots := intercepting(t, []scope.HostRule{rule}, nil)
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
	} {
		requests[name] = request{"POST", "/ok/x", []string{strings.ToLower(name), "/admin"}, ""}
	}
	for _, path := range []string{
		"/ok/../admin", "/ok/%2e%2e/admin", "/ok/.%2e/admin", "/ok/..%2fadmin", "/ok/..%5cadmin", "/ok/%252e%252e/admin", "/ok/..;x/admin", "/ok/..%3bx/admin",
		"/ok/..%20/admin", "/ok/%20../admin", "/ok/..%09/admin", "/ok/..%23/admin", "/ok/..%3f/admin", "/ok/...%2f/admin", "/ok//admin", "/ok/x%00", "/ok/..%00/admin",
		"/ok/%c0%ae%c0%ae/admin", "/ok/..%c0%afadmin", "/ok/%e0%80%ae%e0%80%ae/admin", "/ok/%c1%9cadmin", "/ok/%u002e%u002e/admin",
		"/ok/%ef%bc%8e%ef%bc%8e/admin", "/ok/..%ef%bc%8fadmin", "/ok/%e2%80%a5/admin", "/ok/..%e2%88%95admin", "/ok/..%e2%81%84admin", "/ok/%c2%85/admin",
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
	assert.Equal(t, "200", status2(t, l, conf, []string{":method", "GET", ":scheme", "https", ":path", "/ok/What%3F%20a%25?q=1", ":authority", "good.example", "x-forwarded-for", "1.2.3.4"}))
	mu.Lock()
	defer mu.Unlock()
	assert.Equal(t, []string{"GET /ok/What%3F%20a%25?q=1"}, reached)
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
	l := start(t, scope.NetworkSpec{Allow: []scope.HostRule{rule}}, nil)
	assert.Contains(t, l.raw(t, "POST http://good.example/x HTTP/1.1\r\nHost: good.example\r\nContent-Length: 0\r\nConnection: close\r\nX_Key: 1\r\nX-HTTP-Method-Override: GET\r\n\r\n"), "200 ")
}

// TestAttackUpgradeThatFails: after a request for a protocol that the proxy does not know and a
// failure of the host, nothing more of the connection is read.
func TestAttackUpgradeThatFails(t *testing.T) {
	t.Parallel()
	rule, _ := host(t, "good.example", false, func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	l := start(t, scope.NetworkSpec{Allow: []scope.HostRule{rule}}, nil)
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
	l, roots := intercepting(t, []scope.HostRule{rule, plain}, func(_ *Options, c *Tenant) {
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
	l := start(t, scope.NetworkSpec{Allow: []scope.HostRule{{Host: "*"}, {Host: "good.example"}}}, nil)
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
