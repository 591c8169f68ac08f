package console

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/integration/harness"
)

// TestChanges: an operator sees what an agent has changed, what is destroyed first, and takes it back as planned; commits and
// discards what is held; and changes a definition after its diff.
func TestChanges(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"a": "view: {changes: kept}\npolicy: {tools: {exclude: [bash]}}", "b": "view: {changes: held}",
		"c": "view: {changes: kept, paths: {x: hold}}"})
	harness.Plant(t, h.Scope("a"), "f=old text", "g=gone")
	harness.Plant(t, h.Scope("b"), "f=old text", "g=stays")
	h.Must("run", "a", "--", "sh", "-c", "printf 'new text' >f; rm g; echo 1 >h")
	s := serve(t, h)
	b := browse(t, s.link, 1280, 900)
	b.reads("No session runs")
	b.open(s, "/changes")
	b.click(`a[href$="/changes/a"]`)
	b.sees(`document.querySelector("main tbody tr").innerText.match(/removed\s+g/)`)
	b.click(`main tbody a[href*="path=f"]`)
	b.sees(`document.querySelector("table.diff td:nth-child(2) mark")?.innerText === "old" && document.querySelector("table.diff td:nth-child(4) mark")?.innerText === "new"`)
	b.shot("changes")
	b.click(`a[href*="plan=1"]`)
	b.reads("What the undo does")
	b.reads("restore g")
	h.Must("run", "a", "--", "sh", "-c", "echo 2 >i")
	b.click(`button[value=undo]`)
	b.reads("Nothing was done: the changes are not those that were shown.")
	assert.Equal(t, "new text", harness.ReadAll(t, h.Scope("a", "f")))
	first := value[string](b, `[...document.querySelectorAll("#names option")].filter((o) => o.textContent === "session").pop().value`)
	b.open(s, "/changes/a?by=session&plan=1&name="+first)
	b.click(`button[value=undo]`)
	b.reads("Taken back:")
	assert.Equal(t, "old text", harness.ReadAll(t, h.Scope("a", "f")))
	assert.Equal(t, "gone", harness.ReadAll(t, h.Scope("a", "g")))
	assert.Equal(t, "2\n", harness.ReadAll(t, h.Scope("a", "i")))

	h.Must("run", "b", "--", "sh", "-c", "printf 'new text' >f; rm g")
	b.open(s, "/changes/b?held=branch")
	b.reads("removed")
	h.Must("run", "b", "--", "sh", "-c", "echo more >h")
	b.click(`button[value=commit]`)
	b.reads("Nothing was done")
	assert.Equal(t, "old text", harness.ReadAll(t, h.Scope("b", "f")))
	b.click(`button[value=commit]`)
	b.reads("Taken: 3 changes.")
	assert.Equal(t, "new text", harness.ReadAll(t, h.Scope("b", "f")))
	assert.NoFileExists(t, h.Scope("b", "g"))
	h.Must("run", "b", "--", "sh", "-c", "echo x >f")
	b.open(s, "/changes/b?held=branch")
	b.reads("Discard all")
	h.Must("run", "b", "--", "sh", "-c", "echo y >f") // of the same size
	b.click(`button[value=discard]`)
	b.reads("Nothing was done")
	assert.Contains(t, h.Must("diff", "b", "--patch"), "+y")
	b.click(`button[value=discard]`)
	b.reads("Dropped: 1 changes.")
	assert.Equal(t, "new text", harness.ReadAll(t, h.Scope("b", "f")))

	// The commands are bound in the same way.
	h.Must("run", "b", "--", "sh", "-c", "echo x >f")
	hash := regexp.MustCompile(`--shown ([0-9a-f]{64})`).FindStringSubmatch(h.Must("diff", "b", "--hash"))
	h.Must("run", "b", "--", "sh", "-c", "echo y >f")
	for _, args := range [][]string{{"commit", "b"}, {"discard", "b", "--all"}} {
		_, errs, code := h.Try(append(args, "--shown", hash[1])...)
		assert.Equal(t, 1, code, args)
		assert.Contains(t, errs, "nothing was done: the changes are not those that were shown", args)
	}
	hash = regexp.MustCompile(`--shown ([0-9a-f]{64})`).FindStringSubmatch(h.Must("diff", "b", "--hash"))
	h.Must("discard", "b", "--all", "--shown", hash[1])
	assert.Equal(t, "new text", harness.ReadAll(t, h.Scope("b", "f")))
	harness.Plant(t, h.Scope("c"), "x/f=old")
	h.Must("run", "c", "--", "sh", "-c", "echo x >x/f; echo x >x/g; ln x/g x/h")
	b.open(s, "/changes/c?held=paths")
	b.reads("rules hold")
	h.Must("run", "c", "--", "sh", "-c", "echo y >x/f")
	b.click(`button[value=discard]`)
	b.reads("Nothing was done")
	b.click(`button[value=discard]`)
	b.reads("Dropped: 3 changes.")
	h.Must("run", "a", "--", "sh", "-c", "echo 3 >i")
	hash = regexp.MustCompile(`--shown ([0-9a-f]{64})`).FindStringSubmatch(h.Must("undo", "a", "i", "-n"))
	harness.Plant(t, h.Scope("a"), "i=4")
	_, errs, code := h.Try("undo", "a", "i", "--shown", hash[1])
	assert.Equal(t, 1, code)
	assert.Contains(t, errs, "nothing was done")
	assert.Equal(t, "4", harness.ReadAll(t, h.Scope("a", "i")))

	b.open(s, "/rule?agent=a&kind=tool&name=bash")
	b.reads("policy.tools.exclude: bash")
	b.click(`a[href*="remove_deny=1"]`)
	b.sees(`document.querySelector("table.diff")`)
	before, err := os.ReadFile(h.Base + "/agents.d/a.md")
	assert.NoError(t, err)
	assert.Contains(t, string(before), "exclude")
	b.click("main form button")
	b.reads("new rules hold")
	assert.Contains(t, h.Connect("a").List(), "bash")
}

// TestColours: the diff of a program has colours on both sides that are legible in light and dark, on a phone too, and change
// no text. A text that a lexer cannot finish has none.
func TestColours(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"a": "view: {changes: kept}"})
	harness.Plant(t, h.Scope("a"), "f.py=import os\n# \"old\" & <b>\nx = 'a' + 12\ndef f(): pass\n", "g.go=")
	evil := "\"" + strings.Repeat("\\", 301)
	h.Must("run", "a", "--", "python3", "-c", `import os; open("f.py","w").write("import sys\n# \"new\" & <b>\nx = 'b' + 34\ndef f(): pass\n"); open("g.go","w").write('"'+"\\"*301)`)
	s := serve(t, h)
	b := browse(t, s.link, 1280, 900)
	b.reads("No session runs")
	const coloured = `document.querySelectorAll("table.diff span.k, table.diff mark.k").length >= 4`
	for end := time.Now().Add(90 * time.Second); time.Now().Before(end); { // a page waits for colours as long as it may
		b.open(s, "/changes/a?path=f.py")
		b.sees(`document.querySelector("table.diff")`)
		if value[bool](b, coloured) {
			break
		}
	}
	b.sees(coloured)
	b.sees(`["s", "n", "c", "t"].every((kind) => document.querySelector("table.diff td:nth-child(2) ." + kind) && document.querySelector("table.diff td:nth-child(4) ." + kind))`)
	side := func(n int) string {
		return value[string](b, fmt.Sprintf(`[...document.querySelectorAll("table.diff td:nth-child(%d)")].map((td) => td.textContent).join("|")`, n))
	}
	assert.Equal(t, `import os|# "old" & <b>|x = 'a' + 12|def f(): pass`, side(2))
	assert.Equal(t, `import sys|# "new" & <b>|x = 'b' + 34|def f(): pass`, side(4))
	for _, scheme := range []string{"light", "dark"} {
		_, err := chromedp.Call(b.ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}})
		require.NoError(t, err)
		b.accessible("diff, " + scheme)
		b.shot("diff-" + scheme)
	}
	b.do(chromedp.EmulateViewport(360, 740, chromedp.EmulateMobile, chromedp.EmulateTouch))
	b.accessible("diff, phone")
	assert.True(t, value[bool](b, `document.documentElement.scrollWidth <= innerWidth`))
	b.shot("diff-phone")

	b.open(s, "/changes/a?path=g.go")
	b.sees(`document.querySelector("table.diff")`)
	assert.Equal(t, evil, side(4))
	assert.False(t, value[bool](b, `!!document.querySelector("table.diff span.k, table.diff .s, table.diff .c")`))
}
