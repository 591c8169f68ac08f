package integration

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
)

func init() {
	// hold opens args[0] as its working directory, a descriptor and a listing,
	// with a file in it, and then does what standard input tells through each.
	roles["hold"] = func(args []string) error {
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
				fmt.Println(errnoOf(err), names)
			case op == "fchmod":
				fmt.Println(errnoOf(unix.Fchmod(listing, 0o700)))
			case op == "fsetxattr":
				fmt.Println(errnoOf(unix.Fsetxattr(listing, "user.x", []byte("x"), 0)))
			case op == "futimes":
				fmt.Println(errnoOf(unix.Futimes(listing, make([]unix.Timeval, 2))))
			case op == "pread":
				buf := make([]byte, 100)
				n, err := file.ReadAt(buf, 0)
				if n > 0 {
					err = nil
				}
				fmt.Println(errnoOf(err), string(buf[:n]))
			case op == "pwrite":
				_, err := file.WriteAt([]byte("W"), 0)
				fmt.Println(errnoOf(err))
			case strings.HasPrefix(op, "fd "):
				name, arg, _ := strings.Cut(op[3:], " ")
				fmt.Println(errnoOf(doOp(name + " " + at(arg))))
			default:
				fmt.Println(errnoOf(doOp(op)))
			}
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
	cmd := client("hold", dir)
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	next := stream(t, cmd)
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
			h := layOut(t, map[string]string{"moved": "view: {xattrs: true}"})
			plant(t, h.scope("moved"), "d/e/f", "d/e/g", "d/e/sub/x")
			h.start()
			tell := holder(t, h.view("moved", "d/e"))
			require.Equal(t, "ok", tell("read g"))
			require.Equal(t, "ok", tell("fd read g"))
			out := filepath.Join(h.base, "out")
			require.NoError(t, os.Rename(h.scope("moved", up), out))
			inner := filepath.Join(out, strings.TrimPrefix("d/e", up))
			plant(t, inner, "FOREIGN-secret", "FOREIGN-dir/")
			before := picture(t, out)
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
			assert.Equal(t, before, picture(t, out))
			// And back in, under another name.
			require.NoError(t, os.Rename(out, h.scope("moved", "back")))
			assert.Equal(t, []string{"ok"}, hostOps(t, h.view("moved"), "read "+filepath.Join("back", strings.TrimPrefix("d/e", up), "g")))
		})
	}
}

// TestAttackPrefixReplaced: another directory or a link takes the place of the
// prefix, before and after the view is made.
func TestAttackPrefixReplaced(t *testing.T) {
	h := layOut(t, map[string]string{"one": "", "two": ""})
	plant(t, h.scope("one"), "f=mine", "d/f=mine")
	plant(t, h.scope("two"), "f=FOREIGN", "d/f=FOREIGN", "FOREIGN")
	h.startAll()
	before := picture(t, h.scope("two"))
	delete(before, ".") // its own name changes
	mine := func(when string) {
		t.Helper()
		for _, name := range []string{"f", "d/f"} {
			text, err := os.ReadFile(h.view("one", name))
			require.NoError(t, err, when)
			assert.Equal(t, "mine", string(text), when)
		}
		assert.Equal(t, []string{"ENOENT", "ok", "ok"}, hostOps(t, h.view("one"), "stat FOREIGN", "create n", "unlink n"), when)
	}
	mine("as it is")
	require.NoError(t, exchange([]string{h.scope("one"), h.scope("two")}))
	mine("exchanged with the other's")
	require.NoError(t, exchange([]string{h.scope("one"), h.scope("two")}))
	require.NoError(t, os.Rename(h.scope("one"), h.scope("one.old")))
	mine("moved away")
	require.NoError(t, os.Symlink("two", h.scope("one")))
	mine("replaced by a link")
	after := picture(t, h.scope("two"))
	delete(after, ".")
	assert.Equal(t, before, after)
	// A view that is made anew does not follow the link.
	i := slices.IndexFunc(h.ps(), func(a agent) bool { return a.ID == "one" })
	require.NoError(t, unix.Kill(h.ps()[i].ViewPID, unix.SIGKILL))
	h.eventually("the view has failed", func() bool { return h.ps()[i].State == "failed" })
	_, err := os.ReadFile(h.view("one", "f"))
	assert.Error(t, err)
	require.NoError(t, os.Remove(h.scope("one")))
	require.NoError(t, os.Rename(h.scope("one.old"), h.scope("one")))
	h.eventually("the view is back", func() bool { return h.ps()[i].State == "mounted" })
	mine("back")
}

// TestAttackMounts: what the host mounts below the prefix is not the agent's,
// and no mount travels from or to a view.
func TestAttackMounts(t *testing.T) {
	h := layOut(t, map[string]string{"mounts": ""})
	out := filepath.Join(h.base, "out")
	plant(t, out, "FOREIGN")
	plant(t, h.base, "file=FOREIGN")
	plant(t, h.scope("mounts"), "before/own", "after/own", "tmpfs/own", "file=own", "ok")
	mount := func(from, to, kind string, flags uintptr) {
		t.Helper()
		require.NoError(t, unix.Mount(from, to, kind, flags, ""), to)
		t.Cleanup(func() { _ = unix.Unmount(to, unix.MNT_DETACH) })
	}
	mount(out, h.scope("mounts", "before"), "", unix.MS_BIND)
	h.start()
	mount(out, h.scope("mounts", "after"), "", unix.MS_BIND)
	mount("none", h.scope("mounts", "tmpfs"), "tmpfs", 0)
	mount(h.base+"/file", h.scope("mounts", "file"), "", unix.MS_BIND)
	plant(t, h.scope("mounts", "tmpfs"), "FOREIGN")
	before := picture(t, out)
	for _, dir := range []string{"before", "after", "tmpfs"} {
		for _, client := range [][]string{
			hostOps(t, h.view("mounts"), "stat "+dir+"/FOREIGN", "read "+dir+"/FOREIGN", "list "+dir+" FOREIGN", "write "+dir+"/FOREIGN"),
			doOps(t, h.inSandbox("mounts", "ops"), []string{"stat " + dir + "/FOREIGN", "read " + dir + "/FOREIGN", "list " + dir + " FOREIGN", "write " + dir + "/FOREIGN"}),
		} {
			for _, got := range client {
				assert.Contains(t, []string{"EACCES", "ENOENT"}, got, dir)
			}
		}
	}
	text, _ := os.ReadFile(h.view("mounts", "file"))
	assert.Equal(t, "own", string(text))
	assert.Equal(t, before, picture(t, out))
	// What the mounts cover is the agent's and stays so: the view has a tree of
	// its own, where nothing is mounted. So there is no violation to record.
	assert.Equal(t, []string{"ok", "ok", "ok", "ok"}, hostOps(t, h.view("mounts"), "read ok", "read before/own", "read after/own", "read tmpfs/own"))
	info, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", h.ps()[0].ViewPID))
	require.NoError(t, err)
	assert.Equal(t, 1, strings.Count(string(info), "\n"), "the view process sees: %s", info)
	// The view is mounted in one place on the host, and nowhere else in the sandbox than there.
	assert.Equal(t, 1, strings.Count(readAll(t, "/proc/self/mountinfo"), " "+h.view("mounts")+" "))
	out2, err := exec.Command(program, "--base", h.base, "run", "-T", "mounts", "--", "cat", "/proc/self/mountinfo").Output()
	require.NoError(t, err)
	assert.Equal(t, 1, strings.Count(string(out2), "fuse.scopefs"), "%s", out2)
	assert.NotContains(t, string(out2), h.base+"/out")
}

func readAll(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	require.NoError(t, err)
	return string(text)
}

// TestAttackMountOverView: the host's root mounts something in a mounted view.
// bwrap binds recursively, so that sandboxes started later would have it, too.
func TestAttackMountOverView(t *testing.T) {
	h := layOut(t, map[string]string{"over": ""})
	plant(t, h.base, "out/FOREIGN")
	plant(t, h.scope("over"), "d/")
	h.start()
	require.NoError(t, unix.Mount(h.base+"/out", h.view("over", "d"), "", unix.MS_BIND, ""))
	defer unix.Unmount(h.view("over", "d"), unix.MNT_DETACH)
	_, errs, code := h.try("run", "over", "cat", "d/FOREIGN")
	assert.Equal(t, 125, code)
	assert.Contains(t, errs, "is mounted in the view")
}
