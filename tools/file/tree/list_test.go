package tree

import (
	"fmt"
	"net"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/need"
	"github.com/scopefs/scopefs/tools/file/message"
)

func paths(entries []message.Entry) (all []string) {
	for _, e := range entries {
		all = append(all, e.Path)
	}
	return all
}

func listed(entries []message.Listed) (all []string) {
	for _, e := range entries {
		all = append(all, e.Path)
	}
	return all
}

// TestOddNames: an answer says that a name has bytes that are not UTF-8.
func TestOddNames(t *testing.T) {
	tr := newTree(t, map[string]string{"caf\xe9": "line\n"})
	list, err := tr.list(t.Context(), message.ListArgs{})
	require.NoError(t, err)
	grep, err := tr.grep(t.Context(), message.GrepArgs{Pattern: "line"})
	require.NoError(t, err)
	for _, text := range []string{list.Text(), grep.Text()} {
		assert.Contains(t, text, "caf\ufffd")
		assert.Contains(t, text, "in a name stands for bytes that are not UTF-8")
	}
	list.Entries = []message.Listed{{Path: "café", Type: "directory"}}
	assert.Equal(t, "café/\n", list.Text())
}

// TestListNames checks that names_only gives the names and types of a whole listing, in the same pages, and nothing else.
func TestListNames(t *testing.T) {
	tr := newTree(t, map[string]string{"b/c/d": "12345", "b/a": "", "a": "1", "empty/": "", "out => /etc": "", "x\ny": ""})
	require.NoError(t, unix.Mkfifo(tr.dirs.Own+"/b/fifo", 0o600))
	s, err := net.Listen("unix", tr.dirs.Own+"/s")
	require.NoError(t, err)
	defer s.Close()
	for depth := 1; depth <= 3; depth++ {
		for _, limit := range []int{1, 2, 100} {
			for in := (message.ListArgs{Depth: depth, Limit: limit}); ; {
				whole, err := tr.list(ctx(), in)
				require.NoError(t, err)
				in.NamesOnly = true
				names, err := tr.list(ctx(), in)
				require.NoError(t, err)
				in.Cursor, in.NamesOnly = whole.NextCursor, false
				assert.Equal(t, whole.NextCursor, names.NextCursor)
				for i := range whole.Entries {
					assert.NotNil(t, whole.Entries[i].Size)
					assert.NotEmpty(t, whole.Entries[i].Modified)
					whole.Entries[i].Size, whole.Entries[i].Modified = nil, ""
				}
				assert.Equal(t, whole, names)
				if in.Cursor == "" {
					break
				}
			}
		}
	}
	r, err := tr.list(ctx(), message.ListArgs{NamesOnly: true})
	require.NoError(t, err)
	assert.Equal(t, "a\nb/\nempty/\nout\t(link)\ns\t(socket)\n\"x\\ny\"\n", r.Text())
}

func TestList(t *testing.T) {
	tr := newTree(t, map[string]string{"b/c/d/e": "12345", "b/a": "", "a": "1", "c": "", "b-x": "", "empty/": "", "out => /etc": ""})
	all := []string{"a", "b", "b/a", "b/c", "b/c/d", "b/c/d/e", "b-x", "c", "empty", "out"}
	for _, limit := range []int{1, 2, 3, 100} {
		for depth, want := range map[int][]string{
			1: {"a", "b", "b-x", "c", "empty", "out"}, 2: {"a", "b", "b/a", "b/c", "b-x", "c", "empty", "out"}, 5: all,
		} {
			var got []string
			for cursor, pages := "", 0; ; pages++ {
				r, err := tr.list(ctx(), message.ListArgs{Depth: depth, Limit: limit, Cursor: cursor})
				require.NoError(t, err)
				require.Less(t, pages, 20)
				assert.LessOrEqual(t, len(r.Entries), limit)
				got = append(got, listed(r.Entries)...)
				if cursor = r.NextCursor; cursor == "" {
					break
				}
			}
			assert.Equal(t, want, got, "limit %d, depth %d", limit, depth)
		}
	}
	r, err := tr.list(ctx(), message.ListArgs{Path: "b", Depth: 5})
	require.NoError(t, err)
	assert.Equal(t, []string{"b/a", "b/c", "b/c/d", "b/c/d/e"}, listed(r.Entries))
	assert.Equal(t, "b/a\t0\nb/c/\nb/c/d/\nb/c/d/e\t5\n", r.Text())
	for path, code := range map[string]message.Code{"a": message.Invalid, "no": message.NotFound, "..": message.NotFound, "/etc": message.NotFound} {
		_, err := tr.list(ctx(), message.ListArgs{Path: path})
		assert.Equal(t, code, asTold(t, err).Code, path)
	}
	_, err = tr.list(ctx(), message.ListArgs{Cursor: "!"})
	assert.Equal(t, message.Invalid, asTold(t, err).Code)
}

// A page goes on where the one before ended, also when that name is gone.
func TestListCursorGone(t *testing.T) {
	tr := newTree(t, map[string]string{"a": "", "b": "", "c": ""})
	r, err := tr.list(ctx(), message.ListArgs{Limit: 2})
	require.NoError(t, err)
	require.NoError(t, os.Remove(tr.dirs.Own+"/b"))
	r, err = tr.list(ctx(), message.ListArgs{Limit: 2, Cursor: r.NextCursor})
	require.NoError(t, err)
	assert.Equal(t, []string{"c"}, listed(r.Entries))
}

func TestListMany(t *testing.T) {
	need.Long(t, "it takes seconds")
	tr := newTree(t, nil)
	var want []string
	for n := range 5000 {
		name := fmt.Sprintf("%05d", (n*7919)%5000)
		require.NoError(t, os.WriteFile(tr.dirs.Own+"/"+name, nil, 0o644))
		want = append(want, name)
	}
	slices.Sort(want)
	var got []string
	for cursor := ""; ; {
		r, err := tr.list(ctx(), message.ListArgs{Cursor: cursor})
		require.NoError(t, err)
		got = append(got, listed(r.Entries)...)
		if cursor = r.NextCursor; cursor == "" {
			break
		}
	}
	assert.Equal(t, want, got)
}

func TestStat(t *testing.T) {
	tr := newTree(t, map[string]string{"f": "abc", "d/": "", "l => f": "", "dangling => no": ""})
	require.NoError(t, unix.Mkfifo(tr.dirs.Own+"/fifo", 0o600))
	r, err := tr.stat(ctx(), message.StatArgs{Path: "f", Hash: true})
	require.NoError(t, err)
	when, err := time.Parse(time.RFC3339, r.Modified)
	require.NoError(t, err)
	assert.WithinDuration(t, time.Now(), when, time.Minute)
	r.Modified = ""
	assert.Equal(t, message.StatResult{Path: "f", Type: "file", Size: 3, Mode: "0644", Hash: hashOf([]byte("abc"))}, r)
	for path, typ := range map[string]string{"d": "directory", "l": "link", "dangling": "link", "fifo": "fifo", ".": "directory", "": "directory"} {
		r, err := tr.stat(ctx(), message.StatArgs{Path: path, Hash: true})
		require.NoError(t, err, path)
		assert.Equal(t, typ, r.Type)
		assert.Empty(t, r.Hash)
	}
	_, err = tr.stat(ctx(), message.StatArgs{Path: "/etc/passwd"})
	assert.Equal(t, &message.Error{Code: message.NotFound, Message: "no such file or directory", Path: "/etc/passwd"}, asTold(t, err))
}

func TestGlob(t *testing.T) {
	tr := newTree(t, map[string]string{"a.go": "", "b/c.go": "", "b/d/e.go": "", "b/d/f.txt": "", ".git/g.go": "", "b/.hidden.go": "", "loop => .": ""})
	old := time.Now().Add(-time.Hour)
	require.NoError(t, os.Chtimes(tr.dirs.Own+"/a.go", old, old))
	for name, test := range map[string]struct {
		in   message.GlobArgs
		want []string
	}{
		"top":            {message.GlobArgs{Pattern: "*.go"}, []string{"a.go"}},
		"all":            {message.GlobArgs{Pattern: "**/*.go"}, []string{"b/.hidden.go", "b/c.go", "b/d/e.go", "a.go"}},
		"below":          {message.GlobArgs{Pattern: "**/*.go", Path: "b/d"}, []string{"b/d/e.go"}},
		"named":          {message.GlobArgs{Pattern: "b/**/*.{txt,md}"}, []string{"b/d/f.txt"}},
		"one":            {message.GlobArgs{Pattern: "b/d/e.go"}, []string{"b/d/e.go"}},
		"git":            {message.GlobArgs{Pattern: ".git/*"}, []string{".git/g.go"}},
		"absolute":       {message.GlobArgs{Pattern: tr.dirs.Own + "/b/*.go"}, []string{"b/.hidden.go", "b/c.go"}},
		"nothing":        {message.GlobArgs{Pattern: "no/**"}, nil},
		"below a file":   {message.GlobArgs{Pattern: "a.go/**"}, nil},
		"the last first": {message.GlobArgs{Pattern: "{a,b/c}.go"}, []string{"b/c.go", "a.go"}},
	} {
		t.Run(name, func(t *testing.T) {
			now := time.Now().Truncate(time.Second)
			for _, f := range []string{"b/c.go", "b/d/e.go", "b/.hidden.go"} {
				require.NoError(t, os.Chtimes(tr.dirs.Own+"/"+f, now, now))
			}
			r, err := tr.glob(ctx(), test.in)
			require.NoError(t, err)
			assert.Equal(t, test.want, paths(r.Matches))
			assert.NotNil(t, r.Matches, "a list, if empty")
		})
	}
	next := newTree(t, map[string]string{"app/[id]/page.tsx": ""})
	r, err := next.glob(ctx(), message.GlobArgs{Pattern: "app/[id]/page.tsx"})
	require.NoError(t, err)
	assert.Equal(t, `there is a file of that name: in a pattern write app/\[id\]/page.tsx`, r.Hint)
	r, err = next.glob(ctx(), message.GlobArgs{Pattern: `app/\[id\]/page.tsx`})
	require.NoError(t, err)
	assert.Len(t, r.Matches, 1)
	r, err = tr.glob(ctx(), message.GlobArgs{Pattern: "**", Limit: 2})
	require.NoError(t, err)
	assert.True(t, r.Truncated)
	assert.Len(t, r.Matches, 2)
	for pattern, code := range map[string]message.Code{"../*": message.NotFound, "/etc/*": message.NotFound, "[": message.Invalid, "{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}": message.Invalid} {
		_, err := tr.glob(ctx(), message.GlobArgs{Pattern: pattern})
		assert.Equal(t, code, asTold(t, err).Code, pattern)
	}
	_, err = tr.glob(ctx(), message.GlobArgs{Pattern: "*", Path: "no"})
	assert.Equal(t, message.NotFound, asTold(t, err).Code)
}
