package sandbox

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/need"
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
	s := newTestSession(t, func(spec *Spec) {
		if spec.Expose = []string{dir, link, dir + "/file", "/opt"}; ordinary() { // cannot mount an overlay
			spec.Sockets = spec.Expose
		}
	})
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

// TestExposeNested: no mount has a destination in a directory that is shown, where a user of
// the host could put a link: bwrap before 0.12 would create the destination outside
// (CVE-2026-87766). The mount of the outer path shows the nested one.
func TestExposeNested(t *testing.T) {
	dir, _ := newView(t, 0)
	outside, _ := newView(t, 0)
	require.NoError(t, os.Chmod(dir, 0o777))
	require.NoError(t, os.Mkdir(dir+"/in", 0o755))
	require.NoError(t, os.WriteFile(dir+"/in/file", []byte("shown\n"), 0o644))
	spec := Spec{Expose: []string{dir + "/in/file", dir, dir + "/in", dir + "/link/new"}}
	if ordinary() { // cannot mount an overlay
		spec.Sockets = spec.Expose
	}
	require.NoError(t, os.Mkdir(outside+"/new", 0o755))
	require.NoError(t, os.Symlink(outside, dir+"/link")) // the hostile user's
	s := newTestSession(t, func(made *Spec) { made.Expose, made.Sockets = spec.Expose, spec.Sockets })
	assert.Equal(t, "shown\n", sh(t, s, "cat "+dir+"/in/file"))

	// One of them alone has sockets: it needs a mount of its own.
	for name, c := range map[string]struct {
		expose, sockets []string
		shown           []exposure
		err             string
	}{
		"beside":         {expose: []string{"/a-b", "/a", "/ab"}, shown: []exposure{{name: "/a", at: "/a"}, {name: "/a-b", at: "/a-b"}, {name: "/ab", at: "/ab"}}},
		"twice":          {expose: []string{"/a", "/a"}, shown: []exposure{{name: "/a", at: "/a"}}},
		"below":          {expose: []string{"/a/b/c", "/a-b", "/a", "/a/b"}, shown: []exposure{{name: "/a", at: "/a"}, {name: "/a-b", at: "/a-b"}}},
		"below, sockets": {expose: []string{"/a/b", "/a"}, sockets: []string{"/a", "/a/b"}, shown: []exposure{{name: "/a", at: "/a", sockets: true}}},
		"inner sockets": {expose: []string{"/a/b", "/a"}, sockets: []string{"/a/b"},
			shown: []exposure{{name: "/a", at: "/a"}, {name: "/a/b", at: "/a/b", sockets: true, outer: "/a"}}},
		"links of a sandbox": {expose: []string{"/var/run/a/b", "/run/a", "/var/tmp/a"}, sockets: []string{"/var/run/a/b"},
			shown: []exposure{{name: "/run/a", at: "/run/a"}, {name: "/var/run/a/b", at: "/run/a/b", sockets: true, outer: "/run/a"}, {name: "/var/tmp/a", at: "/tmp/a"}}},
		"two names":          {expose: []string{"/var/run/a", "/run/a"}, shown: []exposure{{name: "/run/a", at: "/run/a"}}},
		"two names, sockets": {expose: []string{"/var/run/a", "/run/a"}, sockets: []string{"/run/a"}, err: "one path in a sandbox: remove one"},
	} {
		shown, err := exposures(c.expose, c.sockets)
		if c.err != "" {
			assert.ErrorContains(t, err, c.err, name)
			continue
		}
		require.NoError(t, err, name)
		assert.Equal(t, c.shown, shown, name)
	}
}

// TestExposeInHostile: an exposed path inside another one has a mount of its own only where no other user can
// replace a part of its destination.
func TestExposeInHostile(t *testing.T) {
	needRoot(t, "directories have other owners")
	h := newHost(t)
	root, _ := newView(t, 0)
	for _, dir := range []string{"/closed/in", "/open/in", "/theirs/in", "/target"} {
		require.NoError(t, os.MkdirAll(root+dir, 0o755))
	}
	require.NoError(t, os.Chmod(root+"/open", 0o777))
	require.NoError(t, os.Chown(root+"/theirs", agentUID, agentUID))
	require.NoError(t, os.Symlink(root+"/target", root+"/closed/link"))
	for inner, want := range map[string]string{
		"/closed/in":      "",
		"/open/in":        "others than root may write to " + root + "/open",
		"/theirs/in":      "others than root may write to " + root + "/theirs",
		"/closed/link":    root + "/closed/link is a link",
		"/closed/link/..": "no clean absolute path",
	} {
		for _, sockets := range [][]string{{root + inner}, {root}} {
			spec := newSpec(t)
			spec.Expose, spec.Sockets = []string{root, root + inner}, sockets
			s, err := h.Start(context.Background(), spec)
			if want == "" {
				require.NoError(t, err, inner)
				assert.Equal(t, "in link\n", sh(t, s, "cd "+root+"/closed; echo *"))
				assert.NoError(t, s.Close())
				continue
			}
			assert.ErrorIs(t, err, ErrInvalid, inner)
			assert.ErrorContains(t, err, want, inner)
		}
	}
}

// TestExposeReplaced: a user of the host who replaces the outer directory after it was checked gets no mount and no
// file at a destination of his own.
func TestExposeReplaced(t *testing.T) {
	needRoot(t, "directories have other owners")
	h := newHost(t)
	root, _ := newView(t, 0)
	theirs := root + "/theirs" // the hostile user may rename what is in it
	outside := root + "/outside"
	for _, dir := range []string{theirs + "/outer/a/in", theirs + "/evil", outside} {
		require.NoError(t, os.MkdirAll(dir, 0o755))
	}
	require.NoError(t, os.WriteFile(theirs+"/outer/a/in/file", []byte("shown\n"), 0o644))
	require.NoError(t, os.Chmod(outside, 0o777))
	require.NoError(t, os.Symlink("/oldroot"+outside, theirs+"/evil/a"))
	for name, c := range map[string]struct{ inner, sockets string }{
		"overlay": {"/outer/a/in", "/outer/a/in"},
		"bind":    {"/outer/a/in/file", "/outer"},
	} {
		spec := newSpec(t)
		spec.Expose, spec.Sockets = []string{theirs + "/outer", theirs + c.inner}, []string{theirs + c.sockets}
		plan, err := newPlan(&spec, h.filter, &h.certificates)
		require.NoError(t, err, name)
		group, own, err := h.group(&spec)
		require.NoError(t, err, name)
		s := newSession(h, spec, group)
		s.ownGroup = own

		require.NoError(t, os.Rename(theirs+"/outer", theirs+"/gone"))
		require.NoError(t, os.Symlink("evil", theirs+"/outer"))
		args, info, err := h.spawn(s, plan)
		if err == nil { // by descriptor, it is still the directory that was checked
			go s.wait()
			require.NoError(t, h.hold(s))
			require.NoError(t, s.handshake(t.Context(), plan, args, info), name)
			assert.Equal(t, "shown\n", sh(t, s, "cat "+theirs+"/outer/a/in/file"), name)
			assert.NoError(t, s.Close())
		} else {
			assert.ErrorContains(t, err, "the host has replaced it meanwhile", name)
			assert.NoError(t, s.removeGroup())
		}
		assert.Equal(t, name == "bind", err == nil, name)
		plan.close()
		made, err := os.ReadDir(outside)
		require.NoError(t, err)
		assert.Empty(t, made, name)
		require.NoError(t, os.Remove(theirs+"/outer"))
		require.NoError(t, os.Rename(theirs+"/gone", theirs+"/outer"))
	}
}

// TestExposeAtLinks: /var/run and /var/tmp are links in a sandbox, and mostly on the host. bubblewrap 0.13 refuses a
// destination that is one, or that leads through one.
func TestExposeAtLinks(t *testing.T) {
	dir, err := os.MkdirTemp("/var/run", "scopefs-test-")
	if err != nil {
		need.Skip(t, "needs a directory in /var/run: ", err)
	}
	defer os.RemoveAll(dir)
	require.NoError(t, os.Chmod(dir, 0o755))
	require.NoError(t, os.WriteFile(dir+"/file", []byte("shown\n"), 0o644))
	s := newTestSession(t, func(spec *Spec) { spec.Expose, spec.Sockets = []string{dir}, []string{dir} })
	assert.Equal(t, "shown\nshown\n", sh(t, s, "cat "+dir+"/file /run/"+filepath.Base(dir)+"/file"))
	// A path below /usr is shown with it, at its place; a link of the host that leads out is not.
	at := "/usr/local/scopefs-test"
	if os.Symlink(dir, at) == nil {
		defer os.Remove(at)
		assert.ErrorContains(t, Exposable(at, false), "leads to \"/run/")
	}
	system := newTestSession(t, func(spec *Spec) { spec.Expose = []string{"/usr/share", "/usr/bin/env"} })
	assert.Equal(t, "works\n", sh(t, system, "/usr/bin/env echo works"))
	for _, name := range []string{"/var/run/scopefs", "/var/run/scopefs/x", "/var/tmp/home"} {
		assert.ErrorContains(t, Exposable(name, false), "the sandbox's own", name)
	}
}

// TestKnownFlaw: doctor says which versions of bubblewrap have CVE-2026-87766.
func TestKnownFlaw(t *testing.T) {
	for version, flawed := range map[string]bool{
		"bubblewrap 0.8.0": true, "bubblewrap 0.11.2": true, "bubblewrap 0.12.0": false, "bubblewrap 0.13": false, "bubblewrap 1.0.0": false, "bubblewrap": false,
	} {
		assert.Equal(t, flawed, knownFlaw(version) != "", version)
	}
}

// TestExposeSockets: neither a socket nor a FIFO of the host is reached below a directory
// that is shown, unless the operator says so. Everything else is as on the host.
func TestExposeSockets(t *testing.T) {
	needRoot(t, "an overlay is mounted")
	dir, _ := newView(t, 0)
	require.NoError(t, os.MkdirAll(dir+"/below/open", 0o755))
	for _, at := range []string{"/below/socket", "/below/open/socket"} {
		l, err := net.Listen("unix", dir+at)
		require.NoError(t, err)
		t.Cleanup(func() { l.Close() })
		require.NoError(t, os.Chmod(dir+at, 0o777))
	}
	require.NoError(t, unix.Mkfifo(dir+"/below/fifo", 0))
	require.NoError(t, os.Chmod(dir+"/below/fifo", 0o666))
	fifo, err := unix.Open(dir+"/below/fifo", unix.O_RDWR|unix.O_NONBLOCK, 0)
	require.NoError(t, err)
	t.Cleanup(func() { unix.Close(fifo) })
	require.NoError(t, unix.Mknod(dir+"/zero", unix.S_IFCHR|0o666, int(unix.Mkdev(1, 5))))
	require.NoError(t, os.Chmod(dir+"/zero", 0o666))
	require.NoError(t, os.WriteFile(dir+"/group", []byte("group\n"), 0o640))
	require.NoError(t, os.WriteFile(dir+"/closed", []byte("secret\n"), 0o600))
	require.NoError(t, os.Chown(dir+"/group", 0, agentUID))
	program, err := os.ReadFile("/bin/true")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(dir+"/true", program, 0o755))

	apart, _ := newView(t, 0)
	require.NoError(t, os.Mkdir(apart+"/mounted", 0o755))
	require.NoError(t, unix.Mount("tmpfs", apart+"/mounted", "tmpfs", unix.MS_NOEXEC, ""))
	t.Cleanup(func() { unix.Unmount(apart+"/mounted", unix.MNT_DETACH) })
	require.NoError(t, os.WriteFile(apart+"/mounted/true", program, 0o755))

	open := dir + "/below/open"
	defer unix.Umask(unix.Umask(0o077)) // the daemon's, whatever it is
	s := newTestSession(t, func(spec *Spec) {
		// A part that says so keeps its sockets, in whatever order the paths are.
		spec.Expose, spec.Sockets = []string{open, dir}, []string{open}
	})
	tryConnect := func(s *Session, at string) string {
		out, _ := run(t, s, FileWorker, "connect", at)
		return out
	}
	assert.Contains(t, tryConnect(s, dir+"/below/socket"), "connection refused")
	assert.Equal(t, "<nil>\n", tryConnect(s, open+"/socket"))
	const put = "timeout 5 dd oflag=nonblock conv=notrunc of=" // ENXIO: nobody reads
	assert.Contains(t, sh(t, s, "echo hello | "+put+dir+"/below/fifo"), "No such device or address")
	got := make([]byte, 6)
	_, err = unix.Read(fifo, got)
	assert.ErrorIs(t, err, unix.EAGAIN, "nothing has come")
	assert.Contains(t, sh(t, s, "head -c 1 "+dir+"/zero"), "Permission denied")
	assert.Contains(t, sh(t, s, "cat "+dir+"/closed"), "Permission denied")
	assert.Equal(t, "group\n", sh(t, s, "cat "+dir+"/group"))
	assert.Equal(t, "ran\n", sh(t, s, dir+"/true && echo ran"))
	assert.Contains(t, sh(t, s, "touch "+dir+"/new"), "Read-only file system")
	assert.Regexp(t, "(?m) "+dir+" ro,nosuid,nodev", sh(t, s, "cat /proc/self/mountinfo"))
	assert.Equal(t, "below closed group true zero\n", sh(t, s, "cd "+dir+"; echo *"))

	all := newTestSession(t, func(spec *Spec) { spec.Expose, spec.Sockets = []string{dir}, []string{dir} })
	assert.Equal(t, "<nil>\n", tryConnect(all, dir+"/below/socket"))
	sh(t, all, "echo hello | "+put+dir+"/below/fifo")
	_, err = unix.Read(fifo, got)
	assert.NoError(t, err)
	assert.Equal(t, "hello\n", string(got))

	// What cannot be shown without its sockets is not shown.
	h := newHost(t)
	refused := func(name, remedy string) {
		t.Helper()
		spec := newSpec(t)
		spec.Expose = []string{name}
		_, err := h.Start(context.Background(), spec)
		assert.ErrorIs(t, err, ErrInvalid)
		assert.ErrorContains(t, err, remedy)
		spec.Sockets = spec.Expose
		s, err := h.Start(context.Background(), spec)
		require.NoError(t, err)
		assert.NoError(t, s.Close())
	}
	refused(dir+"/below/socket", "is a socket")
	assert.ErrorContains(t, Exposable(dir+"/below/socket", false), "is a socket")
	assert.NoError(t, Exposable(dir+"/below/socket", true))
	refused(dir+"/below/fifo", "is a FIFO")
	refused(apart, apart+"/mounted is mounted below it")
	noexec := newTestSession(t, func(spec *Spec) { spec.Expose = []string{apart + "/mounted"} })
	assert.Contains(t, sh(t, noexec, apart+"/mounted/true"), "Permission denied", "as on the host")
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
		assert.Error(t, Exposable(name, false), name)
	}
	assert.NoError(t, Exposable(dir, false))
	assert.EqualError(t, Exposable("/nowhere", false), `"/nowhere" does not exist: correct it, or remove it`)
	spec.Expose = []string{"/nowhere"}
	_, err := h.Start(context.Background(), spec)
	assert.ErrorIs(t, err, os.ErrNotExist)
	spec.Expose = []string{"/root/.cache"}
	_, err = h.Start(context.Background(), spec)
	assert.ErrorContains(t, err, "ermission denied", "what the user cannot reach on the host it cannot here")
}

// TestPublic: of the host's /etc, bwrap copies the files that any user may read.
func TestPublic(t *testing.T) {
	dir := t.TempDir()
	for name, mode := range map[string]os.FileMode{"all": 0o644, "group": 0o640, "owner": 0o600} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), nil, mode))
	}
	require.NoError(t, os.Symlink("all", filepath.Join(dir, "link")))
	require.NoError(t, unix.Mkfifo(filepath.Join(dir, "fifo"), 0o644))
	for name, want := range map[string]bool{"all": true, "link": true, "group": false, "owner": false, "fifo": false, "absent": false, ".": false} {
		f := public(filepath.Join(dir, name))
		assert.Equal(t, want, f != nil, name)
		f.Close()
	}
}

// TestPublicDir: a file that not every user may read is covered, also for the user who owns it.
func TestPublicDir(t *testing.T) {
	dir := t.TempDir()
	secret := filepath.Join(dir, "management/jmxremote.password")
	require.NoError(t, os.Mkdir(filepath.Dir(secret), 0o755))
	for name, mode := range map[string]os.FileMode{"all": 0o644, "management/jmxremote.password": 0o600, "management/jmxremote.access": 0o644} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), nil, mode))
	}
	require.NoError(t, os.Symlink("management/jmxremote.password", filepath.Join(dir, "link")))
	var p plan
	p.publicDir(dir)
	assert.Equal(t, []string{"--ro-bind-try", dir, dir, "--ro-bind", "/dev/null", secret}, p.args)
}

// TestCheckWhole: the end of ctx kills no trial of bwrap.
func TestCheckWhole(t *testing.T) {
	dir, _ := newView(t, 0)
	require.NoError(t, os.Chmod(dir, 0o777)) // a trial has the user nobody
	began, done := filepath.Join(dir, "began"), filepath.Join(dir, "done")
	fake := filepath.Join(dir, "bwrap")
	require.NoError(t, os.WriteFile(fake, []byte("#!/bin/sh\ncase $1 in --help) exec bwrap --help;; --unshare-all) echo >"+began+"; sleep 0.3; echo >"+done+"; esac; exit 1"), 0o755))
	h, err := Open(Config{Bwrap: fake})
	require.NoError(t, err)
	defer h.Close()
	ctx, cancel := context.WithCancel(context.Background())
	spec := newSpec(t)
	go func() {
		assert.Eventually(t, func() bool { _, err := os.Stat(began); return err == nil }, 20*time.Second, time.Millisecond)
		cancel()
	}()
	_, err = h.Start(ctx, spec)
	assert.Error(t, err)
	assert.FileExists(t, done)
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

// TestCheck: Start tells what the host lacks, as Check does.
func TestCheck(t *testing.T) {
	dir, _ := newView(t, 0)
	spec := newSpec(t)
	fake := func(name, script string) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte("#!/bin/sh\n"+script), 0o755))
		return path
	}
	for name, c := range map[string]struct{ bwrap, want string }{
		"absent": {dir + "/absent", "bubblewrap is not installed: apt-get install bubblewrap"},
		"old": {fake("old", "bwrap --help | grep -v -e -bind-fd"),
			"bubblewrap lacks --bind-fd, --ro-bind-fd: install bubblewrap 0.11 or newer, or that of Debian 12 or Ubuntu 24.04 with security updates"},
		"not permitted": {fake("denied", `case $1 in --help) bwrap --help;; *) echo No permissions >&2; exit 1; esac`), "No permissions"},
	} {
		t.Run(name, func(t *testing.T) {
			h, err := Open(Config{Bwrap: c.bwrap})
			if err == nil {
				defer h.Close()
				_, err = h.Start(context.Background(), spec)
			}
			for _, err := range []error{err, Check(context.Background(), Config{Bwrap: c.bwrap})} {
				var missing *MissingError
				require.ErrorAs(t, err, &missing)
				assert.ErrorContains(t, err, c.want)
			}
		})
	}
}
