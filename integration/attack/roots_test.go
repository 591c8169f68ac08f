package attack

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/integration/harness"
)

// TestAttackRoots: through a root an agent gets what the rules of that root's view give it, and nothing of other directories.
func TestAttackRoots(t *testing.T) {
	top := t.TempDir()
	require.NoError(t, os.Chmod(top, 0o755))
	harness.Plant(t, top, "proj/", "proj/own=mine", "lib/", "lib/open=theirs", "lib/secret=KEY", "other/", "other/f=foreign",
		"proj/there => ../lib/open", "proj/abs => "+top+"/lib/open", "proj/hidden => ../lib/secret", "proj/out => ../other/f")
	require.NoError(t, exec.Command("git", "init", "-q", top+"/lib").Run())
	require.NoError(t, exec.Command("chown", "-R", "4321:4321", top).Run())
	h := harness.NewHost(t, map[string]string{"a": "dir: " + top + "/proj\nuser: 4321\nprotect: ['*']\n" +
		"view: {paths: {'**/hide-me': hide}, roots: [{dir: " + top + "/lib, paths: {secret: hide}}]}"})
	in := func(script string) string { return h.Must("run", "a", "--", "sh", "-c", "{ "+script+"; } 2>&1; true") }

	assert.Equal(t, "theirstheirs", in("cat there abs"), "links of the host are followed")
	assert.Contains(t, in("cat hidden"), "No such file", "by the rules of the root")
	assert.Contains(t, in("cat out"), "Permission denied")
	for _, link := range []string{"ln -s ../lib/secret l", "ln -s " + top + "/lib/open l", "ln -s ../proj/own l", "ln -s ../other l", "ln there ../lib/l",
		"ln own ../lib/l", "ln ../lib/open l"} {
		assert.NotEmpty(t, in("mkdir -p d; "+link), link)
	}
	for _, change := range []string{"echo x >../lib/.git/hooks/post-commit", "git -C ../lib config core.fsmonitor ./x",
		"touch ../lib/hide-me", "mv ../lib ../moved", "rmdir ../lib", "touch " + top + "/../x/y", "mkdir /home/new", "ls ../other", "mount -t tmpfs x ../lib"} {
		assert.NotEmpty(t, in(change), change)
	}
	assert.Equal(t, "lib\nproj\n", in("ls .."), "the directory above shows what leads to roots")
	assert.Empty(t, in("ls -A ../../*/*/ | grep -v -e '^$' -e '^lib$' -e '^proj$' -e '^00' -e :$ | grep -x other"))
	assert.NoFileExists(t, top+"/lib/hide-me")
	_ = in("echo '[core] fsmonitor = ./x' >>../lib/.git/config")
	config, err := os.ReadFile(top + "/lib/.git/config")
	require.NoError(t, err)
	assert.NotContains(t, string(config), "fsmonitor")
	root := ""
	for _, a := range h.PS() {
		if a.ID != "a" {
			root = a.ID
		}
	}
	assert.True(t, h.Recorded(root, audit.Event{Op: "create", Path: "hide-me", Verdict: audit.Deny}))

	_, stderr, code := h.Try("run", root, "--", "true")
	assert.NotZero(t, code)
	assert.Contains(t, stderr, "a root has no sandbox of its own")
	_, stderr, code = h.Try("call", "--agent", root, "scope_info")
	assert.NotZero(t, code, "nor tools: %s", stderr)
	o := harness.Finish(t, harness.AsUser(t, 4321, harness.Program, "--base", h.Base, "run", "a", "--with", h.Base, "--", "ls", h.Base))
	assert.Equal(t, 125, o.Code)
	assert.Contains(t, o.Stderr, "only the operator gives an agent further directories")
	assert.Empty(t, o.Stdout)
}

// TestAttackRootRepository: a root that is a repository itself, whatever its name, has the rules of a .git.
func TestAttackRootRepository(t *testing.T) {
	top := t.TempDir()
	harness.Plant(t, top, "proj/")
	require.NoError(t, exec.Command("git", "init", "-q", "--bare", top+"/plain").Run())
	require.NoError(t, exec.Command("git", "init", "-q", "--bare", top+"/own").Run())
	h := harness.NewHost(t, map[string]string{"a": "dir: " + top + "/proj\nprotect: ['*']", "b": "dir: " + top + "/own\nprotect: ['*']"})
	h.Must("run", "a", "--with", top+"/plain", "--", "sh", "-ec", "cd ../plain; git config core.bare true; test $(git rev-parse --is-bare-repository) = true; touch x")
	for _, script := range []string{"echo x >hooks/post-update", "git config core.fsmonitor x", "mkdir hooks/x", "ln -s /bin/sh hooks/pre-receive", "mv hooks h"} {
		_, _, code := h.Try("run", "a", "--with", top+"/plain", "--", "sh", "-c", "cd ../plain; "+script)
		assert.NotZero(t, code, script)
	}
	h.Must("down", "a")
	for _, script := range []string{"echo x >hooks/post-update", "git config core.fsmonitor x"} {
		_, _, code := h.Try("run", "b", "--", "sh", "-c", script)
		assert.NotZero(t, code, "the agent's own directory: %s", script)
	}
}

// TestAttackRootUser: the directory of another user is no root of an agent that runs as its owner.
func TestAttackRootUser(t *testing.T) {
	top := t.TempDir()
	require.NoError(t, os.Chmod(top, 0o755))
	harness.Plant(t, top, "proj/", "lib/", "lib/f=root's")
	require.NoError(t, os.Chown(top+"/proj", 4321, 4321))
	h := harness.NewHost(t, map[string]string{"a": "dir: " + top + "/proj"})
	_, stderr, code := h.Try("run", "a", "--with", top+"/lib", "--", "cat", "../lib/f")
	assert.Equal(t, 125, code)
	assert.Contains(t, stderr, "belongs to user 0")
}

// TestAttackRootsApart: two roots of a definition that are one another's parent, and a root that holds or is what the agent's own rules
// hide, give no sandbox: whether by their names, through a link, or through a mount.
func TestAttackRootsApart(t *testing.T) {
	top := t.TempDir()
	harness.Plant(t, top, "proj/hidden/key=KEY", "lib/deep/f=deep", "lib/f=lib", "link => lib/deep", "own => proj/hidden", "bound/")
	require.NoError(t, unix.Mount(top+"/lib/deep", top+"/bound", "", unix.MS_BIND, ""))
	t.Cleanup(func() { _ = unix.Unmount(top+"/bound", unix.MNT_DETACH) })
	front := func(roots string) string {
		return "dir: " + top + "/proj\nview: {paths: {'hidden/**': hide, 'deep/**': hide}, roots: [" + roots + "]}"
	}
	h := harness.NewHost(t, map[string]string{"a": front("")})
	for name, roots := range map[string]string{
		"parent":       "{dir: " + top + "/lib}, {dir: " + top + "/lib/deep}",
		"child first":  "{dir: " + top + "/lib/deep}, {dir: " + top + "/lib}",
		"through bind": "{dir: " + top + "/lib}, {dir: " + top + "/bound}",
		"through link": "{dir: " + top + "/lib}, {dir: " + top + "/link}",
		"own":          "{dir: " + top + "/proj/hidden}",
		"own by link":  "{dir: " + top + "/own}",
		"above own":    "{dir: " + top + "}",
	} {
		h.Define("a", front(roots))
		out, stderr, code := h.Try("run", "a", "--", "sh", "-c", "cat hidden/key ../lib/f ../lib/deep/f ../bound/f ../own/key ../link/f")
		assert.NotZero(t, code, name)
		assert.NotContains(t, out, "KEY", name)
		assert.NotContains(t, out, "deep", name)
		assert.NotEmpty(t, stderr, name)
	}
}

// TestAttackRootsChanges: the tools that list and take back what a session changed show nothing of a root that its rules hide now, of another
// session, or of a root with ask, whose approval is for the programs that it was asked for.
func TestAttackRootsChanges(t *testing.T) {
	top := t.TempDir()
	harness.Plant(t, top, "proj/", "lib/b=theirs", "asks/")
	front := func(paths string) string {
		return "dir: " + top + "/proj\nview: {changes: kept, roots: [{dir: " + top + "/lib, paths: {" + paths + "}}, {dir: " + top + "/asks, access: ask}]}"
	}
	h := harness.NewHost(t, map[string]string{"a": front("")})
	other, u := h.Connect("a"), h.Connect("a")
	other.Bash("echo others >../lib/others")
	u.Bash("echo SECRET >../lib/later; echo x >../lib/b")
	list := u.Text("changes", map[string]any{"diff": true})
	assert.Contains(t, list, "SECRET")
	assert.NotContains(t, list, "others")
	h.Define("a", front("later: hide"))
	h.Must("reload")
	list = u.Text("changes", map[string]any{"diff": true})
	assert.NotContains(t, list, "later")
	assert.NotContains(t, list, "SECRET")
	assert.Contains(t, list, top+"/lib/b")

	done := make(chan string, 1)
	go func() { done <- u.Bash("echo OPENED >../asks/f && echo made") }()
	id := ""
	h.Eventually("it asks", func() bool {
		for line := range strings.Lines(h.Must("approvals")) {
			if strings.Contains(line, "files:open") {
				id = strings.Fields(line)[0]
			}
		}
		return id != ""
	})
	h.Must("approvals", "approve", id)
	assert.Contains(t, <-done, "made")
	h.Must("approvals", "revoke", id)
	list = u.Text("changes", map[string]any{"diff": true})
	assert.NotContains(t, list, "OPENED")
	assert.NotContains(t, list, "asks")
	u.Fails("changes", map[string]any{"paths": []string{top + "/other"}})
	made, err := os.ReadFile(top + "/asks/f")
	require.NoError(t, err)
	assert.Equal(t, "OPENED\n", string(made))
}
