package daemon

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"github.com/scopefs/scopefs/internal/agent"
	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/loopback"
	"github.com/scopefs/scopefs/internal/outlive"
	"github.com/scopefs/scopefs/internal/session"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/tools/mcp"
)

// httpFace serves agents' tools by streamable HTTP: on the agent's own socket, whose peer the kernel names, and on the
// loopback interface, where a token names the agent. All requests for an agent share one session of tools.
type httpFace struct {
	d        *Daemon
	patience time.Duration // for a body

	sockets chan net.Conn // of agents' sockets, to be served
	over    chan struct{} // closed when none is served any more
}

// openHTTP serves MCP over HTTP on the sockets of agents, until closeWeb.
func (d *Daemon) openHTTP() (h *httpFace, closeWeb func(), err error) {
	h = &httpFace{d: d, patience: bodyTime, sockets: make(chan net.Conn), over: make(chan struct{})}
	if d.Grace == 0 {
		d.dropWeb()
	} else if err := d.openWeb(); err != nil {
		return nil, nil, fmt.Errorf("http: sessions: %w", err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/mcp", h.bySocket)
	stop := h.start(passed{h}, loopback.OnlyForwarded(mux), func(ctx context.Context, c net.Conn) context.Context {
		return context.WithValue(ctx, socketKey{}, c.(*passedConn).id)
	})
	d.ServeHTTP = h.serveConn
	return h, func() {
		close(h.over)
		stop()
		for _, a := range d.all() {
			a.CloseWeb()
		}
		if d.Web != nil {
			d.Web.Close()
		}
	}, nil
}

// start serves the connections of a listener, until stop.
func (h *httpFace) start(l net.Listener, handler http.Handler, context func(context.Context, net.Conn) context.Context) (stop func()) {
	server := &http.Server{
		Handler: handler, ReadHeaderTimeout: headerTime, IdleTimeout: time.Minute, MaxHeaderBytes: 64 << 10, ConnContext: context,
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) && !errors.Is(err, net.ErrClosed) {
			h.d.Logger.Error("http", "err", err)
		}
	}()
	return func() { server.Close(); <-served }
}

type socketKey struct{} // of a request's context: the agent whose socket has the connection

// passed is the listener of the connections that agents' sockets pass on.
type passed struct{ *httpFace }

func (p passed) Accept() (net.Conn, error) {
	select {
	case c := <-p.sockets:
		return c, nil
	case <-p.over:
		return nil, net.ErrClosed
	}
}

func (p passed) Close() error { return nil }

func (p passed) Addr() net.Addr { return &net.UnixAddr{Net: "unix"} }

// passedConn is a connection of an agent's socket.
type passedConn struct {
	net.Conn
	id     scope.ID
	closed func()
}

func (c *passedConn) Close() error {
	defer c.closed()
	return c.Conn.Close()
}

// serveConn is session.Shared.ServeHTTP.
func (h *httpFace) serveConn(id scope.ID, conn net.Conn) {
	closed := make(chan struct{})
	select {
	case h.sockets <- &passedConn{conn, id, sync.OnceFunc(func() { close(closed) })}:
		<-closed
	case <-h.over:
	}
}

// serve serves at an address of the loopback interface, until stop.
func (h *httpFace) serve(listen func() (*loopback.Listener, netip.AddrPort, error)) (stop func(), err error) {
	l, at, err := listen()
	if err != nil {
		return nil, fmt.Errorf("http: %w", err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/mcp", h.byToken)
	stop = h.start(loopback.NewConns(l, connections), loopback.Only(at, mux), loopback.ConnContext)
	url := "http://" + at.String() + "/mcp"
	h.d.url.Store(&url)
	h.d.Logger.Info("serving MCP", "url", url)
	return stop, nil
}

// Doors lists where the daemon serves agents' tools.
func (d *Daemon) Doors() []api.Door {
	doors := []api.Door{{By: "socket", Address: d.Paths.ToolSocket("AGENT")}}
	if url := d.url.Load(); url != nil {
		doors = append(doors, api.Door{By: "token", Address: *url})
	}
	return doors
}

// openWeb continues with the sessions over HTTP that the last daemon has left.
func (d *Daemon) openWeb() error {
	key, err := d.tokens.key()
	if err != nil {
		return err
	}
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte("scopefs sessions"))
	d.Web, err = outlive.OpenWeb(outlive.WebOptions{
		Holder: d.Holder, Dir: d.Paths.Web(), Claim: hex.EncodeToString(mac.Sum(nil)), Idle: mcp.MaxIdle, Leaves: d.HandOver.Load,
		Defined: func(id scope.ID) bool { return d.agent(id) != nil }, Logger: d.Logger,
	}, d.runs.web)
	return err
}

// dropWeb removes the sessions over HTTP that the last daemon has left.
func (d *Daemon) dropWeb() {
	for _, p := range d.runs.web {
		p.Remove()
	}
	outlive.RemoveWeb(d.Paths.Web(), "")
}

// webTime bounds the wait of a request over HTTP for what the last daemon has left.
const webTime = 10 * time.Second

// bySocket serves a request on an agent's socket. Who may connect is the agent. A token that the request has nevertheless must be
// the agent's: a client that was given another agent's must not work as this one.
func (h *httpFace) bySocket(w http.ResponseWriter, r *http.Request) {
	id := r.Context().Value(socketKey{}).(scope.ID)
	var t *token
	if r.Header.Get("Authorization") != "" {
		if t = h.tokenOf(w, r); t == nil {
			return
		}
		if t.Agent != id {
			refuseToken(w, fmt.Sprintf("this is the socket of %s, and the token is of another agent: send none", id))
			return
		}
	}
	h.serveAgent(w, r, h.d.agent(id), t)
}

// byToken serves a request on the loopback interface, to the user for whose processes its token is.
func (h *httpFace) byToken(w http.ResponseWriter, r *http.Request) {
	t := h.tokenOf(w, r)
	if t == nil {
		return
	}
	a := h.d.agent(t.Agent)
	if a != nil && !t.earlier {
		uid, err := loopback.User(r.Context())
		if err != nil {
			h.d.Warnings.Warn(a.ID(), "the user of a connection is not known", "err", err)
		}
		if err != nil || !t.admits(uid, a) {
			t.foreign.Add(uid)
			refuse(w, "the token is not for processes of this user: scopefs token AGENT --origin USER makes one", http.StatusForbidden)
			return
		}
	}
	h.serveAgent(w, r, a, t)
}

// tokenOf returns the token of a request, or refuses the request.
func (h *httpFace) tokenOf(w http.ResponseWriter, r *http.Request) *token {
	t, err := h.d.tokens.of(r)
	switch {
	case err != nil:
		h.d.Logger.Error("http", "err", err)
		refuse(w, "the daemon cannot read its tokens: its log says why", http.StatusServiceUnavailable)
	case t == nil:
		w.Header().Set("WWW-Authenticate", "Bearer")
		refuse(w, "no valid token: send Authorization: Bearer TOKEN", http.StatusUnauthorized)
	case !time.Now().Before(t.Ends):
		refuseToken(w, fmt.Sprintf("the token of %s ended %s: make another with scopefs token %s", t.Agent,
			t.Ends.UTC().Format(time.RFC3339), t.Agent))
	default:
		return t
	}
	return nil
}

func refuseToken(w http.ResponseWriter, text string) {
	w.Header().Set("WWW-Authenticate", `Bearer error="invalid_token"`) // RFC 6750, section 3.1
	refuse(w, text, http.StatusUnauthorized)
}

// serveAgent serves a request for an agent, with its token t or nil. a is nil if no definition of the agent has loaded.
func (h *httpFace) serveAgent(w http.ResponseWriter, r *http.Request, a *agent.Agent, t *token) {
	tools := mcp.Handler(func(r *http.Request) (*mcp.Face, int) { return h.faceOf(r, a) })
	if a == nil {
		tools.ServeHTTP(w, r) // which refuses
		return
	}
	h.bounded(w, r, a, t, tools)
}

// faceOf returns an agent's tools, or the HTTP status of why there are none.
func (h *httpFace) faceOf(r *http.Request, a *agent.Agent) (*mcp.Face, int) {
	if a == nil {
		return nil, http.StatusServiceUnavailable
	}
	ctx, cancel := context.WithTimeout(r.Context(), webTime)
	defer cancel()
	face, err := a.WebFace(ctx)
	if err != nil {
		if !errors.Is(err, session.ErrNotOpen) && !errors.Is(err, session.ErrClosing) {
			h.d.Warnings.Warn(a.ID(), "client", "err", err)
		}
		return nil, http.StatusServiceUnavailable
	}
	return face, 0
}
