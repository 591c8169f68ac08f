package scope

import (
	"bytes"
	"crypto/sha1"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/internal/need"
)

// gitIndexOf returns the index that git writes for paths in a version, and the directory of
// the work tree.
func gitIndexOf(t testing.TB, version string, paths []string, more ...string) (index []byte, dir string) {
	git := need.Program(t, "git")
	dir = t.TempDir()
	run := func(stdin string, args ...string) {
		cmd := exec.Command(git, args...)
		cmd.Dir, cmd.Stdin = dir, strings.NewReader(stdin)
		cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null")
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	run("", "init", "-q")
	run("", "config", "index.threads", "4")
	run("", "config", "index.version", version)
	run("", "read-tree", "--empty")
	var info strings.Builder
	for _, path := range paths {
		fmt.Fprintf(&info, "100644 %s\t%s\x00", emptyBlob, path)
	}
	run(info.String(), "update-index", "-z", "--index-info")
	for _, args := range more {
		run("", strings.Fields(args)...)
	}
	index, err := os.ReadFile(filepath.Join(dir, ".git/index"))
	require.NoError(t, err)
	return index, dir
}

// emptyBlob is the name of an empty file's object.
const emptyBlob = "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391"

func manyPaths(n int) (paths []string) {
	for i := range n {
		paths = append(paths, fmt.Sprintf("some/directory%d/file%d", i/100, i))
	}
	return paths
}

// TestCheckGitIndex: what git writes may be there; a path out of the work tree may not,
// whichever way the index hides it.
func TestCheckGitIndex(t *testing.T) {
	check := func(index []byte) error { return CheckGitIndex(bytes.NewReader(index), int64(len(index))) }
	long := strings.Repeat("long/", 1000) + "x"
	for _, version := range []string{"2", "4"} {
		index, _ := gitIndexOf(t, version, []string{"a", "b/c", "b/d", "xxxx/hooks/pre-commit", "xxxxxxx", long})
		require.NoError(t, check(index))
		for _, evil := range []string{".git/hooks/pre-commit", "../x/hooks/pre-commit", ".GIT/hooks/pre-commit", "/tmp/hooks/pre-commit", "x/../hooks/pre-commit", "x/./xhooks/pre-commit"} {
			assert.ErrorContains(t, check(bytes.Replace(index, []byte("xxxx/hooks/pre-commit"), []byte(evil), 1)), "index has the path", "%s %s", version, evil)
		}
		assert.ErrorIs(t, check(bytes.Replace(index, []byte("xxxx/hooks"), []byte(".git\x00hooks"), 1)), errOddIndex, "%s: a NUL within", version)
		for n := range len(index) { // cut anywhere
			_ = check(index[:n])
		}
		assert.Error(t, check(index[:len(index)/2]))

		index, _ = gitIndexOf(t, version, manyPaths(45_000))
		require.NoError(t, check(index))
		at := bytes.Index(index, []byte("IEOT"))
		require.Positive(t, at, "git writes a table of blocks")
		for n := range 3 { // a block that begins elsewhere, and the end
			moved := bytes.Clone(index)
			moved[at+12+8*n+3] ^= 8
			assert.ErrorIs(t, check(moved), errOddIndex, n)
		}
		moved := bytes.Clone(index)
		moved[len(moved)-gitHash-endSize+3] ^= 8
		assert.Error(t, check(moved))
	}
	index, _ := gitIndexOf(t, "2", []string{"a"}, "update-index --split-index")
	assert.ErrorContains(t, check(index), "index is split")
	index, _ = gitIndexOf(t, "2", []string{"a", "b"}, "update-index --skip-worktree a") // version 3
	assert.NoError(t, check(index))
	index, _ = gitIndexOf(t, "2", nil)
	assert.NoError(t, check(index))
	assert.Error(t, check(nil))
	assert.ErrorContains(t, CheckGitIndex(bytes.NewReader(nil), MaxGitIndex+1), "larger than")
}

// TestSumGitIndex: the sum of an index is of its entries, in any version.
func TestSumGitIndex(t *testing.T) {
	sum := func(version string, more ...string) string {
		index, _ := gitIndexOf(t, version, []string{"a", "b/c"}, more...)
		text, err := SumGitIndex(bytes.NewReader(index), int64(len(index)))
		require.NoError(t, err)
		return fmt.Sprintf("%x", text)
	}
	one := sum("2")
	for _, version := range []string{"3", "4"} {
		assert.Equal(t, one, sum(version), version)
	}
	seen := map[string]bool{one: true}
	for _, more := range []string{"--assume-unchanged a", "--skip-worktree a", "--skip-worktree b/c", "--cacheinfo 100755," + emptyBlob + ",a", "--force-remove a"} {
		other := sum("2", "update-index "+more)
		assert.False(t, seen[other], more)
		seen[other] = true
	}
	_, err := SumGitIndex(bytes.NewReader([]byte("DIRC")), 4)
	assert.Error(t, err)
}

// TestCheckGitIndexUntracked: git status lists the directories that the untracked cache names,
// so each has one name. Nothing else of the cache is judged.
func TestCheckGitIndexUntracked(t *testing.T) {
	check := func(index []byte) error { return CheckGitIndex(bytes.NewReader(index), int64(len(index))) }
	_, dir := gitIndexOf(t, "2", []string{"a"}, "update-index --untracked-cache")
	for _, file := range []string{"untracked-directory/b/c", "untracked-file", "x/y", "x/.gitignore"} {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, file)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(dir, file), []byte("*.o\n"), 0o644))
	}
	for range 2 {
		require.NoError(t, exec.Command("git", "-C", dir, "-c", "core.fsmonitor=false", "status").Run())
	}
	index, err := os.ReadFile(filepath.Join(dir, ".git/index"))
	require.NoError(t, err)
	require.NoError(t, check(index))
	for _, name := range []string{"untracked-directory", "untracked-file"} {
		require.Contains(t, string(index), name)
		for _, evil := range []string{"../", "/", ".git/", "a/", "../../"} {
			evil += strings.Repeat("x", len(name)-len(evil))
			err := check(bytes.ReplaceAll(index, []byte(name), []byte(evil)))
			assert.ErrorContains(t, err, "index has the untracked file", evil)
		}
	}
	size := bytes.Index(index, []byte("UNTR")) + 7
	for _, n := range []byte{0, 1, 50, 130} { // the names end behind the extension
		cut := bytes.Clone(index)
		cut[size-1], cut[size] = 0, n
		assert.Error(t, check(cut), n)
	}
}

// unsafePath reports whether git of a file system that folds names could write a path of the
// work tree outside of it, or in .git. It shares no code with CheckGitIndex.
func unsafePath(name string) bool {
	if path.IsAbs(name) || path.Clean("/"+name) != "/"+strings.TrimSuffix(name, "/") {
		return true
	}
	return unsafeName.MatchString(name)
}

var unsafeName = regexp.MustCompile(`(?i)(^|/)(\x{200c}|\x{200d}|\x{feff})*(\.(\x{200c}|\x{200d}|\x{feff})*git|git~1)(\x{200c}|\x{200d}|\x{feff})*[. ]*(:[^/]*)?(/|$)`)

// FuzzGitIndex: git finds in an index no path that we do not find, and none that is unsafe
// in one that we accept. git restore writes nothing elsewhere.
func FuzzGitIndex(f *testing.F) {
	git := need.Program(f, "git")
	for _, version := range []string{"2", "4"} {
		index, _ := gitIndexOf(f, version, []string{"a", "b/c", "b/d", "b/d2", "e"})
		f.Add(index)
		for _, path := range []string{".git/x", ".GIT/x", "git~1/", "../x/x", "/tmp/x", ".git /", ".git./", ".g\u200cit", "x/../..", "x/.git", "x//y/z", "x/./yz"} {
			index, _ = gitIndexOf(f, version, []string{"0", strings.Repeat("m", len(path)), "z"})
			f.Add(bytes.Replace(index, bytes.Repeat([]byte("m"), len(path)), []byte(path), 1))
		}
		index, _ = gitIndexOf(f, version, []string{"a", "b"}, "update-index --skip-worktree a")
		f.Add(index)
		index, _ = gitIndexOf(f, version, []string{"a"}, "update-index --split-index")
		f.Add(index)
		index, _ = gitIndexOf(f, version, []string{"a"}, "update-index --untracked-cache", "status")
		f.Add(index)
		directory := bytes.Replace(index, []byte{0, 0, 0x81, 0xa4}, []byte{0, 0, 0x40, 0}, 1) // of a sparse index
		f.Add(bytes.Replace(directory, []byte("\x00\x01a"), []byte("\x00\x01/"), 1))
	}
	top := f.TempDir()
	dir := filepath.Join(top, "a/b/tree")
	require.NoError(f, os.MkdirAll(dir, 0o755))
	require.NoError(f, exec.Command(git, "init", "-q", dir).Run())
	require.NoError(f, exec.Command(git, "-C", dir, "hash-object", "-w", "/dev/null").Run())
	elsewhere := func(t *testing.T) (names []string) { // than in the work tree
		require.NoError(t, filepath.WalkDir(top, func(name string, d fs.DirEntry, err error) error {
			rel, _ := filepath.Rel(dir, name)
			switch {
			case err == nil && (strings.HasPrefix(rel, "../") || strings.HasPrefix(rel, ".git/")):
				names = append(names, rel)
			case d != nil && d.IsDir() && rel != "." && rel != ".git" && !strings.HasPrefix(rel, ".."):
				return filepath.SkipDir
			}
			return err
		}))
		return names
	}
	f.Fuzz(func(t *testing.T, index []byte) {
		if len(index) > gitHash { // fsck alone checks it, but a version of git may
			sum := sha1.Sum(index[:len(index)-gitHash])
			index = append(index[:len(index)-gitHash:len(index)-gitHash], sum[:]...)
		}
		var ours []string
		if checkGitIndex(bytes.NewReader(index), int64(len(index)), func(x *indexReader) { ours = append(ours, string(x.path)) }) != nil {
			return
		}
		name := filepath.Join(t.TempDir(), "index")
		require.NoError(t, os.WriteFile(name, index, 0o600))
		run := func(args ...string) ([]byte, error) {
			cmd := exec.Command(git, args...)
			cmd.Dir, cmd.Env = dir, append(os.Environ(), "GIT_INDEX_FILE="+name)
			return cmd.Output()
		}
		out, err := run("ls-files", "-z", "--sparse")
		if err != nil {
			return // git reads nothing of it
		}
		var theirs []string
		for path := range strings.SplitSeq(strings.TrimSuffix(string(out), "\x00"), "\x00") {
			if path != "" {
				theirs = append(theirs, path)
				assert.False(t, unsafePath(path), "%q", path)
			}
		}
		assert.Subset(t, ours, theirs) // git ls-files leaves out some of an odd mode
		before := elsewhere(t)
		_, _ = run("restore", ".")
		_, _ = run("checkout-index", "-f", "-a")
		assert.Equal(t, before, elsewhere(t), "%q", ours)
	})
}
