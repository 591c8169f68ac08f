package sandbox

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestExpose(t *testing.T) {
	dir, _ := newView(t, 0)
	require.NoError(t, os.WriteFile(dir+"/file", []byte("shown\n"), 0o644))
	require.NoError(t, os.Chmod(dir+"/file", 0o666))
	require.NoError(t, os.Chmod(dir, 0o777))
	require.NoError(t, os.WriteFile(dir+"/secret", []byte("secret\n"), 0o600))
	link := dir + "-link"
	require.NoError(t, os.Symlink(dir, link))
	defer os.Remove(link)
	s := newTestSession(t, func(spec *Spec) { spec.Expose = []string{dir, link, dir + "/file", "/opt"} })
	assert.Equal(t, "shown\n", sh(t, s, "cat "+dir+"/file"))
	assert.Equal(t, "shown\n", sh(t, s, "cat "+link+"/file"))
	if ordinary() { // it is the agent's own
		require.NoError(t, os.Chmod(dir+"/secret", 0))
	}
	assert.Contains(t, sh(t, s, "cat "+dir+"/secret"), "Permission denied", "no right is added")
	assert.Contains(t, sh(t, s, "echo x >"+dir+"/new"), "Read-only file system")
	assert.Contains(t, sh(t, s, "echo x >>"+dir+"/file"), "Read-only file system")
	assert.NotContains(t, sh(t, s, "ls -d /tmp/*"), "go-build")
}

func TestExposeRefused(t *testing.T) {
	spec := newSpec(t)
	dir := spec.View.Name()
	for name, to := range map[string]string{"etc": "/etc", "root": "/", "proc": "/proc/sys"} {
		require.NoError(t, os.Symlink(to, filepath.Join(dir, name)))
	}
	h := newHost(t)
	for _, name := range []string{
		"/", "/etc", "/etc/shadow", "/proc", "/proc/sys", "/dev/kvm", "/sys", "/run", "/run/scopefs", "/run/scopefs/sock",
		"/tmp", "/tmp/home", "/usr", "/usr/../etc", "relative", "", "/opt/", "/workspace", "/workspace/x", "/bin",
		dir + "/etc", dir + "/etc/shadow", dir + "/root", dir + "/proc",
	} {
		spec.Expose = []string{name}
		_, err := h.Start(context.Background(), spec)
		assert.ErrorIs(t, err, ErrInvalid, name)
		assert.Error(t, Exposable(name), name)
	}
	assert.NoError(t, Exposable(dir))
	assert.EqualError(t, Exposable("/nowhere"), `"/nowhere" does not exist: correct it, or remove it`)
	spec.Expose = []string{"/nowhere"}
	_, err := h.Start(context.Background(), spec)
	assert.ErrorIs(t, err, os.ErrNotExist)
	spec.Expose = []string{"/root/.cache"}
	_, err = h.Start(context.Background(), spec)
	assert.ErrorContains(t, err, "ermission denied", "what the user cannot reach on the host it cannot here")
}

func TestRunnable(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(dir+"/prog", []byte("#!/bin/sh\n"), 0o755))
	require.NoError(t, os.WriteFile(dir+"/text", nil, 0o644))
	path := map[string]string{"PATH": dir + ":/usr/bin"}
	for _, name := range []string{"sh", "/bin/sh", "./x", "/workspace/x"} {
		assert.NoError(t, Runnable(name, nil, nil), name)
	}
	assert.NoError(t, Runnable("prog", []string{dir}, path))
	assert.NoError(t, Runnable(dir+"/prog", []string{dir + "/prog"}, nil))
	assert.ErrorContains(t, Runnable("prog", nil, path), `"prog" is no program that a sandbox shows (PATH is `+dir+`:/usr/bin): install`)
	for _, name := range []string{"prog", dir + "/text", dir, "no-such-program", "/no/such"} {
		assert.Error(t, Runnable(name, []string{dir}, nil), name)
	}
}

func TestSpecRefused(t *testing.T) {
	view := newSpec(t).View
	h := newHost(t)
	for name, spec := range map[string]Spec{
		"no agent":       {View: view},
		"agent":          {Agent: "../x", View: view},
		"bind":           {Agent: "tester", Binds: []Bind{{At: "/etc/passwd"}}},
		"negative limit": {Agent: "tester", View: view, Limits: Limits{Memory: -1}},
		"environment":    {Agent: "tester", View: view, Env: map[string]string{"": "x"}},
	} {
		_, err := h.Start(context.Background(), spec)
		assert.ErrorIs(t, err, ErrInvalid, name)
	}
}

func TestNetwork(t *testing.T) {
	ours, err := os.Readlink("/proc/self/ns/net")
	require.NoError(t, err)
	none := newTestSession(t)
	assert.NotEqual(t, ours+"\n", sh(t, none, "readlink /proc/self/ns/net"))
	assert.Contains(t, sh(t, none, "cat /etc/resolv.conf"), "No such file")
	all := newTestSession(t, func(spec *Spec) { spec.Network = true })
	assert.Equal(t, ours+"\n", sh(t, all, "readlink /proc/self/ns/net"))
	assert.NotContains(t, sh(t, all, "cat /etc/resolv.conf"), "No such file")
	status := sh(t, all, "cat /proc/self/status")
	assert.Contains(t, status, "CapEff:\t0000000000000000")
}

func TestCheck(t *testing.T) {
	dir, _ := newView(t, 0)
	fake := func(name, script string) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte("#!/bin/sh\n"+script), 0o755))
		return path
	}
	for name, c := range map[string]struct{ bwrap, want string }{
		"absent": {dir + "/absent", "bubblewrap is not installed: apt-get install bubblewrap"},
		"old": {fake("old", "bwrap --help | grep -v -e -bind-fd"),
			"bubblewrap lacks --bind-fd, --ro-bind-fd: install bubblewrap 0.8.0 (Debian 12) or newer"},
		"not permitted": {fake("denied", `case $1 in --help) bwrap --help;; *) echo No permissions >&2; exit 1; esac`), "No permissions"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Open(context.Background(), Config{Bwrap: c.bwrap})
			var missing *MissingError
			require.ErrorAs(t, err, &missing)
			assert.ErrorContains(t, err, c.want)
		})
	}
}
