// Package entry is the console's door. A browser enters by a link of the operator's or the key of a paired device, and gets a
// cookie, which counts at the address that got it. The role of its device limits what it may do.
//
// All pages are below a path of random text. Browsers keep cookies by host and path, and not by port: a server at another
// port of the same host, which may be an agent's, gets no cookie of an unknown path.
package entry

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/scopefs/scopefs/cmd/scopefs-console/internal/access"
	"github.com/scopefs/scopefs/internal/devices"
	"github.com/scopefs/scopefs/internal/loopback"
)

// The bounds of links and sessions.
const (
	linkTime  = 5 * time.Minute
	idleTime  = 30 * time.Minute // without a request of a person
	wholeTime = 12 * time.Hour
	maxLinks  = 16 // that are not used yet
	maxLogins = 64

	maxBody = 64 << 10
)

const cookieName = "scopefs-console"

// Door keeps links and sessions. Its methods are safe for concurrent use.
type Door struct {
	Root string // the path of all pages: /TEXT

	store  *devices.Store
	record func(context.Context, devices.Device) error
	local  bool // links let the operator in
	now    func() time.Time

	mu         sync.Mutex
	links      map[[sha256.Size]byte]time.Time // until when
	pairs      map[[sha256.Size]byte]pairing
	challenges map[string]challenge
	asked      uint64 // challenges, ever
	logins     map[[sha256.Size]byte]*login
}

type login struct {
	visitor     access.Visitor
	from        netip.Addr
	name        string // of its connections
	began, used time.Time
	gone        chan struct{} // closed when it has ended
}

// New returns a door without links, for the devices of a store. It calls record before it pairs one. Only where no other
// host can connect, local, it makes links for the operator.
func New(store *devices.Store, record func(context.Context, devices.Device) error, local bool) (*Door, error) {
	root, err := store.Path()
	if err != nil {
		return nil, err
	}
	if root == "" {
		root = "/" + strings.ToLower(rand.Text())
	}
	return &Door{
		Root: root, store: store, record: record, local: local, now: time.Now,
		links: map[[sha256.Size]byte]time.Time{}, pairs: map[[sha256.Size]byte]pairing{}, challenges: map[string]challenge{},
		logins: map[[sha256.Size]byte]*login{},
	}, nil
}

// Kept reports whether devices are paired, which return to Root.
func (d *Door) Kept() bool {
	path, err := d.store.Path()
	return err == nil && path == d.Root
}

// Link returns the path of a new link.
func (d *Door) Link() (string, error) {
	if !d.local {
		return "", errors.New("this console is for paired devices: make a link for one with scopefs console pair")
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.expire()
	if len(d.links) >= maxLinks {
		return "", errors.New("there are many links that nobody has used: use one, or wait five minutes")
	}
	token := rand.Text()
	d.links[sha256.Sum256([]byte(token))] = d.now().Add(linkTime)
	return d.Root + "/enter/" + token, nil
}

// expire removes what has ended. The caller holds mu.
func (d *Door) expire() {
	now := d.now()
	maps.DeleteFunc(d.links, func(_ [sha256.Size]byte, until time.Time) bool { return now.After(until) })
	maps.DeleteFunc(d.pairs, func(_ [sha256.Size]byte, p pairing) bool { return now.After(p.until) })
	maps.DeleteFunc(d.challenges, func(_ string, c challenge) bool { return now.After(c.until) })
	for key, l := range d.logins {
		if now.After(l.used.Add(idleTime)) || now.After(l.began.Add(wholeTime)) {
			d.end(key)
		}
	}
}

// end ends a login, if it is there. The caller holds mu.
func (d *Door) end(key [sha256.Size]byte) {
	if l := d.logins[key]; l != nil {
		close(l.gone)
		delete(d.logins, key)
	}
}

// add adds a login, and returns the value of its cookie. The caller holds mu.
func (d *Door) add(v access.Visitor, from netip.Addr) (value string) {
	value = rand.Text() + rand.Text()
	d.logins[sha256.Sum256([]byte(value))] = &login{v, from, rand.Text(), d.now(), d.now(), make(chan struct{})}
	return value
}

func (d *Door) setCookie(w http.ResponseWriter, r *http.Request, value string) {
	http.SetCookie(w, &http.Cookie{
		Name: cookieName, Value: value, Path: d.Root + "/", HttpOnly: true, Secure: r.TLS != nil, SameSite: http.SameSiteStrictMode,
		MaxAge: int(wholeTime.Seconds()),
	})
}

// enter takes a link's token, once, for a cookie's value.
func (d *Door) enter(token string, from netip.Addr) (value string, ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.expire()
	key := sha256.Sum256([]byte(token))
	operators := 0
	for _, l := range d.logins {
		if l.visitor.ID == "" {
			operators++
		}
	}
	if _, ok := d.links[key]; !ok || operators >= maxLogins {
		return "", false
	}
	delete(d.links, key)
	return d.add(access.Visitor{Role: devices.All}, from), true
}

// login returns the session of a request; nil: it has none.
func (d *Door) login(r *http.Request) *login {
	key, l := d.cookie(r)
	if l == nil {
		return nil
	}
	person := r.Header.Get(access.LiveHeader) == "" && r.Header.Get("Accept") != "text/event-stream"
	if l.visitor.ID != "" {
		device, ok := d.known(l)
		if now := d.now(); ok && person && now.Sub(device.Seen) >= seenEvery {
			err := d.store.Update(device.ID, func(kept *devices.Device) { kept.Seen, kept.From = now.Round(time.Second), shown(l.from) })
			ok = !errors.Is(err, devices.ErrUnknown) // a disk that is full keeps nobody out
		}
		if !ok {
			d.mu.Lock()
			d.end(key)
			d.mu.Unlock()
			return nil
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.logins[key] != l {
		return nil
	}
	if person {
		l.used = d.now()
	}
	return l
}

// cookie returns the login of the cookie of a request, and its key. One that another address uses was stolen: it ends.
func (d *Door) cookie(r *http.Request) (key [sha256.Size]byte, l *login) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.expire()
	for _, c := range r.CookiesNamed(cookieName) {
		key = sha256.Sum256([]byte(c.Value))
		switch l := d.logins[key]; {
		case l == nil:
		case l.from != from(r):
			d.end(key)
		default:
			return key, l
		}
	}
	return key, nil
}

// leave ends the session of a request.
func (d *Door) leave(r *http.Request) {
	if key, l := d.cookie(r); l != nil {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.end(key)
	}
}

// from returns the address of a request's sender; of IPv6 the network, for hosts change the rest of it each day (RFC 8981). A
// unix socket has none.
func from(r *http.Request) netip.Addr {
	at, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return netip.Addr{}
	}
	ip := at.Addr().Unmap()
	if ip.Is6() {
		network, _ := ip.WithZone("").Prefix(64)
		return network.Addr()
	}
	return ip
}

// shown returns an address for people.
func shown(from netip.Addr) string {
	switch {
	case !from.IsValid():
		return ""
	case from.Is6():
		return netip.PrefixFrom(from, 64).String()
	}
	return from.String()
}

// originOf returns the origin of the page that a request asks for.
func originOf(r *http.Request) string {
	if r.TLS != nil {
		return "https://" + r.Host
	}
	return "http://" + r.Host
}

// headers are those of every answer. Trusted types make the browser refuse scripts that turn text into markup: the one policy
// is that of the service worker's URL.
var headers = map[string]string{
	"Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; " +
		"worker-src 'self'; manifest-src 'self'; " +
		"form-action 'self'; base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types worker",
	"X-Frame-Options":              "DENY",
	"X-Content-Type-Options":       "nosniff",
	"Referrer-Policy":              "same-origin", // no-referrer makes the Origin of a form null
	"Cross-Origin-Opener-Policy":   "same-origin",
	"Cross-Origin-Resource-Policy": "same-origin",
	"Permissions-Policy":           "camera=(), microphone=(), geolocation=(), usb=(), payment=()",
	"Cache-Control":                "no-store",
}

// saidLink is what the page closed says. Tries of others close it to nobody: a link is 130 random bits, and a challenge
// has one answer.
const saidLink = "This link was used, or is older than five minutes."

// A Page writes a page of the door's own.
type Page func(w http.ResponseWriter, status int, name string, data any)

// Handler serves routes to visitors whose role covers that of the route, and assets to everybody. Both get paths without
// Root. page writes the door's own pages: enter, with the token, closed and refused.
func (d *Door) Handler(routes []access.Route, assets http.Handler, page Page) http.Handler {
	inside := http.NewServeMux()
	for _, route := range routes {
		inside.HandleFunc(route.Pattern, func(w http.ResponseWriter, r *http.Request) {
			if v := access.Of(r.Context()); !v.Role.Covers(route.Role) {
				page(w, http.StatusForbidden, "refused", refusal{v, route.Role})
				return
			}
			route.Serve(w, r)
		})
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /enter/{token}",
		func(w http.ResponseWriter, r *http.Request) { page(w, http.StatusOK, "enter", r.PathValue("token")) })
	mux.HandleFunc("POST /enter", func(w http.ResponseWriter, r *http.Request) {
		value, ok := d.enter(r.PostFormValue("token"), from(r))
		if !ok {
			page(w, http.StatusForbidden, "closed", saidLink)
			return
		}
		d.setCookie(w, r, value)
		http.Redirect(w, r, d.Root+"/", http.StatusSeeOther)
	})
	mux.HandleFunc("GET /pair/{token}", func(w http.ResponseWriter, r *http.Request) {
		p, ok := d.pairing(r.PathValue("token"))
		if !ok {
			page(w, http.StatusForbidden, "closed", saidLink)
			return
		}
		page(w, http.StatusOK, "pair", struct {
			Token, Name string
			Role        devices.Role
		}{r.PathValue("token"), p.name, p.role})
	})
	mux.HandleFunc("POST /pair/begin", d.step(d.beginPair))
	mux.HandleFunc("POST /pair", d.step(d.pair))
	mux.HandleFunc("POST /login/begin", d.step(d.beginLogin))
	mux.HandleFunc("POST /login", d.step(d.logIn))
	mux.HandleFunc("POST /leave", func(w http.ResponseWriter, r *http.Request) {
		d.leave(r)
		page(w, http.StatusOK, "closed", "You have left the console.")
	})
	mux.Handle("GET /assets/", assets)
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		l := d.login(r)
		if l == nil {
			if d.Kept() {
				to := d.Root + "/"
				if r.Method == http.MethodGet {
					to = d.Root + r.URL.RequestURI()
				}
				page(w, http.StatusForbidden, "login", to)
				return
			}
			page(w, http.StatusForbidden, "closed", "You are not logged in, or were idle for half an hour.")
			return
		}
		defer loopback.Begin(r.Context(), l.name)()
		ctx, stop := withEnd(access.With(r.Context(), l.visitor), l.gone)
		defer stop()
		inside.ServeHTTP(w, r.WithContext(ctx))
	})
	below := http.StripPrefix(d.Root, mux)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for name, value := range headers {
			w.Header().Set(name, value)
		}
		if err := checkPost(r); err != nil {
			w.Header().Set("Connection", "close")
			http.Error(w, err.Error(), http.StatusForbidden)
			return
		}
		if !strings.HasPrefix(r.URL.Path, d.Root+"/") { // whose answer must not have Root
			w.Header().Set("Connection", "close")
			http.Error(w, "scopefs console: open the link that scopefs console prints", http.StatusForbidden)
			return
		}
		r.Body = http.MaxBytesReader(w, r.Body, maxBody)
		below.ServeHTTP(w, r)
	})
}

// refusal is what the page refused gets.
type refusal struct {
	access.Visitor
	Needs devices.Role
}

// checkPost refuses what changes something unless a page of this origin sends it. Host and Origin are those of the
// listener: see package loopback.
func checkPost(r *http.Request) error {
	switch r.Method {
	case http.MethodGet, http.MethodHead:
		return nil
	case http.MethodPost:
	default:
		return fmt.Errorf("%.20q: the console has GET and POST alone", r.Method)
	}
	if r.Header.Get("Origin") != originOf(r) {
		return errors.New("no Origin, or another one: pages of the console send it")
	}
	if site := r.Header.Get("Sec-Fetch-Site"); site != "" && site != "same-origin" {
		return errors.New("Sec-Fetch-Site is of another site")
	}
	return nil
}
