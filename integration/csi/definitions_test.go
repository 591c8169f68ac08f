package csi

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
)

const definitionRules = `
rules:
  - {namespace: team-a, service_account: "*", agents: ["a-*"], prefix: PREFIX, definition: {user: "0", view: {allow_other: true}}, definitions: ["team-a/*"]}
  - {namespace: team-b, service_account: "*", agents: ["b-*"], prefix: PREFIX, definition: {user: "0", view: {allow_other: true}}}
  - {namespace: team-c, service_account: "*", agents: [one], definitions: ["*/*"]}
  - {namespace: team-d, service_account: "*", agents: ["d-*"], prefix: PREFIX, definitions: ["*/*"]}
`

// newDefinitions is a node whose plugin has definitions of teams.
func newDefinitions(t *testing.T) *node {
	n := newNode(t, "")
	n.unplug(syscall.SIGTERM)
	n.definitions = filepath.Join(n.dir, "definitions")
	rules := strings.Replace(definitionRules, `  - {namespace: team-c, service_account: "*", agents: [one], definitions: ["*/*"]}`+"\n", "", 1)
	n.Put("node/csi.yaml", strings.ReplaceAll(rules, "PREFIX", n.prefix))
	for _, id := range []string{"a-1", "a-2", "b-1", "d-1"} {
		n.team(id, map[string]string{"secret.pem": "key", "notes": "text"})
	}
	n.configMap("team-a", map[string]string{"reviewer.yaml": "view: {access: read}\n"})
	n.configMap("team-b", map[string]string{"builder.yaml": "view: {paths: {'*.pem': hide}}\n"})
	n.plug()
	return n
}

// team makes an agent's directory.
func (n *node) team(id string, files map[string]string) {
	n.T.Helper()
	dir := filepath.Join(n.prefix, id)
	require.NoError(n.T, os.MkdirAll(dir, 0o755))
	for name, text := range files {
		require.NoError(n.T, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
}

// configMap puts a version of a ConfigMap where the plugin reads it, as kubelet does: pkg/volume/util/atomic_writer.go there.
func (n *node) configMap(name string, files map[string]string) {
	n.T.Helper()
	dir := filepath.Join(n.definitions, name)
	require.NoError(n.T, os.MkdirAll(dir, 0o755))
	last, _ := os.Readlink(filepath.Join(dir, "..data"))
	n.version++
	next := fmt.Sprintf("..2026_11_27_%d", n.version)
	require.NoError(n.T, os.Mkdir(filepath.Join(dir, next), 0o755))
	for file, text := range files {
		require.NoError(n.T, os.WriteFile(filepath.Join(dir, next, file), []byte(text), 0o644))
	}
	require.NoError(n.T, os.Symlink(next, filepath.Join(dir, "..data_tmp")))
	require.NoError(n.T, os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")))
	for file := range files {
		if err := os.Symlink("..data/"+file, filepath.Join(dir, file)); !os.IsExist(err) {
			require.NoError(n.T, err)
		}
	}
	entries, err := os.ReadDir(dir)
	require.NoError(n.T, err)
	for _, e := range entries {
		if _, there := files[e.Name()]; !there && !strings.HasPrefix(e.Name(), "..") {
			require.NoError(n.T, os.Remove(filepath.Join(dir, e.Name())))
		}
	}
	if last != "" {
		require.NoError(n.T, os.RemoveAll(filepath.Join(dir, last)))
	}
}

func named(uid, team, agent, from string) pod {
	return pod{uid: uid, namespace: team, account: "x", attributes: map[string]string{"agent": agent, "definitionFrom": from}}
}

// TestDefinitions: a pod gets the view that the rule's definition and the one that it names both allow, and that becomes another one
// with the ConfigMap. A text that does not load, or a ConfigMap that is gone, leaves the last one in force.
func TestDefinitions(t *testing.T) {
	n := newDefinitions(t)
	p := named("p", "team-a", "a-1", "team-a/reviewer")
	require.NoError(t, n.publish(p))
	file := filepath.Join(n.target(p), "notes")
	n.reads(p, "notes", "text")
	assert.ErrorIs(t, os.WriteFile(file, nil, 0o644), unix.EACCES, "view: {access: read}")
	require.NoError(t, n.publish(p), "kubelet repeats its request")

	hidden := func() bool { return !n.exists(p, "secret.pem") }
	n.configMap("team-a", map[string]string{"reviewer.yaml": "view: {paths: {'*.pem': hide}}\n"})
	n.Eventually("the next text holds", hidden)
	require.NoError(t, os.WriteFile(file, []byte("by p"), 0o644))
	n.recorded("a-1", "volume narrowed", n.target(p))
	require.NoError(t, n.publish(p), "kubelet repeats its request, and the text is another one")

	q := named("q", "team-a", "a-1", "team-a/reviewer")
	require.NoError(t, n.publish(q), "another pod, by the text of now")
	n.reads(q, "notes", "by p")

	for _, text := range []string{
		"view: {paths: {'*.pem': show}}", "dir: /etc", "user: '0'", "view: {allow_other: true}", "network: host", "sandbox: {expose: [/etc]}", "history: {dir: /}",
		"view: [", "", "x", "view: {paths: {\"${HOME}\": hide}}", "\xff: y", "view: {}\n---\nview: {}",
	} {
		n.configMap("team-a", map[string]string{"reviewer.yaml": text})
		fails(t, n.publish(named("r", "team-a", "a-2", "team-a/reviewer")), codes.Unavailable, "team-a/reviewer")
		assert.True(t, hidden(), "%q: the last one holds", text)
		assert.Empty(t, n.left("a-2"), text)
	}
	n.configMap("team-a", map[string]string{"reviewer.yaml": "view: {paths: {'*.pem': show}}"})
	n.recorded("a-1", "volume narrowing refused", n.target(p))
	assert.True(t, hidden())
	n.configMap("team-a", map[string]string{"other.yaml": "view: {}"})
	fails(t, n.publish(named("r", "team-a", "a-2", "team-a/reviewer")), codes.Unavailable, "team-a/reviewer.yaml")
	n.unplug(syscall.SIGKILL)
	n.plug()
	assert.True(t, hidden())

	n.configMap("team-a", map[string]string{"reviewer.yaml": "view: {paths: {notes: hide}}\n"})
	n.Eventually("the next good text holds", func() bool { return !hidden() && !n.exists(p, "notes") && !n.exists(q, "notes") })
	require.NoError(t, n.unpublish(p))
	assert.NotEmpty(t, n.left("a-1"))
	require.NoError(t, n.unpublish(q))
	n.Eventually("the definition is removed", func() bool { return n.Agent("a-1").ID == "" })
	assert.Empty(t, n.left("a-1"))
}

func (n *node) exists(p pod, name string) bool {
	_, err := os.Lstat(filepath.Join(n.target(p), name))
	return err == nil
}

// TestDefinitionsRefused: a pod has no definition but those of its rule, and names no other file of the node.
func TestDefinitionsRefused(t *testing.T) {
	n := newDefinitions(t)
	require.NoError(t, os.WriteFile(filepath.Join(n.definitions, "top.yaml"), []byte("view: {}"), 0o644))
	require.NoError(t, os.Mkdir(filepath.Join(n.definitions, "team-a/..x"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(n.definitions, "team-a/..x/y.yaml"), []byte("view: {}"), 0o644))
	for name, c := range map[string]struct {
		pod   pod
		code  codes.Code
		words string
	}{
		"another team's":           {named("p", "team-a", "a-1", "team-b/builder"), codes.PermissionDenied, "has no definition"},
		"of a rule that has none":  {named("p", "team-b", "b-1", "team-b/builder"), codes.PermissionDenied, "has no definition"},
		"none":                     {named("p", "team-a", "a-1", ""), codes.InvalidArgument, "one of team-a/*"},
		"one that is not there":    {named("p", "team-a", "a-1", "team-a/other"), codes.Unavailable, "team-a/other.yaml"},
		"parents":                  {named("p", "team-d", "d-1", "../pods"), codes.InvalidArgument, "no name"},
		"parents after the slash":  {named("p", "team-a", "a-1", "team-a/.."), codes.InvalidArgument, "no name"},
		"a path":                   {named("p", "team-d", "d-1", "team-a/../team-b/builder"), codes.InvalidArgument, "no name"},
		"an absolute path":         {named("p", "team-d", "d-1", "/etc/x"), codes.InvalidArgument, "no name"},
		"no directory":             {named("p", "team-d", "d-1", "top"), codes.InvalidArgument, "no name"},
		"kubelet's own":            {named("p", "team-d", "d-1", "team-a/..data"), codes.InvalidArgument, "no name"},
		"a file of kubelet's own":  {named("p", "team-d", "d-1", "team-a/..x/y"), codes.InvalidArgument, "no name"},
		"NUL":                      {named("p", "team-d", "d-1", "team-a/reviewer.yaml\x00"), codes.InvalidArgument, "no name"},
		"a star":                   {named("p", "team-d", "d-1", "team-a/*"), codes.InvalidArgument, "no name"},
		"a directory of no team's": {named("p", "team-d", "d-1", "team-z/x"), codes.Unavailable, "team-z"},
		"long":                     {named("p", "team-d", "d-1", strings.Repeat("a", 1000)+"/b"), codes.InvalidArgument, "no name"},
		"longer":                   {named("p", "team-d", "d-1", strings.Repeat("a", 2000)+"/b"), codes.InvalidArgument, "longer than"},
		"a text as well": {pod{uid: "p", namespace: "team-a", account: "x", attributes: map[string]string{"agent": "a-1", "definitionFrom": "team-a/reviewer",
			"definition": "view: {}"}}, codes.InvalidArgument, "both"},
	} {
		fails(t, n.publish(c.pod), c.code, c.words)
		assert.Zero(t, n.Mounted(n.pods()), name)
		assert.Empty(t, n.left(c.pod.attributes["agent"]), name)
	}
	n.recorded("a-1", "volume refused", n.target(named("p", "", "", "")))
	rules := strings.ReplaceAll(definitionRules, "PREFIX", n.prefix)
	n.Put("node/csi.yaml", rules)
	fails(t, n.publish(named("p", "team-c", "one", "team-a/reviewer")), codes.Unavailable, "csi.yaml:5: definitions: they narrow")
	n.unplug(syscall.SIGTERM)
	n.definitions = ""
	n.Put("node/csi.yaml", strings.ReplaceAll(rules, `definitions: ["*/*"]}`, `definition: {}}`))
	n.plug()
	fails(t, n.publish(named("p", "team-a", "a-1", "team-a/reviewer")), codes.Unavailable, "--definitions")
}

// TestAttackDefinitions: whoever writes below a definition's directory reads no other file of the node by it, and stops no other pod.
func TestAttackDefinitions(t *testing.T) {
	n := newDefinitions(t)
	secret := filepath.Join(n.dir, "secret.yaml")
	require.NoError(t, os.WriteFile(secret, []byte("view: {}\n"), 0o600))
	at := filepath.Join(n.definitions, "team-a/evil.yaml")
	try := func(what string, make func() error) {
		t.Helper()
		_ = os.RemoveAll(at)
		require.NoError(t, make())
		err := n.publish(named("p", "team-a", "a-1", "team-a/evil"))
		fails(t, err, codes.Unavailable, "evil.yaml")
		assert.Empty(t, n.left("a-1"), what)
	}
	link := func(to string) func() error { return func() error { return os.Symlink(to, at) } }
	try("a link to the node's file", link(secret))
	try("a relative one", link("../../secret.yaml"))
	try("one to another team's", link("../team-b/builder.yaml"))
	try("a loop", link("evil.yaml"))
	try("nothing", link("..data/none"))
	try("a descriptor", link("/proc/self/fd/0"))
	try("a FIFO", func() error { return unix.Mkfifo(at, 0o644) })
	try("a directory", func() error { return os.Mkdir(at, 0o755) })
	try("a socket", func() error { return unix.Mknod(at, unix.S_IFSOCK|0o644, 0) })
	try("10 MiB", func() error { return os.WriteFile(at, []byte("view: {}\n"+strings.Repeat("#", 10<<20)), 0o644) })
	try("without an end", func() error {
		f, err := os.Create(at)
		if err == nil {
			err = f.Truncate(1 << 40)
			f.Close()
		}
		return err
	})

	// A swap that was interrupted leaves what was there.
	p := named("p", "team-a", "a-1", "team-a/reviewer")
	require.NoError(t, n.publish(p))
	data := filepath.Join(n.definitions, "team-a/..data")
	to, err := os.Readlink(data)
	require.NoError(t, err)
	require.NoError(t, os.Remove(data))
	require.NoError(t, os.Symlink("..gone", data))
	fails(t, n.publish(named("q", "team-a", "a-1", "team-a/reviewer")), codes.Unavailable, "reviewer.yaml")
	assert.ErrorIs(t, os.WriteFile(filepath.Join(n.target(p), "notes"), nil, 0o644), unix.EACCES)
	require.NoError(t, os.Remove(data))
	require.NoError(t, os.Symlink(to, data))

	// The directory itself becomes a link.
	dir := filepath.Join(n.definitions, "team-a")
	require.NoError(t, os.Rename(dir, dir+"-0"))
	require.NoError(t, os.Symlink(n.dir, dir))
	fails(t, n.publish(named("q", "team-a", "a-2", "team-a/secret")), codes.Unavailable, "team-a/secret.yaml")
	require.NoError(t, n.unpublish(p))
}

// TestAttackDefinitionsSwapped: kubelet's swaps while pods come and go. Each pod has one of the two texts.
func TestAttackDefinitionsSwapped(t *testing.T) {
	n := newDefinitions(t)
	two := [2]map[string]string{{"reviewer.yaml": "view: {access: read, paths: {notes: hide}}\n"}, {"reviewer.yaml": "view: {access: read, paths: {'*.pem': hide}}\n"}}
	n.configMap("team-a", two[0])
	stop, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
				n.configMap("team-a", two[i%2])
			}
		}
	}()
	for i := range rounds {
		p := named(fmt.Sprint("p", i), "team-a", "a-1", "team-a/reviewer")
		if err := n.publish(p); err == nil {
			assert.ErrorIs(t, os.WriteFile(filepath.Join(n.target(p), "new"), nil, 0o644), unix.EACCES)
			require.NoError(t, n.unpublish(p))
		} else {
			assert.ErrorContains(t, err, "reviewer.yaml", "kubelet repeats it")
		}
	}
	close(stop)
	<-ended
	assert.Empty(t, n.left("a-1"))
}
