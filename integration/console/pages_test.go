package console

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/integration/harness"
)

// hostile is a name that would be markup, turn the text around or control a terminal.
const hostile = "no<img src=x onerror=alert(1)>\u202egpj.\x1b[31m\u200bx"

// work makes agent bob do something allowed and something denied.
func work(h *harness.Host) {
	h.T.Helper()
	require.NoError(h.T, os.MkdirAll(h.Scope("bob", "secret"), 0o755))
	require.NoError(h.T, os.WriteFile(h.Scope("bob", "secret", hostile), []byte("1"), 0o644))
	h.Must("call", "--agent", "bob", "bash", "command=for f in secret/*; do echo x > \"$f\"; done; ls; rm gone; curl -s http://no.example/; true")
	h.Must("call", "--agent", "bob", "read_file", "path=a.txt")
}

// TestPages: each page has what the commands print, in a wide window and on a phone, and no page finds an error of
// accessibility.
func TestPages(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"bob": "tools: [bash, read_file]\nview: {changes: kept, paths: {'secret/*': read}}", "eve": ""})
	harness.Plant(t, h.Scope("bob"), "a.txt=1", "gone")
	h.Put("agents.d/wrong.md", "---\nname: wrong\ndescription: x\ntools: [no-such-tool]\n---\n")
	work(h)
	s := serve(t, h)
	b := browse(t, s.link, 1280, 900)
	b.reads("No session runs")
	b.reads("bob")
	root := value[string](b, `document.body.dataset.root`)
	open := func(path, text string) {
		b.t.Helper()
		b.load(s.root()[:strings.LastIndex(s.root(), "/")] + root + path)
		b.reads(text)
	}
	pages := map[string][2]string{
		"now": {"/", "1 removed: gone"}, "changes": {"/changes", "1 removed: gone"}, "denials": {"/denials", "secret"}, "definitions": {"/definitions", "wrong.md"},
		"definition": {"/definitions/bob", "prompt"}, "log": {"/log", "bash"}, "charts": {"/charts", "Calls"},
	}
	var denied struct {
		Seq     uint64
		Session string
	}
	for line := range strings.Lines(h.Must("audit", "--json", "--denied", "--op", "open-write")) {
		require.NoError(t, json.Unmarshal([]byte(line), &denied))
	}
	require.NotZero(t, denied.Seq, h.Must("audit"))
	pages["event"] = [2]string{"/log/" + jsonText(t, denied.Seq), "Why"}
	pages["session"] = [2]string{"/sessions/" + denied.Session, "bash"}
	for _, phone := range []bool{false, true} {
		suffix := ""
		if phone {
			b.do(chromedp.EmulateViewport(360, 740, chromedp.EmulateMobile, chromedp.EmulateTouch))
			suffix = "-phone"
		}
		for name, p := range pages {
			open(p[0], p[1])
			b.shot(name + suffix)
			assert.True(t, value[bool](b, `document.documentElement.scrollWidth <= innerWidth`), "%s%s is wider than its window", name, suffix)
			assert.Zero(t, value[int](b, `document.querySelectorAll("main img, main iframe").length`), "%s: markup of an agent", name)
			text := value[string](b, `document.body.innerText`)
			assert.False(t, strings.ContainsAny(text, "\u202e\u200b\x1b"), "%s shows characters that deceive", name)
			b.accessible(name + suffix)
		}
	}
	open(pages["denials"][0], "scopefs allow")
	assert.Contains(t, value[string](b, `document.body.innerText`), `<img src=x onerror=alert(1)>\u{202e}gpj`, "the name is there, as text")
	open(pages["event"][0], "Verified: line")
}

// accessible fails the test for what axe-core finds in the page.
func (b *browser) accessible(what string) {
	b.t.Helper()
	axe, err := os.ReadFile(filepath.Join("../../bin/clients/node_modules/axe-core", "axe.min.js"))
	require.NoError(b.t, err)
	found := awaited[string](b, string(axe)+`;axe.run().then((r) => r.violations.map((v) => v.id + ": " + v.nodes[0].html).join("\n"))`)
	assert.Empty(b.t, found, "%s: axe-core", what)
}

func jsonText(t *testing.T, v any) string {
	t.Helper()
	text, err := json.Marshal(v)
	require.NoError(t, err)
	return string(text)
}

// TestLive: the open page follows a session, ends it, says when the daemon is gone, and connects again.
func TestLive(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"bob": "tools: [bash]"})
	s := serve(t, h)
	b := browse(t, s.link, 1280, 900)
	b.reads("No session runs")
	done := make(chan struct{})
	seconds := harness.Seconds(0)
	go func() {
		defer close(done)
		_, _, _ = h.Try("call", "--agent", "bob", "bash", "command=sleep "+seconds)
	}()
	b.reads("Calls in flight")
	b.shot("now-live")
	b.do(chromedp.Click("main section a[href*='/sessions/']"))
	b.reads("End this session")
	b.do(chromedp.Click("button.danger"))
	<-done
	b.reads("no more")
	h.Stop()
	b.sees(`!document.getElementById("lost").hidden`)
	b.shot("lost")
	h.Start()
	b.sees(`document.getElementById("lost").hidden`)
}

// TestKeyboard: the pages are reached and left by keys alone.
func TestKeyboard(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"bob": ""})
	s := serve(t, h)
	b := browse(t, s.link, 1280, 900)
	b.reads("bob")
	focused := func() string { return value[string](b, `document.activeElement.textContent.trim()`) }
	b.do(chromedp.KeyEvent("\t"))
	assert.Equal(t, "To the content", focused())
	for range 10 {
		if b.do(chromedp.KeyEvent("\t")); focused() == "Log" {
			break
		}
	}
	b.do(chromedp.KeyEvent("\r"))
	b.reads("Search")
	assert.True(t, strings.HasSuffix(value[string](b, `location.pathname`), "/log"))
}
