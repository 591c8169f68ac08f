package cli

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/internal/need"
)

type args = map[string]any

// besideProject is a project with directories beside it, and a user's commands in it.
type besideProject struct {
	*testing.T
	top string
	in  string // where commands are given, below top
	as  func(words ...string) harness.Outcome
}

// besideUsers returns the users whose commands these are: make test-all runs root's too.
func besideUsers() []int { return []int{1234, 0}[:min(need.Rounds("SCOPEFS_TEST_MODES", 1, 2), 2)] }

func newBesideProject(t *testing.T, uid int) *besideProject {
	t.Helper()
	m := harness.Embed(t, uid, nil)
	p := &besideProject{T: t, top: filepath.Join(m.Base, "own"), in: "proj"}
	tree(t, p.top, uid)
	p.as = func(words ...string) harness.Outcome {
		cmd := exec.Command(harness.Program, words...)
		if uid != 0 {
			cmd = harness.AsUser(t, uid, append([]string{harness.Program}, words...)...)
		}
		if cmd.Env == nil {
			cmd.Env = os.Environ()
		}
		cmd.Dir = filepath.Join(p.top, p.in)
		cmd.Env = append(cmd.Env, "TMPDIR="+m.Tmp, "HOME="+filepath.Join(m.Base, "agents"), "XDG_STATE_HOME=", "SCOPEFS_BASE=")
		return harness.Finish(t, cmd)
	}
	return p
}

func (p *besideProject) must(words ...string) string {
	p.Helper()
	o := p.as(words...)
	require.Zero(p, o.Code, "%q: %s%s", words, o.Stdout, o.Stderr)
	return o.Stdout
}

func (p *besideProject) content(name string) string {
	text, err := os.ReadFile(filepath.Join(p.top, name))
	if err != nil {
		return "none"
	}
	return string(text)
}

// TestRootsOneList: changes, undo and redo are about all directories of a session, in one list.
func TestRootsOneList(t *testing.T) {
	t.Parallel()
	for _, uid := range besideUsers() {
		t.Run(fmt.Sprint(uid), func(t *testing.T) {
			t.Parallel()
			p := newBesideProject(t, uid)
			lib := p.top + "/lib"
			p.must("run", "--dir", ".", "-q", "--with", "../lib", "--", "sh", "-c", "echo first >../lib/first")
			o := p.as("run", "--dir", ".", "--with", "../lib", "--with", "../other", "--", "sh", "-c", "echo x >a; echo y >../lib/b; rm ../other/c; mv ../lib/first ../lib/moved")
			require.Zero(t, o.Code, o.Stderr)
			assert.Contains(t, o.Stderr, "removed "+p.top+"/other/c", "the answer names what is removed in any directory")
			assert.Contains(t, o.Stderr, "1 removed, 1 moved, 2 changed in")
			assert.Equal(t, 1, strings.Count(o.Stderr, "scopefs undo"), "one command takes all back: %s", o.Stderr)

			names := "a\n" + lib + "/b\n" + lib + "/moved\n" + p.top + "/other/c\n"
			assert.Equal(t, names, p.must("changes", "--name-only"))
			table := p.must("changes")
			assert.Contains(t, table, "the last session: 4 changes")
			assert.Contains(t, table, lib+"/moved (was "+lib+"/first)")
			assert.Equal(t, lib+"/b\n", p.must("changes", "--name-only", "../lib/b"), "a PATH of a root")
			assert.Equal(t, lib+"/b\n", p.must("changes", "--name-only", lib+"/b"))
			assert.Equal(t, "a\n", p.must("changes", "--name-only", "a"))
			assert.Equal(t, lib+"/b\n"+lib+"/moved\n", p.must("changes", "--name-only", "../lib"))
			assert.Equal(t, "b\nmoved\n", p.must("changes", "--name-only", "--root", "../lib"), "of one root, its own paths")
			patch := p.must("changes", "-p")
			assert.Contains(t, patch, "-mine\n+x\n")
			assert.Contains(t, patch, "-theirs\n+y\n")
			assert.Contains(t, patch, "--- a"+lib+"/b\n+++ b"+lib+"/b\n")
			var list struct {
				Changes []struct{ Path, Root string }
			}
			require.NoError(t, json.Unmarshal([]byte(p.must("changes", "--json")), &list))
			require.Len(t, list.Changes, 4)
			assert.Equal(t, struct{ Path, Root string }{"a", ""}, list.Changes[0])
			assert.Equal(t, struct{ Path, Root string }{lib + "/b", lib}, list.Changes[1])

			dry := p.must("undo", "--session", "last", "--dry-run")
			assert.Contains(t, dry, "restore  "+p.top+"/other/c\n")
			_, hash, _ := strings.Cut(strings.TrimSpace(dry), "--shown ")
			o = p.as("undo", "--session", "last", "--shown", strings.Repeat("0", 64))
			assert.Equal(t, 1, o.Code)
			assert.Contains(t, o.Stderr, "nothing was done")
			assert.Equal(t, "x\n", p.content("proj/a"))
			done := p.must("undo", "--session", "last", "--shown", hash)
			assert.Contains(t, done, "undo, the last session: 2 rewritten, 1 restored, 1 moved")
			assert.Equal(t, []string{"mine\n", "theirs\n", "secret\n", "first\n"},
				[]string{p.content("proj/a"), p.content("lib/b"), p.content("other/c"), p.content("lib/first")}, "of that session alone")
			o = p.as("undo", "--session", "last")
			assert.Equal(t, 1, o.Code)
			assert.Contains(t, o.Stdout, "nothing", "no earlier session")
			p.must("redo")
			assert.Equal(t, []string{"x\n", "y\n", "none", "first\n"},
				[]string{p.content("proj/a"), p.content("lib/b"), p.content("other/c"), p.content("lib/moved")}, "one redo of one undo")

			_, hash, _ = strings.Cut(strings.TrimSpace(p.must("undo", "--session", "last", "--dry-run", "../lib/b")), "--shown ")
			p.must("undo", "--session", "last", "--shown", strings.Fields(hash)[0], "../lib/b")
			assert.Equal(t, []string{"x\n", "theirs\n"}, []string{p.content("proj/a"), p.content("lib/b")})
			p.must("redo")
			assert.Equal(t, []string{"x\n", "y\n"}, []string{p.content("proj/a"), p.content("lib/b")}, "the last undo was in the root alone")

			p.must("run", "--dir", ".", "-q", "--with", "../lib", "--", "sh", "-c", "echo only >../lib/only")
			assert.Equal(t, lib+"/only\n", p.must("changes", "--name-only"), "a session that has changed a root alone")
			point := strings.TrimSpace(p.must("checkpoint", "green"))
			p.must("run", "--dir", ".", "-q", "--with", "../lib", "--", "sh", "-c", "echo 2 >../lib/only; echo z >a")
			for _, at := range []string{"green", point} {
				assert.Equal(t, "a\n"+lib+"/only\n", p.must("changes", "--name-only", "--checkpoint", at))
			}
			assert.Equal(t, "only\n", p.must("show", "../lib/only@green"))
			assert.Contains(t, p.must("changes", "--list"), "green")
			p.must("undo", "--checkpoint", "green")
			assert.Equal(t, []string{"x\n", "only\n"}, []string{p.content("proj/a"), p.content("lib/only")})
			o = p.as("undo", "--session", "last", "../nowhere")
			assert.Equal(t, 2, o.Code)
			assert.Contains(t, o.Stderr, "want a path of the view, or of "+lib)
		})
	}
}

// TestRootsOneCommit: diff, commit and discard are about all directories whose changes are held, in one list; a conflict in one of them
// has nothing taken in any.
func TestRootsOneCommit(t *testing.T) {
	t.Parallel()
	for _, uid := range besideUsers() {
		t.Run(fmt.Sprint(uid), func(t *testing.T) {
			t.Parallel()
			p := newBesideProject(t, uid)
			lib := p.top + "/lib"
			held := func(script string) {
				t.Helper()
				p.must("run", "--dir", ".", "-q", "--changes", "held", "--with", "../lib", "--with", "../other", "--", "sh", "-ec", script)
			}
			held("echo x >a; echo y >../lib/b; rm ../other/c")
			names := "a\n" + lib + "/b\n" + p.top + "/other/c\n"
			assert.Equal(t, names, p.must("diff", "--name-only"))
			assert.Equal(t, names, p.must("changes", "--name-only"))
			assert.Contains(t, p.must("diff", "-p"), "-theirs\n+y\n")
			assert.Equal(t, lib+"/b\n", p.must("diff", "--name-only", "--path", "../lib/**"))

			require.NoError(t, os.WriteFile(lib+"/b", []byte("mine since\n"), 0o644))
			o := p.as("commit")
			assert.Equal(t, 1, o.Code)
			assert.Contains(t, o.Stdout, "nothing was taken")
			assert.Contains(t, o.Stdout, "conflict: "+lib+"/b")
			assert.Equal(t, []string{"mine\n", "mine since\n", "secret\n"}, []string{p.content("proj/a"), p.content("lib/b"), p.content("other/c")})

			diff := p.must("diff", "--hash")
			_, hash, _ := strings.Cut(strings.TrimSpace(diff), "--shown ")
			o = p.as("commit", "--ours", "--shown", strings.Repeat("0", 64))
			assert.Equal(t, 1, o.Code)
			assert.Contains(t, o.Stderr, "nothing was done")
			o = p.as("commit", "--ours", "--shown", hash)
			assert.Contains(t, o.Stdout, "commit: 2 changes taken", o.Stderr)
			assert.Equal(t, []string{"x\n", "mine since\n", "none"}, []string{p.content("proj/a"), p.content("lib/b"), p.content("other/c")})
			assert.Contains(t, p.must("discard", "--all"), "discard: 1 change dropped")

			held("echo 1 >one; echo 2 >../lib/two; echo 3 >../other/three")
			assert.Contains(t, p.must("discard", "--path", "../lib/**", "--path", "one"), "discard: 2 changes dropped")
			assert.Equal(t, p.top+"/other/three\n", p.must("diff", "--name-only"), "held in a root alone")
			p.must("commit")
			assert.Equal(t, "3\n", p.content("other/three"))
			assert.Equal(t, 1, p.as("commit").Code, "nothing differs")
		})
	}
}

// TestRootsLeft: an undo or a commit that ends between two directories says which of them have changed, and with which command it goes on; so
// does the next command after one that was killed.
func TestRootsLeft(t *testing.T) {
	t.Parallel()
	p := newBesideProject(t, 0)
	lib := p.top + "/lib"
	p.must("run", "--dir", ".", "-q", "--with", "../lib", "--", "sh", "-c", "echo x >a; echo y >../lib/b")
	require.NoError(t, os.Rename(lib, lib+"-away"))
	require.NoError(t, os.WriteFile(lib, nil, 0o644), "it is there, and no directory")
	o := p.as("undo", "--session", "last")
	require.Equal(t, 1, o.Code, o.Stdout+o.Stderr)
	assert.Equal(t, "x\n", p.content("proj/a"), "what each directory has is seen before the first one changes: %s", o.Stderr)
	require.NoError(t, os.Remove(lib))
	require.NoError(t, os.Rename(lib+"-away", lib))

	id := strings.TrimSuffix(strings.Fields(p.must("changes"))[0], ",")
	require.NoError(t, os.MkdirAll(p.state(id)+"/series", 0o700))
	killed := `{"op":"undo","command":"scopefs undo --session b1","dirs":["` + p.top + `/proj","` + lib + `"]}` + "\n\"" + p.top + "/proj\"\n"
	require.NoError(t, os.WriteFile(p.state(id)+"/series/"+id, []byte(killed), 0o600))
	for _, words := range [][]string{{"changes"}, {"undo", "--session", "last", "--dry-run"}} {
		o = p.as(words...)
		assert.Contains(t, o.Stderr, "scopefs: it was interrupted: undo: done: "+p.top+"/proj; not done: "+lib+": scopefs undo --session b1 goes on\n")
	}
	o = p.as("undo", "--session", "last")
	require.Zero(t, o.Code, o.Stderr)
	assert.Equal(t, []string{"mine\n", "theirs\n"}, []string{p.content("proj/a"), p.content("lib/b")})
	assert.NotContains(t, p.as("changes").Stderr, "interrupted", "it is done")
}

// state returns the state directory of the project's agent.
func (p *besideProject) state(id string) string {
	found, err := filepath.Glob(filepath.Join(p.top, "../agents/.local/state/scopefs", id, "state"))
	require.NoError(p, err)
	require.Len(p, found, 1)
	return found[0]
}

// TestRootsOneListTools: the agent's tools list and take back what a session changed in all of its directories, and say where.
func TestRootsOneListTools(t *testing.T) {
	top := t.TempDir()
	tree(t, top, 0)
	lib := top + "/lib"
	roots := "roots: [{dir: " + lib + "}, {dir: " + top + "/other, access: read}]"
	harness.Plant(t, top, "held/", "heldlib/")
	h := harness.NewHost(t, map[string]string{"a": "dir: " + top + "/proj\nview: {changes: kept, " + roots + "}",
		"b": "dir: " + top + "/held\npolicy: {commit: ask}\nview: {changes: held, roots: [{dir: " + top + "/heldlib}]}"})
	u := h.Connect("a")
	point := u.Call("checkpoint", args{"name": "green"})["checkpoint"].(string)
	effects := u.Call("bash", args{"command": "echo x >a; echo y >../lib/b; mkdir ../lib/d; echo 1 >../lib/d/new"})["effects"].(map[string]any)
	assert.Equal(t, []any{map[string]any{"path": "a"}, map[string]any{"path": lib + "/b"}}, effects["changed"])
	paths := func(a args) (list []string) {
		for _, c := range u.Call("changes", a)["changes"].([]any) {
			list = append(list, c.(map[string]any)["path"].(string))
		}
		return list
	}
	assert.Equal(t, []string{"a", lib + "/b", lib + "/d", lib + "/d/new"}, paths(args{}))
	assert.Equal(t, []string{lib + "/b"}, paths(args{"paths": []string{"../lib/b"}}))
	assert.Equal(t, []string{lib + "/d", lib + "/d/new"}, paths(args{"paths": []string{lib + "/d"}}))
	assert.Equal(t, []string{"a"}, paths(args{"paths": []string{"/workspace/a"}}))
	assert.Contains(t, u.Text("changes", args{"diff": true}), "-theirs\n+y\n")
	for _, outside := range []string{"../lib/../x", top + "/held", "/etc", "../lib-b"} {
		assert.EqualValues(t, "not_found", u.Fails("changes", args{"paths": []string{outside}}).Code, outside)
		assert.EqualValues(t, "outside_scope", u.Fails("undo", args{"call": "x", "paths": []string{outside}}).Code, outside)
	}
	u.Call("undo", args{"checkpoint": point, "paths": []string{"../lib/d"}})
	assert.NoDirExists(t, lib+"/d")
	undone := u.Call("undo", args{"checkpoint": "green"})
	assert.Len(t, undone["steps"], 2, "%v", undone)
	text, err := os.ReadFile(lib + "/b")
	require.NoError(t, err)
	assert.Equal(t, "theirs\n", string(text))

	info := u.Call("scope_info", args{})
	assert.Equal(t, []any{map[string]any{"dir": lib, "access": "write"}, map[string]any{"dir": top + "/other", "access": "read"}}, info["roots"])
	assert.Equal(t, "Allowed directories:\n/workspace\n"+lib+"\n"+top+"/other (read)",
		strings.TrimSpace(h.Connect("a", "--profile", "mcp-fs").Text("list_allowed_directories", args{})))

	v := h.Connect("b")
	v.Bash("echo 1 >own; echo 2 >../heldlib/root")
	assert.NoFileExists(t, top+"/heldlib/root")
	differs := v.Call("diff", args{})
	assert.Equal(t, float64(2), differs["total"])
	assert.Contains(t, differs["diff"], "In "+top+"/heldlib:\n")
	commit := func(a args) { h.Must("approvals", "approve", v.Waits("commit", a)) }
	part := args{"paths": []string{"../heldlib"}}
	commit(part)
	assert.Equal(t, float64(1), v.Call("commit", part)["done"])
	assert.FileExists(t, top+"/heldlib/root")
	assert.NoFileExists(t, top+"/held/own")
	v.Bash("echo 3 >../heldlib/root")
	commit(args{})
	v.Bash("echo 4 >../heldlib/root")
	assert.Contains(t, []string{"conflict", "approval_required"}, string(v.Fails("commit", args{}).Code), "what was approved is what is taken, in all directories")
	assert.NoFileExists(t, top+"/held/own")
	commit(args{})
	assert.Equal(t, float64(2), v.Call("commit", args{})["done"])
	assert.FileExists(t, top+"/held/own")
}

// TestWithWords: the words of --with go together in any order, and the message for others says which there are.
func TestWithWords(t *testing.T) {
	p := newBesideProject(t, 0)
	o := p.as("run", "--dir", ".", "--with", "../lib:rw", "--", "true")
	assert.Equal(t, 125, o.Code)
	assert.Equal(t, "scopefs: --with ../lib:rw: unknown word \"rw\": want DIR, DIR:ro, DIR:ask or DIR:ro:ask\n", o.Stderr)
	for _, with := range []string{"../lib:ro:ask", "../lib:ask:ro"} {
		o = p.as("run", "--dir", ".", "-q", "--with", with, "--", "sh", "-c", "ls ..; cat ../lib/b")
		assert.Equal(t, "lib\nproj\n", o.Stdout, o.Stderr)
		assert.Contains(t, o.Stderr, "which needs an approval (access: ask)")
	}
	o = p.as("run", "--dir", ".", "--with", "..", "--", "true")
	assert.Equal(t, 125, o.Code)
	assert.Contains(t, o.Stderr, "hold one another")
	assert.Equal(t, 1, strings.Count(o.Stderr, "scopefs: --with"), o.Stderr)
}
