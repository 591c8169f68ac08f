package csi

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

func builder(uid string) pod {
	return pod{uid: uid, namespace: "team-a", account: "builder", attributes: map[string]string{"agent": "one"}}
}

// TestVolume: a pod gets the view that the rules give its service account, once however often kubelet asks, and the log
// has it.
func TestVolume(t *testing.T) {
	n := newNode(t, "")
	a, b := builder("a"), builder("b")
	b.account = "reader"
	for range 3 {
		require.NoError(t, n.publish(a))
	}
	require.NoError(t, n.publish(b))
	n.reads(a, "file", "of one")
	assert.Equal(t, 2, n.Mounted(n.pods()))
	require.NoError(t, os.WriteFile(filepath.Join(n.target(a), "new"), []byte("by a"), 0o644))
	n.reads(b, "new", "by a")
	assert.ErrorIs(t, os.WriteFile(filepath.Join(n.target(b), "new"), nil, 0o644), unix.EROFS, "the rule says access: read")
	n.recorded("one", "volume published", n.target(a))

	other := n.request(a)
	other.VolumeContext["csi.storage.k8s.io/pod.name"] = "another"
	fails(t, n.send(other), codes.InvalidArgument, "published otherwise")
	for range 3 {
		require.NoError(t, n.unpublish(a))
	}
	assert.NoDirExists(t, n.target(a))
	n.recorded("one", "volume unpublished", n.target(a))
	n.reads(b, "new", "by a")
	require.NoError(t, n.unpublish(b))
	assert.Zero(t, n.Mounted(n.pods()))
	assert.FileExists(t, n.View("one", "new"), "the operator's agent stays")
}

// TestVolumeRefused: what a pod's author writes gives nothing that the rules do not give, and kubelet's word is never the
// author's.
func TestVolumeRefused(t *testing.T) {
	n := newNode(t, "")
	p := builder("a")
	for name, c := range map[string]struct {
		change func(*pod, map[string]string)
		code   codes.Code
		words  string
	}{
		"another agent":        {func(p *pod, set map[string]string) { set["agent"] = "three" }, codes.PermissionDenied, "no rule"},
		"another namespace":    {func(p *pod, set map[string]string) { p.namespace = "team-z" }, codes.PermissionDenied, "no rule"},
		"another account":      {func(p *pod, set map[string]string) { p.account = "default" }, codes.PermissionDenied, "no rule"},
		"a path for an agent":  {func(p *pod, set map[string]string) { set["agent"] = "../two" }, codes.InvalidArgument, "invalid agent id"},
		"no agent":             {func(p *pod, set map[string]string) { set["agent"] = "" }, codes.InvalidArgument, "agent"},
		"no word of kubelet's": {func(p *pod, set map[string]string) { set["csi.storage.k8s.io/serviceAccount.name"] = "" }, codes.InvalidArgument, "podInfoOnMount"},
		"a persistent volume":  {func(p *pod, set map[string]string) { set["csi.storage.k8s.io/ephemeral"] = "false" }, codes.InvalidArgument, "ephemeral"},
		"another pod's target": {func(p *pod, set map[string]string) { set["csi.storage.k8s.io/pod.uid"] = "b" }, codes.InvalidArgument, "not of the pod"},
		"an unknown attribute": {func(p *pod, set map[string]string) { set["dir"] = "/etc" }, codes.InvalidArgument, "unknown attribute"},
		"a definition of the operator's agent": {func(p *pod, set map[string]string) { set["definition"] = "view: {access: read}" },
			codes.InvalidArgument, "make none"},
	} {
		p := p
		p.attributes = map[string]string{"agent": "one"}
		c.change(&p, p.attributes)
		fails(t, n.publish(p), c.code, c.words)
		assert.Zero(t, n.Mounted(n.pods()), name)
	}
	n.recorded("three", "volume refused", n.target(p))
	for _, at := range []string{"/etc", n.pods() + "/../x/volumes/kubernetes.io~csi/v/mount", n.pods() + "/a/volumes/other/v/mount", n.target(p) + "/x"} {
		r := n.request(p)
		r.TargetPath = at
		fails(t, n.send(r), codes.InvalidArgument, "target path")
	}
	info, err := os.Stat(n.socket())
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	n.Put("node/csi.yaml", "rules:\n  - {namespace: team-a, service_account: builder, agents: one, acces: read}\n")
	fails(t, n.publish(p), codes.Unavailable, `csi.yaml:2: unknown key "acces": did you mean access`)
}

// TestVolumeMade: a rule makes the agent's definition with the first pod, for a directory below the rule's, narrowed by the pod's
// author alone, and removes it with the last. It never replaces the operator's.
func TestVolumeMade(t *testing.T) {
	n := newNode(t, "")
	require.NoError(t, os.MkdirAll(filepath.Join(n.prefix, "b-1/sub"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(n.prefix, "b-1/secret.pem"), []byte("key"), 0o644))
	a := pod{uid: "a", namespace: "team-b", account: "x", attributes: map[string]string{"agent": "b-1", "definition": "view: {paths: {'*.pem': hide}}"}}
	b := a
	b.uid = "b"
	require.NoError(t, n.publish(a))
	require.NoError(t, n.publish(b))
	assert.DirExists(t, filepath.Join(n.target(a), "sub"))
	assert.NoFileExists(t, filepath.Join(n.target(a), "secret.pem"))
	assert.Equal(t, filepath.Join(n.Base, "run/views/b-1"), n.Agent("b-1").Mount)

	wide := a
	wide.uid, wide.attributes = "wide", map[string]string{"agent": "b-1", "definition": "dir: /etc"}
	fails(t, n.publish(wide), codes.InvalidArgument, "dir")
	wide.attributes = map[string]string{"agent": "b-1"}
	fails(t, n.publish(wide), codes.Unavailable, "defined otherwise")
	wide.attributes = map[string]string{"agent": "b-2"} // has no directory
	assert.Error(t, n.publish(wide))
	assert.NoFileExists(t, filepath.Join(n.Base, "agents.d/b-2.md"))
	wrong := a
	wrong.uid, wrong.namespace, wrong.attributes = "wrong", "team-c", map[string]string{"agent": "c-1", "definition": "view: {access: all}"}
	fails(t, n.publish(wrong), codes.Unavailable, "c-1.trusted.yaml:1")
	assert.NoFileExists(t, filepath.Join(n.Base, "agents.d/c-1.trusted.yaml"))
	closed := a // to root, and so to runc
	closed.uid, closed.namespace, closed.attributes = "closed", "team-d", map[string]string{"agent": "d-1"}
	fails(t, n.publish(closed), codes.Unavailable, "needs view: {allow_other: true}, or user: 0")
	n.Eventually("nothing is left of it", func() bool { return n.Agent("d-1").ID == "" })

	require.NoError(t, n.unpublish(a))
	assert.DirExists(t, filepath.Join(n.target(b), "sub"))
	require.NoError(t, n.unpublish(b))
	n.Eventually("the definition is removed", func() bool { return n.Agent("b-1").ID == "" })
	assert.Empty(t, n.left("b-1"))
	assert.FileExists(t, filepath.Join(n.prefix, "b-1/secret.pem"))

	n.Define("c-2", "user: '0'")
	mine := pod{uid: "mine", namespace: "team-c", account: "x", attributes: map[string]string{"agent": "c-2"}}
	fails(t, n.publish(mine), codes.Unavailable, "defined otherwise")
	assert.NotEmpty(t, n.left("c-2"))
}

// left returns the definitions of an agent.
func (n *node) left(agent string) (names []string) {
	entries, err := os.ReadDir(filepath.Join(n.Base, "agents.d"))
	require.NoError(n.T, err)
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), agent+".") {
			names = append(names, e.Name())
		}
	}
	return names
}

// contain starts a process that has the pod's volume as a container has: in a mount namespace of its own, bound with
// mountPropagation HostToContainer. It prints what it reads of a file, a line a second at most, or the error.
func (n *node) contain(p pod, name string) (read func() string) {
	n.T.Helper()
	at := n.T.TempDir()
	script := `mount --rbind --make-rslave "$1" "$2" && while read -r line; do cat "$2/$3" 2>&1; echo; done`
	cmd := exec.Command("unshare", "--mount", "--propagation", "slave", "sh", "-c", script, "sh", n.target(p), at, name)
	in, err := cmd.StdinPipe()
	require.NoError(n.T, err)
	out, err := cmd.StdoutPipe()
	require.NoError(n.T, err)
	require.NoError(n.T, cmd.Start())
	n.T.Cleanup(func() { in.Close(); _ = cmd.Wait() })
	return func() string {
		_, err := in.Write([]byte("\n"))
		require.NoError(n.T, err)
		var line []byte
		for b := make([]byte, 1); ; line = append(line, b[0]) {
			if _, err := out.Read(b); err != nil || b[0] == '\n' {
				return string(bytes.TrimSpace(line))
			}
		}
	}
}

// TestVolumeRestarts: a restart of the plugin, and of a daemon with grace, breaks no pod; a view that is mounted anew is
// bound again, also for a container that runs.
func TestVolumeRestarts(t *testing.T) {
	n := newNode(t, "grace: 60s\n")
	p := builder("a")
	require.NoError(t, n.publish(p))
	open, err := os.Open(filepath.Join(n.target(p), "file"))
	require.NoError(t, err)
	defer open.Close()
	working := func() {
		t.Helper()
		text := make([]byte, 6)
		_, err := open.ReadAt(text, 0)
		require.NoError(t, err)
		n.reads(p, "file", "of one")
	}
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		n.unplug(sig)
		working()
		n.plug()
		require.NoError(t, n.publish(p), "kubelet repeats its request")
		working()
	}
	view := n.ViewPID("one")
	n.Terminate()
	working()
	n.Start()
	working()
	assert.Equal(t, view, n.ViewPID("one"))
	read := n.contain(p, "file")
	assert.Equal(t, "of one", read())
	for range 3 { // only the lowest mount and the newest stay
		require.NoError(t, syscall.Kill(n.ViewPID("one"), syscall.SIGKILL))
		n.Eventually("the pod has the new view", func() bool {
			text, err := os.ReadFile(filepath.Join(n.target(p), "file"))
			return err == nil && string(text) == "of one" && n.Mounted(n.pods()) <= 2
		})
		n.Eventually("the container has the new view", func() bool { return read() == "of one" })
	}
	n.recorded("one", "volume bound again", n.target(p))
	require.NoError(t, n.unpublish(p))
	assert.Zero(t, n.Mounted(n.pods()))
}

// TestVolumeUnpublishStuck: unpublishing waits neither for a view that does not answer nor for a daemon, and what it did is
// recorded by the next one. What a crash leaves of pods that are gone is removed.
func TestVolumeUnpublishStuck(t *testing.T) {
	n := newNode(t, "grace: 60s\n")
	a, b, c := builder("a"), builder("b"), builder("c")
	for _, p := range []pod{a, b, c} {
		require.NoError(t, n.publish(p))
	}
	view := n.ViewPID("one")
	n.Kill()
	require.NoError(t, syscall.Kill(view, syscall.SIGSTOP))
	defer func() { _ = syscall.Kill(view, syscall.SIGCONT) }()
	begun := time.Now()
	require.NoError(t, n.unpublish(a))
	assert.NoDirExists(t, n.target(a))
	t.Logf("unpublished after %v", time.Since(begun))

	n.unplug(syscall.SIGKILL) // and then kubelet removes what it can: the mount stays
	require.NoError(t, unix.Unmount(n.target(b), unix.MNT_DETACH))
	require.NoError(t, os.RemoveAll(filepath.Join(n.pods(), "b")))
	require.NoError(t, syscall.Kill(view, syscall.SIGCONT))
	n.Start()
	n.plug()
	n.recorded("one", "volume unpublished", n.target(a))
	n.recorded("one", "volume unpublished", n.target(b))
	require.NoError(t, n.publish(c))
	n.Eventually("the pod that is left has its view", func() bool {
		text, err := os.ReadFile(filepath.Join(n.target(c), "file"))
		return err == nil && string(text) == "of one"
	})
	require.NoError(t, n.unpublish(c))
	assert.Zero(t, n.Mounted(n.pods()))
}

// TestRegistration: kubelet finds the plugin by a socket in its directory, which only root may use, also after a crash of the
// plugin, and no longer after its end.
func TestRegistration(t *testing.T) {
	n := newNode(t, "")
	at := filepath.Join(n.dir, "registry/csi.scopefs-reg.sock")
	n.unplug(syscall.SIGKILL)
	require.FileExists(t, at)
	n.plug()
	info, err := os.Stat(at)
	require.NoError(t, err)
	assert.Equal(t, os.ModeSocket|0o600, info.Mode())
	conn, err := grpc.NewClient("unix:"+at, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	defer conn.Close()
	client := registration.NewRegistrationClient(conn)
	plugin, err := client.GetInfo(t.Context(), &registration.InfoRequest{})
	require.NoError(t, err)
	assert.Equal(t, []string{registration.CSIPlugin, "csi.scopefs", n.socket(), "1.0.0"}, append([]string{plugin.Type, plugin.Name, plugin.Endpoint}, plugin.SupportedVersions...))
	_, err = client.NotifyRegistrationStatus(t.Context(), &registration.RegistrationStatus{Error: "too old"})
	require.NoError(t, err)
	n.unplug(syscall.SIGTERM)
	assert.Contains(t, n.log.String(), "too old")
	assert.NoFileExists(t, at)
}
