package console

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/integration/harness"
)

// TestNarrow: a call sees the scopes that stay selected in the inbox, and a commit takes the paths that the operator names.
func TestNarrow(t *testing.T) {
	h := harness.LayOut(t, map[string]string{
		"a": "tools: [analyze]\nscopes: {enum: [state, input], ask: [state]}", "c": "view: {changes: held}\npolicy: {commit: ask}",
	})
	h.Put("scopefs.yaml", "approvals: {wait: 5m}\n")
	h.Put("activities.d/analyze.json", `{"description": "analyzes", "inputSchema": {"type": "object", "additionalProperties": false, "properties": {"_scopes": {"type": "array", "items": {"enum": ["state", "input"]}}}}}`)
	h.Put("env.json", `[{"type": "state", "user": "Alice"}, {"type": "input", "user": "Bob"}]`)
	h.Put("calls.json", `{"_tool": "analyze", "_scopes": ["state", "input"]}`)
	harness.Plant(t, h.Scope("c"), "f=1", "src/a=1")
	h.Start()
	s, b := atInbox(t, h)
	said := make(chan string, 1)
	go func() {
		out, errs, _ := h.Try("call", "--agent", "a", "--context", h.Base+"/env.json", h.Base+"/calls.json")
		said <- out + errs
	}()
	b.reads("Scopes that it gets")
	b.reads("Alice")
	b.sees(`document.querySelectorAll("article input[name=scope]:checked").length === 2`)
	b.click("article input[name=scope][value=state]")
	b.click("article input[name=scope][value=input]")
	b.click("button.once")
	b.reads("Not done about")
	assert.Empty(t, said, "a call without the scopes that it needs is denied, not approved")
	b.open(s, "/inbox")
	b.click("article input[name=scope][value=state]")
	b.shot("inbox-narrow")
	b.click("button.once")
	text := <-said
	assert.Contains(t, text, "Bob")
	assert.NotContains(t, text, "Alice")
	b.reads("Nothing waits.")

	u := h.Connect("c")
	u.Bash("printf 2 >f; printf 2 >src/a")
	commit := u.Begin(h.Soon(), "commit", nil)
	b.reads("src/a")
	fill := func(paths string) {
		b.sees(`document.querySelector("article input[name=paths]")`)
		value[any](b, fmt.Sprintf(`document.querySelector("article input[name=paths]").value = %q`, paths))
	}
	fill("../x")
	b.click("button.once")
	b.reads("Not done about")
	assert.Empty(t, commit)
	b.open(s, "/inbox")
	fill("src/**")
	b.click("button.once")
	assert.NoError(t, <-commit)
	assert.Equal(t, "2", harness.ReadAll(t, h.Scope("c", "src/a")))
	assert.Equal(t, "1", harness.ReadAll(t, h.Scope("c", "f")), "it is held still")
}

// approvalsOf returns the decisions about a request in the log.
func approvalsOf(h *harness.Host, id string) (outcomes []string) {
	for _, e := range h.Events("a") {
		if e.Event == audit.KindApproval && strings.HasPrefix(e.Detail, id) && (e.Outcome == "approved" || e.Outcome == "denied") {
			outcomes = append(outcomes, e.Outcome)
		}
	}
	return outcomes
}

// TestTwoOperators: what one decides the page of the other says, with who did. Of two decisions at once one holds, and the
// page of the other operator says which, until that operator has read it.
func TestTwoOperators(t *testing.T) {
	h, s, b := waits(t)
	pair := servePair(t, h, "phone", "decide")
	phone := browse(t, pair.link, 360, 740)
	phone.click("#browser")
	phone.reads("No session runs")
	phone.open(pair, "/inbox")
	u := h.Connect("a")
	call := u.Begin(h.Soon(), "bash", args{"command": "echo one >>ran"})
	b.reads("echo one >>ran")
	phone.reads("echo one >>ran")
	phone.click("button.once")
	assert.NoError(t, <-call)
	b.reads("Nothing waits.")
	b.sees(`document.querySelector("#decided + div").innerText.includes("device phone") && document.querySelector("#decided + div").innerText.includes("approved, used")`)

	for n := range rounds(4) {
		command := fmt.Sprintf("echo both %d >>ran", n)
		call := u.Begin(h.Soon(), "bash", args{"command": command})
		for _, page := range []*browser{b, phone} {
			page.reads(command)
		}
		id := value[string](b, `document.querySelector("main article").id.slice(5)`)
		var both sync.WaitGroup
		both.Go(func() { b.click("button.once") })
		both.Go(func() { phone.click(".deny button") })
		both.Wait()
		approved := <-call == nil
		outcomes := approvalsOf(h, id)
		require.Len(t, outcomes, 1, "%s", command)
		assert.Equal(t, approved, outcomes[0] == "approved")
		assert.Equal(t, approved, strings.Contains(harness.ReadAll(t, h.Scope("a", "ran")), fmt.Sprintf("both %d", n)))
		winner, loser := b, phone
		if !approved {
			winner, loser = phone, b
		}
		loser.reads("Not done: approval " + id + ": " + outcomes[0])
		loser.reads("already by user ")
		winner.reads("Nothing waits.")
		assert.NotContains(t, value[string](winner, `document.body.innerText`), "Not done")

		next := u.Begin(h.Soon(), "bash", args{"command": fmt.Sprintf("echo next %d", n)})
		loser.reads(fmt.Sprintf("echo next %d", n))
		loser.reads("Not done: approval " + id) // though the page has changed
		winner.click(".deny button")
		assert.Error(t, <-next)
		b.open(s, "/inbox")
		phone.open(pair, "/inbox")
	}
}

// TestInboxTimesOut: a request whose time is over under an open page says so, without a key or a click, and nobody has denied
// it.
func TestInboxTimesOut(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"a": harness.AskWrite})
	_, b := atInbox(t, h)
	id := h.Connect("a").Waits("bash", args{"command": "echo one >>ran"})
	b.reads("echo one >>ran")
	hash := value[string](b, `document.querySelector("main article input[name=shown]").value`)
	h.Stop()
	b.reads("Not connected")
	file := filepath.Join(h.Base, "state", "approvals", id+".json")
	var stored map[string]any
	require.NoError(t, json.Unmarshal([]byte(harness.ReadAll(t, file)), &stored))
	stored["asked"], stored["expires"] = time.Now().Add(-10*time.Minute), time.Now().Add(5*time.Second)
	text, err := json.Marshal(stored)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(file, text, 0o600))
	h.Start()
	b.sees(`document.getElementById("lost").hidden`)
	b.reads("Nothing waits.")
	b.reads("timed out")
	row := value[string](b, `document.querySelector("#decided + div tbody tr").innerText`)
	assert.Contains(t, row, id)
	assert.Contains(t, row, "nobody")
	assert.NotContains(t, row, "denied")
	b.shot("inbox-timed-out")

	other := serve(t, h)
	cookie := enter(t, other.link)
	resp := post(t, other.root()+"/inbox/"+id, "do=once&shown="+hash, func(r *http.Request) { r.AddCookie(cookie) })
	assert.Equal(t, http.StatusConflict, resp.StatusCode)
	assert.NoFileExists(t, h.Scope("a", "ran"))
}

// rounds is how often a race is tried; SCOPEFS_TEST_ROUNDS makes it more.
func rounds(few int) int {
	if n, err := strconv.Atoi(os.Getenv("SCOPEFS_TEST_ROUNDS")); err == nil {
		return n
	}
	return few
}

// TestRestartUnderPage: while the daemon is gone an open page says so, and decides nothing; it connects again by itself. What
// it has said to be decided holds for the next daemon, and counts once.
func TestRestartUnderPage(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"a": harness.AskWrite})
	s, b := atInbox(t, h)
	u := h.Connect("a")
	for n := range rounds(4) {
		run := func(what string) args { return args{"command": fmt.Sprintf("echo %s %d >>ran", what, n)} }
		ran := func() string { return harness.ReadAll(t, h.Scope("a", "ran")) }
		harness.Plant(t, h.Scope("a"), "ran=")
		yes, no, late := u.Waits("bash", run("yes")), u.Waits("bash", run("no")), u.Waits("bash", run("late"))
		at := func(id, button string) string { return fmt.Sprintf("#item-%s %s", id, button) }
		gone := func(id string) string { return fmt.Sprintf(`!document.getElementById("item-%s")`, id) }
		b.click(at(yes, "button.once"))
		b.sees(`document.readyState === "complete" && ` + gone(yes))
		b.click(at(no, ".deny button"))
		b.sees(`document.readyState === "complete" && ` + gone(no))
		b.sees(fmt.Sprintf(`document.getElementById("item-%s")`, late))
		if n%2 == 0 {
			h.Kill()
		} else {
			h.Terminate()
		}
		b.reads("Not connected")
		if n == 0 {
			b.shot("inbox-lost")
		}
		b.click(at(late, "button.once"))
		b.reads("Not done about " + late)
		h.Start()
		b.sees(`document.getElementById("lost").hidden`)
		b.sees(fmt.Sprintf(`document.getElementById("item-%s")`, late)) // it waits still
		u = h.Connect("a")
		assert.Equal(t, late, u.Waits("bash", run("late")))
		u.Call("bash", run("yes"))
		assert.Equal(t, fmt.Sprintf("yes %d\n", n), ran())
		assert.Contains(t, u.Fails("bash", run("no")).Message, "denied")
		again := u.Waits("bash", run("yes"))
		assert.NotEqual(t, yes, again, "a decision counts once")
		b.open(s, "/inbox")

		// A decision while the daemon is killed holds or does not, as the page says or cannot say.
		var both sync.WaitGroup
		both.Go(func() { b.click(at(again, "button.once")) })
		both.Go(h.Kill)
		both.Wait()
		h.Start()
		b.sees(`document.getElementById("lost").hidden && document.readyState === "complete"`)
		b.open(s, "/inbox")
		u = h.Connect("a")
		waits := value[bool](b, fmt.Sprintf(`document.getElementById("item-%s") !== null`, again))
		if waits {
			assert.Equal(t, again, u.Waits("bash", run("yes")))
		} else {
			u.Call("bash", run("yes"))
		}
		assert.Equal(t, !waits, strings.Count(ran(), "yes") == 2)
		assert.LessOrEqual(t, len(approvalsOf(h, again)), 1)
		b.click(at(late, ".deny button"))
		b.sees(gone(late))
	}
}
