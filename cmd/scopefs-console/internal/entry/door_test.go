package entry

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/cmd/scopefs-console/internal/access"
	"github.com/scopefs/scopefs/internal/devices"
	"github.com/scopefs/scopefs/internal/loopback"
)

const site = "http://127.0.0.1:4000"

// visit sends a request to a door as a page of the site does; change may change it.
func visit(d *Door, method, path, form string, change func(*http.Request)) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, site+path, strings.NewReader(form))
	if method == http.MethodPost {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		r.Header.Set("Origin", site)
		r.Header.Set("Sec-Fetch-Site", "same-origin")
	}
	if change != nil {
		change(r)
	}
	inside := []access.Route{{Pattern: "/", Role: devices.Look, Serve: func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "inside") }}}
	page := func(w http.ResponseWriter, status int, name string, data any) {
		w.WriteHeader(status)
		fmt.Fprint(w, name)
	}
	w := httptest.NewRecorder()
	d.Handler(inside, http.NotFoundHandler(), page).ServeHTTP(w, r)
	return w
}

// recorded takes each device for recorded.
func recorded(context.Context, devices.Device) error { return nil }

// newDoor returns a door without devices, on the loopback interface.
func newDoor(t *testing.T) *Door {
	t.Helper()
	store, err := devices.Open(t.TempDir())
	require.NoError(t, err)
	t.Cleanup(func() { store.Close() })
	d, err := New(store, recorded, true)
	require.NoError(t, err)
	return d
}

func enterBy(t *testing.T, d *Door) func(*http.Request) {
	t.Helper()
	link, err := d.Link()
	require.NoError(t, err)
	_, token, _ := strings.Cut(link, "/enter/")
	w := visit(d, http.MethodPost, d.Root+"/enter", "token="+token, nil)
	require.Equal(t, http.StatusSeeOther, w.Code)
	cookie := w.Result().Cookies()[0]
	assert.True(t, cookie.HttpOnly)
	assert.Equal(t, http.SameSiteStrictMode, cookie.SameSite)
	assert.Equal(t, d.Root+"/", cookie.Path)
	return func(r *http.Request) { r.AddCookie(cookie) }
}

// TestLinks: a link works once, and for five minutes. To look at it does not use it.
func TestLinks(t *testing.T) {
	d := newDoor(t)
	now := time.Now()
	d.now = func() time.Time { return now }
	link, err := d.Link()
	require.NoError(t, err)
	assert.Equal(t, "enter", visit(d, http.MethodGet, link, "", nil).Body.String())
	_, token, _ := strings.Cut(link, "/enter/")
	assert.Equal(t, http.StatusSeeOther, visit(d, http.MethodPost, d.Root+"/enter", "token="+token, nil).Code)
	for what, form := range map[string]string{"used": "token=" + token, "none": "", "guessed": "token=A", "long": "token=" + strings.Repeat("A", maxBody)} {
		assert.Equal(t, http.StatusForbidden, visit(d, http.MethodPost, d.Root+"/enter", form, nil).Code, what)
	}
	link, err = d.Link()
	require.NoError(t, err)
	_, token, _ = strings.Cut(link, "/enter/")
	now = now.Add(linkTime + time.Second)
	assert.Equal(t, http.StatusForbidden, visit(d, http.MethodPost, d.Root+"/enter", "token="+token, nil).Code, "old")
	for range maxLinks {
		_, err = d.Link()
		require.NoError(t, err)
	}
	_, err = d.Link()
	assert.ErrorContains(t, err, "many links")
}

// TestIdle: a session ends without a person's requests, and after a day's work. Those of the page itself keep nothing alive.
func TestIdle(t *testing.T) {
	d := newDoor(t)
	now := time.Now()
	d.now = func() time.Time { return now }
	with := enterBy(t, d)
	live := func(r *http.Request) { with(r); r.Header.Set(access.LiveHeader, "1") }
	inside := func(as func(*http.Request)) bool {
		return visit(d, http.MethodGet, d.Root+"/", "", as).Body.String() == "inside"
	}
	assert.False(t, inside(nil))
	for range 4 {
		now = now.Add(idleTime - time.Minute)
		assert.True(t, inside(with))
	}
	now = now.Add(idleTime - time.Minute)
	assert.True(t, inside(live))
	now = now.Add(2 * time.Minute)
	assert.False(t, inside(live))

	with = enterBy(t, d)
	for range int(wholeTime / (20 * time.Minute)) {
		assert.True(t, inside(with))
		now = now.Add(20 * time.Minute)
	}
	now = now.Add(time.Minute)
	assert.False(t, inside(with), "after twelve hours")

	with = enterBy(t, d)
	assert.Equal(t, "closed", visit(d, http.MethodPost, d.Root+"/leave", "", with).Body.String())
	assert.False(t, inside(with))
}

// TestForgery: no page from elsewhere does anything, whatever cookie the browser adds.
func TestForgery(t *testing.T) {
	d := newDoor(t)
	with := enterBy(t, d)
	for what, change := range map[string]func(*http.Request){
		"no origin":        func(r *http.Request) { r.Header.Del("Origin") },
		"null":             func(r *http.Request) { r.Header.Set("Origin", "null") },
		"another port":     func(r *http.Request) { r.Header.Set("Origin", "http://127.0.0.1:3000") },
		"another scheme":   func(r *http.Request) { r.Header.Set("Origin", "https://127.0.0.1:4000") },
		"another name":     func(r *http.Request) { r.Header.Set("Origin", "http://localhost:4000") },
		"same site":        func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "same-site") },
		"typed, as a form": func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "none") },
		"method":           func(r *http.Request) { r.Method = http.MethodDelete },
	} {
		w := visit(d, http.MethodPost, d.Root+"/sessions/x/end", "", func(r *http.Request) { with(r); change(r) })
		assert.Equal(t, http.StatusForbidden, w.Code, what)
		assert.NotContains(t, w.Body.String(), "inside", what)
	}
	assert.Equal(t, "inside", visit(d, http.MethodPost, d.Root+"/sessions/x/end", "", with).Body.String())
	for _, path := range []string{"/", "/enter", "/assets/x", "/" + strings.Repeat("a", 26) + "/"} {
		w := visit(d, http.MethodGet, path, "", with)
		assert.Equal(t, http.StatusForbidden, w.Code, path)
		assert.NotContains(t, fmt.Sprint(w.Header(), w.Body), d.Root[1:], path)
		assert.Contains(t, w.Header().Get("Content-Security-Policy"), "default-src 'none'")
	}
}

// TestOpened: a link opens from a file, which a browser takes for another site; nothing else does.
func TestOpened(t *testing.T) {
	at := netip.MustParseAddrPort("127.0.0.1:4000")
	h := opened(loopback.Only(at, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "in") })))
	visit := func(method, path, mode, dest string) int {
		r := httptest.NewRequest(method, site+path, nil)
		r.Header.Set("Sec-Fetch-Site", "cross-site")
		r.Header.Set("Sec-Fetch-Mode", mode)
		r.Header.Set("Sec-Fetch-Dest", dest)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w.Code
	}
	assert.Equal(t, http.StatusOK, visit("GET", "/x/enter/y", "navigate", "document"))
	assert.Equal(t, http.StatusForbidden, visit("GET", "/x/enter/y", "no-cors", "image"))
	assert.Equal(t, http.StatusForbidden, visit("GET", "/x/enter/y", "navigate", "iframe"))
	assert.Equal(t, http.StatusForbidden, visit("POST", "/x/enter/y", "navigate", "document"))
	for _, path := range []string{"/x/", "/x/inbox", "/x/inbox/enter/y", "/enter/y"} {
		assert.Equal(t, http.StatusForbidden, visit("GET", path, "navigate", "document"), path)
	}
}
