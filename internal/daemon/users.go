package daemon

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/lookup"
	"github.com/scopefs/scopefs/internal/session"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/tools/limit"
	"github.com/scopefs/scopefs/tools/sandbox"
)

// users has the control sockets of a daemon of root for the users of its agents. A socket
// is its user's: the kernel keeps others from connecting, and the handler serves the agents
// of that user alone. A user can list them, run commands as them and read their denials, and nothing else.
type users struct {
	ctx     context.Context // of the daemon; nil: there are no such sockets
	denials http.Handler    // of the users' agents; apart from the operator's, who does not wait for users

	mu     sync.Mutex
	open   map[uint32]*http.Server
	closed bool
}

const (
	maxUserConns = 64        // of one user; a connection is a command that runs, or a request
	maxUserBody  = 256 << 10 // bytes; a command line has 140 kB at most
	userIdle     = 10 * time.Second
)

// openUsers lets Welcome open sockets until ctx ends. It removes those of a daemon that was
// killed.
func (d *Daemon) openUsers(ctx context.Context) error {
	if !d.Root || d.only != "" {
		return nil
	}
	if err := os.RemoveAll(d.Paths.Users()); err != nil {
		return fmt.Errorf("users' sockets: %w", err)
	}
	if err := os.Mkdir(d.Paths.Users(), 0o711); err != nil {
		return fmt.Errorf("users' sockets: %w", err)
	}
	denials := http.NewServeMux()
	lookup.New(d.Paths).HandleDenials(denials, func(r *http.Request, id scope.ID) bool {
		uid, ok := api.PeerOf(r.Context())
		return ok && d.isOf(id, uid)
	}, func(w http.ResponseWriter, v any) { _ = reply(w, v) }, func(w http.ResponseWriter, err error) { fail(w, http.StatusBadRequest, err) })
	d.users.mu.Lock()
	defer d.users.mu.Unlock()
	d.users.denials = denials
	d.users.ctx, d.users.open = ctx, map[uint32]*http.Server{}
	return nil
}

// Welcome opens the socket for the user of an agent, unless it is open. The socket stays
// open until the daemon ends. Root uses the operator's socket.
func (d *Daemon) Welcome(uid uint32) error {
	u := &d.users
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.ctx == nil || u.closed || uid == 0 || u.open[uid] != nil {
		return nil
	}
	name := d.Paths.UserSocket(uid)
	l, err := api.Listen(name)
	if err != nil {
		return fmt.Errorf("socket of user %d: %w", uid, err)
	}
	if err := os.Lchown(name, int(uid), -1); err != nil {
		l.Close()
		return fmt.Errorf("socket of user %d: %w", uid, err)
	}
	conns := &userConns{slots: limit.NewSlots(maxUserConns), held: map[net.Conn]func(){}}
	server := &http.Server{
		Handler: d.userHandler(uid, conns), ConnState: conns.changed, ConnContext: conns.context,
		BaseContext:       func(net.Listener) context.Context { return u.ctx },
		ReadHeaderTimeout: userIdle, IdleTimeout: userIdle, MaxHeaderBytes: 16 << 10,
	}
	u.open[uid] = server
	go func() {
		if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			d.Logger.Error("socket of a user", "uid", uid, "err", err)
		}
	}()
	return nil
}

// close ends all connections except those of commands, which end with their sandboxes.
func (u *users) close() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.closed = true
	for _, server := range u.open {
		server.Close()
	}
}

// userConns bounds the connections of one user.
type userConns struct {
	slots *limit.Slots

	mu   sync.Mutex
	held map[net.Conn]func()
}

type userConnKey struct{}

func (u *userConns) context(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(api.WithPeer(ctx, c), userConnKey{}, c)
}

// changed is http.Server.ConnState. A connection beyond the bound is closed at once. That of
// a command leaves the server, and done releases it.
func (u *userConns) changed(c net.Conn, state http.ConnState) {
	switch state {
	case http.StateNew:
		release, ok := u.slots.Try()
		if !ok {
			c.Close()
			return
		}
		u.mu.Lock()
		defer u.mu.Unlock()
		u.held[c] = release
	case http.StateClosed:
		u.done(c)
	}
}

func (u *userConns) done(c net.Conn) {
	u.mu.Lock()
	release := u.held[c]
	delete(u.held, c)
	u.mu.Unlock()
	if release != nil {
		release()
	}
}

var errNotOperator = errors.New("only root and the daemon's user may; the user of an agent may list and run it, and read its denials")

// userHandler serves one user.
func (d *Daemon) userHandler(uid uint32, conns *userConns) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) { fail(w, http.StatusForbidden, errNotOperator) })
	mux.HandleFunc("GET /v1/agents", func(w http.ResponseWriter, r *http.Request) { _ = reply(w, d.agentsOf(uid)) })
	mux.Handle("GET /v1/events", d.users.denials)
	mux.HandleFunc("POST /v1/agents/{id}/run", func(w http.ResponseWriter, r *http.Request) {
		if err := d.runAs(w, r, uid); err != nil {
			fail(w, http.StatusBadRequest, shownToUser(err))
		}
		if c, ok := r.Context().Value(userConnKey{}).(net.Conn); ok {
			conns.done(c) // the server does not see the end of one that runFor has taken
		}
	})
	return api.Only(uid, errNotOperator, maxUserBody, mux)
}

// runAs runs a command as an agent of a user's. An agent of another's does not exist.
func (d *Daemon) runAs(w http.ResponseWriter, r *http.Request, uid uint32) error {
	leave, err := d.Enter()
	if err != nil {
		return err
	}
	defer leave()
	id, err := scope.ParseID(r.PathValue("id"))
	if err != nil {
		return err
	}
	if !d.isOf(id, uid) {
		return api.ErrUnknown
	}
	return d.runFor(w, r, d.agent(id), &uid)
}

// isOf reports whether an agent runs as a user.
func (d *Daemon) isOf(id scope.ID, uid uint32) bool {
	if d.agent(id) == nil {
		return false
	}
	owner, _, err := d.UserOf(id)
	return err == nil && owner == uid
}

// agentsOf returns what Agents does of the agents that run as a user.
func (d *Daemon) agentsOf(uid uint32) []api.Agent {
	own := slices.DeleteFunc(d.Agents(), func(s api.Agent) bool {
		a := d.agent(s.ID)
		return a == nil || !a.IsOf(uid)
	})
	for i := range own {
		if own[i].Error != "" {
			own[i].Error = errNotShown.Error()
		}
	}
	return own
}

// shownToUser returns the error that a user of agents may see: others name files of the
// host, other agents and the operator's variables.
func shownToUser(err error) error {
	_, missing := errors.AsType[*sandbox.MissingError](err)
	_, exec := errors.AsType[*execError](err)
	_, known := errors.AsType[*api.Error](err)
	switch {
	case errors.Is(err, api.ErrUnknown):
		return api.ErrUnknown
	case missing, exec, known, errors.Is(err, scope.ErrInvalidID), errors.Is(err, sandbox.ErrInvalid), errors.Is(err, sandbox.ErrTooLarge),
		errors.Is(err, session.ErrDown), errors.Is(err, session.ErrClosing), errors.Is(err, unix.EAGAIN):
		return err
	}
	return errNotShown
}

var errNotShown = errors.New("the agent does not start: the operator's log says why")
