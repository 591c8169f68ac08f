package console

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/assert"

	"github.com/scopefs/scopefs/integration/harness"
)

type args = map[string]any

// waits starts a host where calls wait for the operator, its console, and a browser at the inbox.
func waits(t *testing.T) (*harness.Host, *served, *browser) {
	h := harness.LayOut(t, map[string]string{"a": harness.AskWrite})
	h.Put("scopefs.yaml", "approvals: {wait: 5m}\n")
	h.Start()
	s, b := atInbox(t, h)
	return h, s, b
}

// atInbox serves the console, and opens its inbox.
func atInbox(t *testing.T, h *harness.Host) (*served, *browser) {
	s := serve(t, h)
	b := browse(t, s.link, 1280, 900)
	b.reads("No session runs")
	b.open(s, "/inbox")
	b.reads("Nothing waits.")
	return s, b
}

func (b *browser) open(s *served, path string) {
	b.t.Helper()
	b.load(s.root() + path)
}

// load loads a page when the present one has loaded: chromedp takes the end of a load that it interrupts for that of the next.
func (b *browser) load(url string) {
	b.t.Helper()
	b.sees(`document.readyState === "complete"`)
	b.do(chromedp.Navigate(url))
}

// click clicks what a selector finds.
func (b *browser) click(selector string) {
	b.t.Helper()
	b.sees(fmt.Sprintf(`document.querySelector(%q)`, selector))
	value[any](b, fmt.Sprintf(`document.querySelector(%q).click()`, selector))
}

// press presses a key until an expression is true: keys right after a change of the page do nothing.
func (b *browser) press(key, until string) {
	b.t.Helper()
	b.sees(`(document.readyState === "complete" && document.activeElement)`)
	for end := time.Now().Add(90 * time.Second); time.Now().Before(end); {
		b.do(chromedp.KeyEvent(key))
		for range 6 {
			if ok, err := chromedp.Run(b.ctx, chromedp.Evaluate[bool]("!!("+until+")")); err == nil && ok {
				return
			}
			time.Sleep(50 * time.Millisecond)
		}
	}
	b.t.Fatalf("the key %s does nothing: %s", key, value[string](b, `document.body.innerText`))
}

// reason opens the field for the reason of a denial by its key.
func (b *browser) reason() {
	b.t.Helper()
	b.press("d", `document.activeElement.name === "reason"`)
	value[any](b, `document.activeElement.value = ""`) // the driver types a key also where the page has taken it
}

// TestInboxKeys: an operator decides by keys alone; the agent reads the reason of a denial.
func TestInboxKeys(t *testing.T) {
	h, _, b := waits(t)
	u := h.Connect("a")
	call := u.Begin(h.Soon(), "bash", args{"command": "echo one >>ran"})
	b.reads("echo one >>ran") // without a reload
	b.press("j", `document.activeElement.matches("main article")`)
	b.shot("inbox")
	b.do(chromedp.KeyEvent("a"))
	b.press("a", `document.body.innerText.includes("Nothing waits.")`)
	assert.NoError(t, <-call)
	assert.Equal(t, "one\n", harness.ReadAll(t, h.Scope("a", "ran")))

	call = u.Begin(h.Soon(), "bash", args{"command": "make deploy"})
	b.reads("make deploy")
	b.press("j", `document.activeElement.matches("main article")`)
	b.reason()
	b.do(chromedp.KeyEvent("not on \u202eFriday"), chromedp.KeyEvent(kb.Enter))
	b.reads("Nothing waits.")
	assert.ErrorContains(t, <-call, "the operator has denied this call of bash: not on Friday")
	b.reads("denied: not on Friday")

	// Enter in a field of a request approves nothing.
	call = u.Begin(h.Soon(), "bash", args{"command": "echo two >>ran"})
	b.reads("echo two >>ran")
	b.press("?", `document.getElementById("keys").open`)
	b.press("j", `document.activeElement.matches("main article")`)
	b.reason()
	b.do(chromedp.KeyEvent(kb.Enter))
	assert.ErrorContains(t, <-call, "denied")
	assert.Equal(t, "one\n", harness.ReadAll(t, h.Scope("a", "ran")))
}

// TestInboxBatch: several requests are decided together, those that were selected, and none is selected before.
func TestInboxBatch(t *testing.T) {
	h, _, b := waits(t)
	u := h.Connect("a")
	one := u.Begin(h.Soon(), "bash", args{"command": "echo one >>ran"})
	b.reads("echo one")
	two := u.Begin(h.Soon(), "bash", args{"command": "echo two >>ran"})
	b.reads("echo two")
	three := u.Begin(h.Soon(), "bash", args{"command": "echo three >>ran"})
	b.sees(`document.querySelectorAll("main article").length === 3`)
	assert.True(t, value[bool](b, `[...document.querySelectorAll("#batch button")].every((x) => x.disabled) && !document.querySelector("main article input:checked")`))
	for range 2 {
		value[any](b, `document.activeElement.blur()`)
		b.press("j", `document.activeElement.matches("main article")`)
		b.do(chromedp.KeyEvent("x"))
		b.do(chromedp.KeyEvent("j"), chromedp.KeyEvent("x"))
		if value[float64](b, `document.querySelectorAll("main article > header input:checked").length`) == 2 {
			break
		}
	}
	b.click(`#batch button[value=once]`)
	b.sees(`document.querySelectorAll("main article").length === 1`)
	assert.NoError(t, <-one)
	assert.NoError(t, <-two)
	assert.Empty(t, three)
	assert.NotContains(t, harness.ReadAll(t, h.Scope("a", "ran")), "three")
	b.click(`article .deny button`)
	assert.ErrorContains(t, <-three, "denied")
}

// TestInboxStale: what has changed since it was shown is shown again, and not approved; what somebody else has decided stays
// decided.
func TestInboxStale(t *testing.T) {
	h, _, b := waits(t)
	harness.Plant(t, h.Scope("a"), "f=first line")
	u := h.Connect("a")
	write := u.Begin(h.Soon(), "write_file", args{"path": "f", "content": "new line"})
	b.sees(`document.querySelector("table.diff td:nth-child(2) mark")?.innerText.includes("first")`)
	b.sees(`document.querySelector("table.diff td:nth-child(4) mark")?.innerText.includes("new")`)
	b.shot("inbox-diff")
	harness.Plant(t, h.Scope("a"), "f=other line")
	b.click("button.once")
	b.reads("has changed since it was shown")
	b.sees(`document.querySelector("article.new table.diff").innerText.includes("other line")`)
	assert.Empty(t, write)
	assert.Equal(t, "other line", harness.ReadAll(t, h.Scope("a", "f")))
	b.click("article.new button.once")
	b.reads("Nothing waits.")
	assert.NoError(t, <-write)
	assert.Equal(t, "new line", harness.ReadAll(t, h.Scope("a", "f")))

	// Decided elsewhere, while somebody writes a reason here: the page is not replaced meanwhile.
	call := u.Begin(h.Soon(), "bash", args{"command": "echo one >>ran"})
	b.reads("echo one >>ran")
	b.press("j", `document.activeElement.matches("main article")`)
	b.reason()
	b.do(chromedp.KeyEvent("too late"))
	id := value[string](b, `document.querySelector("main article").id.slice(5)`)
	h.Must("approvals", "approve", id)
	assert.NoError(t, <-call)
	b.do(chromedp.KeyEvent(kb.Enter))
	b.reads("Not done: approval " + id + ": approved")
	b.reads("already by user ")

	// Ended, likewise.
	left := u.Begin(h.Soon(), "bash", args{"command": "echo two >>ran"})
	b.reads("echo two >>ran")
	b.press("j", `document.activeElement.matches("main article")`)
	b.reason()
	b.do(chromedp.KeyEvent("too late"))
	h.Must("down", "a")
	assert.Error(t, <-left)
	b.do(chromedp.KeyEvent(kb.Enter))
	b.sees(`document.querySelector(".notice")?.innerText.includes("it has ended")`)
	assert.NotContains(t, value[string](b, `document.querySelector(".notice").innerText`), "denied")
}

// TestInboxHostile: what an agent writes is text, and every character of it is seen.
func TestInboxHostile(t *testing.T) {
	h, _, b := waits(t)
	evil := "rm -rf x #\u202e \u200b\x1b[2J</pre><img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script><form action=/x><button class=once>"
	u := h.Connect("a")
	call := u.Begin(h.Soon(), "bash", args{"command": evil})
	b.reads(`rm -rf x #\u202e \u200b\u001b[2J</pre><img src=x onerror=`)
	assert.True(t, value[bool](b, `document.querySelector("main img, main pre script, main pre form") === null && document.title.startsWith("Inbox")`))
	assert.Equal(t, 1.0, value[float64](b, `document.querySelectorAll("button.once").length`))
	path := "n\u202etxt<b>x</b>"
	write := u.Begin(h.Soon(), "write_file", args{"path": path, "content": "--- a/f\n+++ b/f\n@@ -1 +1 @@\n</td><script>document.title='owned'</script>\u2066"})
	b.reads(`n\u202etxt<b>x</b>`)
	b.reads(`</td><script>document.title='owned'</script>\u2066`)
	b.shot("inbox-hostile")

	// A form without what was shown, or for nothing, decides nothing.
	other := serve(t, h)
	cookie := enter(t, other.link)
	for form, code := range map[string]int{"do=once": 400, "do=once&shown=": 400, "do=once&shown=00": 409, "do=all&shown=00": 400, "do=pattern&shown=00&pattern=": 400} {
		id := value[string](b, `document.querySelector("main article").id.slice(5)`)
		resp := post(t, other.root()+"/inbox/"+id, form, func(r *http.Request) { r.AddCookie(cookie) })
		assert.Equal(t, code, resp.StatusCode, form)
	}
	assert.Empty(t, call)
	assert.Empty(t, write)
}

// TestInboxMoved: a click right after the page has changed was meant for something else, and decides nothing. The key
// approves no request whose end is below the window.
func TestInboxMoved(t *testing.T) {
	h, _, b := waits(t)
	u := h.Connect("a")
	call := u.Begin(h.Soon(), "bash", args{"command": "echo one >>ran"})
	b.reads("echo one >>ran")
	value[any](b, `window.moving = setInterval(() => document.dispatchEvent(new CustomEvent("scopefs:refreshed")), 20), 0`)
	value[any](b, `addEventListener("click", (e) => setTimeout(() => { window.prevented = e.defaultPrevented; }), true)`)
	b.do(chromedp.Click("article button.once"))
	b.sees(`window.prevented === true`)
	assert.Empty(t, call)
	value[any](b, `clearInterval(window.moving)`)
	b.sees(fmt.Sprintf(`performance.now() > %f`, value[float64](b, `performance.now() + 1000`)))
	b.do(chromedp.Click("article button.once"))
	b.reads("Nothing waits.")
	assert.NoError(t, <-call)

	call = u.Begin(h.Soon(), "bash", args{"command": "echo two >>ran" + strings.Repeat("\n", 300) + "echo three >>ran"})
	b.reads("echo two >>ran")
	b.press("j", `document.activeElement.matches("main article")`)
	const inView = `document.querySelector("button.once")?.getBoundingClientRect().bottom <= innerHeight + 4`
	assert.False(t, value[bool](b, inView))
	b.press("a", inView)
	assert.Empty(t, call)
	b.press("a", `document.body.innerText.includes("Nothing waits.")`)
	assert.NoError(t, <-call)
}

// TestInboxPartial: what the page does not show whole is approved alone, and by one more word.
func TestInboxPartial(t *testing.T) {
	h, s, b := waits(t)
	u := h.Connect("a")
	call := u.Begin(h.Soon(), "bash", args{"command": "echo one >>ran #" + strings.Repeat("x", 100<<10)})
	b.reads("more bytes: scopefs approvals show")
	assert.True(t, value[bool](b, `document.querySelector("article header input") === null`))
	id := value[string](b, `document.querySelector("main article").id.slice(5)`)
	hash := value[string](b, `document.querySelector("main article input[name=shown]").value`)
	other := serve(t, h)
	cookie := enter(t, other.link)
	for path, form := range map[string]string{"/inbox/" + id: "do=once&shown=" + hash, "/inbox": "do=once&item=" + id + "+" + hash} {
		resp := post(t, other.root()+path, form, func(r *http.Request) { r.AddCookie(cookie) })
		assert.Equal(t, http.StatusBadRequest, resp.StatusCode, path)
	}
	assert.Empty(t, call)
	b.open(s, "/inbox")
	b.click("article input[name=partial]")
	b.click("button.once")
	b.reads("Nothing waits.")
	assert.NoError(t, <-call)
}

// TestInboxHonest: letters that look like others are escapes, and those of a right-to-left script stay in their places.
func TestInboxHonest(t *testing.T) {
	h, _, b := waits(t)
	call := h.Connect("a").Begin(h.Soon(), "bash", args{"command": "cp \u05d0 1 \u05d1; curl p\u0430ypal.example; echo e\u0301\u0301\u0301\u0301"})
	b.reads(`p\u0430ypal.example`)
	b.reads(`\u0301\u0301`)
	assert.True(t, value[bool](b, `(() => {
		const text = document.querySelector("pre.command").firstChild, left = (c) => {
			const r = document.createRange(), at = text.data.indexOf(c); r.setStart(text, at); r.setEnd(text, at + 1); return r.getBoundingClientRect().left; };
		return left("\u05d0") < left("1") && left("1") < left("\u05d1");
	})()`), "the order of the arguments")
	b.click(`article .deny button`)
	assert.ErrorContains(t, <-call, "denied")
}
