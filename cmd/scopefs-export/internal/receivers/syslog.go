// Package receivers gives events of the log to servers: of syslog, NATS and OpenTelemetry.
package receivers

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/scopefs/scopefs/audit"
)

// Dial connects to the receiver of the stream. network and address are of it.
type Dial func(ctx context.Context) (net.Conn, error)

// Syslog sends messages of RFC 5424, on a stream with their lengths (RFC 6587, section 3.4.1).
type Syslog struct {
	Dial Dial
	TLS  *tls.Config // nil: none
	Host string      // the name of this host

	datagrams net.Conn // nil: none yet, or a stream
}

// closeTime is how long the receiver may take to close a connection after it has read everything.
const closeTime = 10 * time.Second

// Send sends events. Syslog has no acknowledgement, and what TCP acknowledges a receiver that dies has not read. So each call
// has a connection of its own, which the receiver closes after the last message: Linux resets the connection if some of it
// was not read. A datagram counts as received when it was sent.
func (s *Syslog) Send(ctx context.Context, events []audit.Event) error {
	if s.datagrams != nil {
		return s.sendDatagrams(ctx, events)
	}
	conn, err := s.Dial(ctx)
	if err != nil {
		return err
	}
	if network := conn.RemoteAddr().Network(); network == "unixgram" || network == "udp" {
		s.datagrams = conn
		return s.sendDatagrams(ctx, events)
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Now()) })
	defer stop()
	if s.TLS != nil {
		secure := tls.Client(conn, s.TLS)
		if err := secure.HandshakeContext(ctx); err != nil {
			return err
		}
		conn = secure
	}
	var text []byte
	for _, e := range events {
		message := s.message(e)
		text = append(append(strconv.AppendInt(text, int64(len(message)), 10), ' '), message...)
	}
	if _, err := conn.Write(text); err != nil {
		return fmt.Errorf("write: %w", err)
	}
	return confirmed(conn)
}

// confirmed ends the writing side of a connection, and waits until the receiver closes the other one.
func confirmed(conn net.Conn) error {
	half, ok := conn.(interface{ CloseWrite() error })
	if !ok {
		return fmt.Errorf("a %T is no stream", conn)
	}
	if err := half.CloseWrite(); err != nil {
		return fmt.Errorf("end: %w", err)
	}
	_ = conn.SetReadDeadline(time.Now().Add(closeTime))
	n, err := io.Copy(io.Discard, io.LimitReader(conn, 64<<10))
	switch {
	case err != nil:
		return fmt.Errorf("the receiver does not close the connection after the last message, so that it may have read less: %w", err)
	case n == 64<<10:
		return errors.New("the receiver sends data: it is no receiver of syslog")
	}
	return nil
}

func (s *Syslog) sendDatagrams(ctx context.Context, events []audit.Event) error {
	deadline, _ := ctx.Deadline()
	_ = s.datagrams.SetWriteDeadline(deadline)
	for _, e := range events {
		if _, err := s.datagrams.Write(s.message(e)); err != nil {
			s.datagrams.Close()
			s.datagrams = nil
			return fmt.Errorf("write: %w", err)
		}
	}
	return nil
}

// Close closes the connection.
func (s *Syslog) Close() error {
	if s.datagrams == nil {
		return nil
	}
	return s.datagrams.Close()
}

// facility is "log audit": RFC 5424, section 6.2.1.
const facility = 13

// structure is the name of the element with our fields. 32473 is the enterprise number of examples (RFC 5612): we have none.
const structure = "scopefs@32473"

// message returns an event as RFC 5424, section 6: the fields by which receivers select as structured data, and the line
// of the log.
func (s *Syslog) message(e audit.Event) []byte {
	severity := 6 // informational
	switch {
	case e.Verdict == audit.Violation:
		severity = 3 // error
	case e.Verdict == audit.Deny, e.Event == audit.KindAudit:
		severity = 4 // warning
	}
	seq := ""
	if e.Seq > 0 { // it is an event of the log
		seq = strconv.FormatUint(e.Seq, 10)
	}
	b := fmt.Appendf(nil, "<%d>1 %s %s scopefs - %s [%s", facility*8+severity, e.Time.UTC().Format("2006-01-02T15:04:05.000000Z"),
		word(s.Host, 255), word(e.Event, 32), structure)
	for _, field := range []struct{ name, value string }{
		{"seq", seq}, {"agent", e.Agent}, {"session", e.Session}, {"call", e.Call}, {"op", e.Op},
		{"verdict", string(e.Verdict)}, {"rule_kind", e.RuleKind}, {"outcome", e.Outcome},
	} {
		if field.value != "" {
			b = append(b, ' ')
			b = append(b, field.name...)
			b = append(b, `="`...)
			b = append(b, parameter.Replace(field.value)...)
			b = append(b, '"')
		}
	}
	b = append(b, "] "...)
	if !isASCII(e.Raw) {
		b = append(b, "\xef\xbb\xbf"...)
	}
	return append(b, e.Raw...)
}

// parameter escapes a value of structured data: section 6.3.3. The log has no control characters.
var parameter = strings.NewReplacer(`"`, `\"`, `\`, `\\`, `]`, `\]`)

// word returns text as a field of the header, of printable ASCII.
func word(text string, longest int) string {
	text = strings.Map(func(r rune) rune {
		if r <= ' ' || r > '~' {
			return '_'
		}
		return r
	}, text)
	return cmp.Or(text[:min(len(text), longest)], "-")
}

func isASCII(text []byte) bool {
	for _, b := range text {
		if b >= utf8.RuneSelf {
			return false
		}
	}
	return true
}
