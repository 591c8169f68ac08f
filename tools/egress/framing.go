package egress

import (
	"bytes"
	"io"
	"net"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/network"
	"github.com/scopefs/scopefs/tools/limit"
)

// framedConn follows the requests that a client sends in HTTP/1.1, and ends the
// connection at the first one that two servers could read differently. net/http
// reads such requests in one way, and does not report the other: it drops
// Content-Length beside Transfer-Encoding, and a Host beside an absolute URL.
type framedConn struct {
	net.Conn
	in     *incoming
	limits Limits
	refuse func(*refusal) // records it
	long   *limit.Slots
	framing
	refused *refusal // of a request: nothing more is read. net/http may drop an error of Read once

	changing atomic.Bool // a request wants another protocol, and has no answer
	over     atomic.Bool // the protocol did not change: framedConn has lost its place, and reads no more

	mu      sync.Mutex
	release func() // of long; nil: none
	closed  bool
}

// shortHead is the size of a head without a slot of its own, in bytes. A longer one takes one of
// maxLong, so that heads do not fill the memory.
const shortHead = 8 << 10

func (g *framedConn) Read(p []byte) (int, error) {
	if g.refused != nil {
		return 0, g.refused
	}
	n, err := g.Conn.Read(p)
	if g.over.Load() {
		return 0, io.EOF
	}
	followed := g.part
	wrong := g.follow(p[:n])
	if followed != opaque && g.part == opaque && g.upgrades {
		g.changing.Store(true)
	}
	if wrong == nil {
		wrong = g.holdLong(g.part == inHead && g.size > shortHead)
	}
	if g.refused = wrong; wrong != nil {
		g.refuse(wrong)
		return 0, wrong // net/http answers with status 400
	}
	return n, err
}

// Write fails, and net/http closes the connection, when the client does not take the bytes in time: as soon
// as a request's head where no response passes.
func (g *framedConn) Write(p []byte) (int, error) {
	switch {
	case bytes.HasPrefix(p, []byte("HTTP/1.1 101 ")):
		g.changing.Store(false)
	case bytes.HasPrefix(p, []byte("HTTP/1.1 1")): // an interim response: the protocol may still change
	case g.changing.Swap(false):
		g.over.Store(true)
	}
	limit := g.limits.Speak
	if g.in.passes.Load() {
		limit = g.limits.Idle
	}
	_ = g.Conn.SetWriteDeadline(time.Now().Add(limit)) // it fails on a closed connection alone
	return g.Conn.Write(p)
}

// holdLong holds a slot while a long head is under way.
func (g *framedConn) holdLong(long bool) *refusal {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case long && g.release == nil && !g.closed:
		release, ok := g.long.Try()
		if !ok {
			return tooMany("long heads")
		}
		g.release = release
	case !long && g.release != nil:
		g.release()
		g.release = nil
	}
	return nil
}

// Close closes the connection. Another goroutine may be in Read.
func (g *framedConn) Close() error {
	g.mu.Lock()
	g.closed = true
	g.mu.Unlock()
	_ = g.holdLong(false) // it only releases
	return g.Conn.Close()
}

// CloseWrite ends a connection with a request whose body nobody reads: net/http calls it before Close. The rest of the body
// is read and dropped, so that it does not reset the connection.
func (g *framedConn) CloseWrite() error {
	linger(g.Conn, g.limits.Speak)
	return nil
}

// framing is the place in a stream of requests (RFC 9112, sections 2 to 7).
type framing struct {
	line  []byte   // the line under way
	lines []string // of the head under way
	size  int      // of the head or of the trailer under way, in bytes
	part  part
	left  int64 // bytes of the body or of the chunk

	upgrades bool   // part is opaque for a request that wants another protocol
	target   string // of CONNECT
}

type part uint8

const (
	inHead part = iota
	inBody
	inChunkSize
	inChunk
	inChunkEnd
	inTrailer
	opaque // after CONNECT, or a request for WebSocket
)

// maxHead limits a request's line and fields, in bytes.
const maxHead = 64 << 10

// maxChunkSize limits the line with a chunk's size, in bytes. Extensions are refused.
const maxChunkSize = 16

func (f *framing) follow(p []byte) *refusal {
	for len(p) > 0 {
		switch f.part {
		case opaque:
			return nil
		case inBody, inChunk:
			n := min(int64(len(p)), f.left)
			p, f.left = p[n:], f.left-n
			if f.left == 0 {
				f.next()
			}
			continue
		}
		i := bytes.IndexByte(p, '\n') + 1
		if i == 0 {
			i = len(p)
		}
		f.line, p, f.size = append(f.line, p[:i]...), p[i:], f.size+i
		if f.size > maxHead+1 {
			return malformed("the head of a request has more than %d bytes", maxHead)
		}
		if f.line[len(f.line)-1] != '\n' {
			continue
		}
		line, ok := bytes.CutSuffix(f.line, []byte("\r\n"))
		if !ok {
			return malformed("a line ends without a carriage return")
		}
		if err := f.end(string(line)); err != nil {
			return err
		}
		f.line = nil
	}
	return nil
}

// next begins what follows a body or a chunk.
func (f *framing) next() {
	f.part, f.size = map[part]part{inBody: inHead, inChunk: inChunkEnd}[f.part], 0
}

// end takes a complete line.
func (f *framing) end(line string) *refusal {
	switch {
	case f.part == inHead && line != "":
		f.lines = append(f.lines, line)
		return nil
	case f.part == inHead:
		return f.endHead()
	case f.part == inChunkSize:
		n, err := strconv.ParseUint(line, 16, 62)
		if err != nil || len(line) > maxChunkSize {
			return malformed("the size of a chunk is no number")
		}
		if f.part, f.left, f.size = inChunk, int64(n), 0; n == 0 {
			f.part = inTrailer
		}
	case f.part == inChunkEnd:
		if line != "" {
			return malformed("a chunk is longer than its size")
		}
		f.part, f.size = inChunkSize, 0
	case f.part == inTrailer && line == "":
		f.part, f.size = inHead, 0
	}
	return nil
}

// requestHead has the fields of a request that say where it goes and how long it is.
type requestHead struct {
	method, target, proto   string
	hosts, lengths, codings []string
	upgrade                 bool
}

func (f *framing) endHead() *refusal {
	h, err := parseHead(f.lines)
	if err != nil {
		return err
	}
	if err := h.check(); err != nil {
		return err
	}
	f.lines, f.size = nil, 0
	switch {
	case h.method == "CONNECT" || h.upgrade:
		f.part, f.upgrades, f.target = opaque, h.upgrade, h.target
	case len(h.codings) > 0:
		f.part = inChunkSize
	case len(h.lengths) > 0:
		if f.left, _ = strconv.ParseInt(h.lengths[0], 10, 64); f.left > 0 {
			f.part = inBody
		}
	}
	return nil
}

func parseHead(lines []string) (h requestHead, err *refusal) {
	if len(lines) == 0 {
		return h, malformed("a request begins with an empty line")
	}
	words := strings.Split(lines[0], " ")
	if len(words) != 3 || words[0] == "" || words[1] == "" || words[2] != "HTTP/1.1" && words[2] != "HTTP/1.0" {
		return h, malformed("a request's first line is not METHOD TARGET HTTP/1.1")
	}
	h.method, h.target, h.proto = words[0], words[1], words[2]
	for _, line := range lines[1:] {
		name, value, ok := strings.Cut(line, ":")
		if !ok || name == "" || strings.ContainsAny(name, " \t\r") {
			return h, malformed("a field has no name, or is folded")
		}
		value = strings.Trim(value, " \t")
		switch strings.ToLower(name) {
		case "host":
			h.hosts = append(h.hosts, value)
		case "content-length":
			h.lengths = append(h.lengths, value)
		case "transfer-encoding":
			h.codings = append(h.codings, value)
		case "upgrade":
			h.upgrade = h.upgrade || isWebSocket(value)
		}
	}
	return h, nil
}

// isWebSocket reports whether an Upgrade field names the only protocol that a
// connection changes to. The proxy ignores the others, as any server may.
func isWebSocket(upgrade string) bool {
	return strings.Contains(strings.ToLower(upgrade), "websocket")
}

// badTarget reports whether a request's target has a byte at which one server ends it, or drops it, and another does not.
func badTarget(target string) bool {
	return strings.ContainsFunc(target, func(c rune) bool { return c <= ' ' || c == 0x7f || c == '#' })
}

const badTargetText = "the target of a request has a blank, a control character or a number sign"

// rawPath returns the path of a target, as its bytes have it.
func rawPath(target string) string {
	target, _, _ = strings.Cut(target, "?")
	if target == "*" || strings.HasPrefix(target, "/") {
		return target
	}
	_, rest, _ := strings.Cut(target, "://")
	_, path, _ := strings.Cut(rest, "/")
	return "/" + path // RFC 9112, section 3.2.1
}

func (h requestHead) check() *refusal {
	if _, err := url.PathUnescape(rawPath(h.target)); err != nil {
		return malformed("the path of a request has a percent sign that begins no escape") // net/http refuses it without a record
	}
	switch {
	case badTarget(h.target):
		return malformed(badTargetText)
	case len(h.hosts) > 1 || len(h.hosts) == 0 && h.proto == "HTTP/1.1":
		return malformed("a request has %d Host fields", len(h.hosts))
	case len(h.lengths)+len(h.codings) > 1:
		return malformed("a request has more than one of Content-Length and Transfer-Encoding")
	case len(h.codings) == 1 && (!strings.EqualFold(h.codings[0], "chunked") || h.proto == "HTTP/1.0"):
		return malformed("Transfer-Encoding is not chunked, or HTTP/1.0 has it")
	case len(h.lengths) == 1 && (h.lengths[0] == "" || len(h.lengths[0]) > 18 || strings.Trim(h.lengths[0], "0123456789") != ""):
		return malformed("Content-Length is no number")
	case (h.method == "CONNECT" || h.upgrade) && len(h.lengths)+len(h.codings) > 0 && (len(h.codings) > 0 || strings.Trim(h.lengths[0], "0") != ""):
		return malformed("a request that changes the protocol has a body")
	case len(h.hosts) == 1 && !sameHost(h.target, h.hosts[0]):
		return violates(scope.KindProtocol, "protocol", "the Host field is not the host of the URL")
	}
	return nil
}

// sameHost reports whether a request's target has no host, or that of its Host
// field.
func sameHost(target, host string) bool {
	_, rest, absolute := strings.Cut(target, "://")
	switch {
	case strings.HasPrefix(target, "/") || target == "*":
		return true
	case absolute:
		target, _, _ = strings.Cut(rest, "/")
		target, _, _ = strings.Cut(target, "?")
	}
	if target == "" || strings.Contains(target, "@") {
		return false
	}
	a, aPort, err := splitHost(target, 0)
	b, bPort, err2 := splitHost(host, 0)
	return err == nil && err2 == nil && a == b && (aPort == bPort || aPort == 0 || bPort == 0)
}

// splitHost returns the host in canonical form and the port of HOST or HOST:PORT.
// A target without a port has the default one.
func splitHost(text string, port uint16) (string, uint16, error) {
	host, digits, err := net.SplitHostPort(text)
	if err != nil { // no port
		host, digits = strings.TrimSuffix(strings.TrimPrefix(text, "["), "]"), ""
	}
	if digits != "" {
		n, err := strconv.ParseUint(digits, 10, 16)
		if err != nil || n == 0 {
			return "", 0, malformed("%.20q is no port", digits)
		}
		port = uint16(n)
	}
	if host, err = network.ParseHost(host); err != nil {
		r := violates(scope.KindAddress, "host names", "%.100q is no host name", text)
		r.cause = err
		return "", 0, r
	}
	return host, port, nil
}
