package tools

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/tools"
)

// nowhere are paths that an agent cannot read, each for another reason. All look
// as if there were nothing.
var nowhere = []string{
	"nope", "dir/nope", "../nope", "../../etc/passwd", "../../../../../../etc/nope", "/etc/passwd", "/etc/nope", "/etc", "..", "/", "../b", "../b/f",
	"out-file", "out-dir", "out-dir/passwd", "out-rel", "out-none", "hidden", "hidden/f", "hidden/nope", "dir/../../b/f",
	"/proc/self/root/etc/passwd", "/proc/1/environ", "/tmp/x", "/workspace/../etc/passwd", "/workspace/nope", "inner/up/etc/passwd",
}

// alikeHost has an agent with all of nowhere planted.
func alikeHost(t *testing.T) *harness.Host {
	t.Helper()
	h := harness.LayOut(t, map[string]string{"a": "tools: [\"*\"]\nview: {paths: {\"hidden/**\": hide, hidden: hide}}", "b": ""})
	harness.Plant(t, h.Scope("a"), "f", "dir/f", "hidden/f", "inner/", "out-file => /etc/passwd", "out-dir => /etc", "out-none => /nope/nope")
	require.NoError(t, os.Symlink("../b/f", h.Scope("a", "out-rel")))
	require.NoError(t, os.Symlink("../../../../..", h.Scope("a", "inner", "up")))
	harness.Plant(t, h.Scope("b"), "f=FOREIGN")
	return h
}

// TestToolsAlike: to read outside and to read what is absent is answered alike,
// to the byte, apart from the path that was asked for.
func TestToolsAlike(t *testing.T) {
	h := alikeHost(t)
	h.Start()
	u := h.Connect("a")
	reading := map[string]func(path string) args{
		"read_file": func(p string) args { return args{"path": p} },
		"list_dir":  func(p string) args { return args{"path": p} },
		"stat":      func(p string) args { return args{"path": p} },
		"glob":      func(p string) args { return args{"path": p, "pattern": "*"} },
		"grep":      func(p string) args { return args{"path": p, "pattern": "."} },
		"copy":      func(p string) args { return args{"from": p, "to": "copied", "recursive": true} },
	}
	// A link itself is there: as with ls -l it can be told, moved and copied, and
	// what it says is not shown.
	link := func(tool, path string) bool {
		return (tool == "stat" || tool == "copy") && strings.HasPrefix(path, "out-") && !strings.Contains(path, "/")
	}
	for tool, of := range reading {
		want := ""
		for _, path := range nowhere {
			r, err := u.Send(u.Soon(), tool, of(path))
			require.NoError(t, err)
			text := harness.Said(r)
			if link(tool, path) {
				assert.NotContains(t, text, "/etc")
				assert.NotContains(t, text, "/nope/")
				continue
			}
			assert.True(t, r.IsError, "%s %s: %s", tool, path, text)
			var e tools.Error
			require.NoError(t, json.Unmarshal([]byte(text), &e))
			assert.Equal(t, tools.NotFound, e.Code, "%s %s: %s", tool, path, text)
			e.Path = ""
			left, _ := json.Marshal(e)
			if want == "" {
				want = string(left)
			}
			assert.Equal(t, want, string(left), "%s %s", tool, path)
			assert.NotContains(t, text, "FOREIGN")
		}
	}
	assert.NoFileExists(t, h.Scope("a", "copied", "passwd"))
	// A way there that is no secret is none either.
	assert.Equal(t, "f", u.Call("read_file", args{"path": "/workspace/dir/../f"})["text"])
}

// TestToolsAlikeProfiles: likewise under other names.
func TestToolsAlikeProfiles(t *testing.T) {
	h := alikeHost(t)
	h.Start()
	for profile, tool := range map[string]string{"claude": "Read", "anthropic-editor": "str_replace_based_edit_tool", "mcp-fs": "read_text_file"} {
		u := h.Connect("a", "--profile", profile)
		require.Contains(t, u.List(), tool)
		want := ""
		for _, path := range nowhere {
			e := u.Fails(tool, args{"claude": args{"file_path": path}, "anthropic-editor": args{"command": "view", "path": path}, "mcp-fs": args{"path": path}}[profile].(args))
			e.Path = ""
			left, _ := json.Marshal(e)
			if want == "" {
				want = string(left)
			}
			assert.Equal(t, want, string(left), "%s %s", tool, path)
		}
	}
}

// TestToolsWriteOutside: to write outside is refused alike, whatever is there.
func TestToolsWriteOutside(t *testing.T) {
	h := alikeHost(t)
	h.Start()
	u := h.Connect("a")
	before, other := harness.Picture(t, h.Scope("a")), harness.Picture(t, h.Scope("b"))
	for tool, of := range map[string]func(path string) args{
		"write_file": func(p string) args { return args{"path": p, "content": "x"} },
		"make_dir":   func(p string) args { return args{"path": p} },
		"edit_file": func(p string) args {
			return args{"path": p, "edits": []args{{"old_text": "root", "new_text": "x"}}}
		},
		"delete_file": func(p string) args { return args{"path": p} },
		"move":        func(p string) args { return args{"from": "f", "to": p} },
		"copy":        func(p string) args { return args{"from": "f", "to": p} },
	} {
		want := ""
		for _, path := range []string{"../nope", "../../etc/passwd", "/etc/passwd", "/etc/nope", "../b/f", "/tmp/x", "out-dir/passwd", "out-dir/nope", "inner/up/etc/x"} {
			e := u.Fails(tool, of(path))
			e.Path = ""
			left, _ := json.Marshal(e)
			if want == "" {
				want = string(left)
			}
			assert.Equal(t, want, string(left), "%s %s", tool, path)
		}
	}
	assert.Equal(t, before, harness.Picture(t, h.Scope("a")))
	assert.Equal(t, other, harness.Picture(t, h.Scope("b")))
}

// TestToolsTellNothing: nothing that a tool or the sandbox tells is of the host,
// wherever an agent looks. (What is looked at is said in attach.)
func TestToolsTellNothing(t *testing.T) {
	h := everything(t)
	harness.Plant(t, h.Scope("a"), "f", "l => /etc/passwd")
	u := h.Connect("a")
	for _, command := range []string{
		"cat /proc/self/mountinfo /proc/self/mounts /proc/mounts", "cat /proc/self/environ; env", "ls -l /proc/self/cwd /proc/self/root /proc/self/exe /proc/self/fd",
		"cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ /proc/[0-9]*/maps", "df -a; mount; findmnt", "ls -lR / 2>&1 | head -c 100000", "cat /proc/net/unix",
		"ls -la /workspace; readlink l; realpath f; stat f", "cat /proc/self/cgroup", "rm -rf /etc/x; touch /x; mkdir /usr/x; cat l; ls ..",
	} {
		out := u.Call("bash", args{"command": command})
		// The runner is shown on purpose, at its own path; nothing else is.
		for _, text := range []any{out["stdout"], out["stderr"]} {
			text := strings.ReplaceAll(text.(string), h.Base+"/runner", "")
			assert.NotContains(t, text, h.Base, command)
		}
	}
	u.Heard.Reset()
	for name, tool := range u.List() {
		for _, a := range []args{{}, {"path": "../../.."}, {"path": "\x00"}, {"path": strings.Repeat("x/", 3000)}, {"path": "l", "content": "x"}, {"from": "l", "to": "../x"},
			{"command": "cd /nope", "cwd": "../../.."}, {"name": "../../x"}, {"member": "../b", "task": "x"}, {"id": "../../x"}, {"pattern": "../**", "path": ".."}} {
			_, err := u.Send(u.Soon(), name, a)
			require.NoError(t, err, "%s %v", tool.Name, a)
		}
	}
}
