package egress

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/internal/servertest"
	"github.com/scopefs/scopefs/scope/network"
)

// company is a proxy that knows names, and leads each to an address. It notes what it is asked for.
type company struct {
	at    string
	names map[string]string
	say   string // to CONNECT, in place of a connection

	mu    sync.Mutex
	asked []string
}

func newCompany(t *testing.T, names map[string]string) *company {
	p := &company{names: names}
	p.at = servertest.Answer(t, func(c net.Conn) {
		r := bufio.NewReader(c)
		req, err := http.ReadRequest(r)
		if err != nil {
			return
		}
		p.mu.Lock()
		p.asked = append(p.asked, req.Method+" "+req.RequestURI)
		to, say := p.names[req.Host], p.say
		p.mu.Unlock()
		if say != "" || to == "" {
			fmt.Fprintf(c, "%sContent-Length: 0\r\n\r\n", strings.TrimSuffix(say, "-")+map[bool]string{true: "HTTP/1.1 502 Bad Gateway\r\n"}[say == ""])
			return
		}
		up, err := net.Dial("tcp", to)
		if err != nil {
			return
		}
		defer up.Close()
		if req.Method == http.MethodConnect {
			fmt.Fprint(c, "HTTP/1.1 200 OK\r\nVia: company\r\n\r\n")
		} else {
			req.Close = true
			_ = req.Write(up)
		}
		go func() { _, _ = io.Copy(up, r); _ = up.(*net.TCPConn).CloseWrite() }()
		_, _ = io.Copy(c, up)
	})
	return p
}

func (p *company) seen() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := p.asked
	p.asked = nil
	return all
}

// TestUpstream: connections go out by the company's proxy: tunnels and decided requests by CONNECT, plain HTTP with an absolute
// URL. What a rule gives an address goes there directly. The record names the proxy.
func TestUpstream(t *testing.T) {
	t.Parallel()
	tunnel, _ := host(t, "tunnel.example", true, hello)
	decided, _ := host(t, "decided.example", true, hello)
	plain, _ := host(t, "plain.example", false, hello)
	local, _ := host(t, "local.example", true, hello)
	speaks, _ := host(t, "speaks.example", false, nil)
	speaks.Address = netip.MustParseAddrPort(servertest.Answer(t, func(c net.Conn) { fmt.Fprint(c, "SSH-2.0-x\r\n"); _, _ = io.Copy(io.Discard, c) }))
	p := newCompany(t, map[string]string{
		"tunnel.example:443": tunnel.Address.String(), "decided.example:443": decided.Address.String(), "plain.example": plain.Address.String(),
		"speaks.example:22": speaks.Address.String(),
	})
	for _, r := range []*network.HostRule{&tunnel, &decided, &plain, &speaks} {
		r.Address = netip.AddrPort{}
	}
	tunnel.CA, decided.Paths, decided.CA, speaks.Ports, speaks.CA = "", []string{"/**"}, "", []uint16{22}, ""
	local.Intercept = true
	l, roots := intercepting(t, []network.HostRule{tunnel, decided, plain, local, speaks}, func(o *Options, _ *Tenant) {
		o.Dialer.Upstream, o.Roots = &Upstream{Address: p.at}, authorityPool()
	})
	client := l.client(t, roots)
	_, body := get(t, client, "https://decided.example/a{b?c")
	assert.Equal(t, "GET decided.example /a%7Bb?c ", body)
	assert.Equal(t, []string{"CONNECT decided.example:443"}, p.seen())
	_, body = get(t, client, "http://plain.example//x?y")
	assert.Equal(t, "GET plain.example //x?y ", body)
	assert.Equal(t, []string{"GET http://plain.example//x?y"}, p.seen())
	c := l.connect(t, "plain.example:80")
	fmt.Fprint(c, "GET /z HTTP/1.1\r\nHost: plain.example\r\nConnection: close\r\n\r\n")
	text, _ := io.ReadAll(c)
	assert.Contains(t, string(text), "GET plain.example /z ")
	assert.Equal(t, []string{"GET http://plain.example/z"}, p.seen())
	_, body = get(t, l.client(t, &tls.Config{RootCAs: authorityPool()}), "https://tunnel.example/")
	assert.Equal(t, "GET tunnel.example / ", body)
	assert.Equal(t, []string{"CONNECT tunnel.example:443"}, p.seen())
	_, body = get(t, client, "https://local.example/")
	assert.Equal(t, "GET local.example / ", body)
	assert.Empty(t, p.seen())
	ssh := l.connect(t, "speaks.example:22")
	line, err := bufio.NewReader(ssh).ReadString('\n')
	require.NoError(t, err)
	assert.Equal(t, "SSH-2.0-x\r\n", line, "a host that speaks first")
	ssh.Close()

	client.CloseIdleConnections()
	for _, target := range []string{"GET https://decided.example/a%7Bb", "GET http://plain.example//x", "speaks.example:22"} {
		e := l.logged(t, func(e audit.Event) bool { return e.Target == target && e.Outcome == "end" })
		assert.Equal(t, "at "+p.at+", for network.upstream", e.Detail, target)
	}
}

// TestUpstreamRefuses: why the proxy makes no connection is said, and its answer is the client's in no case.
func TestUpstreamRefuses(t *testing.T) {
	t.Parallel()
	p := newCompany(t, nil)
	l := start(t, network.Spec{Allow: []network.HostRule{{Host: "good.example", Ports: []uint16{80, 8443}}}}, func(o *Options, _ *Tenant) {
		o.Dialer.Upstream = &Upstream{Address: p.at}
	})
	for say, want := range map[string]string{
		"": "answers 502 Bad Gateway", "HTTP/1.1 407 x\r\nProxy-Authenticate: Basic\r\n": "wants a login (status 407)",
		"HTTP/1.1 403 no\r\n": "answers 403 Forbidden", "nonsense\r\n": "gives an answer that cannot be read", "HTTP/1.1 200 " + strings.Repeat("x", 80<<10) + "\r\n": "breaks off",
	} {
		p.mu.Lock()
		p.say = say
		p.mu.Unlock()
		answer := l.raw(t, "CONNECT good.example:8443 HTTP/1.1\r\nHost: good.example:8443\r\n\r\n")
		assert.Contains(t, answer, "502 ", say)
		assert.Contains(t, answer, "good.example is not reached: the proxy of network.upstream "+want, say)
		if strings.Contains(say, "407") {
			answer = l.raw(t, "GET http://good.example/ HTTP/1.1\r\nHost: good.example\r\nConnection: close\r\n\r\n")
			assert.Contains(t, answer, "502 ", "plain HTTP")
			assert.Contains(t, answer, want)
		}
	}
}

// TestAttackUpstream: the company's proxy is no way to the host's loopback, to private addresses and to itself, even where the
// rules allow every name: it is asked for nothing.
func TestAttackUpstream(t *testing.T) {
	t.Parallel()
	names := map[string]string{
		"loopback.example": "127.0.0.1", "mapped.example": "::ffff:127.0.0.1", "private.example": "10.0.0.1", "metadata.google.internal": "169.254.169.254", "six.example": "::1",
	}
	p := newCompany(t, nil)
	_, port, err := net.SplitHostPort(p.at)
	require.NoError(t, err)
	up := &Upstream{Address: "proxy.corp.example:" + port}
	rules := anything(8443)
	rules.Allow = append(rules.Allow, network.HostRule{Host: "93.184.216.34"}, network.HostRule{Host: "::1"})
	l := start(t, rules, func(o *Options, _ *Tenant) {
		o.Dialer.Upstream = up
		o.Dialer.Lookup = func(_ context.Context, host string) ([]netip.Addr, error) {
			if ip, ok := names[host]; ok {
				return []netip.Addr{netip.MustParseAddr(ip)}, nil
			}
			return nil, &net.DNSError{Name: host, IsNotFound: true}
		}
	})
	hosts := []string{
		"127.0.0.1", "127.1", "0x7f000001", "2130706433", "017700000001", "[::1]", "[::ffff:127.0.0.1]", "0.0.0.0", "0", "10.0.0.1", "169.254.169.254", "93.184.216.34",
		"127.0.0.1.", "①②⑦.⓪.⓪.①", "localhost", "LOCALHOST.", "a.localhost", "ｌｏｃａｌｈｏｓｔ", "proxy.corp.example", "PROXY.corp.example.",
	}
	for name := range names {
		hosts = append(hosts, name)
	}
	for _, name := range hosts {
		for _, target := range []string{name + ":443", name + ":8443", name + ":80"} {
			for _, request := range []string{"CONNECT " + target + " HTTP/1.1\r\nHost: " + target, "GET http://" + target + "/ HTTP/1.1\r\nHost: " + target} {
				request += "\r\nConnection: close\r\n\r\n"
				assert.Regexp(t, `^(403 \{"error"|400 )`, l.raw(t, request), request)
			}
		}
		assert.NotEqual(t, 0, socks(l.dial(t), strings.Trim(name, "[]"), 8443), name)
	}
	assert.Empty(t, p.seen())
	for _, e := range l.log() {
		assert.NotEqual(t, "end", e.Outcome, "%+v", e)
	}
}

// TestUpstreamSilentNames: a name for which no resolver answers delays its first connection. It is no way to another name, which
// leads to a private address.
func TestUpstreamSilentNames(t *testing.T) {
	t.Parallel()
	asked := 0
	d := &Dialer{Lookup: func(ctx context.Context, host string) ([]netip.Addr, error) {
		asked++
		if host == "private.example" {
			return []netip.Addr{netip.MustParseAddr("10.0.0.1")}, nil
		}
		<-ctx.Done()
		return nil, ctx.Err()
	}}
	u := &Upstream{Address: "proxy.example:3128"}
	for range 3 {
		assert.NoError(t, u.check(t.Context(), d, "silent.example"))
	}
	assert.Equal(t, 1, asked)
	assert.ErrorIs(t, u.check(t.Context(), d, "private.example"), ErrAddress)
	for i := range 2 * maxSilent {
		u.leaveAlone(fmt.Sprint(i))
	}
	assert.LessOrEqual(t, len(u.silent), maxSilent)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	assert.NoError(t, u.check(ended, d, "good.example"))
	assert.False(t, u.isSilent("good.example"), "the client has gone: the resolver is not to blame")
}
