package egress

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/internal/need"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/network"
)

// TestTunnel: TLS passes unchanged, by CONNECT and by SOCKS, and is recorded.
func TestTunnel(t *testing.T) {
	t.Parallel()
	rule, server := host(t, "good.example", true, hello)
	l := start(t, network.Spec{Allow: []network.HostRule{rule}}, nil)
	client := l.client(t, &tls.Config{RootCAs: authorityPool()})
	_, body := get(t, client, "https://good.example/x?y=1")
	assert.Equal(t, "GET good.example /x?y=1 ", body)
	client.CloseIdleConnections()

	c := l.dial(t)
	require.Equal(t, 0, socks(c, "GOOD.example.", 443))
	secure := tls.Client(c, &tls.Config{RootCAs: authorityPool(), ServerName: "good.example"})
	require.NoError(t, secure.Handshake())
	assert.Equal(t, server.Certificate().Raw, secure.ConnectionState().PeerCertificates[0].Raw)
	fmt.Fprint(secure, "GET / HTTP/1.1\r\nHost: good.example\r\nConnection: close\r\n\r\n")
	text, _ := io.ReadAll(secure)
	assert.Contains(t, string(text), "GET good.example / ")

	e := l.logged(t, func(e audit.Event) bool { return e.Outcome == "end" })
	assert.Equal(t, audit.Event{Event: audit.KindNetwork, Agent: "a", Session: "s", Op: "connect", Target: "good.example:443", Verdict: audit.Allow,
		Rule: "network.allow: good.example", RuleKind: string(scope.KindHost), Outcome: "end", Detail: "at " + rule.Address.String(),
		Bytes: e.Bytes, Sent: e.Sent, DurationUS: e.DurationUS}, e)
	assert.Positive(t, e.Bytes)
	assert.Positive(t, e.Sent)
}

// TestOtherPorts: a host that speaks first is heard, and one end may end first.
func TestOtherPorts(t *testing.T) {
	t.Parallel()
	server, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer server.Close()
	go func() {
		c, err := server.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		fmt.Fprint(c, "220 ready\n")
		text, _ := io.ReadAll(c)
		fmt.Fprintf(c, "got %s", text)
	}()
	l := start(t, network.Spec{Allow: []network.HostRule{{Host: "mail.example", Ports: []uint16{25}, Address: netip.MustParseAddrPort(server.Addr().String())}}}, nil)
	c := l.connect(t, "mail.example:25")
	line := make([]byte, len("220 ready\n"))
	_, err = io.ReadFull(c, line)
	require.NoError(t, err)
	fmt.Fprint(c, "hello")
	require.NoError(t, c.CloseWrite())
	text, _ := io.ReadAll(c)
	assert.Equal(t, "got hello", string(text))
}

func TestPlainHTTP(t *testing.T) {
	t.Parallel()
	rule, _ := host(t, "good.example", false, hello)
	rule.Ports = []uint16{8080}
	l := start(t, network.Spec{Allow: []network.HostRule{rule}}, nil)
	_, body := get(t, l.client(t, nil), "http://good.example:8080/a%2fb?token=x")
	assert.Equal(t, "GET good.example:8080 /a%2fb?token=x ", body)
	e := l.logged(t, func(e audit.Event) bool { return e.Outcome == "end" })
	assert.Equal(t, "GET http://good.example:8080/a%2fb", e.Target, "the query is not recorded")
	assert.Equal(t, 200, e.Status)
	assert.EqualValues(t, len(body), e.Bytes)
}

// TestDenied: a host without a rule is refused at once, with what to do.
func TestDenied(t *testing.T) {
	t.Parallel()
	l := start(t, network.Spec{}, nil)
	want := `403 {"error":"%s is not allowed","rule":"network.allow","hint":"ask your operator"}` + "\n"
	assert.Equal(t, fmt.Sprintf(want, "a.example:443"), l.raw(t, "CONNECT a.example:443 HTTP/1.1\r\nHost: a.example:443\r\n\r\n"))
	assert.Equal(t, fmt.Sprintf(want, "GET http://a.example/"), l.raw(t, "GET http://a.example/ HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n\r\n"))
	assert.Equal(t, 2, socks(l.dial(t), "a.example", 443))
	c := l.dial(t)
	fmt.Fprint(c, "CONNECT a.example:443 HTTP/1.1\r\nHost: a.example:443\r\n\r\n")
	text, _ := io.ReadAll(c)
	status, _, _ := strings.Cut(string(text), "\r\n")
	assert.Equal(t, "HTTP/1.1 403 a.example:443 is not allowed: ask your operator", status)
	for _, e := range l.log() {
		assert.Equal(t, audit.Deny, e.Verdict)
		assert.Equal(t, string(scope.KindHost), e.RuleKind)
	}
	assert.Len(t, l.log(), 4)
}

// TestUnrecorded: what cannot be recorded is not done.
func TestUnrecorded(t *testing.T) {
	t.Parallel()
	reached := false
	rule, _ := host(t, "good.example", false, func(http.ResponseWriter, *http.Request) { reached = true })
	l := start(t, network.Spec{Allow: []network.HostRule{rule}}, nil)
	l.mu.Lock()
	l.refuse = errors.New("disk full")
	l.mu.Unlock()
	status, _ := get(t, l.client(t, nil), "http://good.example/")
	assert.Equal(t, 503, status)
	assert.Contains(t, l.raw(t, "CONNECT good.example:80 HTTP/1.1\r\nHost: good.example:80\r\n\r\n"), "503")
	assert.False(t, reached)
}

func TestUnreachable(t *testing.T) {
	t.Parallel()
	gone, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	gone.Close()
	l := start(t, network.Spec{Allow: []network.HostRule{{Host: "gone.example", Address: netip.MustParseAddrPort(gone.Addr().String())}, {Host: "unknown.example"}}}, nil)
	assert.Contains(t, l.raw(t, "CONNECT gone.example:443 HTTP/1.1\r\nHost: gone.example:443\r\n\r\n"), "502 {\"error\":\"gone.example cannot be reached\"}")
	assert.Contains(t, l.raw(t, "CONNECT unknown.example:443 HTTP/1.1\r\nHost: unknown.example:443\r\n\r\n"), "unknown.example cannot be resolved")
	assert.Equal(t, 4, socks(l.dial(t), "gone.example", 443))
}

// TestApprove: the operator decides about hosts without a rule; what the rules
// deny meanwhile stays denied.
func TestApprove(t *testing.T) {
	t.Parallel()
	rule, _ := host(t, "good.example", false, hello)
	var l *lab
	l = start(t, network.Spec{Others: true, Ask: []network.HostRule{rule}}, func(_ *Options, c *Tenant) {
		c.Approve = func(_ context.Context, q Question) (Answer, error) {
			if q.Path == "/late" {
				l.set(t, network.Spec{Deny: []network.HostRule{{Host: "good.example"}}})
			}
			return Answer{ID: "x7", Granted: q.Host == "good.example", Denied: q.Host == "denied.example"}, nil
		}
	})
	status, _ := get(t, l.client(t, nil), "http://good.example/")
	assert.Equal(t, 200, status)
	status, body := get(t, l.client(t, nil), "http://other.example/")
	assert.Equal(t, 403, status)
	assert.JSONEq(t, `{"error":"GET http://other.example/ waits for the operator","rule":"network.ask: true",
		"hint":"call again when your operator has decided about approval x7","approval_id":"x7"}`, body)
	status, body = get(t, l.client(t, nil), "http://denied.example/")
	assert.Equal(t, 403, status)
	assert.Contains(t, body, `{"error":"the operator has denied GET http://denied.example/"`)
	_, err := l.client(t, &tls.Config{}).Get("https://other.example/")
	assert.ErrorContains(t, err, "when your operator has decided about approval x7")
	status, _ = get(t, l.client(t, nil), "http://good.example/late")
	assert.Equal(t, 403, status)
}

// TestRecheck: an open tunnel, and a response under way, end with their rule.
func TestRecheck(t *testing.T) {
	t.Parallel()
	open := make(chan struct{})
	rule, _ := host(t, "good.example", false, func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(200)
		_ = http.NewResponseController(w).Flush()
		close(open)
		<-r.Context().Done()
	})
	other := rule
	other.Host, other.Ports = "raw.example", []uint16{25}
	l := start(t, network.Spec{Allow: []network.HostRule{rule, other}}, nil)
	tunnel := l.connect(t, "raw.example:25")
	res, err := l.client(t, nil).Get("http://good.example/")
	require.NoError(t, err)
	defer res.Body.Close()
	<-open
	l.Recheck()
	require.NoError(t, tunnel.SetReadDeadline(time.Now().Add(50*time.Millisecond)))
	_, err = tunnel.Read(make([]byte, 1))
	var timeout net.Error
	require.ErrorAs(t, err, &timeout, "what is still allowed stays")

	l.set(t, network.Spec{})
	l.Recheck()
	assert.True(t, ended(tunnel))
	_, err = io.ReadAll(res.Body)
	assert.Error(t, err)
}

func TestIdle(t *testing.T) {
	need.Long(t, "waits for a time limit")
	t.Parallel()
	server, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer server.Close()
	l := start(t, network.Spec{Allow: []network.HostRule{{Host: "a.example", Ports: []uint16{25}, Address: netip.MustParseAddrPort(server.Addr().String())}}},
		func(o *Options, _ *Tenant) { o.Limits.Idle = 3 * time.Second })
	c := l.connect(t, "a.example:25")
	began := time.Now()
	for range 12 { // one direction that moves keeps both
		time.Sleep(300 * time.Millisecond)
		_, err := c.Write([]byte("x"))
		require.NoError(t, err)
	}
	require.Greater(t, time.Since(began), 3200*time.Millisecond)
	assert.True(t, ended(c))
}

// TestIdleTunnels: 300 idle tunnels take less than 40 KiB each, their clients'
// and hosts' ends in this process included.
func TestIdleTunnels(t *testing.T) {
	server, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer server.Close()
	l := start(t, network.Spec{Allow: []network.HostRule{{Host: "a.example", Ports: []uint16{25}, Address: netip.MustParseAddrPort(server.Addr().String())}}}, nil)
	const tunnels = 300
	used := func() int64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapInuse + m.StackInuse)
	}
	before := used()
	for range tunnels {
		c := l.connect(t, "a.example:25")
		_, err := c.Write([]byte("1"))
		require.NoError(t, err)
		up, err := server.Accept()
		require.NoError(t, err)
		defer up.Close()
		_, err = up.Read(make([]byte, 1))
		require.NoError(t, err)
	}
	each := (used() - before) / tunnels
	t.Logf("%d bytes for each idle tunnel", each)
	assert.Less(t, each, int64(40<<10))
}

// TestServeEnds: what is under way ends with Serve, and is recorded.
func TestServeEnds(t *testing.T) {
	t.Parallel()
	var asks atomic.Int32
	open := make(chan struct{})
	rule, _ := host(t, "good.example", false, func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).Flush()
		close(open)
		<-r.Context().Done()
	})
	l := &lab{}
	l.set(t, network.Spec{Allow: []network.HostRule{rule, {Host: "raw.example", Ports: []uint16{25}, Address: rule.Address}}, Others: true})
	l.ask(t, Options{}, Tenant{
		Rules: func() Rules { return l.rules },
		Approve: func(ctx context.Context, _ Question) (Answer, error) {
			asks.Add(1)
			<-ctx.Done()
			return Answer{}, ctx.Err()
		},
		Record: func(_ context.Context, e audit.Event) error {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.events = append(l.events, e)
			return nil
		},
	})
	end := l.serve(t)
	tunnel := l.connect(t, "raw.example:25")
	fmt.Fprint(l.dial(t), "CONNECT ask.example:443 HTTP/1.1\r\nHost: ask.example:443\r\n\r\n")
	fmt.Fprint(l.dial(t), "GET http://ask.example/ HTTP/1.1\r\nHost: ask.example\r\n\r\n")
	silent := l.dial(t)
	res, err := l.client(t, nil).Get("http://good.example/")
	require.NoError(t, err)
	defer res.Body.Close()
	<-open
	require.Eventually(t, func() bool { return asks.Load() == 2 }, 10*time.Second, time.Millisecond)
	end()
	assert.True(t, ended(tunnel))
	assert.True(t, ended(silent))
	l.logged(t, func(e audit.Event) bool {
		return e.Op == "connect" && e.Outcome == "end" && e.Target == "raw.example:25"
	})
	l.logged(t, func(e audit.Event) bool { return e.Op == "request" && e.Outcome == "failed" })
}
