package egress

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net"
	"time"

	"github.com/scopefs/scopefs/tools/egress/tunnel"
)

// explain refuses a connection. For https the refusal is the answer to a request
// inside TLS, where programs look for a status: they take a refused CONNECT for a
// broken connection, repeat it for minutes, and do not show its answer. The proxy
// connects to nothing, and each such request needs a connection of its own, which
// is decided and recorded.
func (p *Proxy) explain(ctx context.Context, a *access, r *refusal, answer func(*refusal) error) {
	defer a.in.Close()
	release, free := p.bounds.secure.Try()
	if free {
		a.in.hold(release)
	}
	if p.CA == nil || a.port != 443 || !free {
		_ = answer(r)
		return
	}
	if answer(nil) != nil {
		return
	}
	var c net.Conn = a.in
	switch p.sniff(a.in, true) {
	case speaksTLS:
		secure := p.standFor(a.in, a.host, protocols[1:])
		if p.shake(ctx, secure) != nil {
			return
		}
		c = secure
	case speaksHTTP:
	default:
		return
	}
	_ = c.SetDeadline(time.Now().Add(p.Limits.Speak))
	if skipHead(bufio.NewReaderSize(io.LimitReader(c, maxHead), 1<<10)) != nil {
		return
	}
	if _, err := c.Write(r.raw()); err != nil {
		return
	}
	linger(c, p.Limits.Speak)
}

// linger ends the side of a connection to its client, and reads and drops what the client still sends: a socket that is
// closed with unread bytes resets the connection, and the client may lose the answer (RFC 9112, section 9.6).
func linger(c net.Conn, most time.Duration) {
	if half, ok := c.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite()
	}
	_ = c.SetReadDeadline(time.Now().Add(min(most, tunnel.Lingering)))
	_, _ = io.CopyN(io.Discard, c, maxUnread)
}

// skipHead reads a request's head, up to the empty line. It keeps nothing: no slot bounds the
// heads of refused requests.
func skipHead(r *bufio.Reader) error {
	for begins := true; ; {
		line, err := r.ReadSlice('\n')
		switch {
		case err != nil && err != bufio.ErrBufferFull:
			return err
		case begins && err == nil && len(bytes.TrimRight(line, "\r\n")) == 0:
			return nil
		}
		begins = err == nil
	}
}

// maxUnread bounds what is read and dropped of a client that still sends, in bytes.
const maxUnread = 64 << 20
