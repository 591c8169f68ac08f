package sandbox

import (
	"context"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/internal/need"
)

// newHome makes a directory of the agent's user in one that is closed to the user.
func newHome(t *testing.T) (dir string, f *os.File) {
	t.Helper()
	dir = t.TempDir()
	require.NoError(t, os.Chmod(dir, 0o700))
	dir += "/home"
	require.NoError(t, os.Mkdir(dir, 0o700))
	require.NoError(t, os.Chown(dir, agentUID, agentUID))
	return dir, pathFile(t, dir)
}

// TestHome: a directory of the host is HOME, for all sessions that have it, although the
// agent's user cannot reach it there.
func TestHome(t *testing.T) {
	needRoot(t, "the directory is mounted")
	dir, home := newHome(t)
	h := newHost(t)
	start := func(change ...func(*Spec)) *Session {
		spec := newSpec(t)
		spec.Home = home
		for _, c := range change {
			c(&spec)
		}
		s, err := h.Start(context.Background(), spec)
		require.NoError(t, err)
		return s
	}
	one, two := start(), start()
	assert.Equal(t, "/home/agent /home/agent\n", sh(t, one, "cd && echo kept >f && ln -s /etc/shadow link && echo $HOME ~agent"))
	assert.Equal(t, "kept\n", sh(t, two, "cat ~/f"))
	assert.Contains(t, sh(t, two, "cat ~/link"), "No such file", "a link leads where the sandbox says")
	assert.Contains(t, sh(t, two, "rm -rf /tmp/* ~/none; rmdir ~"), "Read-only file system")
	assert.Regexp(t, "(?m) /home/agent rw,nosuid,nodev", sh(t, two, "cat /proc/self/mountinfo"))

	require.NoError(t, one.Close())
	assert.Equal(t, "f link\n", sh(t, two, "cd; echo *"))
	assert.FileExists(t, dir+"/f")

	none := start(func(s *Spec) { s.Home = nil })
	assert.Equal(t, "/tmp/home\n", sh(t, none, "echo $HOME; ls ~; ls /home 2>/dev/null"))
	other := start(func(s *Spec) { s.Env = map[string]string{"HOME": TempHome} })
	assert.Equal(t, "f\nlink\n", sh(t, other, "ls ~; ls "+Home))
}

// TestGitUser: git knows the user, where no configuration of the agent's names another.
func TestGitUser(t *testing.T) {
	need.Program(t, "git")
	user := GitUser{Name: "Ada \"\\ # ;\n[core]\n\tfsmonitor = x", Email: "ada@example.org"}
	s := newTestSession(t, func(spec *Spec) { spec.Git = user })
	assert.Equal(t, user.Name+"\nada@example.org\n", sh(t, s, "git config user.name; git config user.email; git config core.fsmonitor"))
	assert.Contains(t, sh(t, s, "cd && git init -q r && cd r && git commit -q --allow-empty -m x && git log --format=%ae"), "ada@example.org")
	assert.Equal(t, "bob\n", sh(t, s, "git config --global user.name bob; git config user.name"))
	assert.Contains(t, sh(t, s, "git config --system user.name eve; echo x >/etc/gitconfig"), "Read-only file system")
	assert.Contains(t, sh(t, newTestSession(t), "cat /etc/gitconfig"), "No such file")
}
