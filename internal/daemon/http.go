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
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/scopefs/scopefs/internal/session"
	"github.com/scopefs/scopefs/internal/state"
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
			err = errors.Join(f.Sync(), state.SyncDir(d.Paths.State))
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

// CheckHTTP fails for an address that is not one of the loopback interface: what
// is said there is not encrypted.
func CheckHTTP(flag, address string) error {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return fmt.Errorf("--%s %q: want ADDRESS:PORT", flag, address)
	}
	if ip := net.ParseIP(host); host != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return fmt.Errorf("--%s %q: not on the loopback interface: put a proxy with TLS before it", flag, address)
	}
	return nil
}

// serveHTTP listens at an address until ctx ends.
func (d *Daemon) serveHTTP(ctx context.Context, address string) (wait func(), err error) {
	if err := CheckHTTP("http", address); err != nil {
		return nil, err
	}
	key, err := d.tokenKey()
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("http: %w: give another address with --http", err)
	}
	h := &httpFace{d: d, key: key, patience: bodyTime}
	at, err := netip.ParseAddrPort(l.Addr().String())
	if err != nil {
		l.Close()
		return nil, fmt.Errorf("http: %w", err)
	}
	mux := http.NewServeMux()
	mux.Handle("/mcp", h.bounded(mcp.Handler(h.faceOf)))
	server := &http.Server{
		Handler: onlyAt(at, mux), ReadHeaderTimeout: headerTime, IdleTimeout: time.Minute, MaxHeaderBytes: 64 << 10,
		ConnContext: func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, connKey{}, c) },
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		if err := server.Serve(newConnTable(l)); !errors.Is(err, http.ErrServerClosed) {
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
	}, nil
}

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
	face, err := a.Web()
	if err != nil {
		if !errors.Is(err, session.ErrNotOpen) && !errors.Is(err, session.ErrClosing) {
			h.d.Warnings.Warn(id, "client", "err", err)
		}
		return nil, http.StatusServiceUnavailable
	}
	return face, 0
}

// onlyAt refuses requests that were not sent to the address itself, as a browser
// sends them for a page whose name was made to lead here (DNS rebinding), and
// requests of pages from elsewhere.
func onlyAt(at netip.AddrPort, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		why := ""
		foreign := func(site string) bool { return site != "same-origin" && site != "none" }
		switch origins := r.Header.Values("Origin"); {
		case !namesUs(r.Host, at):
			why = fmt.Sprintf("Host is %.80q, not %s or localhost:%d: use one of these in the URL", r.Host, at, at.Port())
		case len(origins) > 1, len(origins) == 1 && !isOurPage(origins[0], at):
			why = fmt.Sprintf("Origin is %.80q: pages from elsewhere have no access", origins)
		// A browser says that a page of ours, or its user, asks (Fetch Metadata, section 2.3). Other programs say nothing.
		case slices.ContainsFunc(r.Header.Values("Sec-Fetch-Site"), foreign):
			why = "Sec-Fetch-Site is of another site: pages from elsewhere have no access"
		}
		if why == "" {
			next.ServeHTTP(w, r)
			return
		}
		w.Header().Set("Connection", "close")
		http.Error(w, why, http.StatusForbidden)
	})
}

// namesUs reports whether a Host field is our address, or localhost with our port.
func namesUs(host string, at netip.AddrPort) bool {
	if at.Port() == 80 && !strings.HasSuffix(host, ":80") {
		host += ":80" // RFC 9110, section 4.2.1
	}
	return host == at.String() || strings.EqualFold(host, fmt.Sprintf("localhost:%d", at.Port()))
}

func isOurPage(origin string, at netip.AddrPort) bool {
	host, ok := strings.CutPrefix(origin, "http://")
	return ok && namesUs(host, at)
}
