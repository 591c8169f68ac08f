package egress

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/scopefs/scopefs/scope/network"
)

// message is a request or a response as its bytes have it.
type message struct {
	method, target string // of a request
	status         string // of a response
	fields         [][2]string
	body           string
}

var framingFields = []string{"host", "content-length", "transfer-encoding", "connection", "date"}

// named returns the fields by lower-case name, without those of framing. HTTP/2 divides cookies (RFC 9113, 8.2.3).
func (m message) named() map[string][]string {
	all := map[string][]string{}
	for _, f := range m.fields {
		name := strings.ToLower(f[0])
		if !slices.Contains(framingFields, name) {
			all[name] = append(all[name], f[1])
		}
	}
	if lines := all["cookie"]; lines != nil {
		all["cookie"] = []string{strings.Join(lines, "; ")}
	}
	return all
}

// exchanges are the messages of a host: it keeps each request, and answers it with the next response.
type exchanges struct {
	got     chan message
	answers chan message
}

// recorder1 serves one connection in HTTP/1.1. It reads bytes, by no library that knows requests.
func (x exchanges) recorder1(c net.Conn) {
	defer c.Close()
	r := bufio.NewReaderSize(c, 1<<20)
	for {
		m, chunked, length := message{}, false, 0
		for first := true; ; first = false {
			line, err := r.ReadString('\n')
			if err != nil {
				return
			}
			if line = strings.TrimSuffix(line, "\r\n"); line == "" {
				break
			}
			if first {
				m.method, line, _ = strings.Cut(line, " ")
				m.target = strings.TrimSuffix(line, " HTTP/1.1")
				continue
			}
			name, value, _ := strings.Cut(line, ": ")
			m.fields = append(m.fields, [2]string{name, value})
			chunked = chunked || strings.EqualFold(name, "transfer-encoding")
			if strings.EqualFold(name, "content-length") {
				_, _ = fmt.Sscan(value, &length)
			}
		}
		body := io.LimitReader(r, int64(length))
		if chunked {
			body = httputil.NewChunkedReader(r)
		}
		text, err := io.ReadAll(body)
		if chunked && err == nil {
			_, err = r.ReadString('\n')
		}
		if err != nil {
			return
		}
		m.body = string(text)
		x.got <- m
		answer := <-x.answers
		fmt.Fprintf(c, "HTTP/1.1 %s x\r\n", answer.status)
		for _, f := range answer.fields {
			fmt.Fprintf(c, "%s: %s\r\n", f[0], f[1])
		}
		fmt.Fprintf(c, "Content-Length: %d\r\n\r\n%s", len(answer.body), answer.body)
	}
}

// recorder2 serves one connection in HTTP/2, a request after the other.
func (x exchanges) recorder2(c net.Conn) {
	defer c.Close()
	if _, err := io.ReadFull(c, make([]byte, len(http2.ClientPreface))); err != nil {
		return
	}
	f := http2.NewFramer(c, c)
	f.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	f.MaxHeaderListSize = 1 << 20
	_ = f.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 30})
	_ = f.WriteWindowUpdate(0, 1<<30)
	encoded, requests := bytes.Buffer{}, map[uint32]*message{}
	encoder := hpack.NewEncoder(&encoded)
	for {
		frame, err := f.ReadFrame()
		if err != nil {
			return
		}
		id, ends := frame.Header().StreamID, frame.Header().Flags.Has(http2.FlagDataEndStream)
		switch frame := frame.(type) {
		case *http2.SettingsFrame:
			if !frame.IsAck() {
				_ = f.WriteSettingsAck()
			}
			continue
		case *http2.PingFrame:
			_ = f.WritePing(true, frame.Data)
			continue
		case *http2.MetaHeadersFrame:
			requests[id] = &message{method: frame.PseudoValue("method"), target: frame.PseudoValue("path")}
			for _, field := range frame.RegularFields() {
				requests[id].fields = append(requests[id].fields, [2]string{field.Name, field.Value})
			}
		case *http2.DataFrame:
			requests[id].body += string(frame.Data())
		default:
			continue
		}
		if !ends {
			continue
		}
		x.got <- *requests[id]
		answer := <-x.answers
		encoded.Reset()
		_ = encoder.WriteField(hpack.HeaderField{Name: ":status", Value: answer.status})
		for _, field := range answer.fields {
			_ = encoder.WriteField(hpack.HeaderField{Name: strings.ToLower(field[0]), Value: field[1]})
		}
		_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: encoded.Bytes(), EndHeaders: true})
		for rest, end := answer.body, false; !end; {
			n := min(len(rest), 16<<10)
			end = n == len(rest)
			_ = f.WriteData(id, end, []byte(rest[:n]))
			rest = rest[n:]
		}
	}
}

// serve serves the host on loopback and returns a rule for it.
func (x exchanges) serve(t *testing.T, name, protocol string, secure bool) network.HostRule {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	rule := network.HostRule{Host: name, Address: netip.MustParseAddrPort(listener.Addr().String())}
	if secure {
		rule.Intercept, rule.CA = true, authorityPEM(t)
		conf := &tls.Config{Certificates: []tls.Certificate{certificate(t, name, time.Hour)}, NextProtos: []string{protocol}}
		listener = tls.NewListener(listener, conf)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			if protocol == "h2" {
				go x.recorder2(c)
			} else {
				go x.recorder1(c)
			}
		}
	}()
	return rule
}

// dice makes messages.
type dice struct{ *rand.Rand }

func (d dice) pick(all ...string) string { return all[d.IntN(len(all))] }

// bytes returns n bytes or less, without those of a set.
func (d dice) bytes(most int, without func(byte) bool) string {
	text := make([]byte, d.IntN(most+1))
	for i := range text {
		for text[i] = byte(d.Uint32()); without != nil && without(text[i]); {
			text[i] = byte(d.Uint32())
		}
	}
	return string(text)
}

// target returns a target of any bytes that pass. One that begins with // has only those that a URL has.
func (d dice) target() string {
	notInTarget := func(c byte) bool { return c <= ' ' || c == 0x7f || c == '#' }
	path := d.pick("//a%2F/", "/", "/")
	for range d.IntN(10) {
		path += d.pick("a", "B", "/", "%2f", "%2F", "%00", "%ff", "%c3%A9", ".", "..", ";x=1", "[1]", ":@!$&'()*+,;=")
	}
	if !strings.HasPrefix(path, "//") {
		any := d.bytes(3, func(c byte) bool { return notInTarget(c) || strings.IndexByte("%?/", c) >= 0 })
		path += d.pick("", "é", `"<>\^`+"`", "{|}", any)
	}
	if d.IntN(2) == 0 {
		path += "?" + d.bytes(12, notInTarget)
	}
	return path
}

func (d dice) value() string {
	text := d.bytes(20, func(c byte) bool { return c < ' ' && c != '\t' || c == 0x7f })
	return d.pick("", "1", "a, b", `"x"; q=0.5`, strings.Trim(text, " \t"))
}

func (d dice) fields(names ...string) (all [][2]string) {
	for range d.IntN(12) {
		name, value := d.pick(names...), d.value()
		if name == "Cookie" {
			value = d.pick("a=1", "b=2; c=3")
		}
		all = append(all, [2]string{name, value})
	}
	return all
}

func (d dice) body() string { return d.bytes([]int{0, 1, 100, 100 << 10}[d.IntN(4)], nil) }

func (d dice) request() message {
	m := message{target: d.target(), fields: d.fields(
		"Accept", "accept", "ACCEPT-Encoding", "Authorization", "Cookie", "Range", "Referer", "X-Custom", "X_Custom",
		"x.custom", "Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "Via", "If-Match", "Content-Type",
		"Content-Encoding", "Origin", "Cache-Control", "Accept-Charset", "!#$%&'*+-.^_`|~",
	)}
	m.method = d.pick("GET", "POST", "PUT", "DELETE", "PATCH", "PROPFIND", "get", "M-SEARCH", "!#$%&'*+-.^_`|~")
	if d.IntN(2) == 0 {
		m.fields = append(m.fields, [2]string{"User-Agent", "x" + d.value()}) // an empty one does not pass
	}
	if m.method != "GET" && m.method != "get" {
		m.body = d.body()
	}
	return m
}

func (d dice) response() message {
	m := message{body: d.body(), fields: d.fields(
		"Content-Type", "Set-Cookie", "ETag", "Server", "X-Custom", "x_custom", "Location", "Vary", "Link",
		"Content-Encoding", "WWW-Authenticate", "Cache-Control",
	)}
	m.status = d.pick("200", "201", "299", "400", "404", "413", "500", "599")
	return m
}

// way is a connection of a client that sends requests by some way through the proxy.
type way interface {
	send(m message, chunked bool) (message, error)
}

// way1 is one in HTTP/1.1.
type way1 struct {
	net.Conn
	*bufio.Reader
	prefix, host string // of a target
}

func (w way1) send(m message, chunked bool) (got message, err error) {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s %s%s HTTP/1.1\r\nHost: %s\r\n", m.method, w.prefix, m.target, w.host)
	for _, f := range m.fields {
		fmt.Fprintf(&b, "%s: %s\r\n", f[0], f[1])
	}
	switch {
	case m.body == "":
		b.WriteString("\r\n")
	case chunked:
		fmt.Fprintf(&b, "Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", len(m.body), m.body)
	default:
		fmt.Fprintf(&b, "Content-Length: %d\r\n\r\n%s", len(m.body), m.body)
	}
	if _, err := w.Conn.Write(b.Bytes()); err != nil {
		return got, err
	}
	res, err := http.ReadResponse(w.Reader, &http.Request{Method: m.method})
	if err != nil {
		return got, err
	}
	text, err := io.ReadAll(res.Body)
	got = message{status: fmt.Sprint(res.StatusCode), body: string(text)}
	for name, values := range res.Header {
		for _, value := range values {
			got.fields = append(got.fields, [2]string{name, value})
		}
	}
	return got, err
}

// way2 is one in HTTP/2.
type way2 struct {
	*http2.Framer
	id   *uint32
	host string
}

func (w way2) send(m message, _ bool) (got message, err error) {
	*w.id += 2
	fields := []string{":method", m.method, ":scheme", "https", ":path", m.target, ":authority", w.host}
	for _, f := range m.fields {
		fields = append(fields, strings.ToLower(f[0]), f[1])
	}
	head := http2.HeadersFrameParam{StreamID: *w.id, EndHeaders: true, EndStream: m.body == ""}
	head.BlockFragment = block(fields...)
	if err := w.WriteHeaders(head); err != nil {
		return got, err
	}
	for rest := m.body; rest != ""; { // the proxy reads at once: no window is exhausted
		n := min(len(rest), 16<<10)
		if err := w.WriteData(*w.id, n == len(rest), []byte(rest[:n])); err != nil {
			return got, err
		}
		rest = rest[n:]
	}
	for {
		frame, err := w.ReadFrame()
		if err != nil {
			return got, err
		}
		switch frame := frame.(type) {
		case *http2.RSTStreamFrame:
			if frame.StreamID == *w.id { // net/http may take a deadline of a stream for one that has ended, and resets it then
				return got, fmt.Errorf("reset: %v", frame.ErrCode)
			}
		case *http2.MetaHeadersFrame:
			got.status = frame.PseudoValue("status")
			for _, f := range frame.RegularFields() {
				got.fields = append(got.fields, [2]string{f.Name, f.Value})
			}
		case *http2.DataFrame:
			got.body += string(frame.Data())
			if n := uint32(len(frame.Data())); n > 0 {
				_ = w.WriteWindowUpdate(0, n)
				_ = w.WriteWindowUpdate(*w.id, n)
			}
		}
		if h := frame.Header(); h.StreamID == *w.id && h.Flags.Has(http2.FlagDataEndStream) {
			return got, nil
		}
	}
}

// TestBytes: the host gets the method, the target, the body and the values of each field as the client has sent them,
// and the client what the host has sent, in both versions of HTTP, with and without TLS.
func TestBytes(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		client, host string // the protocol
		open         func(l *lab, roots *tls.Config) way
	}{
		"plain HTTP": {"", "http/1.1", func(l *lab, _ *tls.Config) way {
			c := l.dial(t)
			return way1{c, bufio.NewReader(c), "http://good.example", "good.example"}
		}},
		"CONNECT": {"", "http/1.1", func(l *lab, _ *tls.Config) way {
			c := l.connect(t, "good.example:80")
			return way1{c, bufio.NewReader(c), "", "good.example"}
		}},
		"TLS":                         {"http/1.1", "http/1.1", nil},
		"HTTP/2":                      {"h2", "h2", nil},
		"HTTP/2, the host speaks 1.1": {"h2", "http/1.1", nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x := exchanges{make(chan message, 1), make(chan message, 1)}
			l, roots := intercepting(t, []network.HostRule{x.serve(t, "good.example", test.host, test.client != "")}, nil)
			open := test.open
			if open == nil {
				open = func(l *lab, roots *tls.Config) way {
					roots.NextProtos = []string{test.client}
					c := l.tls(t, "good.example", roots)
					if test.client == "http/1.1" {
						return way1{c, bufio.NewReader(c), "", "good.example"}
					}
					f := begin2(t, c)
					f.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
					id := uint32(0)
					id--
					return way2{f, &id, "good.example"}
				}
			}
			seed := rand.Uint64()
			d, w := dice{rand.New(rand.NewPCG(seed, 0))}, open(l, roots)
			for i := range 150 {
				request, response, chunked := d.request(), d.response(), d.IntN(2) == 0
				x.answers <- response
				got, err := w.send(request, chunked)
				require.NoError(t, err, "seed %d, %d: %q", seed, i, request.target)
				var reached message
				select {
				case reached = <-x.got:
				default:
					require.FailNow(t, "refused", "seed %d, %d: %+v: %s", seed, i, request, got.body)
				}
				where := fmt.Sprintf("seed %d, %d", seed, i)
				require.Equal(t, request.method+" "+request.target, reached.method+" "+reached.target, where)
				require.Equal(t, request.named(), reached.named(), where)
				require.True(t, request.body == reached.body, "%s: the body", where)
				require.Equal(t, response.status, got.status, where)
				require.Equal(t, response.named(), got.named(), where)
				require.True(t, response.body == got.body, "%s: the response's body", where)
			}
		})
	}
}
