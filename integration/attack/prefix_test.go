package attack

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/integration/harness"
)

func init() {
	// hold opens args[0] as its working directory, a descriptor and a listing,
	// with a file in it, and then does what standard input tells through each.
	harness.Roles["hold"] = func(args []string) error {
		dir, err := os.Open(args[0])
		if err == nil {
			err = os.Chdir(args[0])
		}
		if err != nil {
			return err
		}
		listing, _ := unix.Open(".", unix.O_RDONLY|unix.O_DIRECTORY, 0)
		file, err := os.OpenFile("f", os.O_RDWR, 0)
		if err != nil {
			return err
		}
		fmt.Println("held")
		at := func(name string) string { return fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), name) }
		for in := bufio.NewScanner(os.Stdin); in.Scan(); {
			switch op := in.Text(); {
			case op == "getdents":
				buf := make([]byte, 8<<10)
				n, err := unix.Getdents(listing, buf)
				_, names, _ := strings.Cut(strings.Join(dirents(buf[:max(n, 0)]), " "), "f ")
				fmt.Println(harness.ErrnoOf(err), names)
			case op == "fchmod":
				fmt.Println(harness.ErrnoOf(unix.Fchmod(listing, 0o700)))
			case op == "fsetxattr":
				fmt.Println(harness.ErrnoOf(unix.Fsetxattr(listing, "user.x", []byte("x"), 0)))
			case op == "futimes":
				fmt.Println(harness.ErrnoOf(unix.Futimes(listing, make([]unix.Timeval, 2))))
			case op == "pread":
				buf := make([]byte, 100)
				n, err := file.ReadAt(buf, 0)
				if n > 0 {
					err = nil
				}
				fmt.Println(harness.ErrnoOf(err), string(buf[:n]))
			case op == "pwrite":
				_, err := file.WriteAt([]byte("W"), 0)
				fmt.Println(harness.ErrnoOf(err))
			case strings.HasPrefix(op, "fd "):
				name, arg, _ := strings.Cut(op[3:], " ")
				fmt.Println(harness.ErrnoOf(harness.DoOp(name + " " + at(arg))))
			default:
				fmt.Println(harness.ErrnoOf(harness.DoOp(op)))
			}
		}
		return nil
	}
	// Holds a file open for reading, and tries to get more by its descriptor.
	harness.Roles["reader"] = func(args []string) error {
		f, err := os.Open(args[0])
		if err != nil {
			return err
		}
		fmt.Println("held")
		fd := int(f.Fd())
		again := fmt.Sprintf("/proc/self/fd/%d", fd)
		calls := map[string]func() error{
			"fchmod":    func() error { return unix.Fchmod(fd, 0o640) },
			"fchown":    func() error { return unix.Fchown(fd, 1, 1) },
			"fsetxattr": func() error { return unix.Fsetxattr(fd, "user.x", []byte("x"), 0) },
			"futimes":   func() error { return unix.Futimes(fd, make([]unix.Timeval, 2)) },
			"pread":     func() error { _, err := unix.Pread(fd, make([]byte, 1), 0); return err },
			"fstat":     func() error { var st unix.Stat_t; return unix.Fstat(fd, &st) },
			"flink": func() error {
				return unix.Linkat(unix.AT_FDCWD, again, unix.AT_FDCWD, args[1], unix.AT_SYMLINK_FOLLOW)
			},
		}
		for in := bufio.NewScanner(os.Stdin); in.Scan(); {
			call := calls[in.Text()]
			if call == nil {
				call = func() error { return harness.DoOp(in.Text() + " " + again) }
			}
			fmt.Println(harness.ErrnoOf(call()))
		}
		return nil
	}
}

func dirents(buf []byte) (names []string) {
	for len(buf) > 19 {
		size := int(buf[16]) | int(buf[17])<<8
		name, _, _ := strings.Cut(string(buf[19:size]), "\x00")
		names, buf = append(names, name), buf[size:]
	}
	return names
}

// holder starts a process that holds a directory of a view. tell does one
// thing in it.
func holder(t *testing.T, dir string) (tell func(op string) string) {
	t.Helper()
	cmd := harness.Role("hold", dir)
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	next := harness.Stream(t, cmd)
	require.Equal(t, "held", next())
	return func(op string) string {
		_, err := fmt.Fprintln(in, op)
		require.NoError(t, err)
		return strings.TrimSpace(next())
	}
}

// TestAttackMovedOut: the host moves a directory out of the prefix while a
// client is in it. Nothing more is reached through it.
func TestAttackMovedOut(t *testing.T) {
	for _, up := range []string{"d/e", "d"} { // the directory itself, and one above it
		t.Run(up, func(t *testing.T) {
			h := harness.LayOut(t, map[string]string{"moved": "view: {xattrs: true}"})
			harness.Plant(t, h.Scope("moved"), "d/e/f", "d/e/g", "d/e/sub/x")
			h.Start()
			tell := holder(t, h.View("moved", "d/e"))
			require.Equal(t, "ok", tell("read g"))
			require.Equal(t, "ok", tell("fd read g"))
			out := filepath.Join(h.Base, "out")
			require.NoError(t, os.Rename(h.Scope("moved", up), out))
			inner := filepath.Join(out, strings.TrimPrefix("d/e", up))
			harness.Plant(t, inner, "FOREIGN-secret", "FOREIGN-dir/")
			before := harness.Picture(t, out)
			ops := []string{"create n", "mkdir n", "symlink f n", "fifo n", "unlink g", "rmdir FOREIGN-dir", "rename g h", "link g h", "read FOREIGN-secret",
				"stat FOREIGN-secret", "read FOREIGN-dir", "write FOREIGN-secret", "read g", "write g", "trunc g", "chmod g", "list . FOREIGN-secret",
				"read sub/x", "create sub/n", "tmplink . n", "chmod .", "setxattr .", "utimes .", "fchmod", "fsetxattr", "futimes"}
			for _, op := range ops {
				assert.Contains(t, []string{"ENOENT", "ESTALE", "EACCES"}, tell(op), op)
				if !strings.HasPrefix(op, "f") {
					assert.Contains(t, []string{"ENOENT", "ESTALE", "EACCES"}, tell("fd "+op), "fd %s", op)
				}
			}
			assert.NotContains(t, tell("getdents"), "FOREIGN", "a listing that was open goes on")
			assert.Equal(t, before, harness.Picture(t, out))
			// And back in, under another name.
			require.NoError(t, os.Rename(out, h.Scope("moved", "back")))
			assert.Equal(t, []string{"ok"}, harness.HostOps(t, h.View("moved"), "read "+filepath.Join("back", strings.TrimPrefix("d/e", up), "g")))
		})
	}
}

// TestAttackReaderMovedOut: a client has a file open for reading. The host moves the file out of
// the prefix. The descriptor still reads, and nothing more is got by it.
func TestAttackReaderMovedOut(t *testing.T) {
	agents := map[string]string{"passthrough": "view: {xattrs: true}", "mediated": "view: {xattrs: true, data: mediated}", "caller": "identity: caller\nview: {xattrs: true}"}
	h := harness.LayOut(t, agents)
	for agent := range agents {
		harness.Plant(t, h.Scope(agent), "f", "known")
	}
	startAll(h)
	for agent := range agents {
		t.Run(agent, func(t *testing.T) {
			cmd := harness.Role("reader", h.View(agent, "f"), h.View(agent, "link"))
			in, err := cmd.StdinPipe()
			require.NoError(t, err)
			next := harness.Stream(t, cmd)
			require.Equal(t, "held", next())
			tell := func(op string) string {
				_, err := fmt.Fprintln(in, op)
				require.NoError(t, err)
				return strings.TrimSpace(next())
			}
			for _, op := range []string{"pread", "fstat", "read", "write", "fchmod", "futimes"} {
				require.Equal(t, "ok", tell(op), op)
			}
			out := filepath.Join(h.Base, "out-of-"+agent, "f")
			require.NoError(t, os.Mkdir(filepath.Dir(out), 0o755))
			require.NoError(t, os.Rename(h.Scope(agent, "f"), out))
			before := harness.Picture(t, filepath.Dir(out))
			for _, op := range []string{"write", "append", "trunc", "o-trunc", "mmap", "fallocate", "chmod", "utimes", "fchmod", "fchown", "fsetxattr", "futimes", "flink", "read"} {
				assert.Contains(t, []string{"ENOENT", "ESTALE", "EACCES"}, tell(op), op)
			}
			assert.Equal(t, before, harness.Picture(t, filepath.Dir(out)))
			assert.NoFileExists(t, h.Scope(agent, "link"))
			for _, op := range []string{"pread", "fstat"} {
				assert.Equal(t, "ok", tell(op), op)
			}
			require.NoError(t, os.Rename(out, h.Scope(agent, "f")))
			h.Eventually("it is back", func() bool { return tell("write") == "ok" })
		})
	}
}

// TestAttackUsedDirectory: the view has just used a directory. The host moves it, or one above
// it, out of the prefix or to where the agent sees nothing, and puts something at its place that
// leads to the same directory.
func TestAttackUsedDirectory(t *testing.T) {
	link := func(t *testing.T, out, at string) {
		to, err := filepath.Rel(filepath.Dir(at), out)
		require.NoError(t, err)
		require.NoError(t, os.Symlink(to, at))
	}
	type attack struct {
		out   string // the new place, relative to the prefix
		decoy func(t *testing.T, out, at string)
	}
	attacks := map[string]attack{
		"nothing":                      {"../out-of-", func(*testing.T, string, string) {}},
		"an absolute link":             {"../out-of-", func(t *testing.T, out, at string) { require.NoError(t, os.Symlink(out, at)) }},
		"a link to a hidden directory": {"hidden/", link}, // the view's root has no "..", but has this
		"a bind mount": {"../out-of-", func(t *testing.T, out, at string) {
			require.NoError(t, os.Mkdir(at, 0o755))
			require.NoError(t, unix.Mount(out, at, "", unix.MS_BIND, ""))
			t.Cleanup(func() { _ = unix.Unmount(at, unix.MNT_DETACH) })
		}},
		"another directory": {"../out-of-", func(t *testing.T, _, at string) { harness.Plant(t, at, "own", "e/own") }},
	}
	agents := map[string]string{}
	id := func(name, up string) string {
		return strings.NewReplacer(" ", "-", "/", "-").Replace(name + "-at-" + up)
	}
	for name := range attacks {
		for _, up := range []string{"d/e", "d"} {
			agents[id(name, up)] = "view: {paths: {hidden: hide}}"
		}
	}
	h := harness.LayOut(t, agents)
	for agent := range agents {
		harness.Plant(t, h.Scope(agent), "d/e/f", "d/e/g", "d/e/sub/x", "hidden/")
	}
	startAll(h)
	for name, c := range attacks {
		for _, up := range []string{"d/e", "d"} {
			t.Run(name+" at "+up, func(t *testing.T) {
				agent := id(name, up)
				tell := holder(t, h.View(agent, "d/e"))
				for _, op := range []string{"create c", "unlink c", "stat none", "read g", "create sub/c", "unlink sub/c", "create last"} {
					require.Contains(t, []string{"ok", "ENOENT"}, tell(op), op)
				}
				out := h.Scope(agent, c.out+agent)
				require.NoError(t, os.Rename(h.Scope(agent, up), out))
				c.decoy(t, out, h.Scope(agent, up))
				harness.Plant(t, filepath.Join(out, strings.TrimPrefix("d/e", up)), "FOREIGN-secret", "FOREIGN-dir/")
				before := harness.Picture(t, out)
				for _, op := range []string{"create n", "mkdir n", "symlink f n", "unlink g", "rmdir FOREIGN-dir", "rename g h", "link g h", "stat FOREIGN-secret",
					"stat absent", "read FOREIGN-secret", "write g", "chmod g", "list . FOREIGN-secret", "create sub/n", "chmod ."} {
					assert.Contains(t, []string{"ENOENT", "ESTALE", "EACCES"}, tell(op), op)
				}
				for _, op := range []string{"stat d/e/FOREIGN-secret", "read d/e/FOREIGN-secret", "list d/e FOREIGN-secret", "rmdir d/e/FOREIGN-dir"} {
					assert.NotEqual(t, []string{"ok"}, harness.HostOps(t, h.View(agent), op), op)
				}
				assert.Equal(t, before, harness.Picture(t, out))
			})
		}
	}
}

// TestAttackPrefixReplaced: another directory or a link takes the place of the
// prefix, before and after the view is made.
func TestAttackPrefixReplaced(t *testing.T) {
	h := harness.LayOut(t, map[string]string{"one": "", "two": ""})
	harness.Plant(t, h.Scope("one"), "f=mine", "d/f=mine")
	harness.Plant(t, h.Scope("two"), "f=FOREIGN", "d/f=FOREIGN", "FOREIGN")
	startAll(h)
	before := harness.Picture(t, h.Scope("two"))
	delete(before, ".") // its own name changes
	mine := func(when string) {
		t.Helper()
		for _, name := range []string{"f", "d/f"} {
			text, err := os.ReadFile(h.View("one", name))
			require.NoError(t, err, when)
			assert.Equal(t, "mine", string(text), when)
		}
		assert.Equal(t, []string{"ENOENT", "ok", "ok"}, harness.HostOps(t, h.View("one"), "stat FOREIGN", "create n", "unlink n"), when)
	}
	// The view may have ended: then nothing is there.
	atMost := func(when string) {
		t.Helper()
		for _, name := range []string{"f", "d/f"} {
			if text, err := os.ReadFile(h.View("one", name)); err == nil {
				assert.Equal(t, "mine", string(text), when)
			}
		}
		_, err := os.Lstat(h.View("one", "FOREIGN"))
		assert.Error(t, err, when)
	}
	mine("as it is")
	require.NoError(t, harness.Exchange([]string{h.Scope("one"), h.Scope("two")}))
	atMost("exchanged with the other's")
	require.NoError(t, harness.Exchange([]string{h.Scope("one"), h.Scope("two")}))
	require.NoError(t, os.Rename(h.Scope("one"), h.Scope("one.old")))
	atMost("moved away")
	require.NoError(t, os.Symlink("two", h.Scope("one")))
	atMost("replaced by a link")
	after := harness.Picture(t, h.Scope("two"))
	delete(after, ".")
	assert.Equal(t, before, after)
	// A view that is made anew does not follow the link.
	i := slices.IndexFunc(h.PS(), func(a harness.Agent) bool { return a.ID == "one" })
	h.Eventually("the view has failed", func() bool { return h.PS()[i].State == "failed" })
	_, err := os.ReadFile(h.View("one", "f"))
	assert.Error(t, err)
	require.NoError(t, os.Remove(h.Scope("one")))
	require.NoError(t, os.Rename(h.Scope("one.old"), h.Scope("one")))
	h.Eventually("the view is back", func() bool { return h.PS()[i].State == "mounted" })
	mine("back")
}

// TestAttackMounts: what the host mounts below the prefix is not the agent's,
// and no mount travels from or to a view.
func TestAttackMounts(t *testing.T) {
	h := harness.LayOut(t, map[string]string{"mounts": ""})
	out := filepath.Join(h.Base, "out")
	harness.Plant(t, out, "FOREIGN")
	harness.Plant(t, h.Base, "file=FOREIGN")
	harness.Plant(t, h.Scope("mounts"), "before/own", "after/own", "tmpfs/own", "file=own", "ok")
	mount := func(from, to, kind string, flags uintptr) {
		t.Helper()
		require.NoError(t, unix.Mount(from, to, kind, flags, ""), to)
		t.Cleanup(func() { _ = unix.Unmount(to, unix.MNT_DETACH) })
	}
	mount(out, h.Scope("mounts", "before"), "", unix.MS_BIND)
	h.Start()
	mount(out, h.Scope("mounts", "after"), "", unix.MS_BIND)
	mount("none", h.Scope("mounts", "tmpfs"), "tmpfs", 0)
	mount(h.Base+"/file", h.Scope("mounts", "file"), "", unix.MS_BIND)
	harness.Plant(t, h.Scope("mounts", "tmpfs"), "FOREIGN")
	before := harness.Picture(t, out)
	for _, dir := range []string{"before", "after", "tmpfs"} {
		for _, client := range [][]string{
			harness.HostOps(t, h.View("mounts"), "stat "+dir+"/FOREIGN", "read "+dir+"/FOREIGN", "list "+dir+" FOREIGN", "write "+dir+"/FOREIGN"),
			harness.DoOps(t, h.InSandbox("mounts", "ops"), []string{"stat " + dir + "/FOREIGN", "read " + dir + "/FOREIGN", "list " + dir + " FOREIGN", "write " + dir + "/FOREIGN"}),
		} {
			for _, got := range client {
				assert.Contains(t, []string{"EACCES", "ENOENT"}, got, dir)
			}
		}
	}
	text, _ := os.ReadFile(h.View("mounts", "file"))
	assert.Equal(t, "own", string(text))
	assert.Equal(t, before, harness.Picture(t, out))
	// What the mounts cover is the agent's and stays so: the view has a tree of
	// its own, where nothing is mounted. So there is no violation to record.
	assert.Equal(t, []string{"ok", "ok", "ok", "ok"}, harness.HostOps(t, h.View("mounts"), "read ok", "read before/own", "read after/own", "read tmpfs/own"))
	info, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", h.PS()[0].ViewPID))
	require.NoError(t, err)
	assert.Equal(t, 1, strings.Count(string(info), "\n"), "the view process sees: %s", info)
	// The view is mounted in one place on the host, and nowhere else in the sandbox than there.
	assert.Equal(t, 1, strings.Count(harness.ReadAll(t, "/proc/self/mountinfo"), " "+h.View("mounts")+" "))
	out2, err := exec.Command(harness.Program, "--base", h.Base, "run", "-T", "mounts", "--", "cat", "/proc/self/mountinfo").Output()
	require.NoError(t, err)
	assert.Equal(t, 1, strings.Count(string(out2), "fuse.scopefs"), "%s", out2)
	assert.NotContains(t, string(out2), h.Base+"/out")
}

// TestAttackMountOverView: the host's root mounts something in a mounted view.
// bwrap binds recursively, so that sandboxes started later would have it, too.
func TestAttackMountOverView(t *testing.T) {
	h := harness.LayOut(t, map[string]string{"over": ""})
	harness.Plant(t, h.Base, "out/FOREIGN")
	harness.Plant(t, h.Scope("over"), "d/")
	h.Start()
	require.NoError(t, unix.Mount(h.Base+"/out", h.View("over", "d"), "", unix.MS_BIND, ""))
	defer unix.Unmount(h.View("over", "d"), unix.MNT_DETACH)
	_, errs, code := h.Try("run", "over", "cat", "d/FOREIGN")
	assert.Equal(t, 125, code)
	assert.Contains(t, errs, "is mounted in the view")
}
