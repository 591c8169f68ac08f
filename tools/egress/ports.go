package egress

import (
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/scope"
)

// Way says which border a Port leads over. It is the Op of its connections in the log.
type Way string

// The ways of ports.
const (
	Published Way = "publish"   // from the host to a listener of the sandbox
	HostPort  Way = "host-port" // from the sandbox to a listener of the host
)

// localhost is the host of every Port in the log.
const localhost = "127.0.0.1"

// Port is a port of 127.0.0.1 whose connections lead over the border of the sandbox. The proxy decides about each connection, and records
// it, before it connects. It passes the bytes as those of a tunnel: whatever the protocol.
type Port struct {
	Way      Way
	At       uint16       // of Published: the port of the host
	Number   uint16       // where it leads
	Listener net.Listener // of TCP; Serve closes it

	// Check returns why the other end of a connection may not use the port. nil: any may.
	Check func(net.Conn) error

	// Connect connects to where the port leads, over TCP.
	Connect func(context.Context) (net.Conn, error)
}

// Lead serves a further port until ctx ends, beside Serve.
func (p *Proxy) Lead(ctx context.Context, port Port) {
	if !p.begin(func() { p.servePort(ctx, port) }) {
		port.Listener.Close()
	}
}

func (p *Proxy) accessTo(port Port, in *incoming) *access {
	a := p.newAccess(in, string(port.Way))
	a.way, a.at, a.host, a.port = port.Way, port.At, localhost, port.Number
	return a
}

// servePort serves a port until ctx ends.
func (p *Proxy) servePort(ctx context.Context, port Port) {
	stop := context.AfterFunc(ctx, func() { port.Listener.Close() })
	defer stop()
	defer port.Listener.Close()
	_ = p.accept(ctx, port.Listener, p.accessTo(port, &incoming{}), func(ctx context.Context, in *incoming) { p.lead(ctx, port, in) })
}

// lead leads a connection over the border.
func (p *Proxy) lead(ctx context.Context, port Port, in *incoming) {
	stop := context.AfterFunc(ctx, func() { in.Close() })
	defer stop()
	a := p.accessTo(port, in)
	if port.Check != nil {
		if err := port.Check(in.socket); err != nil {
			p.foldRefusal(ctx, a, &refusal{
				Message: fmt.Sprintf("a connection to port %d of the sandbox is refused: %v", port.Number, err),
				Rule:    string(port.Way) + ": " + err.Error(), verdict: audit.Deny, kind: scope.KindPort,
			})
			reset(in)
			return
		}
	}
	if p.admit(ctx, a) != nil {
		reset(in)
		return
	}
	untrack := p.track(a, func() { in.Close() })
	defer untrack()
	up, err := port.Connect(context.WithValue(ctx, accessKey{}, a))
	if err != nil {
		r := &refusal{Message: err.Error(), unmade: port.Way == HostPort} // of the sandbox's own servers its user knows
		if errors.Is(err, ErrAddress) {
			r.verdict, r.kind, r.Rule = audit.Deny, scope.KindPort, "network.host: no port of scopefs"
		}
		p.authority.end(ctx, a, r)
		reset(in)
		return
	}
	defer up.Close()
	a.remote = up.RemoteAddr().String()
	to, ok := up.(socket)
	if !ok {
		p.authority.end(ctx, a, &refusal{Message: "no TCP connection"})
		reset(in)
		return
	}
	p.authority.end(ctx, a, p.carry(a, to))
}

// reset closes a connection so that its client sees an error, and no empty answer.
func reset(in *incoming) {
	if tcp, ok := in.socket.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0) // closing it is enough
	}
	in.Close()
}
