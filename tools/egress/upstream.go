package egress

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/dial"
)

// Upstream is the proxy of a company, by which connections go out that no rule gives an address. It resolves the names, so
// that names alone decide: an address is refused in every form, and so are a name of this host, the proxy's own name,
// and a name that this host knows to lead to an address that is not public.
type Upstream struct {
	Address string // HOST:PORT

	mu     sync.Mutex
	silent map[string]time.Time // until when a name is not looked up
}

// The bounds of a look at a name. In a company's network there may be no resolver for names of the outside. A name for
// which it does not answer is not looked up for a while. Other names are: the owner of a name can keep its servers silent.
const (
	nameTime   = 500 * time.Millisecond
	silentTime = time.Minute
	maxSilent  = 1024 // names
)

// URL returns the proxy for net/http.
func (u *Upstream) URL() *url.URL { return &url.URL{Scheme: "http", Host: u.Address} }

// errNames is the error of an address.
var errNames = fmt.Errorf("%w: network.upstream gets names alone", ErrAddress)

// name is the proxy in the log.
func (u *Upstream) name() string { return u.Address + ", for network.upstream" }

// check returns an error for a host to which the proxy must not connect.
func (u *Upstream) check(ctx context.Context, d *Dialer, host string) error {
	own, _, _ := net.SplitHostPort(u.Address)
	_, notAddress := netip.ParseAddr(host)
	switch {
	case notAddress == nil:
		return errNames
	case host == "localhost" || strings.HasSuffix(host, ".localhost"), strings.EqualFold(host, own):
		return fmt.Errorf("%w: %s is this host, or network.upstream itself", ErrAddress, host)
	case u.isSilent(host):
		return nil
	}
	short, cancel := context.WithTimeout(ctx, nameTime)
	defer cancel()
	_, err := d.resolve(short, host)
	if short.Err() != nil && ctx.Err() == nil {
		u.leaveAlone(host)
	}
	if errors.Is(err, ErrAddress) {
		return err
	}
	return nil // the proxy may know the name
}

func (u *Upstream) isSilent(host string) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return time.Now().Before(u.silent[host])
}

func (u *Upstream) leaveAlone(host string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.silent == nil || len(u.silent) >= maxSilent {
		u.silent = map[string]time.Time{}
	}
	u.silent[host] = time.Now().Add(silentTime)
}

// connect connects to a host by the proxy (RFC 9110, section 9.3.6).
func (u *Upstream) connect(ctx context.Context, d *Dialer, host, port string) (net.Conn, error) {
	if err := u.check(ctx, d, host); err != nil {
		return nil, err
	}
	c, err := u.dial(ctx)
	if err != nil {
		return nil, err
	}
	defer context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })() // it fails on a closed connection alone
	err = u.ask(c.(*net.TCPConn), net.JoinHostPort(host, port))
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

func (u *Upstream) dial(ctx context.Context) (net.Conn, error) {
	c, err := dial.Context(ctx, "tcp", u.Address)
	if err != nil {
		return nil, &upstreamError{"cannot be reached", err}
	}
	return c, nil
}

func (u *Upstream) ask(c *net.TCPConn, target string) error {
	if _, err := fmt.Fprintf(c, "CONNECT %[1]s HTTP/1.1\r\nHost: %[1]s\r\n\r\n", target); err != nil {
		return &upstreamError{"breaks off", err}
	}
	head, err := readHead(c)
	if err != nil {
		return &upstreamError{"breaks off", err}
	}
	res, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(head)), &http.Request{Method: http.MethodConnect})
	if err != nil {
		return &upstreamError{"gives an answer that cannot be read", nil}
	}
	return u.answered(res.StatusCode)
}

// answered returns the error of an answer to CONNECT, or to a request.
func (u *Upstream) answered(status int) error {
	switch {
	case status == http.StatusProxyAuthRequired:
		return &upstreamError{"wants a login (status 407): name a proxy on this host that has one", nil}
	case status/100 != 2:
		return &upstreamError{fmt.Sprintf("answers %d %s", status, http.StatusText(status)), nil}
	}
	return nil
}

// readHead reads the head of a response, and no byte after it: those are for whoever gets the connection.
func readHead(c *net.TCPConn) (head []byte, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	buf := make([]byte, 4<<10)
	for !bytes.HasSuffix(head, []byte("\r\n\r\n")) {
		if len(head) > maxHead {
			return nil, errors.New("its answer is too long")
		}
		n, failed := 0, error(nil)
		err := raw.Read(func(fd uintptr) bool {
			n, _, failed = unix.Recvfrom(int(fd), buf, unix.MSG_PEEK|unix.MSG_DONTWAIT)
			return failed != unix.EAGAIN && failed != unix.EINTR
		})
		if err = errors.Join(err, failed); err != nil {
			return nil, err
		}
		if n == 0 {
			return nil, io.ErrUnexpectedEOF
		}
		before := len(head)
		if head = append(head, buf[:n]...); bytes.Contains(head, []byte("\r\n\r\n")) {
			head = head[:bytes.Index(head, []byte("\r\n\r\n"))+4]
		}
		if _, err := io.ReadFull(c, buf[:len(head)-before]); err != nil {
			return nil, err
		}
	}
	return head, nil
}

// upstreamError says that the proxy makes no connection. The client gets the text, the log the cause.
type upstreamError struct {
	text  string
	cause error
}

func (e *upstreamError) Error() string { return "the proxy of network.upstream " + e.text }

func (e *upstreamError) Unwrap() error { return e.cause }
