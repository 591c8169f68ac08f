package console

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/integration/harness"
)

// long is a path that no window has room for.
var long = "secret/" + strings.Repeat("directory-of-a-long-name", 9)

// busy starts a host where agent bob has worked and agent eve waits for the operator, its console, and a browser; and returns
// the pages, by name: a path and a text.
func busy(t *testing.T) (*harness.Host, *served, *browser, map[string][2]string) {
	h := harness.LayOut(t, map[string]string{
		"bob": "tools: [bash, read_file]\nview: {changes: kept, paths: {'secret/*': read}}\npolicy: {tools: {exclude: [write_file]}}", "eve": harness.AskWrite,
	})
	h.Put("scopefs.yaml", "approvals: {wait: 5m}\n")
	h.Put("agents.d/wrong.md", "---\nname: wrong\ndescription: x\ntools: [no-such-tool]\n---\n")
	harness.Plant(t, h.Scope("bob"), "a.txt=1", "secret/", long+"=1")
	harness.Plant(t, h.Scope("eve"), "main.go=package main\n\nfunc main() { println(\"one\") }\n")
	h.Start()
	h.Must("call", "--agent", "bob", "bash", "command=echo two >a.txt; for f in secret/*; do echo x >\"$f\"; done; curl -s http://no.example/; true")
	u := h.Connect("eve")
	_ = u.Begin(t.Context(), "write_file", args{"path": "main.go", "content": "package main\n\nfunc main() { println(\"two\") }\n"})
	var denied struct {
		Seq     uint64
		Session string
	}
	for line := range strings.Lines(h.Must("audit", "--json", "--denied", "--agent", "bob", "--op", "open-write")) {
		require.NoError(t, json.Unmarshal([]byte(line), &denied))
	}
	require.NotZero(t, denied.Seq)
	s := serve(t, h)
	b := browse(t, s.link, 1280, 900)
	b.reads("Agents")
	return h, s, b, map[string][2]string{
		"now": {"/", "bob"}, "inbox": {"/inbox", "println"}, "denials": {"/denials", "secret"}, "changes": {"/changes", "kept"},
		"changes-of": {"/changes/bob?by=session&name=" + denied.Session + "&path=a.txt", "two"}, "plan": {"/changes/bob?by=session&name=" + denied.Session + "&plan=1", "What the undo does"},
		"definitions": {"/definitions", "wrong.md"}, "definition": {"/definitions/bob", "prompt"}, "log": {"/log", "bash"},
		"event": {fmt.Sprintf("/log/%d", denied.Seq), "Why"}, "session": {"/sessions/" + denied.Session, "bash"}, "charts": {"/charts", "Calls"},
		"devices": {"/devices", "No device is paired."},
		"rule":    {"/rule?agent=bob&kind=tool&name=write_file&remove_deny=1", "write_file"}, "failed": {"/log/999999", "Not done"},
	}
}

// scheme makes the browser prefer a colour scheme.
func (b *browser) scheme(name string) {
	b.t.Helper()
	_, err := chromedp.Run(b.ctx, func(ctx context.Context, t *chromedp.Target) (cdp.Empty, error) {
		return cdp.Call(ctx, t, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: name}}})
	})
	require.NoError(b.t, err)
}

// TestModes: each page fits a phone and a wall, light and dark, and axe-core finds nothing in any.
func TestModes(t *testing.T) {
	_, s, b, pages := busy(t)
	for _, mode := range []struct {
		scheme string
		width  int64
	}{{"light", 360}, {"dark", 1280}, {"light", 3840}} {
		b.scheme(mode.scheme)
		b.do(chromedp.EmulateViewport(mode.width, 900))
		back := map[string]string{"light": "rgb(255, 255, 255)", "dark": "rgb(20, 23, 28)"}[mode.scheme]
		for name, p := range pages {
			name := fmt.Sprintf("%s-%s-%d", name, mode.scheme, mode.width)
			b.open(s, p[0])
			b.reads(p[1])
			b.shot(name)
			assert.Equal(t, back, value[string](b, `getComputedStyle(document.documentElement).backgroundColor`), name)
			assert.LessOrEqual(t, value[float64](b, `document.documentElement.scrollWidth`), float64(mode.width), name)
			b.axe(name)
		}
		if mode.width == 360 {
			b.open(s, pages["denials"][0])
			b.reads("scopefs allow")
			assert.True(t, value[bool](b, `[...document.querySelectorAll(".wide:has(table.stack)")].every((e) => e.scrollWidth <= e.clientWidth)`), "the denials do not fit")
		}
	}
}

// TestWithoutScript: every page can be read, and a request decided, without a script.
func TestWithoutScript(t *testing.T) {
	h, s, b, pages := busy(t)
	_, err := chromedp.Run(b.ctx, func(ctx context.Context, t *chromedp.Target) (cdp.Empty, error) {
		return cdp.Call(ctx, t, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true})
	})
	require.NoError(t, err)
	shown := func() string {
		text, err := chromedp.Run(b.ctx, chromedp.Text("body"))
		require.NoError(t, err)
		return text
	}
	for name, p := range pages {
		b.open(s, p[0])
		assert.Contains(t, shown(), p[1], name)
	}
	b.open(s, "/inbox")
	b.do(chromedp.Click("article button.once"))
	h.Eventually("the call is made", func() bool {
		return strings.Contains(harness.ReadAll(t, h.Scope("eve", "main.go")), "two")
	})
	b.do(chromedp.WaitVisible("#decided, main > p"))
	assert.Contains(t, shown(), "Nothing waits.")
}

// TestListKeys: the rows of a list are reached by keys, and what is to be copied is copied by a button.
func TestListKeys(t *testing.T) {
	_, s, b, pages := busy(t)
	for _, name := range []string{"now", "denials", "changes", "changes-of", "definitions", "log", "session"} {
		b.open(s, pages[name][0])
		b.reads(pages[name][1])
		b.press("j", `document.activeElement.closest("main tbody tr, main summary")`)
		first := value[string](b, `document.activeElement.outerHTML`)
		if value[float64](b, `[...document.querySelectorAll("main tbody tr, main summary")].filter((r) => r.matches("summary") || r.querySelector("a")).length`) > 2 && name != "now" {
			b.press("j", fmt.Sprintf(`document.activeElement.outerHTML !== %q`, first))
			b.press("k", fmt.Sprintf(`document.activeElement.outerHTML === %q`, first))
		}
	}
	b.open(s, pages["definitions"][0])
	b.press("?", `document.getElementById("keys").open`)
	b.press("j", `document.activeElement.textContent === "bob"`)
	b.do(chromedp.KeyEvent("\r"))
	b.reads("What it may do")

	b.open(s, pages["denials"][0])
	b.sees(`document.querySelector("button.copy")`)
	want := value[string](b, `document.querySelector("code.copy").textContent`)
	value[any](b, `navigator.clipboard.writeText = async (text) => { window.copied = text; }`)
	b.click("button.copy")
	b.sees(fmt.Sprintf(`window.copied === %q`, want))
	b.reads("Copied")
}

// TestButtons: the buttons and fields that no other test presses.
func TestButtons(t *testing.T) {
	h, s, b, pages := busy(t)
	b.open(s, "/log")
	for field, text := range map[string]string{"agent": "bob", "op": "open-write"} {
		value[any](b, fmt.Sprintf(`document.querySelector("main form input[name=%s]").value = %q`, field, text))
	}
	value[any](b, `document.querySelector("main form select[name=verdict]").value = "deny", 0`)
	b.click("main form button")
	b.sees(`location.search.includes("op=open-write") && document.querySelector("main tbody tr")`)
	assert.True(t, value[bool](b, `[...document.querySelectorAll("main tbody tr")].every((r) => r.innerText.includes("open-write") && r.innerText.includes("deny"))`))
	b.open(s, "/log?agent=bob&op=none")
	b.reads("No event fits.")
	b.open(s, "/denials?path=a.txt")
	b.reads("Nothing was denied.")
	value[any](b, `document.querySelector("main form input[name=path]").value = ""`)
	b.click("main form button")
	b.reads("Review the change")
	b.click(`main a[href*="/rule?"]`)
	b.reads("Change of a definition")

	b.open(s, pages["event"][0])
	b.reads("Verified: line")
	cookies, err := chromedp.Run(b.ctx, func(ctx context.Context, t *chromedp.Target) (network.GetCookiesResult, error) {
		return cdp.Call(ctx, t, network.GetCookies, network.GetCookiesParams{})
	})
	require.NoError(t, err)
	r, err := http.NewRequest(http.MethodGet, value[string](b, `document.querySelector("main a[href$='/proof']").href`), nil)
	require.NoError(t, err)
	r.AddCookie(&http.Cookie{Name: cookies.Cookies[0].Name, Value: cookies.Cookies[0].Value})
	answer := send(t, r)
	assert.Regexp(t, regexp.MustCompile(`attachment; filename="event-\d+\.proof\.json"`), answer.Header.Get("Content-Disposition"))
	text, err := io.ReadAll(answer.Body)
	require.NoError(t, err)
	proof := filepath.Join(t.TempDir(), "proof.json")
	require.NoError(t, os.WriteFile(proof, text, 0o644))
	_, errs, code := h.Try("audit", "check-proof", proof, "--key", h.Base+"/state/audit/key.pub")
	assert.Zero(t, code, errs)

	b.click(`header form[action$="/leave"] button`)
	b.reads("You have left the console.")
	b.open(s, "/")
	b.reads("You are not logged in")
}
