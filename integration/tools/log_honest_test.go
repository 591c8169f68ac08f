package tools

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/tools"
)

// TestRefusedCallIsDenied: the end of a call that failed because the view refused its path
// has the rule that refused, and is among the denials. why says what reached the agent.
func TestRefusedCallIsDenied(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"a": `view: {paths: {"**/.env": hide, ro: read}}`, "other": ""})
	harness.Plant(t, h.Scope("other"), "notes.md")
	harness.Plant(t, h.Scope("a"), ".env", "ro/f", "plain", "out => ../other/notes.md")
	u := h.Connect("a")
	for _, c := range []struct {
		tool    string
		args    args
		verdict audit.Verdict
		rule    string
		reached string
	}{
		{"read_file", args{"path": ".env"}, audit.Deny, "**/.env: hide", "nothing but the error not_found"},
		{"read_file", args{"path": "/workspace/.env"}, audit.Deny, "**/.env: hide", "nothing but the error not_found"},
		{"write_file", args{"path": "ro/new", "content": "x"}, audit.Deny, "ro: read", "nothing but the error denied"},
		{"read_file", args{"path": "out"}, audit.Deny, "resolution: link leads outside", "nothing but the error not_found"},
		{"write_file", args{"path": "out", "content": "x"}, audit.Deny, "resolution: ", "nothing but the error outside_scope"},
		{"read_file", args{"path": "none"}, audit.Allow, "no rule", "nothing but the error not_found; the tool may have done a part"},
		{"read_file", args{"path": "plain"}, audit.Allow, "no rule", "the result of the call, "},
	} {
		_, _ = u.Send(u.Soon(), c.tool, c.args)
		e := h.Last("a", c.tool)
		assert.Equal(t, c.verdict, e.Verdict, "%s %v", c.tool, c.args)
		assert.Contains(t, e.Rule, c.rule, "%s %v", c.tool, c.args)
		assert.Equal(t, c.verdict != audit.Allow, strings.Contains(h.Must("audit", "--denied", "--json"), fmt.Sprintf(`{"seq":%d,`, e.Seq)), "%s %v", c.tool, c.args)
		assert.Contains(t, h.Must("why", fmt.Sprint(e.Seq)), "reached the agent: "+c.reached, "%s %v", c.tool, c.args)
	}
	u.Bash("cat .env plain; true")
	for _, e := range h.Events("a") {
		if e.Event == audit.KindFile && e.Program == "cat" {
			assert.Contains(t, h.Must("why", fmt.Sprint(e.Seq)), "reached the agent: nothing of it: the view refused with ENOENT. The call around it returned")
			return
		}
	}
	t.Error("no denial of cat is recorded")
}

// TestEveryNoIsDenied: whatever an agent is not allowed, of whatever tool, is a denial in the
// log with the rule that denied it. audit --denied prints it, and why names what would allow
// it and does not say that it is allowed now.
func TestEveryNoIsDenied(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	h := harness.LayOut(t, map[string]string{
		"a": `tools: ["*"]
members: [b]
skills: [one]
scopes: {enum: [state, plan], ask: [plan], set: [plan]}
view: {paths: {ro: read, .memory: read, "**/.env": hide}}
policy: {tools: {ask: [move], exclude: [copy]}}
rate_limits: {make_dir: 1/hour, "kv_*": 1/hour}
argument_filters: {stat: ["pass[w]ord"]}`,
		"b": "", "other": "", "low": `user: "1000"`})
	h.Put("scopefs.yaml", fmt.Sprintf(`memory: true
stores:
  kv:
  sql:
  messages: {channels: {team: [other]}, inboxes: {other: [b]}}
  services:
    s: {url: %[1]q, methods: [GET], paths: ["ok/**"], addresses: [127.0.0.1]}
    theirs: {url: %[1]q, agents: [other], addresses: [127.0.0.1]}
  notify:
    theirs: {kind: webhook, url: %[1]q, agents: [other], addresses: [127.0.0.1]}
    once: {kind: webhook, url: %[1]q, rate: 1, addresses: [127.0.0.1]}
  objects: {url: %[1]q, bucket: bucket, access_key: k, secret_key: {env: PATH}, addresses: [127.0.0.1]}
`, server.URL))
	h.Put("activities.d/act.json", `{"description": "acts", "inputSchema": {"type": "object", "properties": {"_scopes": {"type": "array", "items": {"enum": ["state"]}}}}}`)
	for _, name := range []string{"one", "two"} {
		h.Put("skills/"+name+"/SKILL.md", "---\nname: "+name+"\ndescription: d\n---\n")
	}
	harness.Plant(t, h.Scope("a"), ".env", "ro/f", "f", ".memory/n.md")
	harness.Plant(t, h.Scope("low"), "root/f")
	require.NoError(t, os.Chmod(h.Scope("low", "root"), 0o700))
	h.Start()
	u, low := h.Connect("a"), h.Connect("low")
	u.Call("make_dir", args{"path": "made"})
	u.Call("kv_list", nil)
	u.Call("create_table", args{"name": "t", "columns": []args{{"name": "a", "type": "TEXT"}, {"name": "b", "type": "TEXT"}}})
	_, _ = u.Send(u.Soon(), "notify", args{"channel": "once", "content": "x"})
	type no struct {
		tool string
		args args
		code tools.Code
		rule string // contained in the rule of the record
		why  string // contained in what why prints
	}
	check := func(u *harness.User, agent string, c no) {
		t.Run(fmt.Sprint(c.tool, c.args), func(t *testing.T) {
			result, err := u.Send(u.Soon(), c.tool, c.args)
			require.NoError(t, err)
			var failed tools.Error
			require.NoError(t, json.Unmarshal([]byte(harness.Said(result)), &failed), harness.Said(result))
			assert.Equal(t, c.code, failed.Code, failed.Message)
			e := h.Last(agent, c.tool)
			assert.Equal(t, string(c.code), e.Outcome)
			assert.NotEqual(t, audit.Allow, e.Verdict)
			assert.NotEmpty(t, e.RuleKind)
			assert.Contains(t, e.Rule, c.rule)
			assert.Contains(t, h.Must("audit", "--denied", "--json"), fmt.Sprintf(`{"seq":%d,`, e.Seq))
			why := h.Must("why", fmt.Sprint(e.Seq))
			assert.NotContains(t, why, "now: allow")
			assert.NotContains(t, why, "then: allow")
			assert.Contains(t, why, c.why)
		})
	}
	for _, c := range []no{
		{"read_file", args{"path": "root/f"}, tools.Denied, "the owner and mode of the file", "the owner and mode of the file"},
		{"bash", args{"command": "ls", "cwd": "root"}, tools.Denied, "the owner and mode of the directory", "the owner and mode of the directory"},
	} {
		check(low, "low", c)
	}
	for _, c := range []no{
		{"read_file", args{"path": ".env"}, tools.NotFound, "**/.env: hide", "of the file before this one"},
		{"read_file", args{"path": "../other/x"}, tools.NotFound, "resolution", "nothing allows it"},
		{"write_file", args{"path": "ro/new", "content": "x"}, tools.Denied, "ro: read", "of the file before this one"},
		{"write_file", args{"path": "../other/x", "content": "x"}, tools.OutsideScope, "resolution", "nothing allows it"},
		{"copy", args{"from": "f", "to": "g"}, tools.Denied, "policy.tools.exclude: copy", "remove copy from policy.tools.exclude"},
		{"move", args{"from": "f", "to": "g"}, tools.ApprovalRequired, "policy.tools.ask: move", "remove move from policy.tools.ask"},
		{"make_dir", args{"path": "more"}, tools.RateLimited, "rate_limits: make_dir", "loosen rate_limits: make_dir"},
		{"stat", args{"path": "password"}, tools.Denied, "argument_filters: stat", "loosen argument_filters: stat"},
		{"bash", args{"command": "ls", "_scopes": []string{"plan"}}, tools.ApprovalRequired, "scopes.ask: plan", "remove plan from scopes.ask"},
		{"bash", args{"command": "ls", "_scopes": []string{"diary"}}, tools.Denied, "scopes", "add diary to scopes.enum"},
		{"remember", args{"name": "n", "text": "x"}, tools.Denied, ".memory: read", "of the file before this one"},
		{"skill", args{"name": "two"}, tools.NotFound, "skills", "add two to skills"},
		{"delegate", args{"member": "other", "task": "t"}, tools.NotFound, "members", "add other to members"},
		{"delegate", args{"member": "b", "task": "t"}, tools.Denied, "runner", "set runner in scopefs.yaml"},
		{"ask_user", args{"question": "x?"}, tools.Denied, "the client cannot ask", "the client cannot ask"},
		{"act", args{"_scopes": []string{"plan"}}, tools.Denied, "schema", "_scopes in activities.d/act.json"},
		{"context_set", args{"messages": []args{{"type": "state"}}}, tools.Denied, "scopes.set: [plan]", "name the scope in scopes.set"},
		{"mcp:none:x", nil, tools.Denied, "no such tool", `define "none" in mcp_servers`},
		{"none", nil, tools.Denied, "no such tool", "was not there then: no such tool"},
		{"kv_set", args{"key": "k", "value": "v"}, tools.RateLimited, "rate_limits: kv_*", "loosen rate_limits: kv_*"},
		{"object_get", args{"key": "../x"}, tools.OutsideScope, "strategy", "nothing allows it"},
		{"sql_execute", args{"sql": "DROP TABLE t"}, tools.Denied, "stores.sql.drop", "set drop: true in stores.sql"},
		{"sql_execute", args{"sql": "ALTER TABLE t DROP COLUMN a"}, tools.Denied, "sql: ", "of a store"},
		{"sql_execute", args{"sql": "CREATE TRIGGER g AFTER INSERT ON t BEGIN SELECT 1; END"}, tools.Denied, "sql: ", "of a store"},
		{"sql_query", args{"sql": "PRAGMA page_count"}, tools.Denied, "sql: PRAGMA", "of a store"},
		{"sql_query", args{"sql": "SELECT 1; SELECT 2"}, tools.Denied, "sql: one statement", "of a store"},
		{"publish", args{"channel": "team", "text": "x"}, tools.Denied, "stores.messages.channels", "add a to stores.messages.channels.team"},
		{"publish", args{"to": "other", "text": "x"}, tools.Denied, "stores.messages.inboxes", "add a to stores.messages.inboxes.other"},
		{"subscribe", args{"channel": "team"}, tools.Denied, "stores.messages.channels", "add a to stores.messages.channels.team"},
		{"http_request", args{"service": "s", "path": "admin"}, tools.Denied, "stores.services.s.paths", "add admin to stores.services.s.paths"},
		{"http_request", args{"service": "s", "path": "ok/1", "method": "PUT"}, tools.Denied, "stores.services.s.methods", "add PUT to stores.services.s.methods"},
		{"http_request", args{"service": "theirs", "path": "x"}, tools.Denied, "stores.services.theirs.agents", "add a to stores.services.theirs.agents"},
		{"http_request", args{"service": "s GET ok/1", "path": "x"}, tools.Denied, "stores.services", "stores.services"},
		{"http_request", args{"service": "s", "path": "../x"}, tools.OutsideScope, "http: ", "nothing allows it"},
		{"notify", args{"channel": "theirs", "content": "x"}, tools.Denied, "stores.notify.theirs.agents", "add a to stores.notify.theirs.agents"},
		{"notify", args{"channel": "none", "content": "x"}, tools.Denied, "stores.notify", "name none in stores.notify"},
		{"notify", args{"channel": "once", "content": "x"}, tools.RateLimited, "stores.notify.once.rate: 1", "loosen stores.notify.once.rate"},
	} {
		check(u, "a", c)
	}
}

// TestBashRecordsExit: the end of a command's call has its exit status.
func TestBashRecordsExit(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"a": ""})
	u := h.Connect("a")
	for command, want := range map[string]int{"true": 0, "exit 3": 3, "kill -9 $$": 137, "sleep 100": 137} {
		u.Call("bash", args{"command": command, "timeout_ms": 500})
		e := h.Last("a", "bash")
		assert.Equal(t, "ok", e.Outcome)
		if assert.NotNil(t, e.Exit, command) {
			assert.Equal(t, want, *e.Exit, command)
		}
	}
	assert.Contains(t, h.Must("audit"), `(no rule) exit 3 call`)
	u.Call("bash", args{"command": "sleep 100", "background": true})
	assert.Nil(t, h.Last("a", "bash").Exit)
	u.Call("process_stop", args{"id": "p1", "signal": "KILL"})
	assert.Equal(t, new(137), h.Last("a", "process_stop").Exit)
}

// TestDenialsFold: equal denials are one line for people. The name of a program, which the
// agent chooses, is neither an escape sequence nor other words of the line.
func TestDenialsFold(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"a": `view: {paths: {"**/.env": hide}}`})
	harness.Plant(t, h.Scope("a"), ".env")
	u := h.Connect("a")
	u.Bash("for i in 1 2 3 4 5; do cat .env; cat no; done; true")
	for _, e := range h.Events("a") {
		if e.Event == audit.KindFile {
			assert.NotEmpty(t, e.Session)
			assert.Equal(t, "cat", e.Program)
		}
	}
	out := h.Must("audit", "--denied")
	assert.Regexp(t, `deny +×5 lookup \.env ENOENT \(\*\*/\.env: hide\) by cat, \d+\.\d s\n`, out)
	assert.Equal(t, 1, strings.Count(out, "\n"))
	assert.Equal(t, 5, strings.Count(h.Must("audit", "--denied", "--json"), `"program":"cat"`))

	u.Bash(`p=$(printf '/tmp/x, 3 s\n\033[2J'); cp $(command -v cat) "$p"; for i in 1 2; do "$p" .env; done; true`)
	out = h.Must("audit", "--denied")
	assert.NotContains(t, out, "\033")
	assert.Regexp(t, `×2 lookup \.env ENOENT \(\*\*/\.env: hide\) by "x, 3 s\\x0a\\x1b\[2J", \d+\.\d s\n`, out)
	assert.Equal(t, 2, strings.Count(out, "\n"))
}

// TestContextOfAnotherCall: a process that reads the context of a call that has ended is
// refused, and that is recorded once a minute with the number of the others.
func TestContextOfAnotherCall(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"a": "scopes: {enum: [state], set: [state]}"})
	u := h.Connect("a")
	u.Call("context_set", args{"messages": []args{{"type": "state", "secret": 1}}})
	u.Text("bash", args{"command": "{ touch held; until [ -e go ]; do sleep 0.02; done; cat <&3; cat <&3; touch done; sleep 100; } 3< /context/state.json > /dev/null 2>&1 & until [ -e held ]; do sleep 0.02; done",
		"_scopes": []string{"state"}})
	u.Bash("touch go; until [ -e done ]; do sleep 0.02; done")
	want := audit.Event{Event: audit.KindSandbox, Op: "read", Path: "/context", Verdict: audit.Deny}
	h.Eventually("the refusal is recorded", func() bool { return h.Recorded("a", want) })
	assert.Contains(t, h.Must("audit", "--denied"), "(context: of another call, or of one that has ended) by cat")
	h.Must("down", "a")
	want.Outcome = "repeated"
	h.Eventually("the others are counted", func() bool { return h.Recorded("a", want) })
}
