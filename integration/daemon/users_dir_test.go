package daemon

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/integration/harness"
)

// TestUsersDir: alice owns the directory above her agent's dir, so she may replace the dir by
// another user's directory. The agent does not run as that user.
func TestUsersDir(t *testing.T) {
	top, err := os.MkdirTemp("", harness.TempPrefix)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, os.RemoveAll(top)) })
	dir, theirs := filepath.Join(top, "project"), filepath.Join(top, "data")
	for name, uid := range map[string]int{top: alice, dir: alice, theirs: bob} {
		require.NoError(t, os.MkdirAll(name, 0o755))
		require.NoError(t, os.Chown(name, uid, uid))
	}
	require.NoError(t, os.Chmod(theirs, 0o700))
	secret := filepath.Join(theirs, "secret")
	require.NoError(t, os.WriteFile(secret, []byte("bob's"), 0o600))
	require.NoError(t, os.Chown(secret, bob, bob))
	h := harness.LayOut(t, nil)
	h.Define("a", "dir: "+dir)
	h.Start()
	reads := func() string {
		o := by(h, alice, "call", "read_file", "path=secret", "--agent", "a")
		return o.Stdout + o.Stderr
	}
	assert.Contains(t, reads(), "not_found")
	require.NoError(t, os.Rename(dir, dir+".old"))
	require.NoError(t, os.Rename(theirs, dir))
	h.Eventually("the daemon has seen it", func() bool { return h.Agent("a").State == "failed" })
	assert.Contains(t, h.Agent("a").Error, `belongs to user 4321, and others than that user can replace it in "`+top+`": set user`)
	assert.NotContains(t, reads(), "bob's")
	assert.NotContains(t, by(h, alice, "run", "a", "--", "cat", "secret").Stdout, "bob's")

	require.NoError(t, os.Rename(dir, theirs))
	require.NoError(t, os.Rename(dir+".old", dir))
	h.Eventually("alice's is back", func() bool { return h.Agent("a").State == "mounted" })
	assert.Contains(t, reads(), "not_found")

	// With a user of its own the agent reaches what that user does.
	h.Define("a", "dir: "+dir+"\nuser: 1234")
	h.Must("reload")
	h.Must("down", "a")
	require.NoError(t, os.Rename(dir, dir+".old"))
	require.NoError(t, os.Rename(theirs, dir))
	h.Try("up", "a")
	assert.Contains(t, h.Agent("a").Error, "agent's user 1234: permission denied")
}

// TestUsersChown: the operator gives a directory to another user. Alice, whose sockets are
// open, ends the view's process, which is hers. The next one is not the other's.
func TestUsersChown(t *testing.T) {
	h := usersHost(t)
	require.NoError(t, os.WriteFile(h.Scope("a", "secret"), []byte("bob's"), 0o600))
	require.NoError(t, os.Chown(h.Scope("a", "secret"), bob, bob))
	require.NoError(t, os.Chown(h.Scope("a"), bob, bob))
	kill := exec.Command("/bin/kill", "-9", strconv.Itoa(h.Agent("a").ViewPID))
	as(kill, alice)
	require.NoError(t, kill.Run())
	h.Eventually("no other view starts", func() bool { return h.Agent("a").State == "failed" })
	assert.Contains(t, h.Agent("a").Error, "belongs to user 4321 now, and was mounted for user 1234: scopefs down, then up")
	reads := func(uid uint32) string { return by(h, uid, "call", "read_file", "path=secret", "--agent", "a").Stdout }
	assert.NotContains(t, reads(alice), "bob's")
	h.Must("down", "a")
	h.Must("up", "a")
	assert.Contains(t, reads(bob), "bob's")
	assert.NotContains(t, reads(alice), "bob's")
}
