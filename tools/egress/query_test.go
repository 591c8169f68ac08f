package egress

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/scope/network"
)

// TestQuery: the host gets the bytes of the query that the client has sent, by every way through the proxy.
func TestQuery(t *testing.T) {
	t.Parallel()
	target := func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.RequestURI) }
	plain, _ := host(t, "plain.example", false, target)
	secure, _ := host(t, "secure.example", true, target)
	secure.Paths = []string{"/x"}
	l, roots := intercepting(t, []network.HostRule{plain, secure}, nil)
	through := func(proto string) *http.Client {
		conf := roots.Clone()
		conf.NextProtos = []string{proto}
		c := l.client(t, conf)
		c.Transport.(*http.Transport).ForceAttemptHTTP2 = proto == "h2"
		return c
	}
	tunnel := &http.Client{Transport: &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) {
		return l.connect(t, "plain.example:80"), nil
	}}}
	t.Cleanup(tunnel.CloseIdleConnections)
	websocket := http.Header{"Connection": {"Upgrade"}, "Upgrade": {"websocket"}}
	ways := map[string]struct {
		client *http.Client
		method string
		url    url.URL
		header http.Header
	}{
		"plain HTTP":           {l.client(t, nil), "GET", url.URL{Scheme: "http", Host: "plain.example"}, nil},
		"CONNECT to port 80":   {tunnel, "GET", url.URL{Scheme: "http", Host: "plain.example"}, nil},
		"TLS, HTTP/1.1":        {through("http/1.1"), "GET", url.URL{Scheme: "https", Host: "secure.example"}, nil},
		"TLS, HTTP/2":          {through("h2"), "GET", url.URL{Scheme: "https", Host: "secure.example"}, nil},
		"gRPC":                 {through("h2"), "POST", url.URL{Scheme: "https", Host: "secure.example"}, http.Header{"Content-Type": {"application/grpc"}, "Te": {"trailers"}}},
		"WebSocket, plain":     {l.client(t, nil), "GET", url.URL{Scheme: "http", Host: "plain.example"}, websocket},
		"WebSocket inside TLS": {through("http/1.1"), "GET", url.URL{Scheme: "https", Host: "secure.example"}, websocket},
	}
	queries := []string{
		"p=x.git;a=log;h=HEAD", ";", "a;b&c;d", "a=1;a=2&a=3", "%", "a=%", "a=100%&b=1", "%zz", "a=%4", "%u0041", "a=%%41", "%00", "%0d%0aX:y",
		"a", "=", "&", "&&a&", "b=2&a=1", "a=1&a=1", "a=b+c%20d", "a=%2f%2F%3b", "?", "a?b?c", "a=b=c", "a[]=1&a[]={2}|3\\4^5`6\"<>", "/../..;/x", "é=\xff",
		"$filter=a", strings.TrimSuffix(strings.Repeat("a=1&", 15_000), "&"),
	}
	for way, w := range ways {
		t.Run(way, func(t *testing.T) {
			for _, query := range queries {
				to := w.url
				to.Path, to.RawQuery = "/x", query
				r := (&http.Request{Method: w.method, URL: &to, Header: w.header.Clone()}).WithContext(t.Context())
				if r.Header == nil {
					r.Header = http.Header{}
				}
				res, got := do(t, w.client, r)
				assert.Equal(t, 200, res.StatusCode, query)
				assert.Equal(t, "/x?"+query, got)
			}
			to := w.url
			to.Path, to.ForceQuery = "/x", true
			_, got := do(t, w.client, &http.Request{Method: "GET", URL: &to, Header: http.Header{}})
			assert.Equal(t, "/x?", got, "an empty query")
		})
	}
	for _, e := range l.log() {
		assert.NotContains(t, e.Target, "?")
		assert.True(t, e.Op == "connect" || strings.HasSuffix(e.Target, ".example/x"), e.Target)
		assert.Equal(t, audit.Allow, e.Verdict)
	}
}

// TestAttackQuery: a query that passes as it is moves no other part of a request.
func TestAttackQuery(t *testing.T) {
	t.Parallel()
	reached := make(chan string, 100)
	rule, _ := host(t, "good.example", true, func(_ http.ResponseWriter, r *http.Request) {
		reached <- fmt.Sprint(r.Method, " ", r.RequestURI, " ", r.Header["X-Evil"])
	})
	rule.Methods, rule.Paths = []string{"GET"}, []string{"/ok/**"}
	l, roots := intercepting(t, []network.HostRule{rule}, nil)
	type request struct{ method, target string }
	refused := map[string]request{
		"the path in the query":             {"GET", "/admin?/ok/x;/ok/y"},
		"the path in the query, alone":      {"GET", "/?;/ok/x"},
		"parameters, then the path":         {"GET", "/admin;/ok/x?a;b"},
		"parameters of a directory":         {"GET", "/ok;a/../admin?a;b"},
		"parameters of dots":                {"GET", "/ok/..;/admin?a;b=%"},
		"an encoded question mark":          {"GET", "/admin%3f/ok/x;%"},
		"an encoded question mark, inside":  {"GET", "/ok/..%3f;/admin?;"},
		"a bad escape in the path":          {"GET", "/ok/%zz?%zz"},
		"the method in the query":           {"DELETE", "/ok/x?_method=GET;_method=GET"},
		"a method for a GET":                {"GET", "/ok/x?;_method=DELETE&%"},
		"no slash before the query":         {"GET", "?;/ok/x"},
		"a fragment before the query":       {"GET", "/admin#/../ok/x?a;b"},
		"a line feed in the query":          {"GET", "/ok/x?a;b%\nX-Evil: 1"},
		"a field after the query":           {"GET", "/ok/x?a;b% HTTP/1.1\r\nX-Evil: 1"},
		"a request after the query":         {"GET", "/ok/x?a;b% HTTP/1.1\r\nHost: good.example\r\n\r\nGET /admin?"},
		"a null byte in the query":          {"GET", "/ok/x?a;\x00"},
		"a delete character in the query":   {"GET", "/ok/x?%\x7f"},
		"a fragment in the query":           {"GET", "/ok/x?a;b#/admin"},
		"a blank in the query, then a path": {"GET", "/ok/x?; /admin"},
	}
	passing := map[string]request{
		"dots after the question mark": {"GET", "/ok/x?/../../admin;a=%"},
		"two question marks":           {"GET", "/ok/x?a?/../../admin;"},
		"a URL":                        {"GET", "/ok/x?;http://evil.example/%"},
	}
	for _, proto := range []string{"http/1.1", "h2"} {
		conf := roots.Clone()
		conf.NextProtos = []string{proto}
		send := func(r request) string {
			if proto == "h2" {
				return status2(t, l, conf, []string{":method", r.method, ":scheme", "https", ":path", r.target, ":authority", "good.example"})
			}
			c := tls.Client(l.connect(t, "good.example:443"), &tls.Config{RootCAs: roots.RootCAs, ServerName: "good.example"})
			defer c.Close()
			fmt.Fprintf(c, "%s %s HTTP/1.1\r\nHost: good.example\r\n\r\n", r.method, r.target)
			res, err := http.ReadResponse(bufio.NewReader(c), nil)
			require.NoError(t, err)
			return strconv.Itoa(res.StatusCode)
		}
		for name, r := range refused {
			if proto == "http/1.1" && strings.ContainsAny(r.target, "\r") {
				continue // a field and a request of the client's own
			}
			before := len(l.log())
			assert.Contains(t, []string{"400", "403", ""}, send(r), "%s: %s", proto, name)
			assert.Zero(t, count(l.log()[before:], func(e audit.Event) bool { return e.Op == "request" && e.Outcome == audit.OutcomeBegin }), "%s: %s: recorded as allowed", proto, name)
			assert.Empty(t, reached, "%s: %s", proto, name)
		}
		for name, r := range passing {
			require.Equal(t, "200", send(r), "%s: %s", proto, name)
			assert.Equal(t, r.method+" "+r.target+" []", <-reached, "%s: %s", proto, name)
		}
	}
}
