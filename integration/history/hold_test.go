package history

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/scope"
)

const holdRules = `view: {changes: %s, xattrs: true, paths: {"**/.dot": hold, "**/pack.json": hold, "held": hold}}`

// ruled returns lines "KIND PATH" of what rules hold.
func (k *keeper) ruled(id scope.ID) []string { return k.differences(k.client.HeldOf(id)) }

func (k *keeper) take(id scope.ID, opt api.CommitOptions) *api.Committed {
	k.T.Helper()
	return k.committed(k.client.HeldOf(id), opt)
}

// TestHold: an agent works with its own version of what rules hold, and the directory has the old one until a commit. Commits,
// discards and lists work beside the mounted view, which shows them at once.
func TestHold(t *testing.T) {
	for _, changes := range []string{"direct", "kept"} {
		t.Run(changes, func(t *testing.T) {
			h := harness.LayOut(t, map[string]string{"a": fmt.Sprintf(holdRules, changes)})
			dir := h.Scope("a")
			harness.Plant(t, dir, ".dot/set=1\n", ".dot/gone=g\n", ".dot/deep/x=x\n", "pack.json=old\n", "src/a=a\n", "src/pack.json=p\n")
			k := started(h)
			view := k.View("a")
			before := harness.Dumped(t, dir, 0)

			k.run("a", "echo 2 >.dot/set; rm .dot/gone; rm -r .dot/deep; mkdir .dot/deep; echo y >.dot/deep/y; sed -i s/old/new/ pack.json")
			k.run("a", "mkdir .dot/new; echo n >.dot/new/n; ln -s n .dot/new/l; echo q >pack.tmp; mv pack.tmp src/pack.json; rm -r .dot/new/l")
			assert.Equal(t, before, harness.Dumped(t, dir, 0), "the directory has changed")
			assert.Equal(t, "y\n", k.run("a", "ls .dot/deep"))
			want := []string{
				"added .dot/deep/y", "removed .dot/deep/x", "removed .dot/gone", "changed .dot/set", "added .dot/new", "added .dot/new/n",
				"changed pack.json", "changed src/pack.json",
			}
			assert.ElementsMatch(t, want, k.ruled("a"))

			r := k.take("a", api.CommitOptions{Paths: []string{"src/**", ".dot/new"}})
			assert.Empty(t, r.Conflicts)
			assert.Len(t, r.Taken, 3)
			assert.Equal(t, "q\n", read(t, dir+"/src/pack.json"))
			assert.Equal(t, "n\n", read(t, dir+"/.dot/new/n"))
			assert.Equal(t, "q\n", read(t, view+"/src/pack.json"))
			require.NoError(t, os.WriteFile(dir+"/src/pack.json", []byte("host\n"), 0o644))
			assert.Eventually(t, func() bool { return read(t, view+"/src/pack.json") == "host\n" }, h.Timeout, 10*time.Millisecond)

			// The host's change after the agent's is a conflict; the one before is not.
			require.NoError(t, os.WriteFile(dir+"/pack.json", []byte("host\n"), 0o644))
			k.run("a", "grep -q host src/pack.json; echo agent >>src/pack.json")
			lines := k.ruled("a")
			assert.Contains(t, lines, "changed pack.json changed in the directory since the fork")
			assert.Contains(t, lines, "changed src/pack.json")
			n, err := k.client.HeldOf("a").Discard(t.Context(), []string{"pack.json"}, "")
			require.NoError(t, err)
			assert.Equal(t, 1, n)
			assert.Equal(t, "host\n", read(t, view+"/pack.json"))

			assert.Empty(t, k.take("a", api.CommitOptions{}).Conflicts)
			assert.Equal(t, harness.Dumped(t, dir, 0), harness.Dumped(t, view, 0))
			assert.NoFileExists(t, dir+"/.dot/gone")
			assert.Empty(t, k.ruled("a"))
			k.run("a", "echo 3 >.dot/set")
			k.Must("down", "a")
			assert.Equal(t, []string{"changed .dot/set"}, k.ruled("a"))
			n, err = k.client.HeldOf("a").Discard(t.Context(), nil, "")
			require.NoError(t, err)
			assert.Equal(t, 1, n)
			assert.Equal(t, "2\n", k.run("a", "cat .dot/set"))
		})
	}
}

// TestHoldAttack: whatever a client tries, the directory has no held name that it has made, and no such file has its content.
func TestHoldAttack(t *testing.T) {
	h := harness.LayOut(t, map[string]string{"a": fmt.Sprintf(holdRules, "kept")})
	dir := h.Scope("a")
	harness.Plant(t, dir, ".dot/set=1\n", "pack.json=old\n", "plain=p\n", "sub/f=f\n", "sub/.dot/x=x\n", "other/", "links/.dot/t=t\n")
	require.NoError(t, os.Link(dir+"/links/.dot/t", dir+"/twin"))
	started(h).Must("up", "a")
	view := h.View("a")
	write := func(name string) {
		_ = os.WriteFile(filepath.Join(view, name), []byte("evil"), 0o644)
	}
	at := func(name string) string { return filepath.Join(view, name) }
	open := func(name string, flags int) *os.File {
		f, err := os.OpenFile(at(name), flags, 0o644)
		require.NoError(t, err)
		t.Cleanup(func() { f.Close() })
		return f
	}
	tmpfile := func(in, to string) error {
		f := open(in, unix.O_TMPFILE|unix.O_RDWR)
		_, err := f.WriteString("evil")
		require.NoError(t, err)
		return unix.Linkat(int(f.Fd()), "", unix.AT_FDCWD, at(to), unix.AT_EMPTY_PATH)
	}
	attacks := map[string]func() error{
		"write":    func() error { write(".dot/set"); write("pack.json"); write("sub/pack.json"); return nil },
		"truncate": func() error { return os.Truncate(at(".dot/set"), 0) },
		"rename to": func() error {
			write("w")
			return os.Rename(at("w"), at(".dot/w"))
		},
		"rename over": func() error {
			write("w")
			return os.Rename(at("w"), at("pack.json"))
		},
		"rename away": func() error { write(".dot/w"); _ = os.Rename(at(".dot/w"), at("away")); return nil },
		"exchange": func() error {
			write("w")
			_ = unix.Renameat2(unix.AT_FDCWD, at("w"), unix.AT_FDCWD, at("pack.json"), unix.RENAME_EXCHANGE)
			return nil
		},
		"link to":   func() error { write("w"); _ = os.Link(at("w"), at(".dot/linked")); return nil },
		"link away": func() error { _ = os.Link(at("pack.json"), at("linked")); write("linked"); return nil },
		"tmpfile to": func() error {
			assert.ErrorIs(t, tmpfile("other", ".dot/tmp2"), unix.EXDEV)
			return nil
		},
		"tmpfile away": func() error {
			assert.ErrorIs(t, tmpfile(".dot", "other/tmp"), unix.EXDEV)
			return nil
		},
		"tmpfile": func() error { return tmpfile(".dot", ".dot/tmp") },
		"directory to": func() error {
			_ = os.Mkdir(at("d"), 0o755)
			write("d/w")
			_ = os.Rename(at("d"), at("held"))
			return nil
		},
		"directory dot": func() error {
			_ = os.Mkdir(at("d"), 0o755)
			write("d/w")
			_ = os.Rename(at("d"), at("other/.dot"))
			return nil
		},
		"directory with": func() error {
			write("sub/.dot/x")
			require.NoError(t, os.Rename(at("sub"), at("moved")))
			assert.Equal(t, "evil", read(t, at("moved/.dot/x")))
			assert.Equal(t, "x\n", read(t, dir+"/moved/.dot/x"))
			assert.ErrorIs(t, os.Rename(at("moved"), at("held")), unix.EXDEV)
			return os.Rename(at("moved"), at("sub"))
		},
		"handle": func() error {
			write("h")
			f := open("h", os.O_RDWR)
			_ = os.Rename(at("h"), at("pack.json"))
			_, _ = f.WriteString("evil later")
			return nil
		},
		"map": func() error {
			write("m")
			f := open("m", os.O_RDWR)
			page, err := unix.Mmap(int(f.Fd()), 0, 4, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
			require.NoError(t, err)
			_ = os.Rename(at("m"), at(".dot/m"))
			copy(page, "EVIL")
			_ = unix.Msync(page, unix.MS_SYNC)
			return unix.Munmap(page)
		},
		"reader": func() error {
			f := open("pack.json", os.O_RDONLY)
			write("pack.json")
			_ = unix.Fchmod(int(f.Fd()), 0o777)
			g, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", f.Fd()), os.O_WRONLY, 0)
			if err == nil {
				_, _ = g.WriteString("evil")
				g.Close()
			}
			return nil
		},
		"mode":    func() error { return os.Chmod(at(".dot/set"), 0o777) },
		"symlink": func() error { _ = os.Symlink(".dot", at("way")); write("way/w"); write("way/set"); return nil },
		"twin": func() error {
			_, _ = os.Stat(at("links/.dot/t"))
			assert.ErrorIs(t, os.WriteFile(at("twin"), []byte("evil"), 0o644), unix.EACCES)
			return nil
		},
		"descriptor": func() error {
			d := open(".dot", unix.O_DIRECTORY)
			fd, err := unix.Openat(int(d.Fd()), "set", os.O_WRONLY|os.O_TRUNC, 0)
			require.NoError(t, err)
			defer unix.Close(fd)
			_, err = unix.Write(fd, []byte("evil"))
			return err
		},
		"z remove": func() error { return os.RemoveAll(at(".dot")) },
		"marks": func() error {
			write(".dot/set")
			for _, name := range []string{"opaque", "redirect", "metacopy", "whiteout"} {
				assert.Error(t, unix.Setxattr(at(".dot/set"), "user.overlay."+name, []byte("y"), 0))
			}
			return nil
		},
	}
	state := func() map[string]string {
		now := map[string]string{}
		require.NoError(t, filepath.WalkDir(dir, func(name string, e os.DirEntry, err error) error {
			rel, _ := filepath.Rel(dir, name)
			parts := strings.Split(rel, "/")
			if slices.Contains(parts, ".dot") || slices.Contains(parts, "pack.json") || parts[0] == "held" {
				info, err := e.Info()
				require.NoError(t, err)
				text := ""
				if info.Mode().IsRegular() {
					text = read(t, name)
				}
				now[rel] = fmt.Sprint(info.Mode(), text)
			}
			return err
		}))
		return now
	}
	before := state()
	for _, name := range slices.Sorted(maps.Keys(attacks)) {
		t.Run(name, func(t *testing.T) {
			assert.NoError(t, attacks[name]())
			assert.Equal(t, before, state())
		})
	}
	t.Run("race", func(t *testing.T) {
		done := make(chan struct{})
		go func() {
			defer close(done)
			for range 300 {
				_ = os.Rename(at("other"), at("third"))
				_ = os.Rename(at("third"), at("other"))
				_ = os.Rename(at("racer"), at(".dot/racer"))
			}
		}()
		for racing := true; racing; {
			select {
			case <-done:
				racing = false
			default:
			}
			write("racer")
			write("other/pack.json")
			write("third/pack.json")
			_ = os.Mkdir(at("other/.dot"), 0o755)
			write("other/.dot/f")
			_ = os.Rename(at("racer"), at("other/.dot/racer"))
		}
		assert.Equal(t, before, state())
	})
}

// TestHoldHidden: what a rule hides in a held directory stays hidden, and a commit does not remove it. What a rule makes
// read-only stays so.
func TestHoldHidden(t *testing.T) {
	h := harness.LayOut(t, map[string]string{"a": `view: {paths: {".dot": hold, ".dot/key": hide, ".dot/fixed": read}}`})
	dir := h.Scope("a")
	harness.Plant(t, dir, ".dot/key=secret\n", ".dot/fixed=1\n", ".dot/f=1\n")
	k := started(h)
	k.run("a", `! rm -rf .dot 2>/dev/null; ! cat .dot/key 2>/dev/null; ! echo x 2>/dev/null >.dot/fixed; ! echo x 2>/dev/null >.dot/key
		ls -A .dot >list; ! mv .dot there 2>/dev/null; ! ln .dot/fixed .dot/f2 2>/dev/null
		ln -s key .dot/l; ! cat .dot/l 2>/dev/null; rm .dot/l`)
	assert.Equal(t, "fixed\n", read(t, dir+"/list"))
	assert.Equal(t, []string{"removed .dot/f"}, k.ruled("a"))
	k.take("a", api.CommitOptions{})
	assert.Equal(t, "secret\n", read(t, dir+"/.dot/key"))
	assert.Equal(t, "1\n", read(t, dir+"/.dot/fixed"))
	assert.NoFileExists(t, dir+"/.dot/f")
}

// TestHoldReload: a rule that comes while the view is up makes paths read-only, also for files that are open.
func TestHoldReload(t *testing.T) {
	h := harness.LayOut(t, map[string]string{"a": "view: {data: mediated}"})
	harness.Plant(t, h.Scope("a"), "pack.json=1\n")
	k := started(h)
	k.Must("up", "a")
	f, err := os.OpenFile(k.View("a", "pack.json"), os.O_WRONLY, 0)
	require.NoError(t, err)
	defer f.Close()
	h.Define("a", `view: {data: mediated, paths: {"pack.json": hold}}`)
	k.Must("reload")
	_, err = f.WriteString("evil")
	assert.Error(t, err)
	assert.ErrorIs(t, os.WriteFile(k.View("a", "pack.json"), []byte("evil"), 0), unix.EACCES)
	k.Must("down", "a")
	k.Must("up", "a")
	g, err := os.OpenFile(k.View("a", "pack.json"), os.O_WRONLY, 0)
	require.NoError(t, err)
	_, err = g.WriteString("mine")
	require.NoError(t, err)
	require.NoError(t, g.Close())
	assert.Equal(t, "1\n", read(t, h.Scope("a", "pack.json")))
	assert.Equal(t, "mine", k.run("a", "cat pack.json"))
}

// TestHoldModel makes random changes in a held directory and in a plain one: each ends in the same way, and so do the trees,
// in the view, in the next view, and in the directory after a commit.
func TestHoldModel(t *testing.T) {
	for seed := range uint64(rounds("SCOPEFS_TEST_HISTORY_SEEDS", 8)) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			h := harness.LayOut(t, map[string]string{"a": fmt.Sprintf(holdRules, "direct")})
			dir, twin := h.Scope("a"), h.Base+"/twin"
			for _, root := range []string{dir + "/held", twin} {
				harness.Plant(t, root, "a/x=1", "a/y=2", "a/c/z=3", "b/x=4", "b/c/y=5", "x=6", "y => x", "c/")
			}
			before := harness.Dumped(t, dir, 0)
			k := started(h)
			k.Must("up", "a")
			r := rand.New(rand.NewPCG(seed, 7))
			var trace []string
			for range 250 {
				same(t, k.View("a", "held"), twin, r, &trace)
				if t.Failed() {
					t.Fatal(strings.Join(trace, "\n"))
				}
			}
			assert.Equal(t, before, harness.Dumped(t, dir, 0))
			harness.SameTrees(t, harness.Dumped(t, twin, 0), harness.Dumped(t, k.View("a", "held"), 0), "the view")
			k.Must("down", "a")
			k.Must("up", "a")
			harness.SameTrees(t, harness.Dumped(t, twin, 0), harness.Dumped(t, k.View("a", "held"), 0), "the next view")
			result := k.take("a", api.CommitOptions{})
			assert.Empty(t, result.Conflicts)
			apart := func(tree string) string { return links.ReplaceAllString(tree, "") } // a commit separates names of one file
			harness.SameTrees(t, apart(harness.Dumped(t, twin, 0)), apart(harness.Dumped(t, dir+"/held", 0)), "the directory")
			if t.Failed() {
				t.Log(strings.Join(trace, "\n"))
			}
			k.Stop()
		})
	}
}

var links = regexp.MustCompile(`(?m) = \S+$`)

// same does one random operation in two directories and compares the errors. A directory of the host's cannot be renamed
// where it is held: the twin's is then not renamed, either.
func same(t *testing.T, view, twin string, r *rand.Rand, trace *[]string) {
	names := []string{"a", "b", "c", "x", "y", "z"}
	name := func() string {
		rel := names[r.IntN(len(names))]
		for r.IntN(3) > 0 {
			rel += "/" + names[r.IntN(len(names))]
		}
		return rel
	}
	from, to, text := name(), name(), fmt.Sprint(r.IntN(1000))
	kinds := map[string]func(root string) error{
		"write": func(root string) error { return os.WriteFile(root+"/"+from, []byte(text), 0o644) },
		"append": func(root string) error {
			f, err := os.OpenFile(root+"/"+from, os.O_WRONLY|os.O_APPEND, 0)
			if err == nil {
				_, err = f.WriteString(text)
				f.Close()
			}
			return err
		},
		"create": func(root string) error {
			f, err := os.OpenFile(root+"/"+from, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
			if err == nil {
				f.Close()
			}
			return err
		},
		"truncate": func(root string) error { return os.Truncate(root+"/"+from, int64(len(text))) },
		"unlink":   func(root string) error { return unix.Unlink(root + "/" + from) },
		"rmdir":    func(root string) error { return unix.Rmdir(root + "/" + from) },
		"remove":   func(root string) error { return os.RemoveAll(root + "/" + from) },
		"mkdir":    func(root string) error { return os.Mkdir(root+"/"+from, 0o750) },
		"link":     func(root string) error { return os.Link(root+"/"+from, root+"/"+to) },
		"symlink":  func(root string) error { return os.Symlink("x", root+"/"+from) },
		"chmod":    func(root string) error { return unix.Fchmodat(unix.AT_FDCWD, root+"/"+from, 0o711, 0) },
		"setxattr": func(root string) error { return unix.Lsetxattr(root+"/"+from, "user.k", []byte(text), 0) },
		"rename":   func(root string) error { return unix.Rename(root+"/"+from, root+"/"+to) },
		"noreplace": func(root string) error {
			return unix.Renameat2(unix.AT_FDCWD, root+"/"+from, unix.AT_FDCWD, root+"/"+to, unix.RENAME_NOREPLACE)
		},
		"exchange": func(root string) error {
			return unix.Renameat2(unix.AT_FDCWD, root+"/"+from, unix.AT_FDCWD, root+"/"+to, unix.RENAME_EXCHANGE)
		},
		"map": func(root string) error {
			f, err := os.OpenFile(root+"/"+from, os.O_RDWR, 0)
			if err != nil {
				return err
			}
			defer f.Close()
			if info, err := f.Stat(); err != nil || info.Size() == 0 || !info.Mode().IsRegular() {
				return err
			}
			page, err := unix.Mmap(int(f.Fd()), 0, 1, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
			if err == nil {
				page[0] = 'M'
				err = unix.Munmap(page)
			}
			return err
		},
		"read": func(root string) error {
			list, err := os.ReadDir(root + "/" + from)
			*trace = append(*trace, fmt.Sprint(list))
			return err
		},
	}
	kind := slices.Sorted(maps.Keys(kinds))[r.IntN(len(kinds))]
	errno := func(err error) error {
		e, _ := errors.AsType[unix.Errno](err)
		return e
	}
	got := errno(kinds[kind](view))
	*trace = append(*trace, fmt.Sprintf("%s %s %s %s: %v", kind, from, to, text, got))
	if got == unix.EXDEV && strings.Contains("rename noreplace exchange", kind) {
		return
	}
	assert.Equal(t, errno(kinds[kind](twin)), got, "%s %s %s", kind, from, to)
}

// TestHoldListing: a reader that lists a directory of many names in pieces gets each of them, also while it removes them.
func TestHoldListing(t *testing.T) {
	h := harness.LayOut(t, map[string]string{"a": fmt.Sprintf(holdRules, "direct")})
	for i := range 3000 {
		harness.Plant(t, h.Scope("a"), fmt.Sprintf(".dot/host%d=", i))
	}
	k := started(h)
	k.run("a", `cd .dot; for i in $(seq 3000); do echo >agent$i; done; rm host1*; echo >host2
		ls | wc -l >../count; ls -U | sort -u | wc -l >>../count`)
	assert.Equal(t, "4889\n4889\n", read(t, h.Scope("a", "count")))
	k.run("a", "rm -r .dot; ! test -e .dot")
	entries, err := os.ReadDir(h.Scope("a", ".dot"))
	require.NoError(t, err)
	assert.Len(t, entries, 3000)
}

// TestHoldPrograms: git, editors' ways to save, and archives work with held paths.
func TestHoldPrograms(t *testing.T) {
	h := harness.LayOut(t, map[string]string{"a": `protect: ["*"]` + "\n" + `view: {paths: {"**/.dot": hold, "**/pack.json": hold}}`})
	dir := h.Scope("a")
	harness.Plant(t, dir, ".dot/set=1\n", "pack.json=old\n", "src/a=a\n")
	git := func(words ...string) {
		as := []string{"-C", dir, "-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "safe.directory=*"}
		cmd := exec.Command("git", append(as, words...)...)
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	git("init", "-qb", "main")
	git("add", ".")
	git("commit", "-qm", "first")
	git("checkout", "-qb", "other")
	harness.Plant(t, dir, ".dot/more=2\n", "lib/.dot/x=x\n")
	require.NoError(t, os.WriteFile(dir+"/.dot/set", []byte("2\n"), 0o644))
	git("add", ".")
	git("commit", "-qm", "second")
	git("checkout", "-q", "main")
	k := started(h)
	assert.Empty(t, k.run("a", "git checkout -q other; git status --short; cat .dot/more lib/.dot/x >/dev/null; grep -q 2 .dot/set"))
	assert.Equal(t, "1\n", read(t, dir+"/.dot/set"))
	assert.NoDirExists(t, dir+"/lib/.dot")
	assert.Empty(t, k.run("a", "git checkout -q main; git status --short; ! test -e .dot/more"))
	assert.Empty(t, k.ruled("a"))
	k.run("a", `sed -i s/old/sed/ pack.json; grep -q sed pack.json; sed -i s/1/2/ .dot/set
		cp pack.json t; echo atomic >t; mv -f t pack.json; grep -q atomic pack.json; echo more >>pack.json; test $(wc -l <pack.json) = 2
		tar cf a.tar .dot pack.json; rm -r .dot; tar xf a.tar; rm a.tar; grep -q 2 .dot/set; mv pack.json saved; cp saved pack.json; rm saved
		git mv src dir; mkdir dir/.dot; echo d >dir/.dot/d; git mv dir src; grep -q d src/.dot/d; rm -r src/.dot
		git stash -q; grep -q old pack.json; git stash pop -q; grep -q atomic pack.json; git clone -q . clone; rm -rf clone`)
	assert.Equal(t, "old\n", read(t, dir+"/pack.json"))
	assert.ElementsMatch(t, []string{"changed .dot/set", "changed pack.json"}, k.ruled("a"))
}

// TestHoldWhile: a client changes held names all the time, while the operator lists, commits and discards. Nobody gets another
// error than that of a path that is gone, or EBUSY, and in the end all is where it belongs.
func TestHoldWhile(t *testing.T) {
	h := harness.LayOut(t, map[string]string{"a": fmt.Sprintf(holdRules, "kept")})
	dir := h.Scope("a")
	for i := range 8 {
		harness.Plant(t, dir, fmt.Sprintf(".dot/d%d/f=old", i), fmt.Sprintf("p%d/pack.json=old", i))
	}
	k := started(h)
	k.Must("up", "a")
	view := h.View("a")
	stop, done := make(chan struct{}), make(chan error, 1)
	go func() {
		r := rand.New(rand.NewPCG(1, 1))
		for {
			select {
			case <-stop:
				done <- nil
				return
			default:
			}
			n, at := r.IntN(8), ""
			var err error
			switch at = fmt.Sprintf("%s/.dot/d%d", view, n); r.IntN(6) {
			case 0:
				err = os.WriteFile(at+"/f", []byte(fmt.Sprint(r.Int())), 0o644)
			case 1:
				err = os.Remove(at + "/f")
			case 2:
				err = os.RemoveAll(at)
			case 3:
				err = os.Mkdir(at, 0o755)
			case 4:
				err = os.WriteFile(fmt.Sprintf("%s/p%d/pack.json", view, n), []byte(fmt.Sprint(r.Int())), 0o644)
			default:
				if err = os.WriteFile(fmt.Sprintf("%s/p%d/tmp", view, n), []byte("t"), 0o644); err == nil {
					err = os.Rename(fmt.Sprintf("%s/p%d/tmp", view, n), fmt.Sprintf("%s/p%d/pack.json", view, n))
				}
			}
			if err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, os.ErrExist) && !errors.Is(err, unix.EBUSY) {
				done <- err
				return
			}
		}
	}()
	for i := range 12 {
		_, err := k.client.HeldOf("a").Diff(t.Context(), nil, false)
		require.NoError(t, err)
		_, err = k.client.HeldOf("a").Commit(t.Context(), api.CommitOptions{Theirs: true, Paths: []string{fmt.Sprintf(".dot/d%d", i%8), "p1/**"}})
		require.NoError(t, err)
		_, err = k.client.HeldOf("a").Discard(t.Context(), []string{fmt.Sprintf("p%d/**", i%8)}, "")
		require.NoError(t, err)
	}
	close(stop)
	require.NoError(t, <-done)
	want := harness.Dumped(t, view, 0)
	assert.Empty(t, k.take("a", api.CommitOptions{Theirs: true}).Conflicts)
	assert.Empty(t, k.ruled("a"))
	harness.SameTrees(t, want, harness.Dumped(t, dir, 0), "the directory")
	harness.SameTrees(t, want, harness.Dumped(t, view, 0), "the view")
}

// TestHoldKilled: after the view, and then the daemon, was killed, the next view has what the agent did.
func TestHoldKilled(t *testing.T) {
	h := harness.LayOut(t, map[string]string{"a": fmt.Sprintf(holdRules, "direct")})
	dir := h.Scope("a")
	harness.Plant(t, dir, ".dot/f=old", "pack.json=old")
	k := started(h)
	k.run("a", "echo new >.dot/f; rm pack.json; mkdir .dot/d; echo x >.dot/d/x")
	all, err := k.client.Agents(t.Context())
	require.NoError(t, err)
	require.NoError(t, unix.Kill(all[0].ViewPID, unix.SIGKILL))
	assert.Equal(t, "new\nx\n", k.run("a", "cat .dot/f .dot/d/x; ! test -e pack.json; echo y >.dot/d/y"))
	k.Kill()
	k.Start()
	k.run("a", "echo z >.dot/d/z")
	want := []string{"changed .dot/f", "added .dot/d", "added .dot/d/x", "added .dot/d/y", "added .dot/d/z", "removed pack.json"}
	assert.ElementsMatch(t, want, k.ruled("a"))
	assert.Empty(t, k.take("a", api.CommitOptions{}).Conflicts)
	assert.NoFileExists(t, dir+"/pack.json")
	assert.Equal(t, "z\n", read(t, dir+"/.dot/d/z"))
}

// TestHoldTwo: without a daemon, two commands on the directory at a time have the same held paths. Lists and commits work beside them.
func TestHoldTwo(t *testing.T) {
	h := harness.LayOut(t, map[string]string{"a": fmt.Sprintf(holdRules, "auto")})
	dir := h.Scope("a")
	harness.Plant(t, dir, ".dot/f=old\n")
	done := make(chan string, 1)
	go func() {
		done <- h.Must("run", "a", "--", "sh", "-ec",
			"echo new >.dot/f; touch ready; while ! test -e go; do sleep 0.02; done; cat .dot/f .dot/g")
	}()
	require.Eventually(t, func() bool { _, err := os.Stat(dir + "/ready"); return err == nil }, time.Minute, 10*time.Millisecond)
	out := h.Must("run", "a", "--", "sh", "-ec", "cat .dot/f; echo other >.dot/g; echo ok >plain")
	assert.Contains(t, out, "new")
	assert.Contains(t, h.Must("diff", "a"), ".dot/f")
	assert.Contains(t, h.Must("commit", "a"), "2 changes taken")
	assert.Equal(t, "new\n", read(t, dir+"/.dot/f"))
	require.NoError(t, os.WriteFile(dir+"/go", nil, 0o644))
	assert.Equal(t, "new\nother\n", <-done)
}
