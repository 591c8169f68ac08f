package cli

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/integration/harness"
)

// tree makes the directories proj and lib beside one another, with files, for a user.
func tree(t *testing.T, top string, uid int) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Join(top, "proj"), 0o755))
	require.NoError(t, os.MkdirAll(filepath.Join(top, "lib"), 0o755))
	require.NoError(t, os.MkdirAll(filepath.Join(top, "other"), 0o755))
	harness.Plant(t, top, "proj/a=mine\n", "lib/b=theirs\n", "lib/.env=KEY=1\n", "other/c=secret\n")
	require.NoError(t, exec.Command("chown", "-R", fmt.Sprintf("%d:%[1]d", uid), top).Run())
}

const habits = `pwd; cat a ../lib/b /workspace/a "$PWD/../lib/b"; ls ..; echo new >../lib/new; cat ../lib/.env; cat ../other/c`

// TestRunWith: run --with shows a directory at its path in a view of its own, for this run alone: with the daemon of root and
// without one, for root and for an ordinary user. Its changes are kept and undone, and its operations are in the log.
func TestRunWith(t *testing.T) {
	for name, uid := range map[string]int{"root": 0, "user": 1234} {
		t.Run(name, func(t *testing.T) {
			m := harness.Embed(t, uid, nil)
			top := filepath.Join(m.Base, "own")
			tree(t, top, uid)
			as := func(words ...string) harness.Outcome {
				cmd := exec.Command(harness.Program, words...)
				if uid != 0 {
					cmd = harness.AsUser(t, uid, append([]string{harness.Program}, words...)...)
				}
				if cmd.Env == nil {
					cmd.Env = os.Environ()
				}
				cmd.Dir = filepath.Join(top, "proj")
				cmd.Env = append(cmd.Env, "TMPDIR="+m.Tmp, "HOME="+filepath.Join(m.Base, "agents"), "XDG_STATE_HOME=", "SCOPEFS_BASE=")
				return harness.Finish(t, cmd)
			}
			o := as("run", "--dir", ".", "--with", "../lib", "--", "sh", "-c", habits)
			assert.Equal(t, top+"/proj\nmine\ntheirs\nmine\ntheirs\nlib\nproj\n", o.Stdout, o.Stderr)
			assert.Contains(t, o.Stderr, "../lib/.env: Permission denied")
			assert.Contains(t, o.Stderr, "../other/c: No such file or directory")
			assert.Contains(t, o.Stderr, "scopefs: 1 created in")
			assert.FileExists(t, top+"/lib/new")
			o = as("changes", "--root", "../lib")
			assert.Contains(t, o.Stdout, "new", o.Stderr)
			o = as("undo", "--root", "../lib", "--session", "last")
			assert.Zero(t, o.Code, o.Stderr)
			assert.NoFileExists(t, top+"/lib/new")

			o = as("run", "--dir", ".", "--with", "../lib:ro", "--", "sh", "-c", "cat ../lib/b; echo x >../lib/b; echo y >a")
			assert.Equal(t, "theirs\n", o.Stdout)
			assert.Contains(t, o.Stderr, "Permission denied")
			o = as("run", "--dir", ".", "--with", "../lib:ask", "--", "sh", "-c", "ls ..; cat ../lib/b")
			assert.Equal(t, "lib\nproj\n", o.Stdout)
			assert.Contains(t, o.Stderr, "it uses the directory "+top+"/lib, which needs an approval (access: ask): scopefs run --with "+top+"/lib", "nobody is here")
			o = as("run", "--dir", ".", "--", "sh", "-c", "pwd; ls ../lib/b")
			assert.Equal(t, "/workspace\n", o.Stdout, "for that run alone")
			o = as("allow", "--yes", "--path", "docs", "--root", "../lib")
			assert.Contains(t, o.Stderr, "edit view: {roots} in", "not the agent's own rules")
			o = as("audit", "--json")
			assert.Contains(t, o.Stdout, "-lib-", "the root has rows of its own")

			o = as("run", "--dir", ".", "--changes", "held", "--with", "../lib", "--", "sh", "-c", "echo held >../lib/held")
			assert.Contains(t, o.Stderr, "1 change is held: scopefs diff, commit or discard")
			assert.NoFileExists(t, top+"/lib/held")
			o = as("diff", "--root", "../lib")
			assert.Contains(t, o.Stdout, "held", o.Stderr)
			o = as("commit", "--root", "../lib")
			assert.Zero(t, o.Code, o.Stderr)
			assert.FileExists(t, top+"/lib/held")
		})
	}
}

// TestRootsAtOnce: several runs of a project lend directories at once through the user's daemon, each for itself.
func TestRootsAtOnce(t *testing.T) {
	p := newProjects(t, "proj", "lib", "other")
	require.Zero(t, p.run("proj", "true").Code)
	var all sync.WaitGroup
	for i := range 8 {
		with, script := "../lib", fmt.Sprintf("echo x >../lib/%d; ls ../other/. 2>/dev/null || echo no", i)
		if i%2 == 1 {
			with, script = "../lib:ro", fmt.Sprintf("echo x 2>/dev/null >../lib/%d || echo no", i)
		}
		all.Go(func() {
			o := harness.Finish(t, p.command("proj", "run", "--dir", ".", "-q", "--with", with, "--", "sh", "-c", script))
			assert.Equal(t, "no\n", o.Stdout, o.Stderr)
		})
	}
	all.Wait()
	made, err := os.ReadDir(filepath.Join(p.Base, "lib"))
	require.NoError(t, err)
	assert.Len(t, made, 4)
	o := harness.Finish(t, p.command("proj", "undo", "--root", "../lib", "--since", "1h"))
	assert.Zero(t, o.Code, o.Stderr)
	made, err = os.ReadDir(filepath.Join(p.Base, "lib"))
	require.NoError(t, err)
	assert.Empty(t, made)
	o = harness.Finish(t, p.command("proj", "allow", "--yes", "--path", "../lib/x"))
	assert.Contains(t, o.Stderr, "scopefs run --with "+filepath.Join(p.Base, "lib", "x"))
	o = harness.Finish(t, p.command("proj", "ps"))
	assert.NotContains(t, o.Stdout, "proj-lib", "what was lent is unmounted: %s", o.Stdout)
}

// TestRoots: view: {roots} of a definition are in each sandbox of the agent; rules of a root hold at once, one that is removed ends.
func TestRoots(t *testing.T) {
	top := t.TempDir()
	tree(t, top, 0)
	front := func(roots string) string { return "dir: " + top + "/proj\nview: {changes: kept, roots: " + roots + "}" }
	h := harness.NewHost(t, map[string]string{"a": front("[{dir: " + top + "/lib}]")})
	u := h.Connect("a")
	assert.Equal(t, "theirs\nmine", u.Bash("cat ../lib/b /workspace/a"))
	assert.Equal(t, "kept", u.Bash("echo kept >../lib/k && cat ../lib/k"))
	root := rootOf(t, h, "a")
	assert.Contains(t, h.Must("changes", "a", "--root", top+"/lib"), "k")
	assert.Contains(t, h.Must("changes", root), "k")

	h.Define("a", front("[{dir: "+top+"/lib, paths: {b: hide}}]"))
	h.Must("reload")
	assert.Contains(t, u.Bash("cat ../lib/b 2>&1; true"), "No such file")
	assert.True(t, h.Recorded(root, audit.Event{Op: "lookup", Path: "b", Verdict: audit.Deny}))

	h.Define("a", front("[]"))
	h.Must("reload") // says so, unless the daemon has seen the file first
	assert.Empty(t, h.Mounted(h.View(root)))
	assert.Equal(t, "gone\n", h.Must("run", "a", "--", "sh", "-c", "ls ../lib/b 2>/dev/null || echo gone"))
	h.Define("a", front("[{dir: "+top+"/lib, access: read}]"))
	h.Must("reload")
	assert.Equal(t, "theirs\nread only\n", h.Must("run", "a", "--", "sh", "-c", "cat ../lib/b; echo x 2>/dev/null >../lib/b || echo read only"))
	h.Define("a", front("[{dir: "+top+"/lib, changes: direct}]"))
	h.Must("reload")
	h.Must("branch", "a", "fix")
	h.Must("run", "a-fix", "--", "sh", "-c", "echo held >../lib/held")
	assert.NoFileExists(t, top+"/lib/held", "a branch holds the changes of roots, too")
	assert.Contains(t, h.Must("diff", "a-fix", "--root", top+"/lib"), "held")
	h.Must("commit", "a-fix", "--root", top+"/lib")
	assert.FileExists(t, top+"/lib/held")
	h.Must("down", "a-fix")
	h.Must("down", "a")
	assert.Zero(t, h.Mounted(h.View("")), "the roots go down with their agent")
	h.Must("up", "a")
	assert.Equal(t, "theirs\n", h.Must("run", "a", "--", "cat", "../lib/b"))
}

// rootOf returns the id of the only root of an agent.
func rootOf(t *testing.T, h *harness.Host, of string) (id string) {
	t.Helper()
	for _, a := range h.PS() {
		if strings.HasPrefix(a.ID, of+"-") {
			id = a.ID
		}
	}
	require.NotEmpty(t, id)
	return id
}

// TestRootRefused: a root is apart from what scopefs keeps, from the directories of agents, from other roots and from a HOME.
func TestRootRefused(t *testing.T) {
	top := t.TempDir()
	tree(t, top, 0)
	require.NoError(t, os.MkdirAll(top+"/lib/deep", 0o755))
	require.NoError(t, os.MkdirAll(top+"/other/below", 0o755))
	require.NoError(t, os.MkdirAll(top+"/bound", 0o755))
	require.NoError(t, os.Mkdir(top+"/proj/sub", 0o755))
	h := harness.NewHost(t, map[string]string{"a": "dir: " + top + "/proj\nview: {paths: {a: hide}}", "b": "dir: " + top + "/other"})
	require.NoError(t, unix.Mount(top+"/proj", top+"/bound", "", unix.MS_BIND, ""))
	t.Cleanup(func() { _ = unix.Unmount(top+"/bound", unix.MNT_DETACH) })
	for dir, want := range map[string]string{
		"/": "whole system", top: "hold one another", top + "/proj": "hold one another", top + "/proj/sub": "hold one another",
		top + "/bound": "hold one another", top + "/other": "of agent b hold one another", top + "/other/below": "of agent b hold one another",
		h.Base: "definitions and logs", h.Base + "/state": "definitions and logs", h.Scope("a"): "definitions and logs", "/root": "home directory", "/etc": "part of the system",
		"/proc": "part of the system", "/usr/share": "own files", top + "/nothing": "no such directory", top + "/proj/a": "no such directory", "/tmp": "other programs",
	} {
		stdout, stderr, code := h.Try("run", "a", "--with", dir, "--", "cat", top+"/bound/a", dir+"/a")
		assert.Equal(t, 125, code, "%s: %s", dir, stderr)
		assert.Contains(t, stderr, want, dir)
		assert.Equal(t, 1, strings.Count(stderr, "\n"), "one line: %s", stderr)
		assert.Empty(t, stdout)
	}
	_, stderr, code := h.Try("run", "a", "--with", top+"/lib", "--with", top+"/lib/deep", "--", "true")
	assert.Equal(t, 125, code)
	assert.Contains(t, stderr, "hold one another")
	h.Must("run", "a", "--with", top+"/lib/deep", "--", "true")
	h.Must("run", "a", "--with", top+"/lib", "--", "true") // that run is over
	h.Must("run", "b", "--with", top+"/lib:ro", "--", "true")
}
