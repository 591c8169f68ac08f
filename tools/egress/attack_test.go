package egress

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/internal/need"
	"github.com/scopefs/scopefs/internal/servertest"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/network"
)

// anything allows every name on every port that a test uses.
func anything(port uint16) network.Spec {
	return network.Spec{Allow: []network.HostRule{{Host: "*", Ports: []uint16{80, 443, port}}, {Host: "127.0.0.1", Ports: []uint16{80, 443, port}}}}
}

// TestAttackInside: no spelling of an address of the inside is reached, by no way
// of asking, even where the rules allow every name.
func TestAttackInside(t *testing.T) {
	t.Parallel()
	var reached atomic.Int32
	inside := servertest.Answer(t, func(net.Conn) { reached.Add(1) })
	port := netip.MustParseAddrPort(inside).Port()
	names := map[string]string{
		"loopback.example": "127.0.0.1", "mapped.example": "::ffff:127.0.0.1", "metadata.example": "169.254.169.254", "metadata6.example": "fd00:ec2::254",
		"private.example": "10.0.0.1", "zero.example": "0.0.0.0", "six.example": "::1", "nat64.example": "64:ff9b::7f00:1", "localhost": "127.0.0.1",
		"six-to-four.example": "2002:7f00:1::1", "shared.example": "100.64.0.1", "compatible.example": "::7f00:1", "teredo.example": "2001::7f00:1", "unique.example": "fd12::1",
	}
	l := start(t, anything(port), func(o *Options, _ *Tenant) {
		o.Dialer.Lookup = func(_ context.Context, host string) ([]netip.Addr, error) {
			if ip, ok := names[host]; ok {
				return []netip.Addr{netip.MustParseAddr("1.1.1.1"), netip.MustParseAddr(ip)}, nil
			}
			return nil, &net.DNSError{Name: host, IsNotFound: true}
		}
	})
	hosts := []string{"127.0.0.1", "127.1", "0x7f.1", "0x7f000001", "2130706433", "0177.0.0.1", "017700000001", "[::ffff:127.0.0.1]", "[::1]", "[::]", "0.0.0.0", "0",
		"[::ffff:7f00:1]", "[fe80::1%25lo]", "169.254.169.254", "[fd00:ec2::254]", "10.0.0.1", "127.0.0.1.", "LOCALHOST", "localhost.",
		"127.0.0.1..", "127.0.1", "00127.0.0.1", "127.0.0.0x1", "１２７.0.0.1", "127。0。0。1", "①②⑦.⓪.⓪.①", "ｌｏｃａｌｈｏｓｔ", "[::127.0.0.1]", "[64:ff9b::127.0.0.1]", "[2002:7f00:1::]", "metadata.example."}
	for name := range names {
		hosts = append(hosts, name)
	}
	for _, host := range hosts {
		target := fmt.Sprintf("%s:%d", host, port)
		plain := strings.Trim(host, "[]")
		assert.Contains(t, []int{2, 4}, socks(l.dial(t), plain, port), "SOCKS %s", host)
		for _, request := range []string{"CONNECT " + target + " HTTP/1.1\r\nHost: " + target, "GET http://" + target + "/ HTTP/1.1\r\nHost: " + target} {
			answer := l.raw(t, request+"\r\nConnection: close\r\n\r\n")
			assert.Regexp(t, `^(403 \{"error"|400 )`, answer, request)
		}
	}
	assert.Zero(t, reached.Load())
	for _, e := range l.log() {
		if e.Outcome != audit.OutcomeBegin {
			assert.True(t, denial(e), "%+v", e)
		}
	}
}

// TestAttackRebinding: each connection is dialled at the address that was
// checked for it.
func TestAttackRebinding(t *testing.T) {
	t.Parallel()
	var asked atomic.Int32
	l := start(t, anything(1), func(o *Options, _ *Tenant) {
		o.Dialer.Lookup = func(context.Context, string) ([]netip.Addr, error) {
			if asked.Add(1)%2 == 1 {
				return []netip.Addr{netip.MustParseAddr("192.0.2.1")}, nil // documentation: not public
			}
			return []netip.Addr{netip.MustParseAddr("127.0.0.1")}, nil
		}
	})
	for range 4 {
		assert.Contains(t, l.raw(t, "GET http://rebind.example/ HTTP/1.1\r\nHost: rebind.example\r\n\r\n"), "403")
	}
	assert.EqualValues(t, 4, asked.Load(), "once for each connection")
}

// TestAttackRedirect: a client that follows a redirect to the inside comes back
// to the proxy.
func TestAttackRedirect(t *testing.T) {
	t.Parallel()
	rule, _ := host(t, "good.example", false, func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "http://169.254.169.254/latest/meta-data", http.StatusFound)
	})
	l := start(t, network.Spec{Allow: []network.HostRule{rule}}, nil)
	status, body := get(t, l.client(t, nil), "http://good.example/")
	assert.Equal(t, 403, status)
	assert.JSONEq(t, `{"error":"GET http://169.254.169.254/latest/meta-data is not allowed","rule":"network.allow","hint":"ask your operator"}`, body)
}

// TestAttackSmuggling: what two servers could read differently reaches none.
func TestAttackSmuggling(t *testing.T) {
	t.Parallel()
	var reached atomic.Int32
	rule, _ := host(t, "good.example", false, func(http.ResponseWriter, *http.Request) { reached.Add(1) })
	l := start(t, network.Spec{Allow: []network.HostRule{rule}}, nil)
	for _, text := range []string{
		"POST http://good.example/ HTTP/1.1\r\nHost: good.example\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		"POST http://good.example/ HTTP/1.1\r\nHost: good.example\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\nabcde",
		"POST http://good.example/ HTTP/1.1\r\nHost: good.example\r\nTransfer-Encoding:\x0bchunked\r\n\r\n0\r\n\r\n",
		"GET http://good.example/ HTTP/1.1\r\nHost: evil.example\r\n\r\n",
		"GET http://evil.example/ HTTP/1.1\r\nHost: good.example\r\n\r\n",
		"GET http://good.example@evil.example/ HTTP/1.1\r\nHost: good.example\r\n\r\n",
		"GET http://good.example/a#b HTTP/1.1\r\nHost: good.example\r\n\r\n",
		"GET http://good.example/a?b#c HTTP/1.1\r\nHost: good.example\r\n\r\n",
		"GET http://good.example/a\x01 HTTP/1.1\r\nHost: good.example\r\n\r\n",
		"GET http://good.example/a?\x7f HTTP/1.1\r\nHost: good.example\r\n\r\n",
		"GET http://good.example/a\tb HTTP/1.1\r\nHost: good.example\r\n\r\n",
		"GET http://good.example/100% HTTP/1.1\r\nHost: good.example\r\n\r\n",
		"GET http://good.example//{ HTTP/1.1\r\nHost: good.example\r\n\r\n",
		"GET http://good.example/ HTTP/1.1\r\nHost: good.example\r\nUser-Agent: a\r\nUser-Agent: b\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: good.example\r\n\r\n",
		"GET https://good.example/ HTTP/1.1\r\nHost: good.example\r\n\r\n",
		"CONNECT good.example HTTP/1.1\r\nHost: good.example\r\n\r\n",
		"CONNECT good.example:80 HTTP/1.1\r\nHost: evil.example:80\r\n\r\n",
		"CONNECT 93.184.216.34:443 HTTP/1.1\r\nHost: 93.184.216.34:443\r\n\r\n",
		"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
	} {
		before := len(l.log())
		assert.Regexp(t, `^40[03] `, l.raw(t, text), text)
		assert.NotEmpty(t, l.log()[before:], "refused without a record: %s", text)
	}
	assert.Zero(t, reached.Load())
	for _, e := range l.log() {
		assert.True(t, denial(e), "%+v", e)
	}
}

// TestAttackAfterRefusal: what follows a refused head is read by nobody, however the bytes arrive, and the client has its
// answer at once.
func TestAttackAfterRefusal(t *testing.T) {
	t.Parallel()
	var reached atomic.Int32
	rule, _ := host(t, "good.example", false, func(http.ResponseWriter, *http.Request) { reached.Add(1) })
	l := start(t, network.Spec{Allow: []network.HostRule{rule}}, func(o *Options, _ *Tenant) { o.Limits.Speak = time.Minute })
	for _, bad := range []string{"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n", "Host: evil.example\r\n", "X: y\n", "X y\r\n"} {
		for _, end := range []string{"\r\n", "\r\n\r\n", "Content-Length: 4\r\n\r\nabcd", ""} {
			c := l.dial(t)
			head := "GET http://good.example/ HTTP/1.1\r\nHost: good.example\r\n"
			before := len(l.log())
			for i, part := range []string{head, bad + "\r\n", end} {
				_, _ = io.WriteString(c, part) // the proxy may have ended the connection
				if i == 1 {
					require.Eventually(t, func() bool { return len(l.log()) > before }, 10*time.Second, time.Millisecond, "%q", bad)
				}
				time.Sleep(5 * time.Millisecond) // parts of their own
			}
			require.NoError(t, c.SetReadDeadline(time.Now().Add(20*time.Second)))
			text, _ := io.ReadAll(c)
			assert.Regexp(t, "^HTTP/1.1 400 ", string(text), "%q %q", bad, end)
			assert.Len(t, l.log()[before:], 1, "%q %q", bad, end)
		}
	}
	assert.Zero(t, reached.Load())
}

// TestAttackSecondRequest: framedConn follows the requests of a connection.
func TestAttackSecondRequest(t *testing.T) {
	t.Parallel()
	var reached atomic.Int32
	rule, _ := host(t, "good.example", false, func(w http.ResponseWriter, r *http.Request) { reached.Add(1); hello(w, r) })
	l := start(t, network.Spec{Allow: []network.HostRule{rule}}, nil)
	c := l.dial(t)
	fmt.Fprint(c, "POST http://good.example/1 HTTP/1.1\r\nHost: good.example\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n")
	l.logged(t, func(e audit.Event) bool { return e.Outcome == "end" })
	fmt.Fprint(c, "POST http://good.example/2 HTTP/1.1\r\nHost: evil.example\r\nContent-Length: 0\r\n\r\n")
	text, _ := io.ReadAll(c)
	assert.Contains(t, string(text), "/1 abc")
	assert.NotContains(t, string(text), "/2")
	assert.EqualValues(t, 1, reached.Load())
	l.logged(t, func(e audit.Event) bool { return e.Verdict == audit.Violation })
}

// TestAttackAfterUpgrade: framedConn follows a request that asks for a protocol
// which it does not get. After one for WebSocket it cannot, and no request follows.
func TestAttackAfterUpgrade(t *testing.T) {
	t.Parallel()
	rule, _ := host(t, "good.example", false, hello)
	l := start(t, network.Spec{Allow: []network.HostRule{rule}}, nil)
	for upgrade, want := range map[string]int{"h2c": 2, "": 2, "WebSocket": 1, "h2c, websocket": 1} {
		for _, name := range []string{"good.example", "evil.example"} {
			c := l.dial(t)
			one := fmt.Sprintf("GET http://%[1]s/ HTTP/1.1\r\nHost: %[1]s\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n", name, upgrade)
			fmt.Fprint(c, one, one)
			if want > 1 { // framedConn ends the connection
				l.logged(t, func(e audit.Event) bool { return e.Outcome == "end" || denial(e) })
				fmt.Fprint(c, strings.Replace(one, "Connection", "Content-Length: 1\r\nTransfer-Encoding: chunked\r\nConnection", 1))
			}
			_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
			text, _ := io.ReadAll(c)
			assert.LessOrEqual(t, strings.Count(string(text), "HTTP/1.1 "), want+1, "%s: %s", upgrade, text)
			if want == 1 {
				assert.Equal(t, 1, strings.Count(string(text), "HTTP/1.1 "), "%s: %s", upgrade, text)
			}
		}
	}
	last := l.log()
	assert.NotEmpty(t, last)
	assert.Equal(t, 4, count(last, func(e audit.Event) bool { return e.RuleKind == string(scope.KindProtocol) }))
}

func count(events []audit.Event, is func(audit.Event) bool) (n int) {
	for _, e := range events {
		if is(e) {
			n++
		}
	}
	return n
}

// TestAttackServerName: a tunnel is for its host alone.
func TestAttackServerName(t *testing.T) {
	t.Parallel()
	rule, _ := host(t, "good.example", true, hello)
	l := start(t, network.Spec{Allow: []network.HostRule{rule}}, nil)
	for _, name := range []string{"evil.example", ""} {
		c := tls.Client(l.connect(t, "good.example:443"), &tls.Config{ServerName: name, InsecureSkipVerify: true})
		assert.Error(t, c.Handshake(), name)
	}
	assert.Equal(t, 0, socks(l.dial(t), "good.example", 443))
	c := l.connect(t, "good.example:443")
	fmt.Fprint(c, "SSH-2.0-x\r\n")
	assert.True(t, ended(c), "neither TLS nor HTTP")
	e := l.logged(t, func(e audit.Event) bool { return e.Verdict == audit.Violation })
	assert.Equal(t, string(scope.KindProtocol), e.RuleKind)
}

// TestAttackHostInTunnel: plain HTTP in a tunnel is decided request by request.
func TestAttackHostInTunnel(t *testing.T) {
	t.Parallel()
	rule, _ := host(t, "good.example", false, hello)
	rule.Paths = []string{"/ok"}
	l := start(t, network.Spec{Allow: []network.HostRule{rule}}, nil)
	for path, want := range map[string]string{
		"/ok HTTP/1.1\r\nHost: good.example":                           "200 GET good.example /ok",
		"/ok HTTP/1.1\r\nHost: evil.example":                           "403 ",
		"/no HTTP/1.1\r\nHost: good.example":                           "403 ",
		"http://evil.example/ok HTTP/1.1\r\nHost: evil.example":        "403 ",
		"/ok HTTP/1.1\r\nHost: good.example\r\nUpgrade: h2c":           "200 ",
		"/ok HTTP/1.1\r\nHost: good.example:81":                        "403 ",
		"/../ok HTTP/1.1\r\nHost: good.example\r\nContent-Length: 1\r": "400 ",
	} {
		c := l.connect(t, "good.example:80")
		fmt.Fprintf(c, "GET %s\r\nConnection: close\r\n\r\n", path)
		text, _ := io.ReadAll(c)
		first, rest, _ := strings.Cut(string(text), "\r\n")
		assert.Contains(t, strings.TrimPrefix(first, "HTTP/1.1 ")+rest, want[:4], path)
		assert.Contains(t, rest, want[4:], path)
	}
}

// TestAttackSilence: ten thousand connections that never speak cost a bounded
// number of slots, and are recorded once a minute at most.
func TestAttackSilence(t *testing.T) {
	need.Long(t, "waits for a time limit")
	t.Parallel()
	rule, _ := host(t, "good.example", false, hello)
	l := start(t, network.Spec{Allow: []network.HostRule{rule}}, func(o *Options, _ *Tenant) {
		o.Limits = Limits{Connections: 32, Speak: time.Second}
	})
	var held []net.Conn
	for range 10_000 {
		c, err := net.Dial("tcp", l.addr)
		require.NoError(t, err)
		if held = append(held, c); len(held) > 200 {
			held[0].Close()
			held = held[1:]
		}
	}
	for _, c := range held {
		defer c.Close()
	}
	assert.LessOrEqual(t, len(l.log()), 2)
	for _, c := range held {
		require.True(t, ended(c))
	}
	status, _ := get(t, l.client(t, nil), "http://good.example/")
	assert.Equal(t, 200, status, "the others have their turn")
}

// TestAttackSlow: a head that does not come to its end is not waited for.
func TestAttackSlow(t *testing.T) {
	t.Parallel()
	l := start(t, network.Spec{}, func(o *Options, _ *Tenant) { o.Limits.Speak = 150 * time.Millisecond })
	for _, text := range []string{"", "G", "GET http://a/ HTTP/1.1\r\nHost: a\r\nX: ", "\x05", "\x05\x01\x00\x05\x01"} {
		c := l.dial(t)
		_, err := io.WriteString(c, text)
		require.NoError(t, err)
		stop := make(chan struct{})
		go func() { // a byte now and then
			for text != "" && text[0] == 'G' {
				select {
				case <-stop:
					return
				case <-time.After(50 * time.Millisecond):
					_, _ = c.Write([]byte("x"))
				}
			}
		}()
		_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
		_, err = io.ReadAll(c)
		close(stop)
		var timeout net.Error
		assert.False(t, err != nil && assert.ErrorAs(t, err, &timeout) && timeout.Timeout(), "%q", text)
	}
}

func TestAttackHead(t *testing.T) {
	t.Parallel()
	rule, _ := host(t, "good.example", false, hello)
	l := start(t, network.Spec{Allow: []network.HostRule{rule}}, nil)
	c := l.dial(t)
	_, _ = fmt.Fprintf(c, "GET http://good.example/ HTTP/1.1\r\nHost: good.example\r\nX: %s\r\n\r\n", strings.Repeat("x", 64<<10))
	head := make([]byte, 12)
	_, _ = io.ReadFull(c, head)
	assert.Equal(t, "HTTP/1.1 431", string(head))
}

// TestAttackLongHeads: long heads that do not end take few slots, and give them
// back.
func TestAttackLongHeads(t *testing.T) {
	t.Parallel()
	rule, _ := host(t, "good.example", false, hello)
	l := start(t, network.Spec{Allow: []network.HostRule{rule}}, nil)
	long := "GET http://good.example/ HTTP/1.1\r\nHost: good.example\r\nX: " + strings.Repeat("x", 2*shortHead)
	var held []net.Conn
	for range maxLong + 8 {
		c := l.dial(t)
		fmt.Fprint(c, long)
		held = append(held, c)
	}
	require.Eventually(t, func() bool { return count(l.log(), denial) == 8 }, 10*time.Second, time.Millisecond)
	for _, c := range held {
		c.Close()
	}
	assert.Eventually(t, func() bool {
		return strings.HasPrefix(l.raw(t, long+"\r\nConnection: close\r\n\r\n"), "200")
	}, 10*time.Second, 10*time.Millisecond)
}

// TestAttackEndlessBody: a body without an end is passed on and held nowhere.
func TestAttackEndlessBody(t *testing.T) {
	t.Parallel()
	var got atomic.Int64
	rule, _ := host(t, "good.example", false, func(_ http.ResponseWriter, r *http.Request) {
		for buf := make([]byte, 32<<10); got.Load() < 64<<20; {
			n, err := r.Body.Read(buf)
			if got.Add(int64(n)); err != nil {
				return
			}
		}
	})
	l := start(t, network.Spec{Allow: []network.HostRule{rule}}, nil)
	c := l.dial(t)
	fmt.Fprint(c, "POST http://good.example/ HTTP/1.1\r\nHost: good.example\r\nTransfer-Encoding: chunked\r\n\r\n")
	chunk := append(fmt.Appendf(nil, "%x\r\n", 1<<20), make([]byte, 1<<20)...)
	for chunk = append(chunk, "\r\n"...); ; {
		_ = c.SetWriteDeadline(time.Now().Add(5 * time.Second))
		if _, err := c.Write(chunk); err != nil {
			break
		}
	}
	assert.GreaterOrEqual(t, got.Load(), int64(64<<20))
	e := l.logged(t, func(e audit.Event) bool { return e.Outcome == "end" || e.Outcome == "failed" })
	assert.GreaterOrEqual(t, e.Sent, int64(60<<20))
}
