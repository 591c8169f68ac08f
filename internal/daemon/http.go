package daemon

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/scopefs/scopefs/internal/durable"
	"github.com/scopefs/scopefs/internal/loopback"
	"github.com/scopefs/scopefs/internal/outlive"
	"github.com/scopefs/scopefs/internal/session"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/tools/mcp"
)

// httpFace serves agents' tools by streamable HTTP on the loopback interface. The token
// of a request names the agent. All requests with an agent's token share one session of
// tools.
type httpFace struct {
	d   *Daemon
	key []byte

	patience time.Duration // for a body
}

// tokenKey reads or makes the key of which all tokens are made. To make every
// token void, remove the file and start the daemon again.
func (d *Daemon) tokenKey() ([]byte, error) {
	name := filepath.Join(d.Paths.State, "http.key")
	f, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("key of tokens: %w", err)
	}
	defer f.Close()
	key, err := io.ReadAll(io.LimitReader(f, 64))
	if err == nil && len(key) != sha256.Size {
		key = make([]byte, sha256.Size)
		rand.Read(key)
		if err = f.Truncate(0); err == nil {
			_, err = f.WriteAt(key, 0)
		}
		// A token is worth nothing when the power takes its key.
		if err == nil {
			err = errors.Join(f.Sync(), durable.SyncDir(d.Paths.State))
		}
	}
	return key, err
}

// Token returns an agent's token for HTTP.
func (d *Daemon) Token(id scope.ID) (string, error) {
	if _, err := d.Definition(id); err != nil {
		return "", err
	}
	key, err := d.tokenKey()
	if err != nil {
		return "", err
	}
	return token(key, id), nil
}

func token(key []byte, id scope.ID) string {
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte("scopefs mcp " + id))
	return string(id) + "." + hex.EncodeToString(mac.Sum(nil))
}

// serveHTTP listens at an address until ctx ends.
func (d *Daemon) serveHTTP(ctx context.Context, address string) (wait func(), err error) {
	if err := loopback.Check("http", address); err != nil {
		return nil, err
	}
	key, err := d.tokenKey()
	if err != nil {
		return nil, err
	}
	l, at, err := loopback.Listen(address)
	if err != nil {
		return nil, fmt.Errorf("http: %w: give another address with --http", err)
	}
	if err := d.openWeb(key); err != nil {
		l.Close()
		return nil, fmt.Errorf("http: sessions: %w", err)
	}
	h := &httpFace{d: d, key: key, patience: bodyTime}
	mux := http.NewServeMux()
	mux.Handle("/mcp", h.bounded(mcp.Handler(h.faceOf)))
	server := &http.Server{
		Handler: loopback.Only(at, mux), ReadHeaderTimeout: headerTime, IdleTimeout: time.Minute, MaxHeaderBytes: 64 << 10,
		ConnContext: loopback.ConnContext,
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		if err := server.Serve(loopback.NewConns(l, connections)); !errors.Is(err, http.ErrServerClosed) {
			d.Logger.Error("http", "err", err)
		}
	}()
	d.Logger.Info("serving MCP", "url", "http://"+l.Addr().String()+"/mcp")
	stop := context.AfterFunc(ctx, func() { server.Close() })
	return func() {
		stop()
		server.Close()
		<-served
		for _, a := range d.all() {
			a.CloseWeb()
		}
		if d.Web != nil {
			d.Web.Close()
		}
	}, nil
}

// openWeb continues with the sessions over HTTP that the last daemon has left. key is that of tokens.
func (d *Daemon) openWeb(key []byte) (err error) {
	if d.Grace == 0 {
		d.dropWeb()
		return nil
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

// whose returns the agent whose token a request has.
func (h *httpFace) whose(r *http.Request) (scope.ID, bool) {
	scheme, given, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	name, _, _ := strings.Cut(given, ".")
	id, err := scope.ParseID(name)
	// The case of a scheme does not matter: RFC 9110, section 11.1.
	return id, strings.EqualFold(scheme, "Bearer") && err == nil && hmac.Equal([]byte(given), []byte(token(h.key, id)))
}

// faceOf returns the tools of the agent whose token a request has, or the HTTP status of
// why there are none.
func (h *httpFace) faceOf(r *http.Request) (*mcp.Face, int) {
	id, ok := h.whose(r)
	if !ok {
		return nil, http.StatusUnauthorized
	}
	a := h.d.agent(id)
	if a == nil {
		return nil, http.StatusServiceUnavailable
	}
	ctx, cancel := context.WithTimeout(r.Context(), webTime)
	defer cancel()
	face, err := a.WebFace(ctx)
	if err != nil {
		if !errors.Is(err, session.ErrNotOpen) && !errors.Is(err, session.ErrClosing) {
			h.d.Warnings.Warn(id, "client", "err", err)
		}
		return nil, http.StatusServiceUnavailable
	}
	return face, 0
}
