package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/agent"
	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/fleet/reader"
	"github.com/scopefs/scopefs/internal/lookup"
	"github.com/scopefs/scopefs/internal/session"
	"github.com/scopefs/scopefs/internal/view"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/tools/approvals"
	"github.com/scopefs/scopefs/tools/sandbox"
)

func (d *Daemon) handler(ctx context.Context) http.Handler {
	mux := http.NewServeMux()
	// reads no file: a disk may hang
	mux.HandleFunc("GET /v1/agents", func(w http.ResponseWriter, r *http.Request) { _ = reply(w, d.Agents()) })
	mux.HandleFunc("GET /v1/doors", func(w http.ResponseWriter, r *http.Request) { _ = reply(w, d.Doors()) })
	mux.HandleFunc("GET /v1/streams", func(w http.ResponseWriter, r *http.Request) { _ = reply(w, d.Streams()) })
	mux.HandleFunc("GET /v1/health", func(w http.ResponseWriter, r *http.Request) {
		d.checkHealth()
		_ = reply(w, struct{}{}) // it fails if the client is gone
	})
	mux.HandleFunc("POST /v1/stop", func(w http.ResponseWriter, _ *http.Request) {
		d.stop()
		_ = reply(w, struct{}{})
	})
	mux.HandleFunc("GET /metrics", d.writeMetrics)
	mux.HandleFunc("GET /v1/anchors", func(w http.ResponseWriter, r *http.Request) { _ = reply(w, d.Anchors()) })
	mux.HandleFunc("POST /v1/reload", d.changing(func(_ http.ResponseWriter, r *http.Request) (any, error) {
		return d.Reload(r.Context()), nil
	}))
	mux.HandleFunc("GET /v1/stores", func(w http.ResponseWriter, r *http.Request) {
		_ = reply(w, d.Stores.Report(r.Context(), d.loaded.Load().Agents))
	})
	mux.HandleFunc("POST /v1/agents/{id}/up", d.forAgent(func(_ http.ResponseWriter, r *http.Request, a *agent.Agent) (any, error) {
		var req api.UpRequest
		if err := body(r, &req); err != nil {
			return nil, err
		}
		if req.At != "" && !filepath.IsAbs(req.At) {
			return nil, invalid("the mount point must be an absolute path")
		}
		at, err := a.Up(r.Context(), req.At)
		return api.UpRequest{At: at}, err
	}))
	mux.HandleFunc("POST /v1/agents/{id}/down", d.forAgent(func(_ http.ResponseWriter, r *http.Request, a *agent.Agent) (any, error) {
		err := a.Down(r.Context())
		return struct{}{}, errors.Join(err, d.downRoots(r.Context(), a.ID()))
	}))
	mux.HandleFunc("POST /v1/agents/{id}/flags", d.forAgent(d.holdFlags))
	mux.HandleFunc("POST /v1/agents/{id}/run", d.forAgent(func(w http.ResponseWriter, r *http.Request, a *agent.Agent) (any, error) {
		return nil, d.runFor(w, r, a, nil)
	}))
	mux.HandleFunc("POST /v1/agents/{id}/token", d.forAgent(func(_ http.ResponseWriter, r *http.Request, a *agent.Agent) (any, error) {
		var req api.TokenRequest
		if err := body(r, &req); err != nil {
			return nil, err
		}
		return d.Token(r.Context(), a.ID(), req)
	}))
	mux.HandleFunc("GET /v1/tokens", d.changing(func(http.ResponseWriter, *http.Request) (any, error) { return d.Tokens() }))
	mux.HandleFunc("POST /v1/tokens/revoke", d.changing(func(_ http.ResponseWriter, r *http.Request) (any, error) {
		var req api.RevokeRequest
		if err := body(r, &req); err != nil {
			return nil, err
		}
		return d.RevokeTokens(r.Context(), req.Name)
	}))
	mux.HandleFunc("POST /v1/agents/{id}/history", d.forAgent(func(_ http.ResponseWriter, r *http.Request, a *agent.Agent) (any, error) {
		var request json.RawMessage
		if err := body(r, &request); err != nil {
			return nil, err
		}
		if len(request) == 0 {
			return nil, invalid("request: it is empty")
		}
		operator, _ := api.PeerOf(r.Context())
		return a.HistoryFor(r.Context(), operator, request)
	}))
	mux.HandleFunc("POST /v1/agents/{id}/forget", d.changing(d.forget))
	mux.HandleFunc("POST /v1/agents/{id}/rule", d.forAgent(d.rule))
	mux.HandleFunc("POST /v1/sessions/{id}/kill", d.changing(func(_ http.ResponseWriter, r *http.Request) (any, error) {
		return d.kill(r.Context(), r.PathValue("id"))
	}))
	mux.HandleFunc("GET /v1/top", func(w http.ResponseWriter, r *http.Request) { _ = reply(w, d.Top(r.URL.Query().Get("cheap") != "")) })
	d.approvalHandlers(mux)
	d.consoleHandler(mux)
	d.pushHandlers(mux)
	d.proposalHandlers(mux)
	mux.HandleFunc("POST /v1/volumes", d.changing(d.volume))
	answer, refuse := func(w http.ResponseWriter, v any) { _ = reply(w, v) }, func(w http.ResponseWriter,
		err error) {
		fail(w, http.StatusBadRequest, err)
	}
	lookup.New(d.Paths).Handle(mux, answer, refuse)
	reader.NewBoard(ctx, d.Settings.Fleet, &view.LogWriter{Logger: d.Logger, Name: "fleet"}).Handle(mux, answer, refuse)
	return api.Only(uint32(os.Geteuid()), errors.New("only the daemon's user and root may"), api.MaxRequest, mux)
}

// changing counts a request in, and answers with what f returns. After nil and no error f has answered.
func (d *Daemon) changing(f func(http.ResponseWriter, *http.Request) (any, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		leave, err := d.Enter()
		if err != nil {
			fail(w, http.StatusServiceUnavailable, err)
			return
		}
		defer leave()
		switch answer, err := f(w, r); {
		case err != nil:
			fail(w, http.StatusBadRequest, err)
		case answer != nil:
			_ = reply(w, answer)
		}
	}
}

// forAgent is changing for a request that names an agent.
func (d *Daemon) forAgent(f func(http.ResponseWriter, *http.Request, *agent.Agent) (any, error)) http.HandlerFunc {
	return d.changing(func(w http.ResponseWriter, r *http.Request) (any, error) {
		id, err := scope.ParseID(r.PathValue("id"))
		if err != nil {
			return nil, err
		}
		a, err := d.Agent(id)
		if err != nil {
			return nil, err
		}
		return f(w, r, a)
	})
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
	answer := api.Error{Text: err.Error()}
	kind := api.Other
	if changed, ok := errors.AsType[*approvals.ConflictError](err); ok {
		kind, code = api.Conflict, http.StatusConflict
		answer.Outcome = changed.Outcome
		answer.Approval, _ = json.Marshal(changed.Now)
	}
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
		if kind = known.Kind; kind == api.Conflict {
			code = http.StatusConflict
		}
	case errors.Is(err, session.ErrClosing):
		kind = api.Closing
	case errors.Is(err, scope.ErrInvalidID), errors.Is(err, sandbox.ErrInvalid):
		kind = api.Invalid
	}
	answer.Kind = kind
	api.Refuse(w, code, answer)
}
