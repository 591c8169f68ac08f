package egress

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/network"
)

// TestDeniedInside: a host that is not allowed answers a program's request with the rule
// that is missing. Every such request is decided and recorded, and nothing connects.
func TestDeniedInside(t *testing.T) {
	t.Parallel()
	const want = `{"error":"a.example:443 is not allowed","rule":"network.allow","hint":"ask your operator"}` + "\n"
	var mu sync.Mutex
	var told []string
	l, roots := intercepting(t, nil, func(_ *Options, c *Tenant) {
		c.Refused = func(host, text, remedy string) {
			mu.Lock()
			defer mu.Unlock()
			told = append(told, host+" "+text+": "+remedy)
		}
	})
	client := l.client(t, roots)
	for range 2 { // what the client sends is dropped
		res, err := client.Post("https://a.example/v1", "text/plain", bytes.NewReader(make([]byte, 1<<20)))
		require.NoError(t, err)
		body, err := io.ReadAll(res.Body)
		require.NoError(t, err)
		res.Body.Close()
		assert.Equal(t, "403 a.example:443 is not allowed: ask your operator", res.Status)
		assert.Equal(t, want, string(body))
		assert.Equal(t, 1, res.ProtoMajor)
	}
	// The answer is for one request.
	c := l.tls(t, "a.example", roots)
	_, err := io.WriteString(c, "GET /1 HTTP/1.1\r\nHost: a.example\r\n\r\nGET /2 HTTP/1.1\r\nHost: a.example\r\n\r\n")
	require.NoError(t, err)
	text, err := io.ReadAll(c)
	require.NoError(t, err)
	assert.Equal(t, 1, strings.Count(string(text), "HTTP/1.1 403 "))
	// By SOCKS, and without TLS.
	plain := l.dial(t)
	require.Equal(t, 0, socks(plain, "a.example", 443))
	_, err = io.WriteString(plain, "GET / HTTP/1.1\r\nHost: a.example\r\n\r\n")
	require.NoError(t, err)
	text, err = io.ReadAll(plain)
	require.NoError(t, err)
	assert.Contains(t, string(text), want)
	assert.Contains(t, l.raw(t, "CONNECT a.example:8443 HTTP/1.1\r\nHost: a.example:8443\r\n\r\n"), "403 ")
	events := l.log()
	mu.Lock()
	defer mu.Unlock()
	assert.Len(t, events, 5)
	assert.Len(t, told, 5)
	for _, e := range events {
		assert.Equal(t, audit.Deny, e.Verdict)
		assert.Equal(t, "connect", e.Op)
	}
	assert.Equal(t, "a.example a.example:443 is not allowed: add {host: a.example} to network.allow", told[0])
}

// TestUnmadeTold: Tenant.Refused is called for a host that cannot be resolved, as for a
// refused host. It is not called when the client leaves before the name is resolved.
func TestUnmadeTold(t *testing.T) {
	t.Parallel()
	told := make(chan string, 8)
	l := start(t, network.Spec{Allow: []network.HostRule{{Host: "a.example"}}}, func(_ *Options, c *Tenant) {
		c.Refused = func(host, text, remedy string) { told <- host + ": " + text + ": " + remedy }
	})
	const want = ": a.example cannot be resolved: check the name, and the name servers of this host" // no host that a rule would allow
	assert.Contains(t, l.raw(t, "GET http://a.example/ HTTP/1.1\r\nHost: a.example\r\n\r\n"), "502 ")
	assert.Equal(t, want, <-told)
	assert.Contains(t, l.raw(t, "CONNECT a.example:443 HTTP/1.1\r\nHost: a.example:443\r\n\r\n"), "502 ")
	assert.Equal(t, want, <-told)
	assert.False(t, failed("a.example", &net.OpError{Op: "dial", Err: context.Canceled}).unmade)
	assert.False(t, failed("a.example", &net.OpError{Op: "read", Err: io.ErrUnexpectedEOF}).unmade)
}

// TestDeniedInsideHostile: the certificate is for the host of the connection alone, and
// a client that does not finish holds nothing for longer than Limits.Speak.
func TestDeniedInsideHostile(t *testing.T) {
	t.Parallel()
	l, roots := intercepting(t, nil, func(o *Options, _ *Tenant) { o.Limits.Speak = 200 * time.Millisecond })
	other := roots.Clone()
	other.ServerName = "b.example"
	assert.Error(t, l.tls(t, "a.example", other).Handshake())
	two := roots.Clone()
	two.NextProtos = []string{"h2"}
	assert.Error(t, l.tls(t, "a.example", two).Handshake())
	old := roots.Clone()
	old.MaxVersion = tls.VersionTLS11
	assert.Error(t, l.tls(t, "a.example", old).Handshake())
	for name, send := range map[string]string{
		"nothing": "", "no TLS": "\x00\x01\x02", "half a hello": "\x16\x03\x01", "endless head": "GET / HTTP/1.1\r\nX: " + strings.Repeat("x", 2*maxHead), "half a head": "GET / HTTP/1.1\r\n",
	} {
		c := l.connect(t, "a.example:443")
		_, _ = io.WriteString(c, send)
		assert.True(t, ended(c), name)
	}
	l, roots = intercepting(t, nil, nil) // a client under load may need more than 200 ms for its request
	slow := l.tls(t, "a.example", roots)
	require.NoError(t, slow.Handshake())
	_, err := io.WriteString(slow, "POST / HTTP/1.1\r\nHost: a.example\r\nContent-Length: 100000000\r\n\r\n")
	require.NoError(t, err)
	_, err = io.ReadAll(slow)
	assert.NoError(t, err)
	require.Eventually(t, func() bool {
		_, err := slow.NetConn().Write([]byte{0})
		return err != nil
	}, 10*time.Second, 10*time.Millisecond, "the connection is closed")
	for _, e := range l.log() {
		assert.Equal(t, audit.Deny, e.Verdict)
	}
}

// TestDeniedHeads: clients that do not finish long heads cost the proxy little memory.
func TestDeniedHeads(t *testing.T) {
	text := "GET / HTTP/1.1\r\nX: " + strings.Repeat("x", maxHead/2) + "\r\n\r\n"
	from := strings.NewReader("")
	in := bufio.NewReader(from)
	assert.Zero(t, testing.AllocsPerRun(10, func() {
		from.Reset(text)
		in.Reset(from)
		if skipHead(in) != nil {
			panic("the head has an end")
		}
	}))
	for _, cut := range []int{0, 10, len(text) - 1} {
		assert.ErrorIs(t, skipHead(bufio.NewReader(strings.NewReader(text[:cut]))), io.EOF)
	}
	// Not at an empty line within the buffer, but at an empty line.
	assert.ErrorIs(t, skipHead(bufio.NewReaderSize(strings.NewReader(strings.Repeat("x", 16)+"\n"), 16)), io.EOF)
}

// TestDeniedTooOften: a request over a limit gets its refusal inside TLS, too.
func TestDeniedTooOften(t *testing.T) {
	t.Parallel()
	rule, _ := host(t, "good.example", true, hello)
	l, roots := intercepting(t, []network.HostRule{rule}, func(_ *Options, c *Tenant) {
		c.Limit = func() (requests, bytes []scope.Rate) {
			return []scope.Rate{{Pattern: "requests", N: 1, Per: time.Hour}}, nil
		}
	})
	hosts := roots.Clone()
	hosts.RootCAs.AppendCertsFromPEM([]byte(authorityPEM(t)))
	client := l.client(t, hosts)
	status, _ := get(t, client, "https://good.example/")
	assert.Equal(t, http.StatusOK, status)
	client.CloseIdleConnections()
	status, body := get(t, client, "https://good.example/")
	assert.Equal(t, http.StatusTooManyRequests, status)
	assert.Contains(t, body, "network.limit")
}
