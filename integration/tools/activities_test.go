package tools

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/tools"
)

// program declares a call and the program that does it.
func program(h *harness.Host, name, properties, script string) {
	declare(h, name, properties)
	h.Put("activities.d/"+name, "#!/bin/sh\n"+script+"\n")
	require.NoError(h.T, os.Chmod(h.Base+"/activities.d/"+name, 0o755))
}

const stateOnly = `"eventName": {"type": "string"}, "_scopes": {"const": ["state"]}`

// TestExplicit is the protocol's example of an activity: the program has the name of the
// event from the call, and the user from the state.
func TestExplicit(t *testing.T) {
	h := harness.LayOut(t, map[string]string{"a": "tools: [logEvent, look, fails, stays, alias, context_set]\nscopes: {enum: [state, input], set: [state, input]}"})
	program(h, "logEvent", stateOnly, "exec cat")
	program(h, "look", stateOnly, `pwd; ls /context; cat /context/state.json; echo; ls /run/scopefs/activities; (echo x >>/run/scopefs/activities/look) 2>&1; true`)
	program(h, "fails", stateOnly, "echo why >&2; exit 3")
	program(h, "stays", stateOnly, "setsid -f sleep "+harness.Seconds(61)+"; sleep "+harness.Seconds(62)+" & echo done")
	program(h, "hidden", stateOnly, "exec cat")
	declare(h, "alias", stateOnly+`, "_activity": {"type": "string"}`)
	h.Start()
	u := h.Connect("a")
	u.Call("context_set", args{"messages": []args{{"type": "state", "userId": "u-17"}, {"type": "input", "secret": "of the input"}}})
	const given = `{"call":{"_tool":"%s","_scopes":["state"],"eventName":"login"},"context":{"state":[{"type":"state","userId":"u-17"}]},"scopes":{"state":{"userId":"u-17"}}}`
	assert.JSONEq(t, fmt.Sprintf(given, "logEvent"), u.Text("logEvent", args{"eventName": "login"}))
	assert.Equal(t, "u-17", u.Call("logEvent", nil)["context"].(map[string]any)["state"].([]any)[0].(map[string]any)["userId"], "structured")
	assert.JSONEq(t, fmt.Sprintf(given, "alias"), u.Text("alias", args{"eventName": "login", "_activity": "logEvent"}))
	for _, other := range []string{"hidden", "none", "alias", "../logEvent"} {
		assert.Equal(t, tools.NotFound, u.Fails("alias", args{"_activity": other}).Code, other)
	}
	look := u.Text("look", nil)
	assert.True(t, strings.HasPrefix(look, "/workspace\nstate.json\n[{\"type\":\"state\",\"userId\":\"u-17\"}]\nlook\n"), look)
	assert.Contains(t, look, "Permission denied")
	assert.Equal(t, "fails ended with status 3: why", u.Fails("fails", nil).Message)
	assert.Equal(t, "done\n", u.Text("stays", nil))
	assert.Empty(t, harness.Running("sleep", harness.Seconds(61)), "what outlives the call")
	assert.Empty(t, harness.Running("sleep", harness.Seconds(62)))
	assert.True(t, h.Recorded("a", audit.Event{Event: audit.KindSandbox, Op: "exec", Target: "/run/scopefs/activities/logEvent", Outcome: "exit 0"}))
}

// TestActivityOfAnother: a call that names another activity keeps the schema, the filters and the rates of
// that one, and an approval of it holds for the program that the operator has seen.
func TestActivityOfAnother(t *testing.T) {
	h := harness.LayOut(t, map[string]string{"a": "tools: [send, alias, asks, loose, strict]\npolicy: {tools: {ask: [asks]}}\nrate_limits: {send: 3/hour}\nargument_filters: {send: [\"pass[w]ord\"]}"})
	program(h, "send", stateOnly, "echo first")
	declare(h, "alias", stateOnly+`, "_activity": {"type": "string"}`)
	declare(h, "asks", stateOnly+`, "_activity": {"const": "send"}`)
	program(h, "strict", `"eventName": {"enum": ["one", "two"]}, "_scopes": {"const": ["state"]}`, "echo ran")
	h.Put("activities.d/loose.json", `{"description": "x", "inputSchema": {"type": "object", "properties": {"_activity": {"type": "string"}}}}`)
	h.Start()
	u := h.Connect("a")
	assert.Equal(t, tools.Denied, u.Fails("send", args{"eventName": "password"}).Code)
	assert.Equal(t, tools.Denied, u.Fails("alias", args{"eventName": "password", "_activity": "send"}).Code)
	bad := u.Fails("loose", args{"eventName": "--all", "_activity": "strict"})
	assert.Equal(t, tools.Invalid, bad.Code, "its program was written for its schema")
	assert.Contains(t, bad.Message, "strict: arguments: ")
	assert.Equal(t, tools.Invalid, u.Fails("loose", args{"eventName": "one", "further": 1, "_activity": "strict"}).Code)
	assert.Equal(t, "ran\n", u.Text("loose", args{"eventName": "one", "_activity": "strict"}))

	id := u.Waits("asks", args{"eventName": "x"})
	h.Must("approvals", "approve", id)
	h.Put("activities.d/send", "#!/bin/sh\necho second\n")
	h.Must("reload")
	again := u.Waits("asks", args{"eventName": "x"})
	require.NotEqual(t, id, again, "another program")
	h.Must("approvals", "approve", again)
	assert.Equal(t, "second\n", u.Text("asks", args{"eventName": "x"}))

	assert.Equal(t, "second\n", u.Text("alias", args{"_activity": "send"}), "the third: two have asked")
	assert.Equal(t, tools.RateLimited, u.Fails("alias", args{"_activity": "send"}).Code)
	assert.Equal(t, tools.RateLimited, u.Fails("send", nil).Code)
}

// TestExplicitCancelled gives up a call whose program runs.
func TestExplicitCancelled(t *testing.T) {
	h := harness.LayOut(t, map[string]string{"a": ""})
	program(h, "wait", stateOnly, family(harness.Seconds(63)))
	h.Start()
	u := h.Connect("a")
	ctx, cancel := context.WithCancel(h.Soon())
	ended := u.Begin(ctx, "wait", nil)
	h.Eventually("all four run", func() bool { return len(harness.Running("sleep", harness.Seconds(63))) == 4 })
	cancel()
	<-ended
	h.Eventually("nothing runs", func() bool { return len(harness.Running("sleep", harness.Seconds(63))) == 0 })
}

// TestExplicitInstances runs a program for many instances, some at the same time. Each
// sees its own message on its input and at /context.
func TestExplicitInstances(t *testing.T) {
	h := harness.LayOut(t, map[string]string{"a": ""})
	program(h, "translate", `"_scopes": {"const": ["state"]}`, `printf '{"mode":"x","call":%s,"context":%s}' "$(cat /context/state.json)" '{}'`)
	h.Start()
	var messages, calls []string
	for i := range 24 {
		messages = append(messages, fmt.Sprintf(`{"type":"state","_instance":"i%d","text":"<%[1]d>"}`, i))
		calls = append(calls, fmt.Sprintf(`{"_tool":"translate","_instance":"i%d"}`, i))
	}
	lines, code := batch(t, h, "["+strings.Join(messages, ",")+"]", `{"calls":[`+strings.Join(calls, ",")+`]}`)
	for _, l := range lines {
		require.Nil(t, l.Error, "%s", h.Must("audit", "--json"))
	}
	require.Equal(t, 0, code)
	require.Len(t, lines, len(calls))
	for i, l := range lines {
		assert.JSONEq(t, "["+messages[i]+"]", string(l.Result.Call))
	}
}

// TestBackgroundContext has a command in the background: its call has ended, and so has
// what it saw.
func TestBackgroundContext(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"a": "scopes: {enum: [state], set: [state]}"})
	u := h.Connect("a")
	u.Call("context_set", args{"messages": []args{{"type": "state", "secret": 1}}})
	job := u.Call("bash", args{"command": "exec 2>&1; while test -e /context/state.json; do :; done; ls -A /context; cat /context/state.json; echo gone", "background": true, "_scopes": []string{"state"}})
	h.Eventually("it is gone", func() bool {
		return strings.Contains(u.Text("process_read", args{"id": job["process_id"], "offset": 0}), "No such file or directory\ngone")
	})
}

// hand is a runner: it prints what it was given and what is at /context. A task that says
// "deeper" makes a call of its own, one that says "wait" sleeps.
const hand = `#!/bin/sh
in=$(cat)
case $in in
*'"_tool":"deeper"'*) exec scopefs call "$(printf '%s' "$in" | sed -n 's/.*"next":"\([a-z]*\)".*/\1/p')" '_scopes:=["state","input"]' ;;
*'"_tool":"wait"'*) sleep SECONDS & exec sleep SECONDS ;;
esac
printf '%s\n' "$in"
for f in /context/*; do echo "$f $(cat "$f")"; done
`

// delegating lays out a host with that runner.
func delegating(t *testing.T, agents map[string]string, seconds string) *harness.Host {
	h := harness.LayOut(t, agents)
	h.Put("runner", strings.ReplaceAll(hand, "SECONDS", seconds))
	require.NoError(t, os.Chmod(h.Base+"/runner", 0o755))
	h.Put("scopefs.yaml", "runner: ["+h.Base+"/runner]\nsandbox: {expose: ["+h.Base+"/runner]}\n")
	return h
}

// summarizer is a member with a prompt of its own.
const summarizer = "scopes: {enum: [state]}"

// TestDelegatedContext is the protocol's example of a delegate: its own prompt, then the
// scoped context of the caller, then the call.
func TestDelegatedContext(t *testing.T) {
	h := delegating(t, map[string]string{"a": "tools: [summarizeArticle, module, other, delegate, context_set]\nmembers: [summarizer]\nscopes: {enum: [state, input], set: [state, input]}", "summarizer": summarizer}, "0")
	declare(h, "summarizeArticle", `"style": {}, "_scopes": {"const": ["state"]}, "_delegate": {"const": "summarizer"}`)
	declare(h, "module", `"style": {}, "_scopes": {"const": ["state"]}, "_delegate": {"const": "summarizer"}, "_module": {"const": true}`)
	declare(h, "other", `"_delegate": {"type": "string"}`)
	h.Start()
	u := h.Connect("a")
	u.Call("context_set", args{"messages": []args{{"type": "state", "articleText": "long"}, {"type": "input", "secret": "of the input"}, {"type": "state", "_instance": "②", "secret": "of ②"}}})
	const given = "<context from=\"a\">\n" + `[{"articleText":"long","type":"state"}]` + "\n</context>\n<call from=\"a\">\n" + `{"_tool":"%s","style":"short"}` + "\n</call>\n" +
		`/context/state.json [{"articleText":"long","type":"state"}]` + "\n"
	prompt := h.Must("prompt", "summarizer")
	assert.NotContains(t, h.Must("agents", "check"), "cannot delegate")
	r := u.Call("summarizeArticle", args{"style": "short"})
	assert.Equal(t, "summarizeArticle", r["type"])
	assert.Equal(t, "summarizer", r["member"])
	answer := r["answer"].(string)
	assert.True(t, strings.HasSuffix(answer, fmt.Sprintf(given, "summarizeArticle")), answer)
	assert.NotEmpty(t, strings.TrimSpace(prompt))
	prompt = strings.Replace(prompt, "</limits>", "within what is allowed to: a\n</limits>", 1)
	assert.Equal(t, strings.TrimSpace(prompt), strings.TrimSpace(strings.TrimSuffix(answer, fmt.Sprintf(given, "summarizeArticle"))))
	assert.Equal(t, fmt.Sprintf(given, "module"), u.Call("module", args{"style": "short"})["answer"])
	for _, id := range []string{"nobody", "a", "../summarizer"} {
		assert.Equal(t, tools.NotFound, u.Fails("other", args{"_delegate": id}).Code, id)
	}
	text := u.Text("delegate", args{"member": "summarizer", "task": "sum up", "_scopes": []string{"input"}})
	assert.Contains(t, text, "of the input")
	assert.NotContains(t, text, "long")
}

// TestDelegatedInstances is the protocol's example of instances: two calls, two contexts
// with one text each, and no _instance in what is handed over.
func TestDelegatedInstances(t *testing.T) {
	h := delegating(t, map[string]string{"a": "tools: [translate, context_set]\nmembers: [summarizer]\nscopes: {enum: [state, input], set: [state, input]}", "summarizer": summarizer}, "0")
	declare(h, "translate", `"to": {}, "_scopes": {"const": ["state"]}, "_delegate": {"const": "summarizer"}, "_module": {"const": true}`)
	h.Start()
	u := h.Connect("a")
	u.Call("context_set", args{"messages": []args{{"type": "state", "_instance": "①", "text": "Hello"}, {"type": "state", "_instance": "②", "text": "Bonjour"}}})
	for instance, text := range map[string]string{"①": "Hello", "②": "Bonjour"} {
		answer := u.Call("translate", args{"_instance": instance})["answer"]
		assert.Equal(t, "<context from=\"a\">\n[{\"text\":\""+text+"\",\"type\":\"state\"}]\n</context>\n<call from=\"a\">\n{\"_tool\":\"translate\"}\n</call>\n"+
			"/context/state.json [{\"text\":\""+text+"\",\"type\":\"state\"}]\n", answer)
	}
}

// TestDelegatedChain has a member that asks for more than it was given: the next one gets
// no more than that.
func TestDelegatedChain(t *testing.T) {
	seconds := harness.Seconds(64)
	h := delegating(t, map[string]string{"a": "tools: [deeper, summarize, wait, context_set]\nmembers: [summarizer, leaf]\nscopes: {enum: [state, input], set: [state, input]}", "summarizer": "tools: [summarize, wait]\nmembers: [leaf]", "leaf": ""}, seconds)
	declare(h, "deeper", `"next": {}, "_scopes": {"const": ["state"]}, "_delegate": {"const": "summarizer"}, "_module": {"const": true}`)
	declare(h, "summarize", `"_scopes": {"type": "array", "items": {"enum": ["state", "input"]}}, "_delegate": {"const": "leaf"}, "_module": {"const": true}`)
	declare(h, "wait", `"_scopes": {"type": "array", "items": {"enum": ["state", "input"]}}, "_delegate": {"const": "leaf"}`)
	h.Start()
	u := h.Connect("a")
	u.Call("context_set", args{"messages": []args{{"type": "state", "_instance": "①", "n": 1}, {"type": "input", "secret": "of the input"}}})
	answer := fmt.Sprint(u.Call("deeper", args{"next": "summarize", "_instance": "①"})["answer"])
	assert.Contains(t, answer, "<context from=\"summarizer\">\n[{\"n\":1,\"type\":\"state\"}]\n</context>")
	assert.Contains(t, answer, "/context/input.json []\n/context/state.json [{\"n\":1,\"type\":\"state\"}]")
	assert.NotContains(t, answer, "of the input")
	assert.Contains(t, h.Must("audit", "--agent", "leaf", "--json"), `"chain":"a>summarizer>leaf"`)

	ctx, cancel := context.WithCancel(h.Soon())
	ended := u.Begin(ctx, "deeper", args{"next": "wait"})
	h.Eventually("the last one works", func() bool { return len(harness.Running("sleep", seconds)) == 2 })
	cancel()
	<-ended
	h.Eventually("nobody works", func() bool { return len(harness.Running("sleep", seconds)) == 0 })
}
