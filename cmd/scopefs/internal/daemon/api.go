package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/tools/sandbox"
)

// The control API is HTTP with JSON bodies on a unix socket:
//
//	GET  /v1/agents            what is defined and mounted: []Agent
//	GET  /v1/health            answers {} when nothing is stuck
//	POST /v1/reload            read the definitions again: []Reloaded
//	POST /v1/agents/{id}/up    mount; body UpRequest
//	POST /v1/agents/{id}/down  end sandboxes and unmount
//	POST /v1/agents/{id}/run   run a command; body RunRequest; see run.go
//	POST /v1/agents/{id}/token the agent's token for HTTP: TokenReply
//	GET  /v1/approvals         calls that wait for the operator: []tools.Approval, each Brief
//	GET  /v1/approvals/{id}    one of them
//	POST /v1/approvals/{id}/approve, .../deny
//
// An error is {"error": "...", "kind": "..."} with a status of 400 or above.

// UpRequest is the body of up.
type UpRequest struct {
	At string `json:"at,omitempty"` // where to mount; absolute
}

// TokenReply is the answer of token.
type TokenReply struct {
	Token string `json:"token"`
}

// The bounds of bodies, in bytes.
const (
	maxBody  = 4 << 20  // of a request
	maxReply = 64 << 20 // of an answer, which may hold what agents wrote
)

// The kinds of error that a client tells apart.
const (
	kindUnknown       = "unknown_agent"
	kindMissing       = "missing"
	kindInvalid       = "invalid"
	kindNotFound      = "not_found"      // the program of a run
	kindNotExecutable = "not_executable" // likewise
	kindOther         = "other"
)

type apiError struct {
	Text string `json:"error"`
	Kind string `json:"kind"`
}

func (d *Daemon) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/agents", func(w http.ResponseWriter, r *http.Request) { reply(w, d.Agents()) })
	mux.HandleFunc("GET /v1/health", func(w http.ResponseWriter, r *http.Request) {
		d.checkHealth()
		reply(w, struct{}{})
	})
	mux.HandleFunc("POST /v1/reload", func(w http.ResponseWriter, r *http.Request) {
		leave, err := d.enter()
		if err != nil {
			fail(w, http.StatusServiceUnavailable, err)
			return
		}
		defer leave()
		_ = reply(w, d.Reload(r.Context()))
	})
	mux.HandleFunc("POST /v1/agents/{id}/up", d.agent(func(w http.ResponseWriter, r *http.Request, id scope.ID) error {
		var req UpRequest
		if err := body(r, &req); err != nil {
			return err
		}
		if req.At != "" && !filepath.IsAbs(req.At) {
			return invalidError{errors.New("the mount point must be an absolute path")}
		}
		v, err := d.Up(r.Context(), id, req.At)
		if err != nil {
			return err
		}
		return reply(w, UpRequest{At: v.at})
	}))
	mux.HandleFunc("POST /v1/agents/{id}/down", d.agent(func(w http.ResponseWriter, r *http.Request, id scope.ID) error {
		if err := d.Down(r.Context(), id); err != nil {
			return err
		}
		return reply(w, struct{}{})
	}))
	mux.HandleFunc("POST /v1/agents/{id}/run", d.agent(d.serveRun))
	mux.HandleFunc("POST /v1/agents/{id}/token", d.agent(func(w http.ResponseWriter, r *http.Request, id scope.ID) error {
		text, err := d.Token(id)
		if err != nil {
			return err
		}
		return reply(w, TokenReply{text})
	}))
	d.approvalHandlers(mux)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// Who asks, the kernel says: unix(7), SO_PEERCRED.
		uid, ok := r.Context().Value(peerKey{}).(uint32)
		if !ok || uid != 0 && uid != uint32(os.Geteuid()) {
			fail(w, http.StatusForbidden, errors.New("only the daemon's user and root may"))
			return
		}
		r.Body = http.MaxBytesReader(w, r.Body, maxBody)
		mux.ServeHTTP(w, r)
	})
}

type peerKey struct{}

// peerContext notes the user of who has connected.
func peerContext(ctx context.Context, c net.Conn) context.Context {
	if uid, ok := peerUID(c); ok {
		return context.WithValue(ctx, peerKey{}, uid)
	}
	return ctx
}

// peerUID is the user of who has connected.
func peerUID(c net.Conn) (uid uint32, ok bool) {
	conn, ok := c.(*net.UnixConn)
	if !ok {
		return 0, false
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, false
	}
	var cred *unix.Ucred
	if raw.Control(func(fd uintptr) {
		cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}) != nil || err != nil {
		return 0, false
	}
	return cred.Uid, true
}

// agent parses the id and answers errors.
func (d *Daemon) agent(f func(http.ResponseWriter, *http.Request, scope.ID) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		leave, err := d.enter()
		if err != nil {
			fail(w, http.StatusServiceUnavailable, err)
			return
		}
		defer leave()
		id, err := scope.ParseID(r.PathValue("id"))
		if err == nil {
			err = f(w, r, id)
		}
		if err != nil {
			fail(w, http.StatusBadRequest, err)
		}
	}
}

func body(r *http.Request, into any) error {
	dec := json.NewDecoder(r.Body)
	dec.DisallowUnknownFields()
	if err := dec.Decode(into); err != nil && err != io.EOF { // no body asks for nothing special
		return invalidError{fmt.Errorf("request: %w", err)}
	}
	return nil
}

func reply(w http.ResponseWriter, v any) error {
	w.Header().Set("Content-Type", "application/json")
	return json.NewEncoder(w).Encode(v)
}

type invalidError struct{ error }

func fail(w http.ResponseWriter, code int, err error) {
	var missing *sandbox.MissingError
	var invalid invalidError
	var exec *execError
	kind := kindOther
	switch {
	case errors.Is(err, ErrUnknown):
		kind, code = kindUnknown, http.StatusNotFound
	case errors.As(err, &exec) && exec.errno == unix.ENOENT:
		kind = kindNotFound
	case errors.As(err, &exec):
		kind = kindNotExecutable
	case errors.As(err, &missing):
		kind, code = kindMissing, http.StatusServiceUnavailable
	case errors.As(err, &invalid), errors.Is(err, scope.ErrInvalidID), errors.Is(err, sandbox.ErrInvalid):
		kind = kindInvalid
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(apiError{err.Error(), kind})
}

// shortPath returns a name for a socket that fits into sockaddr_un (108
// bytes): of a longer path, one by a descriptor of its directory, which stays
// open as long as the process.
func shortPath(path string) string {
	name, _ := shortName(path)
	return name
}

// shortName is shortPath with a function that closes the descriptor.
func shortName(path string) (name string, release func()) {
	if len(path) < 108 {
		return path, func() {}
	}
	fd, err := unix.Open(filepath.Dir(path), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return path, func() {}
	}
	return fmt.Sprintf("/proc/self/fd/%d/%s", fd, filepath.Base(path)), func() { unix.Close(fd) }
}
