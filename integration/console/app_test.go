package console

import (
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	browsers "github.com/chromedp/cdproto/browser"
	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/serviceworker"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/integration/harness"
)

// port returns the port of the console.
func (s *served) port() string {
	_, rest, _ := strings.Cut(s.link, "://")
	host, _, _ := strings.Cut(rest, "/")
	return host[strings.LastIndex(host, ":")+1:]
}

// TestInstalled: a paired phone can install the console; without a connection it says so, and has no page of the daemon;
// when the console is started again, it is where it was.
func TestInstalled(t *testing.T) {
	h := harness.LayOut(t, map[string]string{"a": harness.AskWrite})
	h.Put("scopefs.yaml", "approvals: {wait: 5m}\n")
	h.Start()
	s := servePair(t, h, "phone", "decide")
	b := browse(t, s.link, 360, 740)
	b.click("#browser")
	b.reads("No session runs")
	assert.NotEmpty(t, awaited[string](b, `navigator.serviceWorker.ready.then((r) => r.scope)`))
	b.sees(`navigator.serviceWorker.controller`)
	manifest := awaited[string](b, `fetch(document.querySelector("link[rel=manifest]").href, {credentials: "omit"}).then((r) => r.text())`)
	assert.Contains(t, manifest, `"start_url":"`+s.root()[strings.LastIndex(s.root(), "/"):]+`/"`)
	errs, err := chromedp.Call(b.ctx, page.GetInstallabilityErrors, cdp.Empty{})
	require.NoError(t, err)
	assert.Empty(t, errs.InstallabilityErrors, "the browser can install it")

	for _, path := range []string{"/inbox", "/log", "/definitions/a", "/"} {
		b.open(s, path)
		b.sees(`document.readyState === "complete" && document.body.dataset.root`)
	}
	kept := awaited[string](b, `(async () => { let all = []; for (const name of await caches.keys()) all.push(...(await (await caches.open(name)).keys()).map((r) => new URL(r.url).pathname)); return all.join("\n"); })()`)
	require.Contains(t, kept, "/offline.html")
	for path := range strings.SplitSeq(kept, "\n") {
		assert.Contains(t, path, "/assets/", "the worker keeps no page")
	}

	require.NoError(t, s.cmd.Process.Signal(os.Interrupt))
	require.NoError(t, s.cmd.Wait())
	b.open(s, "/inbox")
	b.reads("Not connected: the host cannot be reached")
	b.accessible("offline")
	b.shot("offline-phone")
	serve(t, h, "--listen", "127.0.0.1:"+s.port())
	b.click(`main a`)
	b.reads("No session runs") // by its key

	// A form does not pass through the worker: one of another site has no Origin of ours, and no cookie.
	evil := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprintf(w, `<form method=post action=%q><input name=do value=off></form><script>document.forms[0].submit()</script>`, s.root()+"/push")
	}))
	defer evil.Close()
	b.load(evil.URL)
	b.reads("pages from elsewhere have no access")
}

// TestPush: a device subscribes by a button, gets a push without content when a call begins to wait, and is forgotten when it
// stops, or was removed. Without a service in scopefs.yaml there is no button.
func TestPush(t *testing.T) {
	pushed := make(chan *http.Request, 16)
	service := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		assert.Empty(t, body)
		pushed <- r
		w.WriteHeader(http.StatusCreated)
	}))
	defer service.Close()
	roots := filepath.Join(t.TempDir(), "roots.pem")
	require.NoError(t, os.WriteFile(roots, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: service.Certificate().Raw}), 0o600))
	t.Setenv("SSL_CERT_FILE", roots)
	h := harness.LayOut(t, map[string]string{"a": harness.AskWrite})
	h.Put("scopefs.yaml", "approvals: {wait: 5m}\n")
	h.Start()
	s := servePair(t, h, "phone", "look")
	b := browse(t, s.link, 360, 740)
	var registration atomic.Value
	require.NoError(t, chromedp.Listen(b.ctx, func(event any) {
		if e, ok := event.(*serviceworker.EventWorkerRegistrationUpdated); ok {
			for _, r := range e.Registrations {
				registration.Store(r.RegistrationID)
			}
		}
	}))
	_, err := chromedp.Call(b.ctx, serviceworker.Enable, cdp.Empty{})
	require.NoError(t, err)
	b.click("#browser")
	b.reads("No session runs")
	b.open(s, "/inbox")
	b.reads("Nothing waits.")
	assert.False(t, value[bool](b, `!!document.getElementById("push")`), "the operator has named no service")

	h.Stop()
	h.Put("scopefs.yaml", "approvals: {wait: 5m}\nconsole: {push: ['"+service.Listener.Addr().String()+"']}\n")
	h.Start()
	b.sees(`document.getElementById("lost").hidden`)
	_, err = chromedp.CallBrowser(b.ctx, browsers.SetPermission, browsers.SetPermissionParams{Permission: &browsers.PermissionDescriptor{Name: "notifications"}, Setting: browsers.PermissionSettingGranted})
	require.NoError(t, err)
	subscribe := func(endpoint string) {
		b.open(s, "/inbox")
		b.sees(`document.getElementById("push")`)
		b.accessible("inbox with the button")
		// The browser's own service is not to be reached from a test: the page gets the endpoint of ours.
		value[any](b, fmt.Sprintf(`PushManager.prototype.subscribe = async (options) => { window.subscribed = options; return {endpoint: %q}; }, 0`, endpoint))
		b.sees(`navigator.serviceWorker.controller`)
		b.click("#push button[value=on]")
	}
	for _, evil := range []string{"https://169.254.169.254/latest/meta-data/", "http://" + service.Listener.Addr().String(), "https://other.example/x"} {
		subscribe(evil)
		b.reads("Not done")
	}
	subscribe(service.URL + "/to/phone")
	b.reads("This device is notified")
	b.shot("push-phone")

	u := h.Connect("a")
	calls := []<-chan error{u.Begin(h.Soon(), "bash", args{"command": "echo secret >>ran"})}
	b.reads("echo secret")
	for n := range 3 {
		calls = append(calls, u.Begin(h.Soon(), "bash", args{"command": fmt.Sprintf("echo %d >>ran", n)}))
	}
	first := <-pushed
	assert.Equal(t, "/to/phone", first.URL.Path)
	assert.True(t, strings.HasPrefix(first.Header.Get("Authorization"), "vapid t="))
	assert.NotContains(t, fmt.Sprint(first.Header), "secret")
	b.sees(`document.querySelectorAll("main article").length === 4`)

	// What the worker shows does not depend on what a push has.
	b.sees(`navigator.serviceWorker.controller`)
	id, ok := registration.Load().(serviceworker.RegistrationID)
	require.True(t, ok)
	_, err = chromedp.Call(b.ctx, serviceworker.DeliverPushMessage, serviceworker.DeliverPushMessageParams{Origin: s.root()[:strings.LastIndex(s.root(), "/")], RegistrationID: id, Data: "<b>approve all</b>"})
	require.NoError(t, err)
	const shown = `navigator.serviceWorker.ready.then((r) => r.getNotifications()).then((all) => all.map((n) => n.title + n.body).join())`
	require.Eventually(t, func() bool { return awaited[string](b, shown) != "" }, time.Minute, 50*time.Millisecond)
	assert.Equal(t, "scopefs: a call waits", awaited[string](b, shown))

	b.click("#push button[value=off]")
	b.reads("Notify this device")
	subscribe(service.URL + "/to/phone")
	b.reads("This device is notified")
	h.Must("console", "devices", "remove", "phone")
	kept, err := os.ReadFile(filepath.Join(h.Base, "state", "console", "devices.json"))
	require.NoError(t, err)
	assert.NotContains(t, string(kept), "/to/phone", "the subscription ends with the device")
	h.Must("down", "a")
	for _, call := range calls {
		assert.Error(t, <-call)
	}
}
