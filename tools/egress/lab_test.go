package egress

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/scope/network"
)

// lab is a proxy with its log. The proxy asks a Monitor, as in a process of its own; the messages are those of that process.
type lab struct {
	*Remote
	monitor *Monitor
	addr    string

	mu     sync.Mutex
	rules  Rules
	events []audit.Event
	refuse error // of Record
}

// start serves a proxy on loopback for rules, until the test ends.
func start(t testing.TB, spec network.Spec, change func(*Options, *Tenant)) *lab {
	t.Helper()
	l := &lab{}
	l.set(t, spec)
	o := Options{Dialer: Dialer{Lookup: func(_ context.Context, host string) ([]netip.Addr, error) {
		return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
	}}}
	client := Tenant{
		Agent: "a", Session: "s",
		Rules: func() Rules { l.mu.Lock(); defer l.mu.Unlock(); return l.rules },
		Record: func(_ context.Context, e audit.Event) error {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.events = append(l.events, e)
			return l.refuse
		},
	}
	if change != nil {
		change(&o, &client)
	}
	l.ask(t, o, client)
	t.Cleanup(l.serve(t))
	return l
}

// ask makes the proxy, and its Monitor.
func (l *lab) ask(t testing.TB, o Options, tenant Tenant, ports ...Port) {
	l.monitor = NewMonitor(o, tenant, func(id uint64) { go l.Stop(id) }, ports...)
	remote, err := NewRemote(o, l.call, o.CA != nil)
	require.NoError(t, err)
	l.Remote = remote
	l.Update(l.monitor.Credentials(), l.monitor.Limited())
}

// call is a Call that the Monitor answers in this process.
func (l *lab) call(ctx context.Context, q Request, give syscall.Conn) (r Reply, file *os.File, err error) {
	var given net.Conn
	if give != nil {
		given = give.(net.Conn)
	}
	answer, made, err := l.monitor.Answer(ctx, again(q), given)
	if made != nil {
		defer made.Close()
		file, _ = made.(*net.TCPConn).File()
	}
	return again(answer), file, err
}

// again returns a message as the other end reads it.
func again[T any](message T) (read T) {
	text, err := json.Marshal(message)
	if err == nil {
		err = json.Unmarshal(text, &read)
	}
	if err != nil {
		panic(err)
	}
	return read
}

// Recheck is what a change of the rules does.
func (l *lab) Recheck() {
	l.monitor.Recheck()
	l.Update(l.monitor.Credentials(), l.monitor.Limited())
}

// serve serves the proxy on loopback. end cancels the service and waits for its end.
func (l *lab) serve(t testing.TB) (end func()) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	l.addr = listener.Addr().String()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- l.Serve(ctx, listener) }()
	return func() {
		cancel()
		select {
		case err := <-done:
			assert.NoError(t, err)
		case <-time.After(10 * time.Second):
			t.Error("the proxy does not end")
		}
	}
}

func (l *lab) set(t testing.TB, spec network.Spec) {
	n, err := network.Compile(spec)
	require.NoError(t, err)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.rules = n
}

// log returns the events so far.
func (l *lab) log() []audit.Event {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]audit.Event(nil), l.events...)
}

// logged waits for an event.
func (l *lab) logged(t testing.TB, is func(audit.Event) bool) (found audit.Event) {
	t.Helper()
	require.Eventually(t, func() bool {
		for _, e := range l.log() {
			if is(e) {
				found = e
				return true
			}
		}
		return false
	}, 10*time.Second, time.Millisecond)
	return found
}

// client returns a client that goes through the proxy.
func (l *lab) client(t testing.TB, roots *tls.Config) *http.Client {
	transport := &http.Transport{Proxy: http.ProxyURL(&url.URL{Scheme: "http", Host: l.addr}), TLSClientConfig: roots.Clone(), ForceAttemptHTTP2: roots != nil}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: 20 * time.Second}
}

// raw sends text to the proxy and returns what it says until it is quiet, or ends.
func (l *lab) raw(t testing.TB, text string) string {
	t.Helper()
	c := l.dial(t)
	_, _ = io.WriteString(c, text) // the proxy may close first
	require.NoError(t, c.SetReadDeadline(time.Now().Add(20*time.Second)))
	r := bufio.NewReader(c)
	res, err := http.ReadResponse(r, nil)
	if err != nil {
		return ""
	}
	body, _ := io.ReadAll(res.Body)
	return fmt.Sprint(res.StatusCode, " ", string(body))
}

func (l *lab) dial(t testing.TB) *net.TCPConn {
	t.Helper()
	c, err := net.Dial("tcp", l.addr)
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	return c.(*net.TCPConn)
}

// connect opens a tunnel.
func (l *lab) connect(t testing.TB, target string) *net.TCPConn {
	t.Helper()
	c := l.dial(t)
	fmt.Fprintf(c, "CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n", target, target)
	status := make([]byte, len("HTTP/1.1 200 Connection established\r\n\r\n"))
	_, err := io.ReadFull(c, status)
	require.NoError(t, err)
	require.Contains(t, string(status), " 200 ", target)
	return c
}

// socks asks for a host by SOCKS5 and returns the reply, or -1.
func socks(c net.Conn, host string, port uint16) int {
	request := []byte{5, 1, 0, 5, 1, 0}
	if ip, err := netip.ParseAddr(host); err == nil {
		request = append(append(request, map[bool]byte{true: 1, false: 4}[ip.Is4()]), ip.AsSlice()...)
	} else {
		request = append(append(request, 3, byte(len(host))), host...)
	}
	_, _ = c.Write(append(request, byte(port>>8), byte(port)))
	var answer [12]byte
	if _, err := io.ReadFull(c, answer[:]); err != nil {
		return -1
	}
	return int(answer[3])
}

// host starts a server on loopback, and returns a rule that pins the name to it.
func host(t testing.TB, name string, secure bool, handler http.HandlerFunc) (network.HostRule, *httptest.Server) {
	server := httptest.NewUnstartedServer(handler)
	server.Config.ErrorLog = discard
	server.EnableHTTP2 = true
	if secure {
		server.TLS = &tls.Config{Certificates: []tls.Certificate{certificate(t, name, time.Hour)}}
		server.StartTLS()
	} else {
		server.Start()
	}
	t.Cleanup(server.Close)
	return network.HostRule{Host: name, Address: netip.MustParseAddrPort(server.Listener.Addr().String()), CA: authorityPEM(t)}, server
}

func hello(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	fmt.Fprintf(w, "%s %s %s %s", r.Method, r.Host, r.RequestURI, body)
}

func get(t testing.TB, c *http.Client, url string) (int, string) {
	t.Helper()
	res, err := c.Get(url)
	require.NoError(t, err)
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	return res.StatusCode, string(body)
}

func denial(e audit.Event) bool { return e.Verdict == audit.Deny || e.Verdict == audit.Violation }

// ended reports whether the peer ends a connection.
func ended(c net.Conn) bool {
	_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
	_, err := c.Read(make([]byte, 1))
	var timeout net.Error
	return err != nil && (!errors.As(err, &timeout) || !timeout.Timeout())
}
