package view

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/integration/harness"
)

// moved opens a directory and, for each line of its input, prints how operations by
// that descriptor end. With the second argument "cwd" it works there instead.
func moved(args []string) error {
	fd, err := unix.Open(args[0], unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err == nil && args[1] == "cwd" {
		err = unix.Fchdir(fd)
		unix.Close(fd)
		fd = unix.AT_FDCWD
	}
	if err != nil {
		return err
	}
	fmt.Println("opened")
	var st unix.Stat_t
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		var said []string
		do := func(what string, err error) { said = append(said, what+" "+harness.ErrnoOf(err)) }
		openedAt := func(name string, flags int, do func(fd int) error) error {
			fd, err := unix.Openat(fd, name, flags|unix.O_CLOEXEC, 0o644)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			return do(fd)
		}
		name := in.Text()
		if fd >= 0 {
			do("fstat", unix.Fstat(fd, &st))
			do("fchmod", unix.Fchmod(fd, 0o755))
			unix.Seek(fd, 0, 0)
		}
		do("list", openedAt(".", unix.O_RDONLY|unix.O_DIRECTORY, func(fd int) error {
			b := make([]byte, 4096)
			n, err := unix.Getdents(fd, b)
			if err == nil && !strings.Contains(string(b[:n]), "mine") {
				err = unix.ENODATA
			}
			return err
		}))
		do("stat", unix.Fstatat(fd, "mine", &st, 0))
		do("read", openedAt("sub/mine", unix.O_RDONLY, func(fd int) error {
			b := make([]byte, 9)
			n, err := unix.Read(fd, b)
			if err == nil && string(b[:n]) != "sub/mine" {
				err = fmt.Errorf("read %q", b[:n])
			}
			return err
		}))
		do("create", openedAt(name, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY, harness.Overwrite))
		do("mkdir", unix.Mkdirat(fd, name+".d", 0o755))
		do("rename", unix.Renameat(fd, name, fd, name+".d/x"))
		do("link", unix.Linkat(fd, name+".d/x", fd, name+".l", 0))
		do("symlink", unix.Symlinkat("mine", fd, name+".s"))
		do("unlink", unix.Unlinkat(fd, name+".l", 0))
		fmt.Println(strings.Join(said, ", "))
	}
	return nil
}

func init() { harness.Roles["moved"] = moved }

// TestMovedDirectory: a descriptor of a directory stays with it when the host moves it
// within the scope: to a watched directory at once, elsewhere after the next lookup there. It
// reaches nothing of what stands at its old name.
func TestMovedDirectory(t *testing.T) {
	const good = "list ok, stat ok, read ok, create ok, mkdir ok, rename ok, link ok, symlink ok, unlink ok"
	for name, front := range map[string]string{
		"user":   "view: {paths: {\"hidden/**\": hide, \"kept/**\": read}}",
		"caller": "identity: caller\nview: {data: mediated}",
	} {
		for _, how := range []string{"fd", "cwd"} {
			t.Run(name+" "+how, func(t *testing.T) {
				h := harness.LayOut(t, map[string]string{"a": front, "other": ""})
				dir := h.Scope("a")
				harness.Plant(t, dir, "top/in/d/mine", "top/near/x", "unseen/deep/x", "decoy/sub/x", "hidden/x", "kept/x", "exchange/mine=FOREIGN", "exchange/sub/mine=FOREIGN")
				require.NoError(t, os.MkdirAll(filepath.Join(dir, "top/in/d/sub"), 0o755))
				require.NoError(t, os.WriteFile(filepath.Join(dir, "top/in/d/sub/mine"), []byte("sub/mine"), 0o644))
				h.Start()
				cmd := harness.Role("moved", h.View("a", "top/in/d"), how)
				in, err := cmd.StdinPipe()
				require.NoError(t, err)
				next := harness.Stream(t, cmd)
				require.Equal(t, "opened", next())
				_, err = os.Stat(h.View("a", "top/near/x"))
				require.NoError(t, err)
				n := 0
				ask := func() string {
					n++
					_, err := fmt.Fprintln(in, "n", n)
					require.NoError(t, err)
					return next()
				}
				all := good
				if how == "fd" {
					all = "fstat ok, fchmod ok, " + good
				}
				require.Equal(t, all, ask())
				at := "top/in/d"
				move := func(to string) {
					t.Helper()
					require.NoError(t, os.Rename(filepath.Join(dir, at), filepath.Join(dir, to)))
					at = to
				}
				works := func(what string) {
					t.Helper()
					h.Eventually(what, func() bool { return ask() == all }) // the watch reports it some milliseconds later
					assert.FileExists(t, filepath.Join(dir, at, fmt.Sprintf("n %d.d/x", n)), what)
				}
				found := func(what string) {
					t.Helper()
					_, err := os.Stat(h.View("a", at))
					require.NoError(t, err)
					works(what)
				}
				if !harness.Cacheless() { // else nothing watches
					move("top/in/e")
					works("renamed in its directory")
					move("top/near/e")
					works("moved to a directory that the view watches")
				}
				if how == "cwd" {
					return
				}
				move("unseen/deep/d")
				assert.Contains(t, ask(), "list ESTALE", "moved to one that it has never seen")
				found("looked up there")
				require.NoError(t, os.Rename(filepath.Join(dir, "unseen"), filepath.Join(dir, "seen")))
				at = "seen/deep/d"
				found("a directory above it renamed")
				require.NoError(t, unix.Renameat2(unix.AT_FDCWD, filepath.Join(dir, at), unix.AT_FDCWD, filepath.Join(dir, "exchange"), unix.RENAME_EXCHANGE))
				at = "exchange"
				decoy := harness.Picture(t, filepath.Join(dir, "seen/deep/d"))
				found("exchanged with another")
				assert.Equal(t, decoy, harness.Picture(t, filepath.Join(dir, "seen/deep/d")))
				entries, err := os.ReadDir(h.View("a", "exchange"))
				require.NoError(t, err)
				assert.True(t, slices.ContainsFunc(entries, func(e os.DirEntry) bool { return e.Name() == fmt.Sprintf("n %d.d", n) }))

				if name == "user" {
					move("hidden/d")
					assert.NotContains(t, ask(), "read ok")
					assert.NoFileExists(t, filepath.Join(dir, at, fmt.Sprintf("n %d.d/x", n)), "the rules of the new place hold")
					move("kept/d")
					_, err := os.Stat(h.View("a", at))
					require.NoError(t, err)
					said := ask()
					assert.Contains(t, said, "read ok")
					assert.Contains(t, said, "create EACCES")
				}
				require.NoError(t, os.Rename(filepath.Join(dir, at), h.Scope("other", "d")))
				outside := harness.Picture(t, h.Scope("other", "d"))
				for range 3 {
					said := ask()
					for _, what := range []string{"list", "stat", "read", "create", "mkdir", "rename", "link", "symlink", "unlink", "fchmod"} {
						assert.Contains(t, said, what+" ESTALE", "moved out of the scope")
					}
				}
				assert.Equal(t, outside, harness.Picture(t, h.Scope("other", "d")))
				require.NoError(t, os.Rename(h.Scope("other", "d"), filepath.Join(dir, "back")))
				at = "back"
				found("moved back")
				require.NoError(t, os.RemoveAll(filepath.Join(dir, at)))
				assert.NotContains(t, ask(), "create ok")
			})
		}
	}
}
