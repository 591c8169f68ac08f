package egress

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/network"
	"github.com/scopefs/scopefs/tools/egress/tunnel"
	"github.com/scopefs/scopefs/tools/limit"
)

// Rules decide about the connections and requests of one agent. Hosts are in the
// form of [network.ParseHost]. A [network.Rules] is one.
type Rules interface {
	// Connect decides about a connection, and returns how it is made.
	Connect(host string, port uint16) (scope.Decision, network.Route)

	// Request decides about a request. path is percent-encoded and has no query.
	// secret names the credential that the request gets.
	Request(host string, port uint16, method, path string) (d scope.Decision, secret string)
}

// A Tenant is the agent, or the store of a program, whose connections a proxy makes.
type Tenant struct {
	Agent   scope.ID
	Session string
	Chain   string // of agents that the session is for; see audit.Event

	// Rules returns the current rules. It is called for each connection and each
	// request.
	Rules func() Rules

	// Port decides about a connection to a Port, by its At and Number and the current rules. nil allows none.
	Port func(way Way, at, port uint16) scope.Decision

	// Call returns the call that a new connection is of; "": unknown. nil knows none.
	Call func() string

	// Record writes to the log. After an error nothing is done.
	Record func(context.Context, audit.Event) error

	// Recorded reports whether an earlier daemon has recorded the end of an access; see Monitor.Continue. nil: it has not.
	Recorded func(audit.Event) bool

	// Refused gets each refusal, and each connection to a host that cannot be made, after
	// it was recorded: the host, which may be empty, with a port that is neither 443 nor 80, and
	// the text that the client gets, and the change of the rules that would help. It must return soon. nil drops them.
	Refused  func(host, text, remedy string)
	Operator bool // Refused is for the operator, and says why a credential cannot be read

	// Allow returns the command by which the operator allows a host, for the client's model. nil: there is none.
	Allow func(host string, port uint16) string

	// Approve asks the operator about a connection that no rule decides, and waits
	// until ctx ends, after Limits.Approve. nil approves nothing.
	Approve func(context.Context, Question) (Answer, error)

	// Outlast returns when Approve would no longer grant a Question at once, or when ctx
	// ends. The proxy then ends the connection or the request, unless the rules allow it by
	// themselves. nil: what was granted ends with the rules alone.
	Outlast func(context.Context, Question)

	// Secrets returns the current credentials, by the names that rules have for
	// them. nil has none.
	Secrets func() map[string]Secret

	// Counts counts requests and bytes against Limit, in all proxies of the agent.
	// nil counts in this proxy alone.
	Counts *limit.Rates

	// Limit returns the current limits: how many connections and requests, and how
	// many bytes in both directions, in some time. The heads of requests and responses
	// count, too. nil has none.
	Limit func() (requests, bytes []scope.Rate)
}

// A Question is a request for the operator's approval: a connection, or a request if Method
// is set.
type Question struct {
	Host   string
	Port   uint16
	Method string
	Path   string
	Rule   string
}

// An Answer is the operator's decision about a Question. Neither Granted nor Denied
// is set while the question waits.
type Answer struct {
	ID              string // of the approval, for the client and the operator
	Granted, Denied bool
	Reason          string // of a denial
	Nobody          bool   // is here who could decide
}

// Options are the parts of a proxy that do not depend on the agent.
type Options struct {
	Dialer Dialer         // for every connection but those to addresses of rules
	CA     *CA            // nil: hosts whose requests must be seen are refused
	Roots  *x509.CertPool // that sign hosts' certificates; nil: the system's
	Limits Limits
	Bounds *Bounds // those of the agent; nil: its own, by Limits
}

// A Proxy is the network of one client. Make it by New.
type Proxy struct {
	Options
	authority authority
	bounds    *Bounds
	folds     folds
	transport atomic.Pointer[http.Transport]
	forward   *httputil.ReverseProxy
	requests  *handoff // connections for the server of requests, from Serve on

	purse      *tunnel.Purse // of the tunnels
	pipes      tunnel.Pipes
	meter      meter
	secretLock sync.Mutex // guards kept; no secret is read under it
	kept       map[keptName]*keptSecret

	mu    sync.Mutex
	open  map[*access]func() // what ends each connection and request under way
	ended bool               // nothing begins any more
	wait  sync.WaitGroup     // for what has begun
}

// New returns a proxy for a tenant.
func New(o Options, tenant Tenant) *Proxy {
	return newProxy(o, newTenancy(o, tenant))
}

func newProxy(o Options, of authority) *Proxy {
	o.Limits = o.Limits.withDefaults()
	if o.Bounds == nil {
		o.Bounds = NewBounds(o.Limits, nil)
	}
	p := &Proxy{Options: o, authority: of, bounds: o.Bounds, open: map[*access]func(){}, kept: map[keptName]*keptSecret{}}
	p.purse = tunnel.NewPurse(func() { go p.fill() })
	p.limitTunnels()
	p.transport.Store(p.newTransport())
	p.forward = p.newForward()
	return p
}

// newServer returns the server of HTTP requests, on the listener and inside
// tunnels.
func (p *Proxy) newServer(ctx context.Context) *http.Server {
	return &http.Server{
		Handler:           http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { p.serveHTTP(ctx, w, r) }),
		ReadHeaderTimeout: p.Limits.Speak, IdleTimeout: min(p.Limits.Idle, 2*time.Minute),
		MaxHeaderBytes:               maxHead - 4<<10, // net/http adds 4 KiB
		ErrorLog:                     log.New(io.Discard, "", 0),
		DisableGeneralOptionsHandler: true,
		HTTP2: &http.HTTP2Config{ // net/http ends a connection that resets more than it may open
			MaxConcurrentStreams: maxStreams, MaxReceiveBufferPerConnection: maxWindow, MaxReceiveBufferPerStream: maxWindow,
			MaxReadFrameSize: 16 << 10, WriteByteTimeout: p.Limits.Idle,
		},
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, originKey{}, originOf(c))
		},
	}
}

// Serve accepts connections until ctx ends or the listener fails, and returns when
// all of them are closed. It closes the listener. Connections must be TCP or Unix
// sockets. A proxy serves once, with the ports.
func (p *Proxy) Serve(ctx context.Context, l net.Listener, ports ...Port) error {
	ctx, cancel := context.WithCancel(ctx)
	p.requests = newHandoff(ctx.Done(), l.Addr())
	server := p.newServer(ctx)
	p.begin(func() { _ = server.Serve(p.requests) }) // ends with the hand-off
	p.begin(func() { p.keepFolds(ctx) })
	stop := context.AfterFunc(ctx, func() { l.Close() })
	defer stop()
	for _, port := range ports {
		p.begin(func() { p.servePort(ctx, port) })
	}
	err := p.accept(ctx, l, p.newAccess(&incoming{}, "connect"), p.serve)
	cancel()
	l.Close()
	p.closeAll()
	server.Close()
	p.wait.Wait()
	p.transport.Load().CloseIdleConnections()
	return err
}

// accept calls serve for each connection in a goroutine. like is the access of a connection that has no slot.
func (p *Proxy) accept(ctx context.Context, l net.Listener, like *access, serve func(context.Context, *incoming)) error {
	for {
		c, err := l.Accept()
		if ctx.Err() != nil {
			if c != nil {
				c.Close()
			}
			return nil
		}
		if err != nil {
			if errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) || errors.Is(err, syscall.ECONNABORTED) {
				time.Sleep(50 * time.Millisecond) // until a connection ends
				continue
			}
			return err
		}
		s, ok := c.(socket)
		release, free := p.bounds.connections.Try()
		if !ok || !free {
			c.Close()
			if ok {
				p.foldRefusal(ctx, like, tooMany("connections"))
			}
			continue
		}
		in := &incoming{socket: s}
		in.hold(release)
		p.begin(func() {
			if p.bounds.share.Wait(ctx, connectTime) != nil {
				in.Close()
				return
			}
			serve(ctx, in)
		})
	}
}

// serve reads the first bytes of a connection, which say what it speaks.
func (p *Proxy) serve(ctx context.Context, in *incoming) {
	stop := context.AfterFunc(ctx, func() { in.Close() })
	defer stop()
	const connect = "CONNECT "
	_ = in.SetReadDeadline(time.Now().Add(p.Limits.Speak))
	for len(in.ahead) == 0 || len(in.ahead) < len(connect) && strings.HasPrefix(connect, string(in.ahead)) {
		if in.more() != nil {
			in.Close()
			return
		}
	}
	switch {
	case bytes.HasPrefix(in.ahead, []byte(connect)):
		p.serveConnect(ctx, in)
		return
	case in.ahead[0] != socksVersion:
		p.requests.give(p.framed(ctx, in, in))
		return
	}
	host, port, err := readSOCKS(in)
	if err != nil {
		p.recordMalformed(ctx, in, err)
		in.Close()
		return
	}
	p.stream(ctx, in, host, port, func(r *refusal) error { return answerSOCKS(in, socksReply(r)) })
}

// recordMalformed records a request that could not be read. A client that went
// away is not worth a line.
func (p *Proxy) recordMalformed(ctx context.Context, in *incoming, err error) {
	var r *refusal
	if errors.As(err, &r) {
		a := p.newAccess(in, "connect")
		if o := in.origin; o != nil {
			a.host, a.port = o.host, o.port
		}
		_ = p.authority.deny(ctx, a, r) // it is refused whether recorded or not
	}
}

// admit decides about an access, and records the decision.
func (p *Proxy) admit(ctx context.Context, a *access) *refusal {
	a.spent = p.spend(0)
	return p.authority.admit(ctx, a)
}

// Recheck ends the connections and requests that the current rules do not allow
// or send to another address. The caller calls it after a change of the rules.
func (p *Proxy) Recheck() {
	p.refresh()
	p.authority.(*tenancy).recheck()
}

// refresh has no later request use a connection of earlier rules, and tunnels have the current limit.
func (p *Proxy) refresh() {
	p.transport.Swap(p.newTransport()).CloseIdleConnections()
	p.limitTunnels()
}

// begin runs a function that Serve waits for, in a goroutine. It is false when
// Serve ends, and nothing runs.
func (p *Proxy) begin(run func()) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.ended {
		p.wait.Go(run)
	}
	return !p.ended
}

func (p *Proxy) closeAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ended = true
	for _, end := range p.open {
		end()
	}
}

// track keeps what ends an access until done is called, and ends one that is not allowed any more.
func (p *Proxy) track(a *access, end func()) (done func()) {
	p.mu.Lock()
	p.open[a] = end
	p.mu.Unlock()
	p.authority.hold(a, end)
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.open, a)
	}
}
