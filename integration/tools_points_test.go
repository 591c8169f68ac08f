package integration

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
	"github.com/scopefs/scopefs/tools"
)

func init() {
	// An MCP server of an agent's own, whose tool says who it is.
	roles["mcp-server"] = func([]string) error {
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
func (h *host) plantServer(agents ...string) {
	h.t.Helper()
	self, err := os.ReadFile("/proc/self/exe")
	require.NoError(h.t, err)
	for _, id := range agents {
		require.NoError(h.t, os.WriteFile(h.scope(id, "test-program"), self, 0o755))
	}
}

// serverOf is a definition of a server: {command: ...}, with more keys.
func serverOf(name string, more ...string) string {
	keys := append([]string{"command: /workspace/test-program", "env: {NAME: " + name + ", " + roleEnv + ": mcp-server}"}, more...)
	return "{" + strings.Join(keys, ", ") + "}"
}

// absent sees that what is not allowed is not listed, and that to call it is to
// call what does not exist, with a record.
func (u *user) absent(agent, tool string, a args) {
	u.t.Helper()
	assert.NotContains(u.t, u.list(), tool)
	got := u.fails(tool, a)
	// A hint goes by the name and by what is listed, not by what there is.
	if near, ok := strings.CutPrefix(got.Hint, "did you mean "); ok {
		assert.Contains(u.t, u.list(), strings.ReplaceAll(strings.TrimSuffix(near, "?"), ":", "__"))
	}
	const never = "no-such-tool-anywhere"
	want := u.fails(never, a)
	want.Message = strings.ReplaceAll(want.Message, never, ruleName(tool))
	want.Hint = got.Hint
	assert.Equal(u.t, want, got, "it looks like what does not exist")
	e := u.last(agent, ruleName(tool))
	assert.Equal(u.t, audit.Deny, e.Verdict, tool)
	assert.NotEmpty(u.t, e.Rule, tool)
	assert.Empty(u.t, u.fails(tool, args{"nonsense": 1}).Path)
	assert.Equal(u.t, want, u.fails(tool, args{"nonsense": 1}), "whatever its arguments")
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
	h := newHost(t, map[string]string{
		"a": `tools: [read_file, "list_*", bash]` + "\npolicy: {tools: {exclude: [bash]}}",
		"b": "policy: {tools: {allowed: [stat, write_file], exclude: [\"*\"]}}",
		"c": "tools: []",
	})
	plant(t, h.scope("a"), "f")
	u := h.connect("a")
	assert.Len(t, u.list(), 2)
	assert.Equal(t, "f", u.call("read_file", args{"path": "f"})["text"])
	u.call("list_dir", nil)
	u.absent("a", "bash", args{"command": "touch ran"})
	u.absent("a", "write_file", args{"path": "ran", "content": ""})
	for _, spelling := range []string{"builtin:write_file", "Write_File", "write_file ", " write_file", "write_file\x00", "builtin:builtin:write_file", "mcp__builtin__write_file"} {
		assert.Equal(t, tools.Denied, u.fails(spelling, args{"path": "ran", "content": ""}).Code, "%q", spelling)
	}
	assert.NoFileExists(t, h.scope("a", "ran"))
	assert.Equal(t, "f", u.call("builtin:read_file", args{"path": "f"})["text"], "the prefixed spelling is understood")

	u = h.connect("b")
	assert.Len(t, u.list(), 2)
	u.absent("b", "read_file", args{"path": "f"})

	u = h.connect("c")
	assert.Empty(t, u.list())
	u.absent("c", "scope_info", nil)

	// Nor under the names of a profile.
	u = h.connect("a", "--profile", "claude")
	assert.Contains(t, u.list(), "Read")
	for _, name := range []string{"Write", "Bash", "Edit", "write_file", "bash"} {
		u.absent("a", name, args{"file_path": "ran", "content": ""})
	}
}

// The second: skills.
func TestPointSkill(t *testing.T) {
	h := layOut(t, map[string]string{"a": "skills: [sing]", "b": "skills: []", "c": ""})
	for _, name := range []string{"sing", "dance"} {
		h.put("skills/"+name+"/SKILL.md", "---\nname: "+name+"\ndescription: How to "+name+".\n---\nthe text\n")
		h.put("skills/"+name+"/more.md", "more")
	}
	h.start()
	u := h.connect("a")
	assert.Contains(t, u.text("skill", nil), "sing: ")
	assert.NotContains(t, u.text("skill", nil), "dance")
	assert.Contains(t, u.text("skill", args{"name": "sing"}), "the text")
	for _, a := range []args{{"name": "dance"}, {"name": "dance", "file": "more.md"}, {"name": "dance", "file": "none.md"}} {
		got := u.fails("skill", a)
		assert.Equal(t, "dance", h.last("a", "skill").Target[:5])
		assert.Equal(t, "not_found", h.last("a", "skill").Outcome)
		none := args{"name": "fence"}
		if a["file"] != nil {
			none["file"] = a["file"]
		}
		want := u.fails("skill", none)
		want.Message = strings.ReplaceAll(want.Message, "fence", "dance")
		assert.Equal(t, want, got)
	}
	for _, name := range []string{"../skills/dance", "sing/../dance", "./dance", "/dance", "."} {
		assert.Equal(t, tools.NotFound, u.fails("skill", args{"name": name}).Code, name)
	}
	for _, file := range []string{"../dance/SKILL.md", "/etc/passwd", "../../scopefs.yaml"} {
		u.fails("skill", args{"name": "sing", "file": file})
	}
	h.connect("b").absent("b", "skill", args{"name": "sing"})
	assert.Contains(t, h.connect("c").text("skill", nil), "dance: ", "without a list nothing restricts")
}

// The third: MCP servers, and whose they are.
func TestPointServer(t *testing.T) {
	h := layOut(t, map[string]string{
		"own":   "mcp_servers: {mine: " + serverOf("MINE") + "}",
		"ext":   "",
		"other": "",
		"some":  "tools: [\"mcp:shared:say\", scope_info]",
		"none":  "mcps: []",
		"not":   "policy: {mcp: {excluded: [shared]}}",
	})
	h.put("extensions.d/e.yaml", "name: e\nagents: [ext]\nmcp_servers:\n  exts: "+serverOf("EXTS", "workspace: read")+"\n  shared: "+serverOf("SHARED", "visibility: public", "workspace: read")+"\n")
	h.plantServer("own", "ext", "other", "some", "none", "not")
	h.start()

	for id, has := range map[string][]string{
		"own": {"mine", "shared"}, "ext": {"exts", "shared"}, "other": {"shared"}, "some": {"shared"}, "none": nil, "not": nil,
	} {
		u := h.connect(id)
		for _, server := range has {
			h.eventually("the server is listed", func() bool { return u.list()["mcp__"+server+"__say"] != nil })
			if server == "shared" {
				assert.Contains(t, u.text("mcp__shared__say", args{"text": "x"}), "SHARED says x", "called by what is listed")
			}
		}
		for _, server := range []string{"mine", "exts", "shared"} {
			if !strings.Contains(strings.Join(has, " "), server) {
				u.absent(id, "mcp__"+server+"__say", args{"text": "x"})
				assert.Equal(t, tools.Denied, u.fails("mcp:"+server+":say", args{"text": "x"}).Code, "by its name in rules")
				if id != "none" && id != "not" { // these are told of the lists that restrict them
					shown := h.must("agents", "show", id, "--json") + h.must("prompt", id) + u.session.InitializeResult().Instructions
					assert.NotContains(t, shown, server, id)
				}
			}
		}
		if u.list()["scope_info"] != nil {
			info := u.text("scope_info", nil)
			for _, server := range []string{"mine", "exts", "shared"} {
				assert.Equal(t, strings.Contains(strings.Join(has, " "), server), strings.Contains(info, server), "%s is told of %s", id, server)
			}
		}
		assert.Equal(t, len(has) > 0, strings.Contains(fmt.Sprint(h.events(id)), "test-program"), "%s: only what may be used is started", id)
	}
	u := h.connect("own")
	h.eventually("the server is listed", func() bool { return u.list()["mcp__mine__say"] != nil })
	assert.Equal(t, "MINE says hello as user 1000", u.text("mcp__mine__say", args{"text": "hello"}))
	assert.Equal(t, "ok", h.last("own", "mcp:mine:say").Outcome)
	// Of a server only some tools may be allowed.
	h.connect("some").absent("some", "mcp__shared__shout", args{"text": "x"})
	// What would load nowhere says nothing of others' servers.
	h.put("x.md", "---\nname: x\ndescription: x\nmcps: [mine]\n---\n")
	out, errs, code := h.try("agents", "check", h.base+"/x.md")
	assert.Equal(t, 1, code)
	assert.NotContains(t, out+errs, "exts")
	assert.NotContains(t, out+errs, "MINE")
}

// The fourth: delegation.
func TestPointMember(t *testing.T) {
	h := layOut(t, map[string]string{
		"a": "tools: [delegate, read_file]\nmembers: [b]\nscopes: {enum: [state]}", "b": "tools: [read_file]\nmembers: [\"*\"]", "c": "", "d": "tools: [\"*\"]",
	})
	h.put("runner", "#!/bin/sh\ncat; if scopefs call read_file path=fail >/dev/null 2>&1; then exit 3; fi\n")
	require.NoError(t, os.Chmod(h.base+"/runner", 0o755))
	h.put("scopefs.yaml", "runner: ["+h.base+"/runner]\nsandbox: {expose: ["+h.base+"/runner]}\n")
	h.start()
	u := h.connect("a")
	task := u.text("delegate", args{"member": "b", "task": "dig", "context": []args{{"name": "state", "text": "wet"}}})
	assert.Contains(t, task, "dig")
	assert.Contains(t, task, "wet")
	assert.True(t, h.recorded("b", audit.Event{Event: audit.KindAgent, Outcome: "delegated to"}))
	assert.Equal(t, tools.Denied, u.fails("delegate", args{"member": "b", "task": "dig", "context": []args{{"name": "secret", "text": "x"}}}).Code)

	want := u.fails("delegate", args{"member": "nobody", "task": "dig"})
	for _, id := range []string{"c", "d", "a"} {
		got := u.fails("delegate", args{"member": id, "task": "dig"})
		assert.Equal(t, id, h.last("a", "delegate").Target)
		assert.Equal(t, "not_found", h.last("a", "delegate").Outcome)
		got.Message = strings.ReplaceAll(got.Message, `"`+id+`"`, `"nobody"`)
		assert.Equal(t, want, got, id)
		assert.False(t, h.recorded(id, audit.Event{Event: audit.KindAgent, Outcome: "delegated to"}), id)
	}
	// Who names no members has none, whatever else it may.
	assert.Equal(t, tools.NotFound, h.connect("d").fails("delegate", args{"member": "b", "task": "dig"}).Code)
	plant(t, h.scope("b"), "fail")
	assert.Equal(t, tools.Internal, u.fails("delegate", args{"member": "b", "task": "dig"}).Code)
}
