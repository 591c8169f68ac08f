package attack

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/integration/harness"
)

// TestAttackNames: any bytes are a name, on the way in and on the way out.
func TestAttackNames(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"names": ""})
	long := strings.Repeat("n", 255)
	for _, name := range []string{long, strings.Repeat("é", 127), "\xff\xfe", "a\nb", `back\slash`, "\x1b[31m", " ", "...", "..a", "~", "$(id)",
		"-rf", "\"", "*", "%s", "con:", "\u202e", "#tmpfile", strings.Repeat("\x80", 255)} {
		at := h.View("names") + "/" + name
		require.NoError(t, os.WriteFile(at, []byte(name), 0o644), "%q", name)
		text, err := os.ReadFile(h.Scope("names") + "/" + name)
		require.NoError(t, err, "%q", name)
		assert.Equal(t, name, string(text))
		assert.NoError(t, harness.Listed(h.View("names"), name), "%q", name)
		require.NoError(t, os.Rename(at, at[:len(at)-1]+"Z"), "%q", name)
		require.NoError(t, os.Remove(at[:len(at)-1]+"Z"), "%q", name)
	}
	view := h.View("names") + "/"
	harness.Plant(t, h.Scope("names"), "f")
	for what, err := range map[string]error{
		"create":  os.WriteFile(view+long+"n", nil, 0o644),
		"mkdir":   unix.Mkdir(view+long+"n", 0o755),
		"symlink": unix.Symlink("x", view+long+"n"),
		"stat":    unix.Access(view+long+"n", 0),
		"link":    unix.Link(view+"f", view+long+"n"),
	} {
		assert.Equal(t, "ENAMETOOLONG", harness.ErrnoOf(err), what)
	}
}

// TestAttackPollHack: go-fuse answers for one name in the root by itself
// (fuse/poll.go). It holds nothing, and no one gets anywhere through it.
func TestAttackPollHack(t *testing.T) {
	const hack = ".go-fuse-epoll-hack"
	h := harness.LayOut(t, map[string]string{"poll": ""})
	harness.Plant(t, h.Scope("poll"), "f", "d/"+hack)
	h.Start()
	ops := []string{"create " + hack, "write " + hack, "trunc " + hack, "rename " + hack + " n", "unlink " + hack,
		"mkdir " + hack, "symlink f " + hack, "link " + hack + " n", "setxattr " + hack, "list " + hack + " x", "o-trunc " + hack}
	t.Log(harness.HostOps(t, h.View("poll"), ops...))
	entries, err := os.ReadDir(h.Scope("poll"))
	require.NoError(t, err)
	assert.Len(t, entries, 2, "%v", entries)
	assert.Equal(t, []string{"ok", "ok", "ok", "ok"}, harness.HostOps(t, h.View("poll"), "read d/"+hack, "write d/"+hack, "rename d/"+hack+" d/x", "read f"))
}

// linkTexts are texts of a link at d/e/l, and whether it may be followed.
var linkTexts = map[string]bool{
	"f": true, ".": true, "..": true, "../..": true, "../../top": true, "../../d/../top": true, "missing": true,
	"missing/x/../y": true, "../../..": false, "../../../x": false, "../../../../../../../../etc/passwd": false,
	"missing/../../../../etc": false, "missing/../../../top": true, "missing/../../../../top": false, "f/../../../../x": false,
	"/workspace": true, "/workspace/top": true, "/workspace//d/./e": true, "/workspace/nothing": true,
	"/workspace/../etc/passwd": false, "/workspace/..": false, "/workspacex/top": false, "/workspace/d/../../top": false,
	"/usr": true, "/usr/bin/python3": true, "/bin/sh": true, "/etc/alternatives/awk": true, "//usr/bin": true,
	"/usr/../etc/shadow": false, "/usr/bin/../../etc/shadow": false, "/etc/alternatives/../shadow": false,
	"/usr2": false, "/usr/../workspace/top": false, "/lib/../etc": false, "/etc": false, "/etc/passwd": false, "//etc/passwd": false,
	"///etc///passwd": false, "/./etc/passwd": false, "/": false, "/proc/self/root/etc/passwd": false, "/proc/self/cwd": false,
	"/proc/1/root": false, "/dev/zero": false, "/dev/null": true, "/dev/null/../zero": false, "/tmp/x": false, "/tmp": false, "/tmp/../etc": false, "/tmpx": false, "/root": false, "/etc/alternatives.d": false,
	"../up/top": true, "../up/..": false, "../up/../top": false, "../up/d/e/f": true, "../out/passwd": false, "../sys/bin/env": true,
	"../sys/../etc/shadow": false, "../loop": true, "../loop/x": true, "\xff\xfe": true, "a\nb": true, "../../../names/top": false,
	strings.Repeat("./", 2047) + "f": true, strings.Repeat("../", 1364) + "etc": false, strings.Repeat("n", 256): true,
	strings.Repeat("missing/../", 300) + "../../..": false,
}

// TestAttackLinks plants each link on the host and makes each through the view.
func TestAttackLinks(t *testing.T) {
	h := harness.LayOut(t, map[string]string{"links": ""})
	harness.Plant(t, h.Scope("links"), "top", "d/e/f", "d/up => ..", "d/out => /etc", "d/sys => /usr", "d/loop => loop")
	i := 0
	for text := range linkTexts {
		require.NoError(t, os.Symlink(text, h.Scope("links", "d/e", fmt.Sprint("l", i))), "%q", text)
		i++
	}
	h.Start()
	entries, err := os.ReadDir(h.View("links", "d/e"))
	require.NoError(t, err)
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), "l") {
			continue
		}
		text, err := os.Readlink(h.Scope("links", "d/e", e.Name()))
		require.NoError(t, err)
		at, made := h.View("links", "d/e", e.Name()), h.View("links", "d/e/made")
		got, err := os.Readlink(at)
		if linkTexts[text] {
			assert.NoError(t, err, "%.60q", text)
			assert.Equal(t, text, got)
			assert.NoError(t, unix.Symlink(text, made), "%.60q", text)
			assert.NoError(t, os.Remove(made))
			continue
		}
		assert.Equal(t, "EACCES", harness.ErrnoOf(err), "readlink %.60q", text)
		assert.Equal(t, "EACCES", harness.ErrnoOf(unix.Symlink(text, made)), "symlink %.60q", text)
		assert.NotEqual(t, "ok", harness.ErrnoOf(harness.Opened(at, unix.O_RDONLY, nil)), "%.60q", text)
		_, err = os.Lstat(at)
		assert.NoError(t, err, "it is shown as a link")
		if len(text) < 200 {
			assert.True(t, h.Recorded("links", audit.Event{Op: "readlink", Verdict: audit.Violation, Path: "d/e/" + e.Name()}), "%q", text)
		}
	}
}

// TestAttackMovedLinks: a link is judged where it stands now, by every name.
func TestAttackMovedLinks(t *testing.T) {
	h := harness.LayOut(t, map[string]string{"moved": "", "a1": "", "a10": "", "a1-x": ""})
	harness.Plant(t, h.Scope("moved"), "a/b/c/l => ../../../top", "top", "x/y/l => ../../top", "deep/er/l => ../../top", "one/l => ../top", "r/x/s => .", "r/x/y/m => ../s/../../top", "FOREIGN-not")
	require.NoError(t, unix.Linkat(unix.AT_FDCWD, h.Scope("moved", "deep/er/l"), unix.AT_FDCWD, h.Scope("moved", "shallow"), 0))
	for _, id := range []string{"a1", "a10", "a1-x"} {
		harness.Plant(t, h.Scope(id), "f=FOREIGN "+id)
	}
	harness.Plant(t, h.Scope("a1"), "l1 => ../a10/f", "l2 => ../a1-x/f", "l3 => ../a1/f", "l4 => "+h.Scope("a1", "f"), "l5 => "+h.View("a1", "f"), "l6 => "+h.Scope("a10", "f"))
	startAll(h)
	look := func(ops ...string) []string { return harness.HostOps(t, h.View("moved"), ops...) }
	assert.Equal(t, []string{"ok", "EACCES", "ok"}, look("readlink a/b/c/l", "rename a/b/c/l a/l", "readlink a/b/c/l"), "the link moves up")
	assert.True(t, h.Recorded("moved", audit.Event{Op: "rename", Verdict: audit.Violation, Path: "a/l"}))
	assert.Equal(t, []string{"ok", "EACCES", "ok"}, look("readlink x/y/l", "rename x/y y", "readlink x/y/l"), "its directory moves up")
	assert.True(t, h.Recorded("moved", audit.Event{Op: "rename", Verdict: audit.Violation, Path: "y", Target: "../../top"}))
	assert.Equal(t, []string{"ok", "EACCES", "EACCES", "ok", "ok", "ok"},
		look("mkdir empty", "xchg x/y empty", "xchg empty x/y", "rename x x2", "rename x2 one/x", "rename one/x x"), "only up")
	assert.Equal(t, []string{"ok", "EACCES"}, look("readlink r/x/y/m", "rename r/x x3"), "through another link of the directory")
	assert.Equal(t, []string{"ok", "EACCES", "EACCES", "ok"}, look("readlink one/l", "xchg one/l top", "xchg top one/l", "readlink one/l"), "it is exchanged upwards")
	assert.Equal(t, []string{"EACCES"}, look("read shallow"), "a second name, higher up, of a link that is fine deeper down")
	assert.Contains(t, []string{"EACCES"}, look("link deep/er/l up")[0], "as made through the view")
	for i := range 6 {
		assert.Equal(t, []string{"EACCES"}, harness.HostOps(t, h.View("a1"), fmt.Sprint("read l", i+1)), "l%d", i+1)
	}
	// The host moves a directory up while the kernel knows the link below it.
	require.NoError(t, os.MkdirAll(h.Scope("moved", "p/q"), 0o755))
	require.NoError(t, os.Symlink("../../../moved/FOREIGN-not", h.Scope("moved", "p/q/l")))
	require.NoError(t, os.Symlink("../../FOREIGN-not", h.Scope("moved", "p/q/m")))
	assert.Equal(t, []string{"EACCES", "ok"}, look("readlink p/q/l", "readlink p/q/m"))
	require.NoError(t, os.Rename(h.Scope("moved", "p/q"), h.Scope("moved", "q")))
	assert.Equal(t, []string{"EACCES"}, look("readlink q/m"))
}

// startAll starts the daemon and waits until every agent is mounted.
func startAll(h *harness.Host) {
	h.T.Helper()
	h.Start()
	h.Eventually("every view is mounted", func() bool {
		return !slices.ContainsFunc(h.PS(), func(a harness.Agent) bool { return a.State != "mounted" })
	})
}
