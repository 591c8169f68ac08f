package egress

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/scope/network"
)

// intercepting starts a proxy with a CA, and returns what a client in the sandbox
// trusts.
func intercepting(t testing.TB, rules []network.HostRule, change func(*Options, *Tenant)) (*lab, *tls.Config) {
	ca, err := OpenCA(t.TempDir())
	require.NoError(t, err)
	roots := x509.NewCertPool()
	require.True(t, roots.AppendCertsFromPEM(ca.PEM()))
	l := start(t, network.Spec{Allow: rules}, func(o *Options, c *Tenant) {
		o.CA = ca
		if change != nil {
			change(o, c)
		}
	})
	return l, &tls.Config{RootCAs: roots}
}

// tls connects to a host through the proxy.
func (l *lab) tls(t testing.TB, name string, conf *tls.Config) *tls.Conn {
	conf = conf.Clone()
	if conf.ServerName == "" {
		conf.ServerName = name
	}
	return tls.Client(l.connect(t, name+":443"), conf)
}

func TestIntercept(t *testing.T) {
	t.Parallel()
	rule, _ := host(t, "good.example", true, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Proto", r.Proto)
		hello(w, r)
	})
	rule.Paths, rule.Methods = []string{"/ok/**"}, []string{"GET", "POST"}
	l, roots := intercepting(t, []network.HostRule{rule}, nil)
	for _, proto := range []string{"h2", "http/1.1"} {
		conf := roots.Clone()
		conf.NextProtos = []string{proto}
		l.Recheck() // for another connection to the host
		client := l.client(t, conf)
		client.Transport.(*http.Transport).ForceAttemptHTTP2 = proto == "h2"
		res, err := client.Post("https://good.example/ok/x?q=1", "text/plain", strings.NewReader("body"))
		require.NoError(t, err)
		body, _ := io.ReadAll(res.Body)
		res.Body.Close()
		assert.Equal(t, "POST good.example /ok/x?q=1 body", string(body))
		assert.Equal(t, map[string]int{"h2": 2, "http/1.1": 1}[proto], res.ProtoMajor)
		assert.Equal(t, map[string]string{"h2": "HTTP/2.0", "http/1.1": "HTTP/1.1"}[proto], res.Header.Get("X-Proto"))
		status, text := get(t, client, "https://good.example/no")
		assert.Equal(t, 403, status)
		assert.JSONEq(t, `{"error":"GET https://good.example/no is not allowed","rule":"network.allow: good.example GET,POST /ok/**","hint":"ask your operator"}`, text)
	}
	e := l.logged(t, func(e audit.Event) bool { return e.Op == "request" && e.Outcome == "end" })
	assert.Equal(t, "POST https://good.example/ok/x", e.Target)
	assert.Equal(t, 200, e.Status)
	assert.EqualValues(t, 4, e.Sent)
}

// TestInterceptStreams: what a host has written is there before it writes more,
// both ways.
func TestInterceptStreams(t *testing.T) {
	t.Parallel()
	rule, _ := host(t, "good.example", true, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		control := http.NewResponseController(w)
		_ = control.EnableFullDuplex()
		for line, buf := 0, make([]byte, 100); line < 3; line++ {
			n, err := r.Body.Read(buf)
			if err != nil {
				return
			}
			fmt.Fprintf(w, "data: %s\n\n", buf[:n])
			_ = control.Flush()
		}
	})
	rule.Intercept = true
	l, roots := intercepting(t, []network.HostRule{rule}, nil)
	for _, proto := range []string{"h2", "http/1.1"} {
		conf := roots.Clone()
		conf.NextProtos = []string{proto}
		client := l.client(t, conf)
		client.Transport.(*http.Transport).ForceAttemptHTTP2 = proto == "h2"
		out, in := io.Pipe()
		go fmt.Fprint(in, "0")
		res, err := client.Post("https://good.example/", "text/plain", out)
		require.NoError(t, err)
		lines := bufio.NewReader(res.Body)
		for n := range 3 {
			text, err := lines.ReadString('\n')
			require.NoError(t, err)
			assert.Equal(t, fmt.Sprintf("data: %d\n", n), text, proto)
			_, _ = lines.ReadString('\n')
			if n < 2 {
				fmt.Fprint(in, n+1)
			}
		}
		in.Close()
		res.Body.Close()
	}
}

// TestInterceptWebSocket: the protocol changes for WebSocket, and no other.
func TestInterceptWebSocket(t *testing.T) {
	t.Parallel()
	rule, _ := host(t, "good.example", true, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") == "" {
			fmt.Fprint(w, "no upgrade")
			return
		}
		c, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer c.Close()
		fmt.Fprintf(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n", r.Header.Get("Upgrade"))
		_, _ = io.CopyN(c, rw, 5)
	})
	rule.Intercept = true
	l, roots := intercepting(t, []network.HostRule{rule}, nil)
	for protocol, want := range map[string]int{"websocket": 101, "h2c": 200} {
		c := l.tls(t, "good.example", roots)
		fmt.Fprintf(c, "GET /ws HTTP/1.1\r\nHost: good.example\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n", protocol)
		r := bufio.NewReader(c)
		res, err := http.ReadResponse(r, nil)
		require.NoError(t, err)
		require.Equal(t, want, res.StatusCode)
		if want == 101 {
			fmt.Fprint(c, "hello")
			echo, _ := io.ReadAll(r)
			assert.Equal(t, "hello", string(echo))
		}
		c.Close()
	}
	e := l.logged(t, func(e audit.Event) bool { return e.Op == "request" && e.Outcome == "end" && e.Status == 101 })
	assert.EqualValues(t, 5, e.Bytes)
	assert.EqualValues(t, 5, e.Sent)
}

// TestAttackOtherHost: an intercepted connection is for its host: no certificate
// and no request is for another.
func TestAttackOtherHost(t *testing.T) {
	t.Parallel()
	rule, _ := host(t, "good.example", true, hello)
	rule.Intercept = true
	other, _ := host(t, "other.example", true, hello)
	other.Intercept = true
	l, roots := intercepting(t, []network.HostRule{rule, other}, nil)
	for name, conf := range map[string]*tls.Config{
		"another allowed host": {ServerName: "other.example", InsecureSkipVerify: true},
		"a wildcard":           {ServerName: "*.example", InsecureSkipVerify: true},
		"no name":              {InsecureSkipVerify: true},
		"TLS 1.0":              {ServerName: "good.example", InsecureSkipVerify: true, MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS10},
		"TLS 1.1":              {ServerName: "good.example", InsecureSkipVerify: true, MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11},
	} {
		c := tls.Client(l.connect(t, "good.example:443"), conf)
		assert.Error(t, c.Handshake(), name)
	}
	for _, text := range []string{
		"GET / HTTP/1.1\r\nHost: other.example\r\n\r\n", "GET https://other.example/ HTTP/1.1\r\nHost: other.example\r\n\r\n",
		"GET http://good.example/ HTTP/1.1\r\nHost: good.example\r\n\r\n", "CONNECT other.example:443 HTTP/1.1\r\nHost: other.example:443\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: good.example\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
	} {
		c := l.tls(t, "good.example", roots)
		fmt.Fprint(c, text)
		res, err := http.ReadResponse(bufio.NewReader(c), nil)
		require.NoError(t, err, text)
		assert.Contains(t, []int{400, 403}, res.StatusCode, text)
	}
	conf := roots.Clone()
	conf.NextProtos = []string{"h2"}
	c := l.tls(t, "good.example", conf)
	require.NoError(t, c.Handshake())
	for _, fields := range [][]string{{":authority", "other.example"}, {":authority", "good.example", "host", "other.example"}} {
		assert.Equal(t, "403", request2(t, l.tls(t, "good.example", conf), fields...), fields)
	}
}

// request2 sends a request in HTTP/2 and returns the status.
func request2(t *testing.T, c *tls.Conn, fields ...string) (status string) {
	f := begin2(t, c)
	require.NoError(t, f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block(append([]string{":method", "GET", ":scheme", "https", ":path", "/"}, fields...)...), EndStream: true, EndHeaders: true}))
	f.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	for {
		frame, err := f.ReadFrame()
		require.NoError(t, err)
		if h, ok := frame.(*http2.MetaHeadersFrame); ok {
			return h.PseudoValue("status")
		}
	}
}

func begin2(t *testing.T, c *tls.Conn) *http2.Framer {
	_, err := io.WriteString(c, http2.ClientPreface)
	require.NoError(t, err)
	f := http2.NewFramer(c, c)
	require.NoError(t, f.WriteSettings())
	return f
}

func block(fields ...string) []byte {
	var b bytes.Buffer
	e := hpack.NewEncoder(&b)
	for i := 0; i < len(fields); i += 2 {
		_ = e.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]})
	}
	return b.Bytes()
}

// dial2 connects to good.example by HTTP/2. ended is closed when the server has ended the
// connection.
func dial2(t *testing.T, l *lab, roots *tls.Config) (c *tls.Conn, f *http2.Framer, ended chan struct{}) {
	t.Helper()
	conf := roots.Clone()
	conf.NextProtos = []string{"h2"}
	c = l.tls(t, "good.example", conf)
	f = begin2(t, c)
	ended = make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, c)
		close(ended)
	}()
	return c, f, ended
}

// TestAttackResetFlood: streams that are opened and reset at once do not pile up
// (CVE-2023-44487).
func TestAttackResetFlood(t *testing.T) {
	t.Parallel()
	var at, most atomic.Int32
	rule, _ := host(t, "good.example", true, func(_ http.ResponseWriter, r *http.Request) {
		if n := at.Add(1); n > most.Load() {
			most.Store(n)
		}
		<-r.Context().Done()
		at.Add(-1)
	})
	rule.Intercept = true
	l, roots := intercepting(t, []network.HostRule{rule}, nil)
	c, f, ended := dial2(t, l, roots)
	head := block(":method", "GET", ":scheme", "https", ":authority", "good.example", ":path", "/")
	for id := uint32(1); id < 40_000; id += 2 {
		_ = c.SetWriteDeadline(time.Now().Add(10 * time.Second))
		if f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: head, EndStream: true, EndHeaders: true}) != nil || f.WriteRSTStream(id, http2.ErrCodeCancel) != nil {
			break
		}
	}
	c.Close()
	<-ended
	assert.LessOrEqual(t, most.Load(), int32(4*128))
	require.Eventually(t, func() bool { return at.Load() == 0 }, 20*time.Second, time.Millisecond, "the requests end with their client")
}

// TestAttackManyStreams: the requests of all connections together are bounded.
func TestAttackManyStreams(t *testing.T) {
	t.Parallel()
	var at atomic.Int32
	stop := make(chan struct{})
	rule, _ := host(t, "good.example", true, func(http.ResponseWriter, *http.Request) {
		at.Add(1)
		<-stop
	})
	rule.Intercept = true
	l, roots := intercepting(t, []network.HostRule{rule}, func(o *Options, _ *Tenant) { o.Limits.Requests = 8 })
	var wait sync.WaitGroup
	var refused atomic.Int32
	for range 2 {
		client := l.client(t, roots)
		for range 12 {
			wait.Go(func() {
				res, err := client.Get("https://good.example/")
				if err == nil {
					res.Body.Close()
					if res.StatusCode == http.StatusTooManyRequests {
						refused.Add(1)
					}
				}
			})
		}
	}
	assert.Eventually(t, func() bool { return refused.Load() == 16 && at.Load() == 8 }, 10*time.Second, time.Millisecond)
	close(stop)
	wait.Wait()
	assert.LessOrEqual(t, count(l.log(), denial), 1, "once a minute")
}

// TestAttackUpstreamCertificate: a host must prove its name.
func TestAttackUpstreamCertificate(t *testing.T) {
	t.Parallel()
	expired, server := host(t, "expired.example", true, hello)
	server.TLS.Certificates[0] = certificate(t, "expired.example", -time.Hour)
	named, server := host(t, "named.example", true, hello)
	server.TLS.Certificates[0] = certificate(t, "another.example", time.Hour)
	unknown, _ := host(t, "unknown.example", true, hello)
	unknown.CA = ""
	old, server := host(t, "old.example", true, hello)
	server.TLS.MinVersion, server.TLS.MaxVersion = tls.VersionTLS10, tls.VersionTLS11
	plain, _ := host(t, "plain.example", false, hello)
	rules := []network.HostRule{expired, named, unknown, old, plain}
	for i := range rules {
		rules[i].Intercept = true
	}
	l, roots := intercepting(t, rules, nil)
	for name, want := range map[string]string{
		"expired.example": "expired", "named.example": "valid for another.example", "unknown.example": "unknown authority",
		"old.example": "TLS 1.2", "plain.example": "TLS 1.2",
	} {
		status, body := get(t, l.client(t, roots), "https://"+name+"/")
		assert.Equal(t, 502, status, name)
		assert.Contains(t, body, want, name)
	}
}

func TestCA(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	ca, err := OpenCA(dir)
	require.NoError(t, err)
	again, err := OpenCA(dir)
	require.NoError(t, err)
	assert.Equal(t, ca.PEM(), again.PEM())
	file := filepath.Join(dir, caName)
	st, err := os.Stat(file)
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o600), st.Mode())
	assert.NotContains(t, string(ca.PEM()), "PRIVATE")

	roots := x509.NewCertPool()
	roots.AddCert(ca.cert)
	for host, other := range map[string]string{"a.example": "b.example", "127.0.0.1": "127.0.0.2"} {
		leaf, err := ca.leaf(host)
		require.NoError(t, err)
		_, err = leaf.Leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: host})
		assert.NoError(t, err)
		assert.Error(t, leaf.Leaf.VerifyHostname(other))
		kept, _ := ca.leaf(host)
		assert.Same(t, leaf, kept)
		assert.Less(t, time.Until(leaf.Leaf.NotAfter), 100*time.Hour)
	}
	require.NoError(t, os.Chmod(file, 0o640))
	_, err = OpenCA(dir)
	assert.ErrorContains(t, err, "open to others")
	require.NoError(t, os.Remove(file))
	require.NoError(t, os.Symlink("/etc/hostname", file))
	_, err = OpenCA(dir)
	assert.Error(t, err)
	require.NoError(t, os.Remove(file))
	require.NoError(t, os.WriteFile(file, []byte("nothing"), 0o600))
	_, err = OpenCA(dir)
	assert.ErrorContains(t, err, "remove it")
}
