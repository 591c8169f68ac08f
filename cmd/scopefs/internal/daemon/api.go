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

	"github.com/scopefs/scopefs/cmd/scopefs/internal/control"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/tools/sandbox"
)

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
		var req control.UpRequest
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
		return reply(w, control.UpRequest{At: v.at})
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
		return reply(w, control.TokenReply{Token: text})
	}))
	d.approvalHandlers(mux)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		uid, ok := r.Context().Value(peerKey{}).(uint32)
		if !ok || uid != 0 && uid != uint32(os.Geteuid()) {
			fail(w, http.StatusForbidden, errors.New("only the daemon's user and root may"))
			return
		}
		r.Body = http.MaxBytesReader(w, r.Body, control.MaxRequest)
		mux.ServeHTTP(w, r)
	})
}

type peerKey struct{}

// peerContext notes the user of who has connected.
func peerContext(ctx context.Context, c net.Conn) context.Context {
	if uid, ok := control.PeerUID(c); ok {
		return context.WithValue(ctx, peerKey{}, uid)
	}
	return ctx
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
	kind := control.Other
	switch {
	case errors.Is(err, control.ErrUnknown):
		kind, code = control.UnknownAgent, http.StatusNotFound
	case errors.As(err, &exec) && exec.errno == unix.ENOENT:
		kind = control.NotFound
	case errors.As(err, &exec):
		kind = control.NotExecutable
	case errors.As(err, &missing):
		kind, code = control.Missing, http.StatusServiceUnavailable
	case errors.As(err, &invalid), errors.Is(err, scope.ErrInvalidID), errors.Is(err, sandbox.ErrInvalid):
		kind = control.Invalid
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(control.Error{Text: err.Error(), Kind: kind})
}
