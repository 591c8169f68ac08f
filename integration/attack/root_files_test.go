package attack

import (
	"os"
	"os/exec"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/integration/harness"
)

// TestAttackRootFiles: file tools work in roots by the path on the host and by a relative one, as the rules of the root say, and reach
// nothing else by them.
func TestAttackRootFiles(t *testing.T) {
	top := t.TempDir()
	require.NoError(t, os.Chmod(top, 0o755))
	harness.Plant(t, top, "proj/", "proj/own=mine", "lib/", "lib/open=theirs", "lib/secret=KEY",
		"lib/kept=as it was", "lib/d/", "lib/d/x=found",
		"lib/out => ../other/f", "lib/back => ../proj/own", "libs/", "libs/f=foreign", "docs/", "docs/page=text", "other/", "other/f=foreign",
		"proj/there => ../lib/open", "proj/dir => "+top+"/lib", "proj/hidden => ../lib/secret", "proj/away => ../other/f")
	require.NoError(t, exec.Command("chown", "-R", "4321:4321", top).Run())
	h := harness.NewHost(t, map[string]string{
		"a": "dir: " + top + "/proj\nuser: 4321\nview: {changes: kept, roots: [{dir: " +
			top + "/lib, paths: {secret: hide, kept: read}}, {dir: " + top + "/docs, access: read}]}",
		"b": "dir: " + top + "/other\nuser: 4321"})
	lib, user := top+"/lib", h.Connect("a")
	call := func(tool string, args map[string]any) (text string, ok bool) {
		r, err := user.Send(user.Soon(), tool, args)
		require.NoError(t, err)
		for _, c := range r.Content {
			if c, ok := c.(*mcp.TextContent); ok {
				text += c.Text
			}
		}
		return text, !r.IsError
	}
	type is = map[string]any
	for _, works := range []struct {
		tool string
		args is
		says string
	}{
		{"read_file", is{"path": lib + "/open"}, "theirs"},
		{"read_file", is{"path": "../lib/open"}, "theirs"},
		{"read_file", is{"path": top + "/proj/../lib/./open"}, "theirs"},
		{"read_file", is{"path": top + "/proj/own"}, "mine"},
		{"read_file", is{"path": "../proj/own"}, "mine"},
		{"read_file", is{"path": "there"}, "theirs"},
		{"read_file", is{"path": "dir/open"}, "theirs"},
		{"read_file", is{"path": top + "/docs/page"}, "text"},
		{"list_dir", is{"path": "../lib"}, lib + "/open"},
		{"list_dir", is{"path": lib, "depth": 2}, lib + "/d/x"},
		{"stat", is{"path": "../lib"}, `"` + lib + `"`},
		{"glob", is{"pattern": lib + "/**/x"}, lib + "/d/x\n"},
		{"glob", is{"pattern": "**/x", "path": "../lib"}, lib + "/d/x\n"},
		{"grep", is{"pattern": "fou", "path": "../lib"}, lib + "/d/x:1:found"},
		{"write_file", is{"path": "../lib/new/deep/f", "content": "one"}, "created " + lib + "/new/deep/f"},
		{"write_file", is{"path": "there", "content": "two"}, "wrote"},
		{"edit_file", is{"path": lib + "/open", "edits": []is{{"old_text": "two", "new_text": "three"}}}, "+three"},
		{"edit_file", is{"path": lib + "/open", "edits": []is{{"old_text": "three", "new_text": "four"}}}, "+four"},
		{"copy", is{"from": lib + "/d", "to": "d", "recursive": true}, ""},
		{"copy", is{"from": "own", "to": "../lib/own"}, ""},
		{"make_dir", is{"path": lib + "/made"}, ""},
		{"move", is{"from": "../lib/own", "to": lib + "/made/own"}, ""},
		{"delete", is{"path": lib + "/made", "recursive": true}, ""},
	} {
		text, ok := call(works.tool, works.args)
		assert.True(t, ok, "%s %v: %s", works.tool, works.args, text)
		assert.Contains(t, text, works.says, "%s %v", works.tool, works.args)
	}
	for name, want := range map[string]string{"lib/open": "four", "lib/new/deep/f": "one", "proj/d/x": "found"} {
		b, err := os.ReadFile(top + "/" + name)
		require.NoError(t, err)
		assert.Equal(t, want, string(b), name)
	}
	assert.NoDirExists(t, lib+"/made")

	// What is outside answers as what is not there, whether it exists, is another agent's, or is a name beside a root.
	missing, _ := call("read_file", is{"path": "/none/f"})
	assert.Contains(t, missing, "no such file or directory")
	for _, path := range []string{"/workspace/../lib/open", "/workspace/../../etc/passwd", "/etc/passwd", top + "/other/f", "../other/f", lib + "s/f", lib + "/../other/f",
		"../lib/../libs/f", top, "..", "/",
		lib + "/secret", "../lib/secret", "dir/secret", "hidden", "away", lib + "/out", lib + "/back"} {
		for tool, args := range map[string]is{"read_file": {}, "stat": {"follow": true}, "list_dir": {}, "grep": {"pattern": "."}} {
			args["path"] = path
			text, ok := call(tool, args)
			assert.False(t, ok, "%s %s: %s", tool, path, text)
			assert.Contains(t, text, "no such file or directory", "%s %s", tool, path)
		}
	}
	for _, path := range []string{"/workspace/../lib/w", top + "/other/w", "../other/f", lib + "s/f", lib + "/../w",
		"../w", "away", lib + "/out", top + "/none/w"} {
		text, ok := call("write_file", is{"path": path, "content": "WRITTEN"})
		assert.False(t, ok, path)
		assert.Contains(t, text, "outside of the view", path)
	}
	for _, pattern := range []string{top + "/*/f", top + "/other/*", "../other/*", lib + "s/*", lib + "/../other/*"} {
		text, ok := call("glob", is{"pattern": pattern})
		assert.False(t, ok && text != "no matches\n", "%s: %s", pattern, text)
	}
	for _, refused := range []struct {
		tool string
		args is
		says string
	}{
		{"write_file", is{"path": lib + "/secret", "content": "x"}, "denied"},
		{"write_file", is{"path": "../lib/kept", "content": "x"}, "scopefs allow --root " + lib + " kept"},
		{"write_file", is{"path": top + "/docs/page", "content": "x"}, "files in " + top + "/docs"},
		{"delete", is{"path": lib, "recursive": true}, "the root of the view stays"},
		{"move", is{"from": lib, "to": "lib"}, "the root of the view stays"},
		{"move", is{"from": "../lib/open", "to": "open"}, "on another file system"},
		{"copy", is{"from": "../lib/secret", "to": "s"}, "no such file"},
	} {
		text, ok := call(refused.tool, refused.args)
		assert.False(t, ok, "%s %v: %s", refused.tool, refused.args, text)
		assert.Contains(t, text, refused.says, "%s %v", refused.tool, refused.args)
	}
	for name, want := range map[string]string{"other/f": "foreign", "libs/f": "foreign", "lib/secret": "KEY",
		"lib/kept": "as it was", "docs/page": "text"} {
		b, err := os.ReadFile(top + "/" + name)
		require.NoError(t, err)
		assert.Equal(t, want, string(b), name)
	}
	assert.NoFileExists(t, lib+"/w")
	assert.True(t, h.Recorded("a", audit.Event{Op: "read_file", Path: lib + "/open", Verdict: audit.Allow}), "the record names the root")
	assert.True(t, h.Recorded("a", audit.Event{Op: "write_file", Path: lib + "/kept", Verdict: audit.Deny}))
	_, _, code := h.Try("call", "--agent", "b", "read_file", "path="+top+"/other/f")
	assert.NotZero(t, code, "an agent without roots has /workspace alone")
}
