package console

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/security"
	"github.com/chromedp/cdproto/webauthn"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/integration/harness"
)

// servePair starts scopefs console pair.
func servePair(t *testing.T, h *harness.Host, name, role string, flags ...string) *served {
	t.Helper()
	s := serve(t, h, append([]string{"pair", "--name", name, "--role", role}, flags...)...)
	require.Contains(t, s.link, "/pair/")
	return s
}

// axe fails the test for what axe-core finds in the page, and if the page is wider than its window.
func (b *browser) axe(what string) {
	b.t.Helper()
	b.accessible(what)
	assert.True(b.t, value[bool](b, `document.documentElement.scrollWidth <= innerWidth`), "%s is wider than its window", what)
}

// awaited returns the value of a promise of the page.
func awaited[T any](b *browser, expression string) T {
	b.t.Helper()
	v, err := chromedp.Run(b.ctx, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
	require.NoError(b.t, err, expression)
	return v
}

func (b *browser) forgetCookies() {
	b.t.Helper()
	_, err := chromedp.Call(b.ctx, network.ClearBrowserCookies, struct{}{})
	require.NoError(b.t, err)
}

// status is the status of a POST of the page.
func (b *browser) status(s *served, path string) int {
	b.t.Helper()
	return awaited[int](b, fmt.Sprintf(`fetch(%q, {method: "POST", body: new URLSearchParams({shown: "x", do: "undo"})}).then((r) => r.status)`, s.root()+path))
}

// TestPairPasskey: a phone pairs by a link, gets a passkey, returns with it, decides in its own name what its role lets it
// decide, and nothing else; and is out at once when it is removed.
func TestPairPasskey(t *testing.T) {
	h := harness.LayOut(t, map[string]string{"a": harness.AskWrite})
	h.Put("scopefs.yaml", "approvals: {wait: 5m}\n")
	h.Start()
	s := servePair(t, h, "phone", "decide")
	b := browse(t, "about:blank", 360, 740)
	_, err := chromedp.Call(b.ctx, webauthn.Enable, webauthn.EnableParams{})
	require.NoError(t, err)
	_, err = chromedp.Call(b.ctx, webauthn.AddVirtualAuthenticator, webauthn.AddVirtualAuthenticatorParams{Options: &webauthn.VirtualAuthenticatorOptions{
		Protocol: webauthn.AuthenticatorProtocolCtap2, Transport: webauthn.AuthenticatorTransportInternal,
		HasResidentKey: true, HasUserVerification: true, IsUserVerified: true, AutomaticPresenceSimulation: true,
	}})
	require.NoError(t, err)
	b.load(s.link)
	b.reads("as phone")
	b.axe("pair")
	b.shot("pair-phone")
	b.click("#passkey")
	b.reads("No session runs")
	assert.Regexp(t, `(?m)^phone +decide +passkey `, h.Must("console", "devices"))
	assert.True(t, h.Recorded("", audit.Event{Event: audit.KindDaemon, Outcome: "device paired", Detail: "phone, role decide"}))
	b.load(s.link)
	b.reads("This link was used")

	b.open(s, "/inbox")
	b.reads("Nothing waits.")
	u := h.Connect("a")
	ran := u.Begin(h.Soon(), "bash", args{"command": "echo one >>ran"})
	b.reads("echo one >>ran")
	b.axe("inbox")
	b.shot("inbox-phone")
	b.click("button.once")
	b.reads("Nothing waits.")
	require.NoError(t, <-ran)
	assert.Contains(t, h.Must("audit", "--json"), "device phone")
	for _, path := range []string{"/sessions/x/end", "/changes/a", "/rule"} {
		assert.Equal(t, http.StatusForbidden, b.status(s, path), path)
	}
	assert.NotEqual(t, http.StatusForbidden, b.status(s, "/inbox/x"), "what its role lets it do")

	b.forgetCookies()
	b.open(s, "/log")
	b.reads("Log in with a passkey")
	b.axe("login")
	b.shot("login-phone")
	b.click("#passkey")
	b.reads("Search") // where it wanted to go

	// An assertion counts once, and not when a page of another origin got it.
	begin := func() (asked struct {
		ID      string
		Passkey json.RawMessage
	}) {
		require.NoError(t, json.NewDecoder(post(t, s.root()+"/login/begin", "{}", nil).Body).Decode(&asked))
		return asked
	}
	assertion := func(options json.RawMessage) string {
		return awaited[string](b, fmt.Sprintf(`navigator.credentials.get({publicKey: PublicKeyCredential.parseRequestOptionsFromJSON(%s)}).then((c) => JSON.stringify(c.toJSON()))`, options))
	}
	answer := func(id, passkey string) int {
		return post(t, s.root()+"/login", fmt.Sprintf(`{"id": %q, "passkey": %s}`, id, passkey), nil).StatusCode
	}
	first, second := begin(), begin()
	proof := assertion(first.Passkey)
	assert.Equal(t, http.StatusForbidden, answer(second.ID, proof), "for another challenge")
	assert.Equal(t, http.StatusOK, answer(first.ID, proof))
	assert.Equal(t, http.StatusForbidden, answer(first.ID, proof), "replayed")
	evil := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "<title>evil</title>") }))
	defer evil.Close()
	third := begin()
	b.load(strings.Replace(evil.URL, "127.0.0.1", "localhost", 1))
	assert.Equal(t, http.StatusForbidden, answer(third.ID, assertion(third.Passkey)), "of another origin")

	// A cookie that another address uses ends.
	b.open(s, "/")
	b.reads("Agents")
	cookies, err := chromedp.Call(b.ctx, network.GetCookies, network.GetCookiesParams{URLs: []string{s.root() + "/"}})
	require.NoError(t, err)
	require.Len(t, cookies.Cookies, 1)
	stolen := func(from string) int {
		client := http.Client{Timeout: time.Minute, Transport: &http.Transport{DialContext: (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}).DialContext}}
		r, err := http.NewRequest(http.MethodGet, strings.Replace(s.root(), "localhost", "127.0.0.1", 1)+"/", nil)
		require.NoError(t, err)
		r.AddCookie(&http.Cookie{Name: cookies.Cookies[0].Name, Value: cookies.Cookies[0].Value})
		resp, err := client.Do(r)
		require.NoError(t, err)
		defer resp.Body.Close()
		return resp.StatusCode
	}
	assert.Equal(t, http.StatusOK, stolen("127.0.0.1"))
	assert.Equal(t, http.StatusForbidden, stolen("127.0.0.2"))
	b.reads("no longer logged in") // its stream has ended
	b.open(s, "/")
	b.click("#passkey")
	b.reads("Agents")

	h.Must("console", "devices", "remove", "phone")
	assert.True(t, h.Recorded("", audit.Event{Event: audit.KindDaemon, Outcome: "device removed", Detail: "phone, role decide"}))
	b.reads("no longer logged in")
	b.open(s, "/")
	b.reads("You are not logged in")
	assert.Zero(t, value[int](b, `document.querySelectorAll("main button").length`))
	assert.Equal(t, "", h.Must("console", "devices"))
	_, errs, code := h.Try("console", "devices", "remove", "phone")
	assert.NotZero(t, code)
	assert.Contains(t, errs, "no such device")
}

// TestPairBrowserKey: without a passkey the browser keeps a key, which logs it in by itself, also when the console was
// started again; a device that looks sees no button, and decides nothing.
func TestPairBrowserKey(t *testing.T) {
	h := harness.LayOut(t, map[string]string{"a": harness.AskWrite})
	h.Put("scopefs.yaml", "approvals: {wait: 5m}\n")
	h.Start()
	first := servePair(t, h, "tablet", "look")
	b := browse(t, first.link, 360, 740)
	b.click("#browser")
	b.reads("No session runs")
	assert.Regexp(t, `(?m)^tablet +look +browser key `, h.Must("console", "devices"))
	u := h.Connect("a")
	waiting := u.Begin(h.Soon(), "bash", args{"command": "echo one >>ran"})
	b.open(first, "/inbox")
	b.reads("echo one >>ran")
	b.reads("This device looks")
	assert.Zero(t, value[int](b, `document.querySelectorAll("main button, main form").length`))
	b.axe("inbox of a device that looks")
	id := value[string](b, `document.querySelector("main article").id.slice(5)`)
	for _, path := range []string{"/inbox", "/inbox/" + id, "/sessions/x/end", "/changes/a", "/rule"} {
		assert.Equal(t, http.StatusForbidden, b.status(first, path), path)
	}
	assert.Empty(t, waiting)

	require.NoError(t, first.cmd.Process.Signal(os.Interrupt))
	require.NoError(t, first.cmd.Wait())
	second := serve(t, h, "--listen", "127.0.0.1:"+strings.Split(first.link, ":")[2][:strings.Index(strings.Split(first.link, ":")[2], "/")])
	assert.Equal(t, first.root()[strings.LastIndex(first.root(), "/"):], second.root()[strings.LastIndex(second.root(), "/"):])
	b.open(first, "/inbox")
	b.reads("echo one >>ran") // by its key, without a click
	h.Must("approvals", "approve", id)
	require.NoError(t, <-waiting)
	h.Must("console", "devices", "remove", "tablet")
	b.open(first, "/inbox")
	b.reads("You are not logged in")
}

// certificate writes a certificate for names, and returns its files.
func certificate(t *testing.T, names ...string) (cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "scopefs test"}, DNSNames: names,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, BasicConstraintsValid: true, IsCA: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	require.NoError(t, err)
	text, err := x509.MarshalPKCS8PrivateKey(private)
	require.NoError(t, err)
	dir := t.TempDir()
	cert, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	require.NoError(t, os.WriteFile(cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	require.NoError(t, os.WriteFile(key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: text}), 0o600))
	return cert, key
}

// TestRemote: off the loopback interface there is TLS, a name of the certificate, and a paired device, or nothing.
func TestRemote(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"bob": ""})
	cert, key := certificate(t, "localhost", "console.example")
	for what, flags := range map[string][]string{
		"no TLS":         {"pair"},
		"no key":         {"pair", "--tls-cert", cert},
		"another key":    {"pair", "--tls-cert", cert, "--tls-key", cert},
		"no certificate": {"pair", "--tls-cert", "/nothing", "--tls-key", key},
		"link":           {"--tls-cert", cert, "--tls-key", key},
	} {
		_, errs, code := h.Try(append(append([]string{"console"}, flags...), "--listen", "0.0.0.0:0")...)
		assert.Equal(t, 2, code, "%s: %s", what, errs)
		lines := strings.Split(strings.TrimSpace(errs), "\n")
		assert.Len(t, lines, 1, "%s: %s", what, errs)
	}
	s := servePair(t, h, "phone", "all", "--listen", "0.0.0.0:0", "--tls-cert", cert, "--tls-key", key)
	require.True(t, strings.HasPrefix(s.link, "https://localhost:"), s.link)
	roots := x509.NewCertPool()
	text, err := os.ReadFile(cert)
	require.NoError(t, err)
	require.True(t, roots.AppendCertsFromPEM(text))
	client := http.Client{Timeout: time.Minute, Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}}
	get := func(path string, change func(*http.Request)) (int, string) {
		r, err := http.NewRequest(http.MethodGet, s.root()+path, nil)
		require.NoError(t, err)
		if change != nil {
			change(r)
		}
		resp, err := client.Do(r)
		require.NoError(t, err)
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		return resp.StatusCode, string(text)
	}
	token := s.link[strings.LastIndex(s.link, "/"):]
	code, _ := get("/pair"+token, nil)
	assert.Equal(t, http.StatusOK, code)
	code, _ = get("/pair"+token, func(r *http.Request) { r.Host = "console.example" + r.URL.Host[strings.Index(r.URL.Host, ":"):] })
	assert.Equal(t, http.StatusOK, code, "another name of the certificate")
	for _, host := range []string{"127.0.0.1", "rebound.example", "localhost.rebound.example"} {
		code, text := get("/pair"+token, func(r *http.Request) { r.Host = host + r.URL.Host[strings.Index(r.URL.Host, ":"):] })
		assert.Equal(t, http.StatusForbidden, code, host)
		assert.NotContains(t, text, "phone")
	}
	code, _ = get("/pair"+token, func(r *http.Request) {
		r.Header.Set("Origin", strings.Replace(s.root()[:strings.LastIndex(s.root(), "/")], "https", "http", 1))
	})
	assert.Equal(t, http.StatusForbidden, code, "a page without TLS")
	code, _ = get("/log", nil)
	assert.Equal(t, http.StatusForbidden, code)

	b := browse(t, "about:blank", 360, 740)
	_, err = chromedp.Call(b.ctx, security.SetIgnoreCertificateErrors, security.SetIgnoreCertificateErrorsParams{Ignore: true})
	require.NoError(t, err)
	b.load(s.link)
	b.click("#browser")
	b.reads("No session runs")
	cookies, err := chromedp.Call(b.ctx, network.GetCookies, network.GetCookiesParams{URLs: []string{s.root() + "/"}})
	require.NoError(t, err)
	require.Len(t, cookies.Cookies, 1)
	assert.True(t, cookies.Cookies[0].Secure)
	assert.True(t, cookies.Cookies[0].HTTPOnly)
	b.forgetCookies()
	b.open(s, "/log")
	b.reads("Search")
}
