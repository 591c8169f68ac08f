package tools

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/tools"
)

var _ = jsonschema.Schema{} // its form is what boundless walks

// natives are all tools of our own.
var natives = []string{
	"ask_user", "bash", "copy", "delegate", "delete", "delete_file", "edit_file", "forget", "glob", "grep", "list_dir",
	"make_dir", "memory", "move", "process_read", "process_stop", "read_file", "recall", "remember", "scope_info", "skill",
	"stat", "write_file",
}

// everything is a host whose agent a has every tool.
func everything(t *testing.T) *harness.Host {
	t.Helper()
	h := harness.LayOut(t, map[string]string{"a": "tools: [\"*\"]\nmembers: [b]", "b": ""})
	h.Put("runner", "#!/bin/sh\ncat >task; echo \"done by $(pwd)\"\n")
	require.NoError(t, os.Chmod(h.Base+"/runner", 0o755))
	h.Put("scopefs.yaml", "memory: true\nrunner: ["+h.Base+"/runner]\nsandbox: {expose: ["+h.Base+"/runner]}\n")
	h.Put("skills/sing/SKILL.md", "---\nname: sing\ndescription: How to sing.\n---\nla la\n")
	h.Start()
	return h
}

// TestToolsEach: every tool of ours works from end to end, says what its listed
// schema promises, and is in the log with its beginning and its end.
func TestToolsEach(t *testing.T) {
	h := everything(t)
	u := h.ConnectWith(&mcp.ClientOptions{ElicitationHandler: func(_ context.Context, r *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
		return &mcp.ElicitResult{Action: "accept", Content: map[string]any{"answer": "yes to " + r.Params.Message}}, nil
	}}, "a", "--full-schemas")
	list := u.List()
	assert.Equal(t, natives, slices.Sorted(maps.Keys(list)))
	id := "" // of the process in the background

	for _, step := range []struct {
		tool string
		args args
		want args // of the result, at least
		then func(out args)
	}{
		{"write_file", args{"path": "d/f", "content": "one\ntwo\n"}, args{"path": "d/f", "created": true}, func(args) {
			assert.Equal(t, "one\ntwo\n", harness.ReadAll(t, h.Scope("a", "d/f")))
		}},
		{"read_file", args{"path": "d/f"}, args{"text": "one\ntwo\n"}, nil},
		{"edit_file", args{"path": "d/f", "edits": []args{{"old_text": "two", "new_text": "three"}}}, args{"edits": 1.0}, func(args) {
			assert.Equal(t, "one\nthree\n", harness.ReadAll(t, h.Scope("a", "d/f")))
		}},
		{"list_dir", args{"path": "d"}, args{"path": "d"}, func(out args) { assert.Len(t, out["entries"], 1) }},
		{"stat", args{"path": "d/f"}, args{"type": "file", "size": 10.0}, nil},
		{"glob", args{"pattern": "**/f"}, nil, func(out args) { assert.Len(t, out["matches"], 1) }},
		{"grep", args{"pattern": "thr.e"}, nil, func(out args) { assert.Len(t, out["files"], 1) }},
		{"make_dir", args{"path": "e/e"}, args{"created": true}, nil},
		{"move", args{"from": "d/f", "to": "e/g"}, args{"to": "e/g"}, func(args) { assert.NoFileExists(t, h.Scope("a", "d/f")) }},
		{"copy", args{"from": "e/g", "to": "e/h"}, args{"copied": 1.0}, func(args) { assert.FileExists(t, h.Scope("a", "e/h")) }},
		{"delete_file", args{"path": "e/h"}, args{"deleted": 1.0}, func(args) { assert.NoFileExists(t, h.Scope("a", "e/h")) }},
		{"delete", args{"path": "e", "recursive": true}, nil, func(args) { assert.NoDirExists(t, h.Scope("a", "e")) }},
		{"bash", args{"command": "pwd; cat; exit 3", "stdin": "in"}, args{"stdout": "/workspace\nin", "exit_code": 3.0}, nil},
		{"bash", args{"command": "echo up; exec sleep 4713", "background": true}, args{"running": true}, func(out args) { id = out["process_id"].(string) }},
		{"process_read", args{"id": &id, "wait_ms": 5000}, args{"output": "up\n", "running": true}, nil},
		{"process_stop", args{"id": &id}, args{"signal": "SIGTERM"}, nil},
		{"scope_info", nil, args{"agent": "a", "root": "/workspace", "access": "write", "network": "none"}, func(out args) { assert.Len(t, out["tools"], len(natives)) }},
		{"ask_user", args{"question": "sure?"}, args{"answer": "yes to sure?"}, nil},
		{"skill", nil, nil, func(out args) { assert.Len(t, out["skills"], 1) }},
		{"skill", args{"name": "sing"}, args{"name": "sing"}, func(out args) { assert.Contains(t, out["text"], "la la") }},
		{"delegate", args{"member": "b", "task": "dig"}, args{"member": "b", "answer": "done by /scratch\n"}, func(args) {
			assert.NoFileExists(t, h.Scope("b", "task"), "a runner has no view")
		}},
		{"remember", args{"name": "n", "text": "blue sky"}, args{"created": true}, func(args) { assert.FileExists(t, h.Scope("a", ".memory/n.md")) }},
		{"recall", args{"query": "sky"}, nil, func(out args) { assert.Len(t, out["notes"], 1) }},
		{"memory", nil, nil, func(out args) { assert.Len(t, out["notes"], 1) }},
		{"forget", args{"name": "n"}, args{"forgotten": "n"}, func(args) { assert.NoFileExists(t, h.Scope("a", ".memory/n.md")) }},
	} {
		fits(t, step.tool, list[step.tool].InputSchema, wire(t, step.args))
		out := u.Call(step.tool, step.args)
		fits(t, step.tool, list[step.tool].OutputSchema, out)
		for key, want := range step.want {
			assert.Equal(t, want, out[key], "%s: %s of %v", step.tool, key, out)
		}
		if step.then != nil {
			step.then(out)
		}
		events := h.Calls("a", step.tool)
		require.GreaterOrEqual(t, len(events), 2, step.tool)
		begin, end := events[len(events)-2], events[len(events)-1]
		assert.Equal(t, begin.Call, end.Call)
		assert.Equal(t, []string{"begin", "ok"}, []string{begin.Outcome, end.Outcome}, step.tool)
		assert.Equal(t, []audit.Verdict{audit.Allow, audit.Allow}, []audit.Verdict{begin.Verdict, end.Verdict}, step.tool)
		assert.NotZero(t, end.Bytes, step.tool)
		assert.Regexp(t, "^result sha256:[0-9a-f]{64}$", end.Detail, step.tool)
	}

	// Without a user there is nobody to ask.
	assert.Equal(t, tools.Denied, h.Connect("a").Fails("ask_user", args{"question": "sure?"}).Code)
}

// TestToolsSchemas: under every profile, nothing that a client may send is
// without a bound, and no hint that means something is left to its default.
func TestToolsSchemas(t *testing.T) {
	h := everything(t)
	for _, profile := range []string{"", "claude", "anthropic-editor", "mcp-fs"} {
		u := h.Connect("a", "--full-schemas", "--profile", profile)
		list := u.List()
		require.NotEmpty(t, list)
		for name, tool := range list {
			name = profile + "/" + name
			schema := wire(t, tool.InputSchema)
			assert.Empty(t, boundless(name, schema))
			assert.Equal(t, false, closed(schema), "%s takes fields that nobody knows", name)
			if tool.OutputSchema != nil {
				assert.Equal(t, "object", wire(t, tool.OutputSchema).(args)["type"], name)
			}
			assert.NotEmpty(t, tool.Description, name)
			require.NotNil(t, tool.Annotations, name)
			require.NotNil(t, tool.Annotations.OpenWorldHint, name)
			assert.NotEmpty(t, tool.Title, name)
			assert.Equal(t, tool.Annotations.ReadOnlyHint, tool.Annotations.DestructiveHint == nil, name)
		}
		raw := u.Heard.String()
		for _, hint := range []string{"readOnlyHint", "idempotentHint", "openWorldHint"} {
			assert.Equal(t, len(list), strings.Count(raw, `"`+hint+`"`), "%s: %s is written out", profile, hint)
		}
	}
}

func closed(schema any) any {
	is, _ := schema.(args)["additionalProperties"].(args) // false is {"not": {}} or false
	if schema.(args)["additionalProperties"] == false || is["not"] != nil {
		return false
	}
	return schema.(args)["additionalProperties"]
}

// boundless walks a schema and returns where it has no bound.
func boundless(at string, schema any) (found []string) {
	s, _ := schema.(args)
	has := func(keys ...string) bool {
		return slices.ContainsFunc(keys, func(k string) bool { return s[k] != nil })
	}
	types, several := s["type"].([]any)
	if !several {
		types = []any{s["type"]}
	}
	for _, kind := range types {
		switch kind {
		case "string":
			if !has("maxLength", "enum", "const") {
				found = append(found, at+": a string without maxLength")
			}
		case "array":
			if !has("maxItems") {
				found = append(found, at+": an array without maxItems")
			}
		case "integer", "number":
			if !has("minimum", "exclusiveMinimum") || !has("maximum", "exclusiveMaximum") {
				found = append(found, at+": a number without minimum and maximum")
			}
		case "object", "boolean", "null":
		default:
			found = append(found, fmt.Sprintf("%s: type %v", at, kind))
		}
	}
	for name, p := range sub(s["properties"]) {
		found = append(found, boundless(at+"."+name, p)...)
	}
	if s["items"] != nil {
		found = append(found, boundless(at+"[]", s["items"])...)
	}
	return found
}

func sub(v any) args { m, _ := v.(args); return m }

// wire is a value as JSON has it.
func wire(t *testing.T, v any) any {
	t.Helper()
	text, err := json.Marshal(v)
	require.NoError(t, err)
	if string(text) == "null" {
		return args{}
	}
	var out any
	require.NoError(t, json.Unmarshal(text, &out))
	return out
}

// fits holds a value against a schema as it came over the wire.
func fits(t *testing.T, what string, schema, value any) {
	t.Helper()
	text, err := json.Marshal(schema)
	require.NoError(t, err)
	var s jsonschema.Schema
	require.NoError(t, json.Unmarshal(text, &s), what)
	resolved, err := s.Resolve(nil)
	require.NoError(t, err, what)
	assert.NoError(t, resolved.Validate(value), "%s: %v", what, value)
}
