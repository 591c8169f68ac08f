package entry

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/cmd/scopefs-console/internal/access"
	"github.com/scopefs/scopefs/cmd/scopefs-console/internal/keys"
	"github.com/scopefs/scopefs/internal/devices"
)

// phone is a browser with a key of its own.
type phone struct {
	t      *testing.T
	d      *Door
	key    *ecdsa.PrivateKey
	device string
	change func(*http.Request) // of each of its requests
}

func newPhone(t *testing.T, d *Door) *phone {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	return &phone{t: t, d: d, key: key}
}

func (p *phone) post(path string, body any, into any) *httptest.ResponseRecorder {
	p.t.Helper()
	text, err := json.Marshal(body)
	require.NoError(p.t, err)
	w := visit(p.d, http.MethodPost, p.d.Root+path, string(text), p.change)
	if into != nil && w.Code == http.StatusOK {
		require.NoError(p.t, json.Unmarshal(w.Body.Bytes(), into), w.Body)
	}
	return w
}

// begin gets a challenge; of a pairing with a link.
func (p *phone) begin(link string) (asked keys.Asked, code int) {
	p.t.Helper()
	if link == "" {
		return asked, p.post("/login/begin", struct{}{}, &asked).Code
	}
	return asked, p.post("/pair/begin", map[string]string{"token": link[strings.LastIndex(link, "/")+1:]}, &asked).Code
}

// answer signs a challenge.
func (p *phone) answer(asked keys.Asked) (a keys.Answer) {
	p.t.Helper()
	a.ID = asked.ID
	device := p.device
	if asked.Device != "" {
		device = asked.Device
		var err error
		a.Key, err = x509.MarshalPKIXPublicKey(&p.key.PublicKey)
		require.NoError(p.t, err)
	} else {
		a.Device = device
	}
	a.Signature = p.sign(keys.Message(keys.Challenge{ID: asked.ID, Origin: site, Device: asked.Device}, device))
	return a
}

func (p *phone) sign(message []byte) []byte {
	sum := sha256.Sum256(message)
	r, s, err := ecdsa.Sign(rand.Reader, p.key, sum[:])
	require.NoError(p.t, err)
	return append(r.FillBytes(make([]byte, 32)), s.FillBytes(make([]byte, 32))...)
}

// cookieOf makes requests those of the login that an answer has begun.
func cookieOf(t *testing.T, w *httptest.ResponseRecorder) func(*http.Request) {
	t.Helper()
	require.Equal(t, http.StatusOK, w.Code, w.Body)
	require.Len(t, w.Result().Cookies(), 1)
	return func(r *http.Request) { r.AddCookie(w.Result().Cookies()[0]) }
}

// pair pairs the phone.
func (p *phone) pair(name string, role devices.Role) func(*http.Request) {
	p.t.Helper()
	link, err := p.d.PairLink(name, role)
	require.NoError(p.t, err)
	asked, code := p.begin(link)
	require.Equal(p.t, http.StatusOK, code)
	p.device = asked.Device
	return cookieOf(p.t, p.post("/pair", p.answer(asked), nil))
}

func (p *phone) logIn() *httptest.ResponseRecorder {
	p.t.Helper()
	asked, code := p.begin("")
	require.Equal(p.t, http.StatusOK, code)
	return p.post("/login", p.answer(asked), nil)
}

func inside(d *Door, as func(*http.Request)) bool {
	return visit(d, http.MethodGet, d.Root+"/", "", as).Body.String() == "inside"
}

// TestPair: a link pairs one device, once, within five minutes; afterwards its key lets it in, also at the next start.
func TestPair(t *testing.T) {
	d := newDoor(t)
	now := time.Now()
	d.now = func() time.Time { return now }
	p := newPhone(t, d)
	link, err := d.PairLink("phone", devices.Look)
	require.NoError(t, err)
	assert.Equal(t, "pair", visit(d, http.MethodGet, link, "", nil).Body.String(), "to look at it does not use it")
	first, code := p.begin(link)
	require.Equal(t, http.StatusOK, code)
	second, code := newPhone(t, d).begin(link)
	require.Equal(t, http.StatusOK, code)
	p.device = first.Device
	assert.True(t, inside(d, cookieOf(t, p.post("/pair", p.answer(first), nil))))
	assert.Equal(t, http.StatusForbidden, newPhone(t, d).post("/pair", newPhone(t, d).answer(second), nil).Code, "another one that began with the link")
	_, code = p.begin(link)
	assert.Equal(t, http.StatusForbidden, code, "used")
	list, err := d.store.List()
	require.NoError(t, err)
	require.Len(t, list, 1)
	assert.Equal(t, "browser key", list[0].Kind())
	assert.Equal(t, devices.Look, list[0].Role)

	link, err = d.PairLink("unrecorded", devices.Look)
	require.NoError(t, err)
	d.record = func(context.Context, devices.Device) error { return assert.AnError }
	unrecorded, code := p.begin(link)
	require.Equal(t, http.StatusOK, code)
	assert.Equal(t, http.StatusForbidden, p.post("/pair", p.answer(unrecorded), nil).Code, "what is not in the log does not happen")
	d.record = recorded
	list, err = d.store.List()
	require.NoError(t, err)
	assert.Len(t, list, 1)

	link, err = d.PairLink("late", devices.Look)
	require.NoError(t, err)
	now = now.Add(linkTime - time.Second)
	asked, code := p.begin(link)
	require.Equal(t, http.StatusOK, code)
	now = now.Add(2 * time.Second)
	assert.Equal(t, http.StatusForbidden, p.post("/pair", p.answer(asked), nil).Code, "late")
	_, code = p.begin(link)
	assert.Equal(t, http.StatusForbidden, code)
	assert.Equal(t, "closed", visit(d, http.MethodGet, link, "", nil).Body.String())
	now = now.Add(time.Hour)

	again, err := New(d.store, recorded, true)
	require.NoError(t, err)
	assert.Equal(t, d.Root, again.Root, "a device returns to the same path")
	p.d = again
	assert.Equal(t, "login", visit(again, http.MethodGet, again.Root+"/inbox", "", nil).Body.String())
	assert.True(t, inside(again, cookieOf(t, p.logIn())))
	for _, name := range []string{"phone", "", "a b", "x\n", strings.Repeat("a", 33)} {
		_, err := again.PairLink(name, devices.Look)
		assert.Error(t, err, name)
	}
	_, err = again.PairLink("x", "root")
	assert.Error(t, err)
}

// TestKeyOrigin: a key of a browser counts at the origin where it was paired. The process that gets the port when the console
// has ended can let the browser sign: its signature is worth nothing at the console's next port.
func TestKeyOrigin(t *testing.T) {
	d := newDoor(t)
	p := newPhone(t, d)
	p.pair("phone", devices.All)
	const next = "http://127.0.0.1:5000"
	p.change = func(r *http.Request) {
		r.Host = strings.TrimPrefix(next, "http://")
		r.Header.Set("Origin", next)
	}
	asked, code := p.begin("")
	require.Equal(t, http.StatusOK, code)
	a := p.answer(asked)
	a.Signature = p.sign(keys.Message(keys.Challenge{ID: asked.ID, Origin: next}, p.device))
	w := p.post("/login", a, nil)
	assert.Equal(t, http.StatusForbidden, w.Code)
	assert.Empty(t, w.Result().Cookies())
	p.change = nil
	assert.True(t, inside(d, cookieOf(t, p.logIn())))
}

// TestProofs: no answer but that of the device's key, to this challenge, of this origin, counts; and none counts twice.
func TestProofs(t *testing.T) {
	d := newDoor(t)
	now := time.Now()
	d.now = func() time.Time { return now }
	p := newPhone(t, d)
	p.pair("phone", devices.All)
	other := newPhone(t, d)
	other.pair("other", devices.All)
	message := func(asked keys.Asked, origin, device string) []byte {
		return keys.Message(keys.Challenge{ID: asked.ID, Origin: origin}, device)
	}
	for what, change := range map[string]func(asked keys.Asked, a *keys.Answer){
		"another key":      func(asked keys.Asked, a *keys.Answer) { a.Signature = other.sign(message(asked, site, p.device)) },
		"another's device": func(_ keys.Asked, a *keys.Answer) { a.Device = other.device },
		"no device":        func(_ keys.Asked, a *keys.Answer) { a.Device = "" },
		"another origin": func(asked keys.Asked, a *keys.Answer) {
			a.Signature = p.sign(message(asked, "http://127.0.0.1:3000", p.device))
		},
		"another challenge": func(asked keys.Asked, a *keys.Answer) {
			b, _ := p.begin("")
			a.Signature = p.sign(message(b, site, p.device))
		},
		"signed to pair": func(asked keys.Asked, a *keys.Answer) {
			a.Signature = p.sign(keys.Message(keys.Challenge{ID: asked.ID, Origin: site, Device: p.device}, p.device))
		},
		"no signature":  func(_ keys.Asked, a *keys.Answer) { a.Signature = nil },
		"zeros":         func(_ keys.Asked, a *keys.Answer) { a.Signature = make([]byte, 64) },
		"a passkey":     func(_ keys.Asked, a *keys.Answer) { a.Passkey = json.RawMessage("{}") },
		"not asked for": func(_ keys.Asked, a *keys.Answer) { a.ID = "AAAA" },
	} {
		asked, code := p.begin("")
		require.Equal(t, http.StatusOK, code, what)
		a := p.answer(asked)
		change(asked, &a)
		w := p.post("/login", a, nil)
		assert.Equal(t, http.StatusForbidden, w.Code, what)
		assert.Empty(t, w.Result().Cookies(), what)
		if a.ID == asked.ID {
			assert.Equal(t, http.StatusForbidden, p.post("/login", p.answer(asked), nil).Code, "%s: the challenge is used", what)
		}
		now = now.Add(2 * time.Minute)
	}
	asked, _ := p.begin("")
	a := p.answer(asked)
	cookieOf(t, p.post("/login", a, nil))
	assert.Equal(t, http.StatusForbidden, p.post("/login", a, nil).Code, "replayed")
	asked, _ = p.begin("")
	now = now.Add(keys.Time + time.Second)
	assert.Equal(t, http.StatusForbidden, p.post("/login", p.answer(asked), nil).Code, "late")
	asked, _ = p.begin("")
	p.change = func(r *http.Request) { r.RemoteAddr = "192.0.2.9:1" }
	assert.Equal(t, http.StatusForbidden, p.post("/login", p.answer(asked), nil).Code, "asked for at another address")
	p.change = nil
	assert.Equal(t, http.StatusOK, p.logIn().Code)
}

// TestManyTries: who tries wrong links and keys keeps nobody out, and nobody at the same address.
func TestManyTries(t *testing.T) {
	d := newDoor(t)
	p := newPhone(t, d)
	p.pair("phone", devices.Look)
	asked, _ := p.begin("")
	for range 200 {
		_, code := p.begin("/pair/AAAA")
		assert.Equal(t, http.StatusForbidden, code)
		assert.Equal(t, http.StatusForbidden, p.post("/login", keys.Answer{ID: "AAAA"}, nil).Code)
		assert.Equal(t, http.StatusForbidden, visit(d, http.MethodPost, d.Root+"/enter", "token=A", nil).Code)
		assert.Equal(t, "closed", visit(d, http.MethodGet, d.Root+"/pair/AAAA", "", nil).Body.String())
	}
	link, err := d.Link()
	require.NoError(t, err)
	token := strings.TrimPrefix(link, d.Root+"/enter/")
	assert.Equal(t, http.StatusSeeOther, visit(d, http.MethodPost, d.Root+"/enter", "token="+token, nil).Code)
	assert.Equal(t, http.StatusOK, p.post("/login", p.answer(asked), nil).Code)
	link, err = d.PairLink("next", devices.Look)
	require.NoError(t, err)
	_, code := p.begin(link)
	assert.Equal(t, http.StatusOK, code)
}

// TestManyChallenges: strangers who ask for challenges keep nobody out, and end no challenge of another address.
func TestManyChallenges(t *testing.T) {
	d := newDoor(t)
	p, stranger := newPhone(t, d), newPhone(t, d)
	p.pair("phone", devices.Look)
	first, _ := p.begin("")
	for from := range 2 * maxChallenges / maxEach {
		stranger.change = func(r *http.Request) { r.RemoteAddr = fmt.Sprintf("198.51.100.%d:1", from+1) }
		for range maxEach + 1 {
			_, code := stranger.begin("")
			assert.Equal(t, http.StatusOK, code)
		}
	}
	assert.Len(t, d.challenges, maxChallenges)
	assert.Equal(t, http.StatusOK, p.logIn().Code)
	assert.Equal(t, http.StatusOK, p.post("/login", p.answer(first), nil).Code, "asked for before the strangers came")

	// At the address of a stranger the newest ones count.
	d = newDoor(t)
	p, stranger = newPhone(t, d), newPhone(t, d)
	p.pair("phone", devices.Look)
	for range 2 * maxChallenges {
		stranger.begin("")
	}
	assert.Len(t, d.challenges, maxEach)
	first, _ = p.begin("")
	for range maxEach - 1 {
		stranger.begin("")
	}
	assert.Equal(t, http.StatusOK, p.post("/login", p.answer(first), nil).Code)
}

// TestPairForgery: no page from elsewhere pairs a device or logs one in.
func TestPairForgery(t *testing.T) {
	d := newDoor(t)
	p := newPhone(t, d)
	link, err := d.PairLink("phone", devices.All)
	require.NoError(t, err)
	asked, _ := p.begin(link)
	for what, change := range map[string]func(*http.Request){
		"no origin":    func(r *http.Request) { r.Header.Del("Origin") },
		"another port": func(r *http.Request) { r.Header.Set("Origin", "http://127.0.0.1:3000") },
		"cross-site":   func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "cross-site") },
		"as https":     func(r *http.Request) { r.Header.Set("Origin", "https://127.0.0.1:4000") },
	} {
		p.change = change
		for _, path := range []string{"/pair/begin", "/pair", "/login/begin", "/login"} {
			assert.Equal(t, http.StatusForbidden, p.post(path, p.answer(asked), nil).Code, "%s %s", what, path)
		}
	}
	p.change = nil
	assert.Equal(t, http.StatusOK, p.post("/pair", p.answer(asked), nil).Code)
}

// TestStolenCookie: a cookie counts at the address that got it, and ends when another one uses it.
func TestStolenCookie(t *testing.T) {
	d := newDoor(t)
	for what, with := range map[string]func(*http.Request){"device": newPhone(t, d).pair("phone", devices.All), "operator": enterBy(t, d)} {
		require.True(t, inside(d, with), what)
		assert.False(t, inside(d, func(r *http.Request) { with(r); r.RemoteAddr = "127.0.0.2:999" }), what)
		assert.False(t, inside(d, with), "%s: what was stolen has ended", what)
	}
	p := newPhone(t, d)
	p.change = func(r *http.Request) { r.RemoteAddr = "[2001:db8::1]:1" }
	cookie := p.pair("seven", devices.All)
	assert.True(t, inside(d, func(r *http.Request) { cookie(r); r.RemoteAddr = "[2001:db8::2]:1" }), "hosts change the rest of an address")
	assert.False(t, inside(d, func(r *http.Request) { cookie(r); r.RemoteAddr = "[2001:db8:1::2]:1" }))
}

// TestEnded: a stream ends with the login: of a device that is removed, and of one that was idle.
func TestEnded(t *testing.T) {
	for what, end := range map[string]func(t *testing.T, d *Door, now *time.Time){
		"removed": func(t *testing.T, d *Door, _ *time.Time) { require.NoError(t, d.store.Remove("phone")) },
		"idle":    func(_ *testing.T, _ *Door, now *time.Time) { *now = now.Add(idleTime + time.Second) },
		"expired": func(_ *testing.T, d *Door, now *time.Time) { *now = now.Add(wholeTime + time.Second) },
	} {
		t.Run(what, func(t *testing.T) {
			d := newDoor(t)
			now := time.Now()
			d.now = func() time.Time { return now }
			with := newPhone(t, d).pair("phone", devices.Look)
			began, ended := make(chan struct{}), make(chan struct{})
			routes := []access.Route{{Pattern: "GET /live", Role: devices.Look, Serve: func(_ http.ResponseWriter, r *http.Request) {
				close(began)
				<-r.Context().Done()
			}}}
			r := httptest.NewRequest(http.MethodGet, site+d.Root+"/live", nil)
			with(r)
			go func() {
				defer close(ended)
				d.Handler(routes, http.NotFoundHandler(), nil).ServeHTTP(httptest.NewRecorder(), r)
			}()
			<-began
			d.sweep()
			select {
			case <-ended:
				t.Fatal("the stream ended by itself")
			default:
			}
			end(t, d, &now)
			d.sweep()
			select {
			case <-ended:
			case <-time.After(time.Minute):
				t.Fatal("the stream goes on")
			}
			assert.False(t, inside(d, with))
		})
	}
}

// TestLoginsOfDevice: a device has a bounded number of logins, and takes none from others.
func TestLoginsOfDevice(t *testing.T) {
	d := newDoor(t)
	with, p := enterBy(t, d), newPhone(t, d)
	p.pair("phone", devices.Look)
	for range 3 * maxOfDevice {
		require.Equal(t, http.StatusOK, p.logIn().Code)
	}
	assert.Len(t, d.logins, maxOfDevice+1)
	assert.True(t, inside(d, with))
}
