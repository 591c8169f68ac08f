package tools

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/tools"
)

func init() {
	// An MCP server of an agent's own, whose tool says who it is.
	harness.Roles["mcp-server"] = func([]string) error {
		s := mcp.NewServer(&mcp.Implementation{Name: "theirs", Version: "v1"}, nil)
		type in struct {
			Text string `json:"text"`
		}
		say := func(ctx context.Context, _ *mcp.CallToolRequest, in in) (*mcp.CallToolResult, any, error) {
			if in.Text == "" { // no answer, until it is told that nobody waits
				<-ctx.Done()
				return nil, nil, os.WriteFile("/workspace/cancelled", nil, 0o644)
			}
			text := fmt.Sprintf("%s says %s as user %d", os.Getenv("NAME"), in.Text, os.Geteuid())
			return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: text}}}, nil, nil
		}
		mcp.AddTool(s, &mcp.Tool{Name: "say", Description: "says"}, say)
		mcp.AddTool(s, &mcp.Tool{Name: "shout", Description: "shouts"}, say)
		return s.Run(context.Background(), &mcp.StdioTransport{})
	}
}

// plantServer puts the program of serverOf into agents' scopes.
func plantServer(h *harness.Host, agents ...string) {
	h.T.Helper()
	self, err := os.ReadFile("/proc/self/exe")
	require.NoError(h.T, err)
	for _, id := range agents {
		harness.Executable(h.T, h.Scope(id, "test-program"), self)
	}
}

// serverOf is a definition of a server: {command: ...}, with more keys.
func serverOf(name string, more ...string) string {
	keys := append([]string{"command: /workspace/test-program", "env: {NAME: " + name + ", " + harness.RoleEnv + ": mcp-server}"}, more...)
	return "{" + strings.Join(keys, ", ") + "}"
}

// assertAbsent sees that what is not allowed is not listed, and that to call it is to
// call what does not exist, with a record.
func assertAbsent(u *harness.User, agent, tool string, a args) {
	u.T.Helper()
	assert.NotContains(u.T, u.List(), tool)
	got := u.Fails(tool, a)
	// A hint depends on the name and on the listed tools, not on tools that exist unlisted.
	if near, ok := strings.CutPrefix(got.Hint, "did you mean "); ok {
		assert.Contains(u.T, u.List(), strings.ReplaceAll(strings.TrimSuffix(near, "?"), ":", "__"))
	}
	const never = "no-such-tool-anywhere"
	want := u.Fails(never, a)
	want.Message = strings.ReplaceAll(want.Message, never, ruleName(tool))
	want.Hint = got.Hint
	assert.Equal(u.T, want, got, "it looks like what does not exist")
	e := u.Last(agent, ruleName(tool))
	assert.Equal(u.T, audit.Deny, e.Verdict, tool)
	assert.NotEmpty(u.T, e.Rule, tool)
	assert.Empty(u.T, u.Fails(tool, args{"nonsense": 1}).Path)
	assert.Equal(u.T, want, u.Fails(tool, args{"nonsense": 1}), "whatever its arguments")
}

// ruleName is a tool's name in rules and log.
func ruleName(wire string) string {
	if rest, ok := strings.CutPrefix(wire, "mcp__"); ok {
		return "mcp:" + strings.Replace(rest, "__", ":", 1)
	}
	return wire
}

// The first point: tools by name.
func TestPointTool(t *testing.T) {
	h := harness.NewHost(t, map[string]string{
		"a": `tools: [read_file, "list_*", bash]` + "\npolicy: {tools: {exclude: [bash]}}",
		"b": "policy: {tools: {allowed: [stat, write_file], exclude: [\"*\"]}}",
		"c": "tools: []",
	})
	harness.Plant(t, h.Scope("a"), "f")
	u := h.Connect("a")
	assert.Len(t, u.List(), 2)
	assert.Equal(t, "f", u.Call("read_file", args{"path": "f"})["text"])
	u.Call("list_dir", nil)
	assertAbsent(u, "a", "bash", args{"command": "touch ran"})
	assertAbsent(u, "a", "write_file", args{"path": "ran", "content": ""})
	for _, spelling := range []string{"builtin:write_file", "Write_File", "write_file ", " write_file", "write_file\x00", "builtin:builtin:write_file", "mcp__builtin__write_file"} {
		assert.Equal(t, tools.Denied, u.Fails(spelling, args{"path": "ran", "content": ""}).Code, "%q", spelling)
	}
	assert.NoFileExists(t, h.Scope("a", "ran"))
	assert.Equal(t, "f", u.Call("builtin:read_file", args{"path": "f"})["text"], "the prefixed spelling is understood")

	u = h.Connect("b")
	assert.Len(t, u.List(), 2)
	assertAbsent(u, "b", "read_file", args{"path": "f"})

	u = h.Connect("c")
	assert.Empty(t, u.List())
	assertAbsent(u, "c", "scope_info", nil)

	// Nor under the names of a profile.
	u = h.Connect("a", "--profile", "claude")
	assert.Contains(t, u.List(), "Read")
	for _, name := range []string{"Write", "Bash", "Edit", "write_file", "bash"} {
		assertAbsent(u, "a", name, args{"file_path": "ran", "content": ""})
	}
}

// The second: skills.
func TestPointSkill(t *testing.T) {
	h := harness.LayOut(t, map[string]string{"a": "skills: [sing]", "b": "skills: []", "c": ""})
	for _, name := range []string{"sing", "dance"} {
		h.Put("skills/"+name+"/SKILL.md", "---\nname: "+name+"\ndescription: How to "+name+".\n---\nthe text\n")
		h.Put("skills/"+name+"/more.md", "more")
	}
	h.Start()
	u := h.Connect("a")
	assert.Contains(t, u.Text("skill", nil), "sing: ")
	assert.NotContains(t, u.Text("skill", nil), "dance")
	assert.Contains(t, u.Text("skill", args{"name": "sing"}), "the text")
	for _, a := range []args{{"name": "dance"}, {"name": "dance", "file": "more.md"}, {"name": "dance", "file": "none.md"}} {
		got := u.Fails("skill", a)
		assert.Equal(t, "dance", h.Last("a", "skill").Target[:5])
		assert.Equal(t, "not_found", h.Last("a", "skill").Outcome)
		none := args{"name": "fence"}
		if a["file"] != nil {
			none["file"] = a["file"]
		}
		want := u.Fails("skill", none)
		want.Message = strings.ReplaceAll(want.Message, "fence", "dance")
		assert.Equal(t, want, got)
	}
	for _, name := range []string{"../skills/dance", "sing/../dance", "./dance", "/dance", "."} {
		assert.Equal(t, tools.NotFound, u.Fails("skill", args{"name": name}).Code, name)
	}
	for _, file := range []string{"../dance/SKILL.md", "/etc/passwd", "../../scopefs.yaml"} {
		u.Fails("skill", args{"name": "sing", "file": file})
	}
	assertAbsent(h.Connect("b"), "b", "skill", args{"name": "sing"})
	assert.Contains(t, h.Connect("c").Text("skill", nil), "dance: ", "without a list nothing restricts")
}

// The third: MCP servers, and whose they are.
func TestPointServer(t *testing.T) {
	h := harness.LayOut(t, map[string]string{
		"own":   "mcp_servers: {mine: " + serverOf("MINE") + "}",
		"ext":   "",
		"other": "",
		"some":  "tools: [\"mcp:shared:say\", scope_info]",
		"none":  "mcps: []",
		"not":   "policy: {mcp: {excluded: [shared]}}",
	})
	h.Put("extensions.d/e.yaml", "name: e\nagents: [ext]\nmcp_servers:\n  exts: "+serverOf("EXTS", "workspace: read")+"\n  shared: "+serverOf("SHARED", "visibility: public", "workspace: read")+"\n")
	plantServer(h, "own", "ext", "other", "some", "none", "not")
	h.Start()

	for id, has := range map[string][]string{
		"own": {"mine", "shared"}, "ext": {"exts", "shared"}, "other": {"shared"}, "some": {"shared"}, "none": nil, "not": nil,
	} {
		u := h.Connect(id)
		for _, server := range has {
			h.Eventually("the server is listed", func() bool { return u.List()["mcp__"+server+"__say"] != nil })
			if server == "shared" {
				assert.Contains(t, u.Text("mcp__shared__say", args{"text": "x"}), "SHARED says x", "called by what is listed")
			}
		}
		for _, server := range []string{"mine", "exts", "shared"} {
			if !strings.Contains(strings.Join(has, " "), server) {
				assertAbsent(u, id, "mcp__"+server+"__say", args{"text": "x"})
				assert.Equal(t, tools.Denied, u.Fails("mcp:"+server+":say", args{"text": "x"}).Code, "by its name in rules")
				if id != "none" && id != "not" { // these are told of the lists that restrict them
					shown := h.Must("agents", "show", id, "--json") + h.Must("prompt", id) + u.Session.InitializeResult().Instructions
					assert.NotContains(t, shown, server, id)
				}
			}
		}
		if u.List()["scope_info"] != nil {
			info := u.Text("scope_info", nil)
			for _, server := range []string{"mine", "exts", "shared"} {
				assert.Equal(t, strings.Contains(strings.Join(has, " "), server), strings.Contains(info, server), "%s is told of %s", id, server)
			}
		}
		assert.Equal(t, len(has) > 0, strings.Contains(fmt.Sprint(h.Events(id)), "test-program"), "%s: only what may be used is started", id)
	}
	u := h.Connect("own")
	h.Eventually("the server is listed", func() bool { return u.List()["mcp__mine__say"] != nil })
	assert.Equal(t, "MINE says hello as user 1000", u.Text("mcp__mine__say", args{"text": "hello"}))
	assert.Equal(t, "ok", h.Last("own", "mcp:mine:say").Outcome)
	// Of a server only some tools may be allowed.
	assertAbsent(h.Connect("some"), "some", "mcp__shared__shout", args{"text": "x"})
	// What would load nowhere says nothing of others' servers.
	h.Put("x.md", "---\nname: x\ndescription: x\nmcps: [mine]\n---\n")
	out, errs, code := h.Try("agents", "check", h.Base+"/x.md")
	assert.Equal(t, 1, code)
	assert.NotContains(t, out+errs, "exts")
	assert.NotContains(t, out+errs, "MINE")
}

// The fourth: delegation.
func TestPointMember(t *testing.T) {
	h := harness.LayOut(t, map[string]string{
		"a": "tools: [delegate, read_file]\nmembers: [b]\nscopes: {enum: [state]}", "b": "tools: [read_file]\nmembers: [\"*\"]", "c": "", "d": "tools: [\"*\"]",
	})
	h.Put("runner", "#!/bin/sh\ncat; if scopefs call read_file path=fail >/dev/null 2>&1; then exit 3; fi\n")
	require.NoError(t, os.Chmod(h.Base+"/runner", 0o755))
	h.Put("scopefs.yaml", "runner: ["+h.Base+"/runner]\nsandbox: {expose: ["+h.Base+"/runner]}\n")
	h.Start()
	u := h.Connect("a")
	task := u.Text("delegate", args{"member": "b", "task": "dig", "_scopes": []string{"state"}})
	assert.Contains(t, task, "dig")
	assert.Contains(t, task, "<context from=\"a\">\n[]\n</context>")
	assert.True(t, h.Recorded("b", audit.Event{Event: audit.KindAgent, Outcome: "delegated to"}))
	assert.Equal(t, tools.Denied, u.Fails("delegate", args{"member": "b", "task": "dig", "_scopes": []string{"secret"}}).Code)

	want := u.Fails("delegate", args{"member": "nobody", "task": "dig"})
	for _, id := range []string{"c", "d", "a"} {
		got := u.Fails("delegate", args{"member": id, "task": "dig"})
		assert.Equal(t, id, h.Last("a", "delegate").Target)
		assert.Equal(t, "not_found", h.Last("a", "delegate").Outcome)
		got.Message = strings.ReplaceAll(got.Message, `"`+id+`"`, `"nobody"`)
		assert.Equal(t, want, got, id)
		assert.False(t, h.Recorded(id, audit.Event{Event: audit.KindAgent, Outcome: "delegated to"}), id)
	}
	// Who names no members has none, whatever else it may.
	assert.Equal(t, tools.NotFound, h.Connect("d").Fails("delegate", args{"member": "b", "task": "dig"}).Code)
	harness.Plant(t, h.Scope("b"), "fail")
	assert.Equal(t, tools.Internal, u.Fails("delegate", args{"member": "b", "task": "dig"}).Code)
}
