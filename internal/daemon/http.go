package daemon

import (
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/scopefs/scopefs/internal/api"
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
	d      *Daemon
	key    []byte
	oldEnd time.Time // of tokens in which no end is written

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

// tokenTime is how long a token is valid if the operator gives no other time.
const tokenTime = 30 * 24 * time.Hour

// Token returns an agent's token for HTTP, which ends after a time; 0: after tokenTime.
func (d *Daemon) Token(id scope.ID, valid time.Duration) (api.TokenReply, error) {
	if _, err := d.Definition(id); err != nil {
		return api.TokenReply{}, err
	}
	if valid < 0 {
		return api.TokenReply{}, invalid("the time of a token is not above zero: write one such as 30d")
	}
	key, err := d.tokenKey()
	if err != nil {
		return api.TokenReply{}, err
	}
	ends := time.Now().Add(cmp.Or(valid, tokenTime)).Truncate(time.Second)
	return api.TokenReply{Token: token(key, id, ends), Ends: ends}, nil
}

// token returns the token of an agent that ends at a whole second.
func token(key []byte, id scope.ID, ends time.Time) string {
	name := fmt.Sprintf("%s.%d", id, ends.Unix())
	return name + "." + mac(key, name)
}

// oldToken returns the token that earlier releases made, in which no end is written.
func oldToken(key []byte, id scope.ID) string { return string(id) + "." + mac(key, string(id)) }

func mac(key []byte, name string) string {
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte("scopefs mcp " + name))
	return hex.EncodeToString(mac.Sum(nil))
}

// oldTokensEnd returns when the tokens of earlier releases end: tokenTime after this release has first served HTTP. A file
// keeps that for later starts.
func (d *Daemon) oldTokensEnd() (time.Time, error) {
	root, err := os.OpenRoot(d.Paths.State)
	if err != nil {
		return time.Time{}, fmt.Errorf("http: %w", err)
	}
	defer root.Close()
	const name = "http.old"
	text, err := root.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		text = time.Now().Add(tokenTime).UTC().AppendFormat(nil, time.RFC3339)
		err = durable.Replace(root, name, append(text, '\n'), durable.Options{})
	}
	var ends time.Time
	if err == nil {
		ends, err = time.Parse(time.RFC3339, strings.TrimSpace(string(text)))
	}
	if err != nil {
		return ends, fmt.Errorf("http: the end of old tokens: %s: %w: remove the file", filepath.Join(d.Paths.State, name), err)
	}
	return ends, nil
}

// openHTTP prepares MCP over HTTP, until closeWeb.
func (d *Daemon) openHTTP() (h *httpFace, closeWeb func(), err error) {
	if err := loopback.Check("http", d.http); err != nil {
		return nil, nil, err
	}
	h = &httpFace{d: d, patience: bodyTime}
	if h.key, err = d.tokenKey(); err != nil {
		return nil, nil, err
	}
	if h.oldEnd, err = d.oldTokensEnd(); err != nil {
		return nil, nil, err
	}
	if err := d.openWeb(h.key); err != nil {
		return nil, nil, fmt.Errorf("http: sessions: %w", err)
	}
	return h, func() {
		for _, a := range d.all() {
			a.CloseWeb()
		}
		if d.Web != nil {
			d.Web.Close()
		}
	}, nil
}

// serve serves at an address, until stop.
func (h *httpFace) serve(address string) (stop func(), err error) {
	l, at, err := loopback.Listen(address)
	if err != nil {
		return nil, fmt.Errorf("http: %w", loopback.Refused(err, "give another address with --http"))
	}
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
			h.d.Logger.Error("http", "err", err)
		}
	}()
	h.d.Logger.Info("serving MCP", "url", "http://"+l.Addr().String()+"/mcp")
	return func() { server.Close(); <-served }, nil
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

// whose returns the agent whose token a request has, and when the token ends. The token may have ended.
func (h *httpFace) whose(r *http.Request) (id scope.ID, ends time.Time, ok bool) {
	scheme, given, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	name, rest, _ := strings.Cut(given, ".")
	id, err := scope.ParseID(name)
	// The case of a scheme does not matter: RFC 9110, section 11.1.
	if err != nil || !strings.EqualFold(scheme, "Bearer") {
		return id, ends, false
	}
	want, ends := oldToken(h.key, id), h.oldEnd
	if text, _, dated := strings.Cut(rest, "."); dated {
		seconds, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return id, ends, false
		}
		ends = time.Unix(seconds, 0)
		want = token(h.key, id, ends)
	}
	return id, ends, hmac.Equal([]byte(given), []byte(want))
}

// faceOf returns the tools of the agent whose token a request has, or the HTTP status of
// why there are none. bounded has refused a token that has ended.
func (h *httpFace) faceOf(r *http.Request) (*mcp.Face, int) {
	id, _, ok := h.whose(r)
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
