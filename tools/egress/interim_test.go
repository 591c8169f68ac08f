package egress

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/netip"
	"net/textproto"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/internal/servertest"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/network"
)

// TestInterim: interim responses pass, in both versions of HTTP, with a credential masked and without fields of the
// connection. A client of HTTP/1.0 gets none.
func TestInterim(t *testing.T) {
	hints := func(w http.ResponseWriter, r *http.Request) {
		for i := range 7 { // more than net/http takes that nobody looks at
			w.Header().Set("Link", fmt.Sprintf("<%d %s>", i, r.Header.Get("Authorization")))
			w.Header().Set("Keep-Alive", "timeout=5")
			w.WriteHeader(http.StatusEarlyHints)
		}
		w.Header().Del("Link")
		fmt.Fprint(w, "final")
	}
	plain, _ := host(t, "plain.example", false, hints)
	secret, _ := host(t, "good.example", true, hints)
	secret.Secret = "key"
	l, client := withSecret(t, []network.HostRule{plain, secret}, "", "")
	conf := client.Transport.(*http.Transport).TLSClientConfig
	for _, url := range []string{"http://plain.example/", "https://good.example/"} {
		for _, proto := range []string{"http/1.1", "h2"} {
			conf := conf.Clone()
			conf.NextProtos = []string{proto}
			client := l.client(t, conf)
			client.Transport.(*http.Transport).ForceAttemptHTTP2 = proto == "h2"
			var got []string
			r, err := http.NewRequestWithContext(httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{
				Got1xxResponse: func(status int, h textproto.MIMEHeader) error {
					got = append(got, fmt.Sprint(status, h))
					return nil
				},
			}), http.MethodGet, url, nil)
			require.NoError(t, err)
			res, body := do(t, client, r)
			assert.Equal(t, "final", body)
			assert.Empty(t, res.Header["Link"])
			mask := strings.Repeat("*", len(value))
			if strings.HasPrefix(url, "http:") {
				mask = ""
			}
			require.Len(t, got, 7, "%s %s", url, proto)
			assert.Equal(t, fmt.Sprintf("103 map[Link:[<6 %s>]]", mask), got[6], "%s %s", url, proto)
		}
	}
	text := l.raw(t, "GET http://plain.example/ HTTP/1.0\r\nHost: plain.example\r\n\r\n")
	assert.Equal(t, "200 final", text)
}

// TestInterimBytes: interim responses count against the limit, and end with it.
func TestInterimBytes(t *testing.T) {
	t.Parallel()
	rule, _ := host(t, "good.example", false, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Link", strings.Repeat("x", 60<<10))
		for r.Context().Err() == nil {
			w.WriteHeader(http.StatusEarlyHints)
		}
	})
	l := start(t, network.Spec{Allow: []network.HostRule{rule}}, func(_ *Options, c *Tenant) {
		c.Limit = func() (requests, bytes []scope.Rate) { return nil, []scope.Rate{{N: 1 << 20, Per: 1 << 40}} }
	})
	c := l.dial(t)
	fmt.Fprint(c, "GET http://good.example/ HTTP/1.1\r\nHost: good.example\r\nConnection: close\r\n\r\n")
	text, _ := io.ReadAll(c)
	assert.Contains(t, string(text), "HTTP/1.1 429 ")
	assert.Less(t, len(text), 2<<20)
}

// TestContinue: a client that waits for 100 gets one when the host has sent it, and then sends its body. A host that
// answers at once gets no body, and the client the answer.
func TestContinue(t *testing.T) {
	t.Parallel()
	for _, secure := range []bool{false, true} {
		rule, _ := host(t, "good.example", secure, func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/late" {
				http.Error(w, "too large", http.StatusRequestEntityTooLarge)
				return
			}
			body, _ := io.ReadAll(r.Body)
			fmt.Fprintf(w, "%s", body)
		})
		rule.Intercept = secure
		l, roots := intercepting(t, []network.HostRule{rule}, nil)
		for path, want := range map[string]string{"/": "HTTP/1.1 100 Continue, HTTP/1.1 200 OK", "/late": "HTTP/1.1 413 Request Entity Too Large"} {
			var c io.ReadWriter = l.dial(t)
			target := "http://good.example" + path
			if secure {
				c, target = l.tls(t, "good.example", roots), path
			}
			fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: good.example\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n", target)
			r, got := textproto.NewReader(bufio.NewReader(c)), []string{}
			line, err := r.ReadLine()
			require.NoError(t, err)
			if got = append(got, line); strings.Contains(line, " 100 ") {
				_, err = r.ReadMIMEHeader()
				require.NoError(t, err)
				_, err = io.WriteString(c, "body")
				require.NoError(t, err)
				line, err = r.ReadLine()
				require.NoError(t, err)
				got = append(got, line)
			}
			assert.Equal(t, want, strings.Join(got, ", "), "%s, TLS: %v", path, secure)
		}
	}
}

// TestInterimUpgrade: a protocol changes after an interim response as without one.
func TestInterimUpgrade(t *testing.T) {
	t.Parallel()
	at := servertest.Answer(t, func(c net.Conn) {
		if _, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
			fmt.Fprint(c, "HTTP/1.1 103 x\r\nLink: a\r\n\r\nHTTP/1.1 101 x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
			_, _ = io.Copy(c, c)
		}
	})
	l := start(t, network.Spec{Allow: []network.HostRule{{Host: "good.example", Address: netip.MustParseAddrPort(at)}}}, nil)
	c := l.dial(t)
	fmt.Fprint(c, "GET http://good.example/ HTTP/1.1\r\nHost: good.example\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
	r := textproto.NewReader(bufio.NewReader(c))
	for _, want := range []string{"HTTP/1.1 103 ", "HTTP/1.1 101 "} {
		line, err := r.ReadLine()
		require.NoError(t, err)
		assert.Contains(t, line, want)
		_, err = r.ReadMIMEHeader()
		require.NoError(t, err)
	}
	fmt.Fprint(c, "echo\n")
	line, err := r.ReadLine()
	require.NoError(t, err)
	assert.Equal(t, "echo", line)
}
