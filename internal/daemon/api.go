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

	"github.com/scopefs/scopefs/internal/agent"
	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/tools/sandbox"
)

func (d *Daemon) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/agents", func(w http.ResponseWriter, r *http.Request) { _ = reply(w, d.Agents()) })
	mux.HandleFunc("GET /v1/health", func(w http.ResponseWriter, r *http.Request) {
		d.checkHealth()
		_ = reply(w, struct{}{}) // it fails if the client is gone
	})
	mux.HandleFunc("POST /v1/reload", func(w http.ResponseWriter, r *http.Request) {
		leave, err := d.Enter()
		if err != nil {
			fail(w, http.StatusServiceUnavailable, err)
			return
		}
		defer leave()
		_ = reply(w, d.Reload(r.Context()))
	})
	mux.HandleFunc("GET /v1/stores", func(w http.ResponseWriter, r *http.Request) {
		_ = reply(w, d.Stores.Report(r.Context(), d.loaded.Load().Agents))
	})
	mux.HandleFunc("POST /v1/agents/{id}/up", d.forAgent(func(w http.ResponseWriter, r *http.Request, a *agent.Agent) error {
		var req api.UpRequest
		if err := body(r, &req); err != nil {
			return err
		}
		if req.At != "" && !filepath.IsAbs(req.At) {
			return invalid("the mount point must be an absolute path")
		}
		at, err := a.Up(r.Context(), req.At)
		if err != nil {
			return err
		}
		return reply(w, api.UpRequest{At: at})
	}))
	mux.HandleFunc("POST /v1/agents/{id}/down", d.forAgent(func(w http.ResponseWriter, r *http.Request, a *agent.Agent) error {
		if err := a.Down(r.Context()); err != nil {
			return err
		}
		return reply(w, struct{}{})
	}))
	mux.HandleFunc("POST /v1/agents/{id}/run", d.forAgent(d.serveRun))
	mux.HandleFunc("POST /v1/agents/{id}/token", d.forAgent(func(w http.ResponseWriter, r *http.Request, a *agent.Agent) error {
		text, err := d.Token(a.ID())
		if err != nil {
			return err
		}
		return reply(w, api.TokenReply{Token: text})
	}))
	mux.HandleFunc("POST /v1/sessions/{id}/kill", func(w http.ResponseWriter, r *http.Request) {
		s, err := d.kill(r.Context(), r.PathValue("id"))
		if err != nil {
			fail(w, http.StatusBadRequest, err)
			return
		}
		_ = reply(w, s)
	})
	mux.HandleFunc("GET /v1/top", func(w http.ResponseWriter, r *http.Request) { _ = reply(w, d.Top()) })
	d.approvalHandlers(mux)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		uid, ok := r.Context().Value(peerKey{}).(uint32)
		if !ok || uid != 0 && uid != uint32(os.Geteuid()) {
			fail(w, http.StatusForbidden, errors.New("only the daemon's user and root may"))
			return
		}
		r.Body = http.MaxBytesReader(w, r.Body, api.MaxRequest)
		mux.ServeHTTP(w, r)
	})
}

type peerKey struct{}

// peerContext adds the user of the other end to the context of requests.
func peerContext(ctx context.Context, c net.Conn) context.Context {
	if uid, ok := api.PeerUID(c); ok {
		return context.WithValue(ctx, peerKey{}, uid)
	}
	return ctx
}

// forAgent parses the id, finds the agent and answers errors.
func (d *Daemon) forAgent(f func(http.ResponseWriter, *http.Request, *agent.Agent) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		leave, err := d.Enter()
		if err != nil {
			fail(w, http.StatusServiceUnavailable, err)
			return
		}
		defer leave()
		id, err := scope.ParseID(r.PathValue("id"))
		var a *agent.Agent
		if err == nil {
			a, err = d.Agent(id)
		}
		if err == nil {
			err = f(w, r, a)
		}
		if err != nil {
			fail(w, http.StatusBadRequest, err)
		}
	}
}

func body(r *http.Request, into any) error {
	dec := json.NewDecoder(r.Body)
	dec.DisallowUnknownFields()
	if err := dec.Decode(into); err != nil && err != io.EOF { // an empty body is a zero request
		return invalid("request: %v", err)
	}
	return nil
}

func reply(w http.ResponseWriter, v any) error {
	w.Header().Set("Content-Type", "application/json")
	return json.NewEncoder(w).Encode(v)
}

func invalid(format string, args ...any) error {
	return &api.Error{Kind: api.Invalid, Text: fmt.Sprintf(format, args...)}
}

func fail(w http.ResponseWriter, code int, err error) {
	var missing *sandbox.MissingError
	var exec *execError
	var known *api.Error
	var notLoaded *api.NotLoadedError
	kind := api.Other
	switch {
	case errors.Is(err, api.ErrUnknown):
		kind, code = api.UnknownAgent, http.StatusNotFound
	case errors.As(err, &notLoaded):
		kind = api.NotLoaded
	case errors.As(err, &exec) && exec.errno == unix.ENOENT:
		kind = api.NotFound
	case errors.As(err, &exec):
		kind = api.NotExecutable
	case errors.As(err, &missing):
		kind, code = api.Missing, http.StatusServiceUnavailable
	case errors.As(err, &known):
		kind = known.Kind
	case errors.Is(err, scope.ErrInvalidID), errors.Is(err, sandbox.ErrInvalid):
		kind = api.Invalid
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(api.Error{Text: err.Error(), Kind: kind})
}
