// Package console tests the web page in a headless Chromium, and attacks it by plain HTTP.
package console

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/internal/need"
)

func TestMain(m *testing.M) { harness.Main(m) }

// ShotsEnv is the environment variable with the directory for pictures of the pages; "": none are kept.
const ShotsEnv = "SCOPEFS_TEST_SHOTS"

// served is a process that serves the console.
type served struct {
	t    testing.TB
	h    *harness.Host
	link string // not used yet
	cmd  *exec.Cmd
}

// serve starts scopefs console.
func serve(t testing.TB, h *harness.Host, flags ...string) *served {
	t.Helper()
	args := append([]string{"console", "--base", h.Base, "--state", filepath.Join(h.Base, "state"), "--run", filepath.Join(h.Base, "run")}, flags...)
	s := &served{t: t, h: h, cmd: exec.Command(harness.Program, args...)}
	out, err := s.cmd.StdoutPipe()
	require.NoError(t, err)
	s.cmd.Stderr = os.Stderr
	require.NoError(t, s.cmd.Start())
	t.Cleanup(func() {
		_ = s.cmd.Process.Signal(syscall.SIGTERM)
		_ = s.cmd.Wait()
	})
	s.link, err = bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	s.link = strings.TrimSpace(s.link)
	return s
}

// root returns the URL of the pages.
func (s *served) root() string {
	return s.link[:strings.LastIndex(s.link[:strings.LastIndex(s.link, "/")], "/")]
}

// enter returns the cookie that a link is taken for.
func enter(t testing.TB, link string) *http.Cookie {
	t.Helper()
	root, token, _ := strings.Cut(link, "/enter/")
	resp := post(t, root+"/enter", "token="+token, nil)
	require.Equal(t, http.StatusSeeOther, resp.StatusCode)
	require.Len(t, resp.Cookies(), 1)
	return resp.Cookies()[0]
}

// post sends a form as a page of the console does; change may change the request.
func post(t testing.TB, url, form string, change func(*http.Request)) *http.Response {
	t.Helper()
	r, err := http.NewRequest(http.MethodPost, url, strings.NewReader(form))
	require.NoError(t, err)
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	r.Header.Set("Origin", strings.Join(strings.SplitN(url, "/", 4)[:3], "/"))
	r.Header.Set("Sec-Fetch-Site", "same-origin")
	if change != nil {
		change(r)
	}
	return send(t, r)
}

func send(t testing.TB, r *http.Request) *http.Response {
	t.Helper()
	client := http.Client{Timeout: 30 * time.Second, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	resp, err := client.Do(r)
	require.NoError(t, err)
	t.Cleanup(func() { resp.Body.Close() })
	return resp
}

// browser is a Chromium with one page.
type browser struct {
	t   testing.TB
	ctx context.Context
}

// browse starts a browser, and opens a URL. A message of the page's scripts or policies that is an error fails the test.
func browse(t testing.TB, url string, width, height int64) *browser {
	t.Helper()
	need.All(t, "a browser")
	path, err := exec.LookPath("chromium")
	if err != nil {
		need.Skip(t, "needs chromium: ", err)
	}
	dir := t.TempDir()
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.NoSandbox, chromedp.DisableGPU, chromedp.UserDataDir(dir),
		chromedp.WSURLReadTimeout(2*time.Minute), chromedp.Flag("disable-quic", true), chromedp.Flag("disable-component-update", true),
		chromedp.Flag("no-proxy-server", true), chromedp.Env("HOME="+dir))
	ctx, end := context.WithTimeout(context.Background(), 15*time.Minute)
	t.Cleanup(end)
	ctx, end = chromedp.NewExecAllocator(ctx, options...)
	t.Cleanup(end)
	ctx, end = chromedp.NewContext(ctx)
	t.Cleanup(func() { _ = chromedp.Cancel(ctx); end() })
	b := &browser{t, ctx}
	var viewport []chromedp.EmulateViewportOption
	if width < 600 {
		viewport = append(viewport, chromedp.EmulateMobile, chromedp.EmulateTouch)
	}
	b.do(chromedp.EmulateViewport(width, height, viewport...))
	require.NoError(t, chromedp.Listen(ctx, func(event any) {
		switch e := event.(type) {
		case *runtime.EventExceptionThrown:
			t.Errorf("exception in the page: %s: %v", e.ExceptionDetails.Text, e.ExceptionDetails.Exception)
		case *log.EventEntryAdded:
			if e.Entry.Level == log.EntryLevelError && e.Entry.Source != log.EntrySourceNetwork {
				t.Errorf("the browser says: %s", e.Entry.Text)
			}
		}
	}))
	b.do(chromedp.Navigate(url))
	return b
}

func (b *browser) do(actions ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	require.NoError(b.t, chromedp.Do(b.ctx, actions...))
}

// value returns the value of an expression of the page.
func value[T any](b *browser, expression string, how ...chromedp.EvaluateOption) T {
	b.t.Helper()
	v, err := chromedp.Run(b.ctx, chromedp.Evaluate[T](expression, how...))
	require.NoError(b.t, err, expression)
	return v
}

// sees waits until an expression of the page is true. A page that is being replaced has no values.
func (b *browser) sees(expression string) {
	b.t.Helper()
	var last error
	for end := time.Now().Add(90 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		ctx, cancel := context.WithTimeout(b.ctx, 20*time.Second)
		ok, err := chromedp.Run(ctx, chromedp.Evaluate[bool]("!!("+expression+")"))
		cancel()
		if last = err; ok {
			return
		}
	}
	b.t.Fatalf("%s: %v: the page %s has:\n%s", expression, last, value[string](b, `location.href`), value[string](b, `document.body.innerText`))
}

// reads waits until the page has a text.
func (b *browser) reads(text string) {
	b.t.Helper()
	b.sees(fmt.Sprintf(`document.body?.innerText.includes(%q)`, text))
}

// shot keeps a picture of the page.
func (b *browser) shot(name string) {
	b.t.Helper()
	dir := os.Getenv(ShotsEnv)
	if dir == "" {
		return
	}
	png, err := chromedp.Run(b.ctx, chromedp.CaptureScreenshot())
	require.NoError(b.t, err)
	assert.NoError(b.t, os.WriteFile(filepath.Join(dir, name+".png"), png, 0o644))
}
