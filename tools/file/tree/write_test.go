package tree

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/need"
	"github.com/scopefs/scopefs/tools/file/message"
)

func TestWrite(t *testing.T) {
	for name, test := range map[string]struct {
		in   message.WriteArgs
		code message.Code // "" is success
		want message.WriteResult
		then string // content of the path
	}{
		"new":                {in: message.WriteArgs{Path: "n", Content: "x"}, want: message.WriteResult{Path: "n", Bytes: 1, Created: true}, then: "x"},
		"with parents":       {in: message.WriteArgs{Path: "a/b/n", Content: "x"}, want: message.WriteResult{Path: "a/b/n", Bytes: 1, Created: true}, then: "x"},
		"over":               {in: message.WriteArgs{Path: "f", Content: "x"}, want: message.WriteResult{Path: "f", Bytes: 1}, then: "x"},
		"over a mark":        {in: message.WriteArgs{Path: "marked", Content: "x"}, want: message.WriteResult{Path: "marked", Bytes: 4}, then: bom + "x"},
		"over a mark by one": {in: message.WriteArgs{Path: "marked", Content: bom + "x"}, want: message.WriteResult{Path: "marked", Bytes: 4}, then: bom + "x"},
		"over, by hash":      {in: message.WriteArgs{Path: "f", Content: "x", IfMatch: hashOf([]byte("old\n"))}, want: message.WriteResult{Path: "f", Bytes: 1}, then: "x"},
		"another hash":       {in: message.WriteArgs{Path: "f", Content: "x", IfMatch: hashOf([]byte("new\n"))}, code: message.Conflict, then: "old\n"},
		"hash of nothing":    {in: message.WriteArgs{Path: "n", Content: "x", IfMatch: hashOf(nil)}, code: message.Conflict},
		"create":             {in: message.WriteArgs{Path: "n", Content: "x", Mode: message.ModeCreate}, want: message.WriteResult{Path: "n", Bytes: 1, Created: true}, then: "x"},
		"create what is":     {in: message.WriteArgs{Path: "f", Content: "x", Mode: message.ModeCreate}, code: message.Conflict, then: "old\n"},
		"append":             {in: message.WriteArgs{Path: "f", Content: "x", Mode: message.ModeAppend}, want: message.WriteResult{Path: "f", Bytes: 1, InPlace: true}, then: "old\nx"},
		"append to nothing":  {in: message.WriteArgs{Path: "n", Content: "x", Mode: message.ModeAppend}, want: message.WriteResult{Path: "n", Bytes: 1, Created: true, InPlace: true}, then: "x"},
		"append by hash":     {in: message.WriteArgs{Path: "f", Content: "x", Mode: message.ModeAppend, IfMatch: hashOf(nil)}, code: message.Conflict, then: "old\n"},
		"several names":      {in: message.WriteArgs{Path: "hard", Content: "x"}, want: message.WriteResult{Path: "hard", Bytes: 1, InPlace: true}, then: "x"},
		"through a link":     {in: message.WriteArgs{Path: "link", Content: "x"}, want: message.WriteResult{Path: "link", Bytes: 1}, then: "x"},
		"dangling":           {in: message.WriteArgs{Path: "dangling", Content: "x"}, want: message.WriteResult{Path: "dangling", Bytes: 1, Created: true}, then: "x"},
		"directory":          {in: message.WriteArgs{Path: "d", Content: "x"}, code: message.Invalid},
		"fifo":               {in: message.WriteArgs{Path: "fifo", Content: "x"}, code: message.Invalid},
		"append to a fifo":   {in: message.WriteArgs{Path: "fifo", Content: "x", Mode: message.ModeAppend}, code: message.Invalid},
		"loop":               {in: message.WriteArgs{Path: "loop", Content: "x"}, code: message.Invalid},
		"above":              {in: message.WriteArgs{Path: "../x", Content: "x"}, code: message.OutsideScope},
		"elsewhere":          {in: message.WriteArgs{Path: "/etc/passwd", Content: "x"}, code: message.OutsideScope},
		"out by a link":      {in: message.WriteArgs{Path: "out", Content: "x"}, code: message.OutsideScope},
		"out by two links":   {in: message.WriteArgs{Path: "out2", Content: "x"}, code: message.OutsideScope},
		"root":               {in: message.WriteArgs{Path: ".", Content: "x"}, code: message.Invalid},
		"below a file":       {in: message.WriteArgs{Path: "f/x", Content: "x"}, code: message.Invalid},
	} {
		t.Run(name, func(t *testing.T) {
			tr := newTree(t, map[string]string{"f": "old\n", "marked": bom + "old\n", "d/": "", "link => sub/to": "", "sub/to": "t", "dangling => sub/new": "", "loop => loop": "",
				"first": "h", "out => /etc/scopefs-test": "", "out2 => sub/../sub/out3": "", "sub/out3 => ../../outside": ""})
			require.NoError(t, os.Link(tr.dirs.Own+"/first", tr.dirs.Own+"/hard"))
			require.NoError(t, unix.Mkfifo(tr.dirs.Own+"/fifo", 0o644))
			r, err := tr.write(ctx(), test.in)
			if test.code != "" {
				e := asTold(t, err)
				assert.Equal(t, test.code, e.Code, e.Error())
				assert.NotContains(t, e.Error(), tr.dirs.Own)
				assert.Equal(t, test.in.Path, e.Path)
			} else {
				require.NoError(t, err)
				test.want.Hash = hashOf([]byte(test.then))
				assert.Equal(t, test.want, r)
			}
			if test.then != "" {
				assert.Equal(t, test.then, tr.content(t, test.in.Path))
			}
		})
	}
}

// What a write outside is refused with does not tell whether something is there.
func TestWriteOutsideLooksAlike(t *testing.T) {
	tr := newTree(t, map[string]string{"there => /etc/passwd": "", "not => /etc/nothing-here": ""})
	for _, f := range []func(path string) error{
		func(path string) error { _, err := tr.write(ctx(), message.WriteArgs{Path: path}); return err },
		func(path string) error { _, err := tr.edit(ctx(), message.EditArgs{Path: path}); return err },
	} {
		a, b := asTold(t, f("there")), asTold(t, f("not"))
		b.Path = a.Path
		assert.Equal(t, a, b)
	}
}

func TestWriteKeeps(t *testing.T) {
	tr := newTree(t, map[string]string{"script": "old", "sub/link => ../script": ""})
	require.NoError(t, os.Chmod(tr.dirs.Own+"/script", 0o750))
	before, err := os.Stat(tr.dirs.Own + "/script")
	require.NoError(t, err)
	_, err = tr.write(ctx(), message.WriteArgs{Path: "sub/link", Content: "new"})
	require.NoError(t, err)
	after, err := os.Stat(tr.dirs.Own + "/script")
	require.NoError(t, err)
	assert.Equal(t, before.Mode(), after.Mode())
	assert.False(t, os.SameFile(before, after), "replaced at once")
	link, err := os.Readlink(tr.dirs.Own + "/sub/link")
	require.NoError(t, err)
	assert.Equal(t, "../script", link)
}

// A reader sees the old content or the new one, and never half of either.
func TestWriteIsAtomic(t *testing.T) {
	a, b := strings.Repeat("a", 1<<20), strings.Repeat("b", 1<<20)
	tr := newTree(t, map[string]string{"f": a})
	stop, seen := make(chan struct{}), make(chan string, 1)
	go func() {
		for {
			select {
			case <-stop:
				close(seen)
				return
			default:
			}
			if got, err := os.ReadFile(tr.dirs.Own + "/f"); err != nil || string(got) != a && string(got) != b {
				seen <- "torn"
				return
			}
		}
	}()
	for range 50 {
		for _, content := range []string{b, a} {
			_, err := tr.write(ctx(), message.WriteArgs{Path: "f", Content: content})
			require.NoError(t, err)
		}
	}
	close(stop)
	assert.Empty(t, <-seen)
}

// A full disk leaves the old file, and nothing else.
func TestWriteNoSpace(t *testing.T) {
	need.Root(t, "mounts a file system")
	require.Zero(t, os.Geteuid(), "mounts a file system")
	tr := newTree(t, map[string]string{"d/": ""})
	dir := tr.dirs.Own + "/d"
	require.NoError(t, unix.Mount("none", dir, "tmpfs", 0, "size=64k"))
	defer unix.Unmount(dir, unix.MNT_DETACH)
	_, err := tr.write(ctx(), message.WriteArgs{Path: "d/f", Content: "old"})
	require.NoError(t, err)
	big := strings.Repeat("x", 1<<20)
	for _, path := range []string{"d/f", "d/new"} {
		_, err = tr.write(ctx(), message.WriteArgs{Path: path, Content: big})
		e := asTold(t, err)
		assert.Equal(t, message.Internal, e.Code)
		assert.Equal(t, "no space left on the device", e.Message)
	}
	assert.Equal(t, "old", tr.content(t, "d/f"))
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	assert.Len(t, left, 1)
}

// A directory that takes no temporary does not keep its files from being written.
func TestWriteInPlace(t *testing.T) {
	tr := newTree(t, map[string]string{"d/f": "a longer content"})
	asNobody(t, func() {
		require.NoError(t, os.Chmod(tr.dirs.Own+"/d", 0o555))
		r, err := tr.write(ctx(), message.WriteArgs{Path: "d/f", Content: "new"})
		require.NoError(t, err)
		assert.True(t, r.InPlace)
		assert.Equal(t, "new", tr.content(t, "d/f"))

		require.NoError(t, os.Chmod(tr.dirs.Own+"/d/f", 0o444))
		_, err = tr.write(ctx(), message.WriteArgs{Path: "d/f", Content: "newer"})
		assert.Equal(t, message.Denied, asTold(t, err).Code)
		_, err = tr.write(ctx(), message.WriteArgs{Path: "d/g", Content: "newer"})
		assert.Equal(t, message.Denied, asTold(t, err).Code)
		require.NoError(t, os.Chmod(tr.dirs.Own+"/d", 0o755))

		_, err = tr.write(ctx(), message.WriteArgs{Path: "d/f", Content: "newer"})
		assert.Equal(t, message.Denied, asTold(t, err).Code, "what may not be written is not replaced")
	}, tr.dirs.Own)
}

// asNobody runs f on a thread of a user without privileges, who owns a tree.
func asNobody(t *testing.T, f func(), root string) {
	t.Helper()
	if os.Geteuid() != 0 {
		f()
		return
	}
	const nobody = 65534
	for p := filepath.Dir(root); len(p) > len(os.TempDir()); p = filepath.Dir(p) {
		require.NoError(t, os.Chmod(p, 0o755))
	}
	require.NoError(t, filepath.WalkDir(root, func(p string, _ os.DirEntry, _ error) error { return os.Lchown(p, nobody, nobody) }))
	require.NoError(t, unix.Setresuid(nobody, nobody, 0))
	defer func() { require.NoError(t, unix.Setresuid(0, 0, 0)) }()
	f()
}

// TestWriteKeepsMode checks that a file that is written over keeps its exact permissions, whether the umask cuts those of
// the temporary file or not.
func TestWriteKeepsMode(t *testing.T) {
	tr := newTree(t, map[string]string{"f": "a"})
	for _, mode := range []os.FileMode{0o600, 0o640, 0o644, 0o755, 0o777} {
		require.NoError(t, os.Chmod(tr.dirs.Own+"/f", mode))
		_, err := tr.write(ctx(), message.WriteArgs{Path: "f", Content: "b"})
		require.NoError(t, err)
		info, err := os.Stat(tr.dirs.Own + "/f")
		require.NoError(t, err)
		assert.Equal(t, mode, info.Mode())
	}
}
