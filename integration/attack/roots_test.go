package attack

import (
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

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
