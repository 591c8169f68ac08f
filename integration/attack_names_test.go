package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/audit"
)

// TestAttackNames: any bytes are a name, on the way in and on the way out.
func TestAttackNames(t *testing.T) {
	h := newHost(t, map[string]string{"names": ""})
	long := strings.Repeat("n", 255)
	for _, name := range []string{long, strings.Repeat("é", 127), "\xff\xfe", "a\nb", `back\slash`, "\x1b[31m", " ", "...", "..a", "~", "$(id)",
		"-rf", "\"", "*", "%s", "con:", "\u202e", "#tmpfile", strings.Repeat("\x80", 255)} {
		at := h.view("names") + "/" + name
		require.NoError(t, os.WriteFile(at, []byte(name), 0o644), "%q", name)
		text, err := os.ReadFile(h.scope("names") + "/" + name)
		require.NoError(t, err, "%q", name)
		assert.Equal(t, name, string(text))
		assert.NoError(t, listed(h.view("names"), name), "%q", name)
		require.NoError(t, os.Rename(at, at[:len(at)-1]+"Z"), "%q", name)
		require.NoError(t, os.Remove(at[:len(at)-1]+"Z"), "%q", name)
	}
	view := h.view("names") + "/"
	plant(t, h.scope("names"), "f")
	for what, err := range map[string]error{
		"create":  os.WriteFile(view+long+"n", nil, 0o644),
		"mkdir":   unix.Mkdir(view+long+"n", 0o755),
		"symlink": unix.Symlink("x", view+long+"n"),
		"stat":    unix.Access(view+long+"n", 0),
		"link":    unix.Link(view+"f", view+long+"n"),
	} {
		assert.Equal(t, "ENAMETOOLONG", errnoOf(err), what)
	}
}

// TestAttackPollHack: go-fuse answers for one name in the root by itself
// (fuse/poll.go). It holds nothing, and no one gets anywhere through it.
func TestAttackPollHack(t *testing.T) {
	const hack = ".go-fuse-epoll-hack"
	h := layOut(t, map[string]string{"poll": ""})
	plant(t, h.scope("poll"), "f", "d/"+hack)
	h.start()
	ops := []string{"create " + hack, "write " + hack, "trunc " + hack, "rename " + hack + " n", "unlink " + hack,
		"mkdir " + hack, "symlink f " + hack, "link " + hack + " n", "setxattr " + hack, "list " + hack + " x", "o-trunc " + hack}
	t.Log(hostOps(t, h.view("poll"), ops...))
	entries, err := os.ReadDir(h.scope("poll"))
	require.NoError(t, err)
	assert.Len(t, entries, 2, "%v", entries)
	assert.Equal(t, []string{"ok", "ok", "ok", "ok"}, hostOps(t, h.view("poll"), "read d/"+hack, "write d/"+hack, "rename d/"+hack+" d/x", "read f"))
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
	"/proc/1/root": false, "/dev/zero": false, "/tmp/x": false, "/root": false, "/etc/alternatives.d": false,
	"../up/top": true, "../up/..": false, "../up/../top": false, "../up/d/e/f": true, "../out/passwd": false, "../sys/bin/env": true,
	"../sys/../etc/shadow": false, "../loop": true, "../loop/x": true, "\xff\xfe": true, "a\nb": true, "../../../names/top": false,
	strings.Repeat("./", 2047) + "f": true, strings.Repeat("../", 1364) + "etc": false, strings.Repeat("n", 256): true,
	strings.Repeat("missing/../", 300) + "../../..": false,
}

// TestAttackLinks plants each link on the host and makes each through the view.
func TestAttackLinks(t *testing.T) {
	h := layOut(t, map[string]string{"links": ""})
	plant(t, h.scope("links"), "top", "d/e/f", "d/up => ..", "d/out => /etc", "d/sys => /usr", "d/loop => loop")
	i := 0
	for text := range linkTexts {
		require.NoError(t, os.Symlink(text, h.scope("links", "d/e", fmt.Sprint("l", i))), "%q", text)
		i++
	}
	h.start()
	entries, err := os.ReadDir(h.view("links", "d/e"))
	require.NoError(t, err)
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), "l") {
			continue
		}
		text, err := os.Readlink(h.scope("links", "d/e", e.Name()))
		require.NoError(t, err)
		at, made := h.view("links", "d/e", e.Name()), h.view("links", "d/e/made")
		got, err := os.Readlink(at)
		if linkTexts[text] {
			assert.NoError(t, err, "%.60q", text)
			assert.Equal(t, text, got)
			assert.NoError(t, unix.Symlink(text, made), "%.60q", text)
			assert.NoError(t, os.Remove(made))
			continue
		}
		assert.Equal(t, "EACCES", errnoOf(err), "readlink %.60q", text)
		assert.Equal(t, "EACCES", errnoOf(unix.Symlink(text, made)), "symlink %.60q", text)
		assert.NotEqual(t, "ok", errnoOf(opened(at, unix.O_RDONLY, nil)), "%.60q", text)
		_, err = os.Lstat(at)
		assert.NoError(t, err, "it is shown as a link")
		if len(text) < 200 {
			assert.True(t, h.recorded("links", audit.Event{Op: "readlink", Verdict: audit.Violation, Path: "d/e/" + e.Name()}), "%q", text)
		}
	}
}

// TestAttackMovedLinks: a link is judged where it stands now, by every name.
func TestAttackMovedLinks(t *testing.T) {
	h := layOut(t, map[string]string{"moved": "", "a1": "", "a10": "", "a1-x": ""})
	plant(t, h.scope("moved"), "a/b/c/l => ../../../top", "top", "x/y/l => ../../top", "deep/er/l => ../../top", "one/l => ../top", "FOREIGN-not")
	require.NoError(t, unix.Linkat(unix.AT_FDCWD, h.scope("moved", "deep/er/l"), unix.AT_FDCWD, h.scope("moved", "shallow"), 0))
	for _, id := range []string{"a1", "a10", "a1-x"} {
		plant(t, h.scope(id), "f=FOREIGN "+id)
	}
	plant(t, h.scope("a1"), "l1 => ../a10/f", "l2 => ../a1-x/f", "l3 => ../a1/f", "l4 => "+h.scope("a1", "f"), "l5 => "+h.view("a1", "f"), "l6 => "+h.scope("a10", "f"))
	h.startAll()
	look := func(ops ...string) []string { return hostOps(t, h.view("moved"), ops...) }
	assert.Equal(t, []string{"ok", "ok", "EACCES"}, look("readlink a/b/c/l", "rename a/b/c/l a/l", "readlink a/l"), "the link was moved up")
	assert.Equal(t, []string{"ok", "ok", "EACCES"}, look("readlink x/y/l", "rename x/y y", "readlink y/l"), "its directory was moved up")
	assert.Equal(t, []string{"ok", "ok", "EACCES"}, look("readlink one/l", "xchg one/l top", "readlink top"), "it was exchanged upwards")
	assert.Equal(t, []string{"EACCES"}, look("read shallow"), "a second name, higher up, of a link that is fine deeper down")
	assert.Contains(t, []string{"EACCES"}, look("link deep/er/l up")[0], "as made through the view")
	for i := range 6 {
		assert.Equal(t, []string{"EACCES"}, hostOps(t, h.view("a1"), fmt.Sprint("read l", i+1)), "l%d", i+1)
	}
	// The host moves a directory up while the kernel knows the link below it.
	require.NoError(t, os.MkdirAll(h.scope("moved", "p/q"), 0o755))
	require.NoError(t, os.Symlink("../../../moved/FOREIGN-not", h.scope("moved", "p/q/l")))
	require.NoError(t, os.Symlink("../../FOREIGN-not", h.scope("moved", "p/q/m")))
	assert.Equal(t, []string{"EACCES", "ok"}, look("readlink p/q/l", "readlink p/q/m"))
	require.NoError(t, os.Rename(h.scope("moved", "p/q"), h.scope("moved", "q")))
	assert.Equal(t, []string{"EACCES"}, look("readlink q/m"))
}

// TestAttackChains: links of links, as many as the kernel follows and more.
func TestAttackChains(t *testing.T) {
	h := layOut(t, map[string]string{"chain": ""})
	native := t.TempDir()
	out := filepath.Join(h.base, "FOREIGN")
	plant(t, h.base, "FOREIGN")
	for _, dir := range []string{h.scope("chain"), native} {
		plant(t, dir, "end")
		for _, n := range []int{1, 39, 40, 41, 60} {
			for where, end := range map[string]string{"in": "end", "out": out, "up": "../../FOREIGN"} {
				for i := range n {
					to := end
					if i > 0 {
						to = fmt.Sprintf("%s%d-%d", where, n, i-1)
					}
					plant(t, dir, fmt.Sprintf("%s%d-%d => %s", where, n, i, to))
				}
			}
		}
	}
	h.start()
	for _, n := range []int{1, 39, 40, 41, 60} {
		op := fmt.Sprintf("read in%d-%d", n, n-1)
		assert.Equal(t, hostOps(t, native, op), hostOps(t, h.view("chain"), op), "%d links", n)
		for _, where := range []string{"out", "up"} {
			for i := range n { // from every link of the chain
				got := errnoOf(doOp(fmt.Sprintf("read %s", h.view("chain", fmt.Sprintf("%s%d-%d", where, n, i)))))
				assert.Contains(t, []string{"EACCES", "ELOOP"}, got, "%s%d-%d", where, n, i)
			}
		}
	}
}
