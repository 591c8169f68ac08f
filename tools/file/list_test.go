package file

import (
	"encoding/json"
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
	"github.com/scopefs/scopefs/tools"
)

func paths(entries []Entry) (all []string) {
	for _, e := range entries {
		all = append(all, e.Path)
	}
	return all
}

func listed(entries []Listed) (all []string) {
	for _, e := range entries {
		all = append(all, e.Path)
	}
	return all
}

// TestListNames checks that names_only gives the names and types of a whole listing, in the same pages, and nothing else.
func TestListNames(t *testing.T) {
	tr := newTree(t, map[string]string{"b/c/d": "12345", "b/a": "", "a": "1", "empty/": "", "out => /etc": "", "x\ny": ""})
	require.NoError(t, unix.Mkfifo(tr.root+"/b/fifo", 0o600))
	s, err := net.Listen("unix", tr.root+"/s")
	require.NoError(t, err)
	defer s.Close()
	for depth := 1; depth <= 3; depth++ {
		for _, limit := range []int{1, 2, 100} {
			for in := (ListArgs{Depth: depth, Limit: limit}); ; {
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
	r, err := tr.list(ctx(), ListArgs{NamesOnly: true})
	require.NoError(t, err)
	assert.Equal(t, "a\nb/\nempty/\nout\t(link)\ns\t(socket)\n\"x\\ny\"\n", r.Content()[0].Text)
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
				r, err := tr.list(ctx(), ListArgs{Depth: depth, Limit: limit, Cursor: cursor})
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
	r, err := tr.list(ctx(), ListArgs{Path: "b", Depth: 5})
	require.NoError(t, err)
	assert.Equal(t, []string{"b/a", "b/c", "b/c/d", "b/c/d/e"}, listed(r.Entries))
	assert.Equal(t, "b/a\t0\nb/c/\nb/c/d/\nb/c/d/e\t5\n", r.Content()[0].Text)
	for path, code := range map[string]tools.Code{"a": tools.Invalid, "no": tools.NotFound, "..": tools.NotFound, "/etc": tools.NotFound} {
		_, err := tr.list(ctx(), ListArgs{Path: path})
		assert.Equal(t, code, asTold(t, err).Code, path)
	}
	_, err = tr.list(ctx(), ListArgs{Cursor: "!"})
	assert.Equal(t, tools.Invalid, asTold(t, err).Code)
}

// A page goes on where the one before ended, also when that name is gone.
func TestListCursorGone(t *testing.T) {
	tr := newTree(t, map[string]string{"a": "", "b": "", "c": ""})
	r, err := tr.list(ctx(), ListArgs{Limit: 2})
	require.NoError(t, err)
	require.NoError(t, os.Remove(tr.root+"/b"))
	r, err = tr.list(ctx(), ListArgs{Limit: 2, Cursor: r.NextCursor})
	require.NoError(t, err)
	assert.Equal(t, []string{"c"}, listed(r.Entries))
}

func TestListMany(t *testing.T) {
	need.Long(t, "it takes seconds")
	tr := newTree(t, nil)
	var want []string
	for n := range 5000 {
		name := fmt.Sprintf("%05d", (n*7919)%5000)
		require.NoError(t, os.WriteFile(tr.root+"/"+name, nil, 0o644))
		want = append(want, name)
	}
	slices.Sort(want)
	var got []string
	for cursor := ""; ; {
		r, err := tr.list(ctx(), ListArgs{Cursor: cursor})
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
	require.NoError(t, unix.Mkfifo(tr.root+"/fifo", 0o600))
	r, err := tr.stat(ctx(), StatArgs{Path: "f", Hash: true})
	require.NoError(t, err)
	when, err := time.Parse(time.RFC3339, r.Modified)
	require.NoError(t, err)
	assert.WithinDuration(t, time.Now(), when, time.Minute)
	r.Modified = ""
	assert.Equal(t, StatResult{Path: "f", Type: "file", Size: 3, Mode: "0644", Hash: hashOf([]byte("abc"))}, r)
	for path, typ := range map[string]string{"d": "directory", "l": "link", "dangling": "link", "fifo": "fifo", ".": "directory", "": "directory"} {
		r, err := tr.stat(ctx(), StatArgs{Path: path, Hash: true})
		require.NoError(t, err, path)
		assert.Equal(t, typ, r.Type)
		assert.Empty(t, r.Hash)
	}
	_, err = tr.stat(ctx(), StatArgs{Path: "/etc/passwd"})
	assert.Equal(t, &tools.Error{Code: tools.NotFound, Message: "no such file or directory", Path: "/etc/passwd"}, asTold(t, err))
}

func TestGlob(t *testing.T) {
	tr := newTree(t, map[string]string{"a.go": "", "b/c.go": "", "b/d/e.go": "", "b/d/f.txt": "", ".git/g.go": "", "b/.hidden.go": "", "loop => .": ""})
	old := time.Now().Add(-time.Hour)
	require.NoError(t, os.Chtimes(tr.root+"/a.go", old, old))
	for name, test := range map[string]struct {
		in   GlobArgs
		want []string
	}{
		"top":            {GlobArgs{Pattern: "*.go"}, []string{"a.go"}},
		"all":            {GlobArgs{Pattern: "**/*.go"}, []string{"b/.hidden.go", "b/c.go", "b/d/e.go", "a.go"}},
		"below":          {GlobArgs{Pattern: "**/*.go", Path: "b/d"}, []string{"b/d/e.go"}},
		"named":          {GlobArgs{Pattern: "b/**/*.{txt,md}"}, []string{"b/d/f.txt"}},
		"one":            {GlobArgs{Pattern: "b/d/e.go"}, []string{"b/d/e.go"}},
		"git":            {GlobArgs{Pattern: ".git/*"}, []string{".git/g.go"}},
		"absolute":       {GlobArgs{Pattern: tr.root + "/b/*.go"}, []string{"b/.hidden.go", "b/c.go"}},
		"nothing":        {GlobArgs{Pattern: "no/**"}, nil},
		"below a file":   {GlobArgs{Pattern: "a.go/**"}, nil},
		"the last first": {GlobArgs{Pattern: "{a,b/c}.go"}, []string{"b/c.go", "a.go"}},
	} {
		t.Run(name, func(t *testing.T) {
			now := time.Now().Truncate(time.Second)
			for _, f := range []string{"b/c.go", "b/d/e.go", "b/.hidden.go"} {
				require.NoError(t, os.Chtimes(tr.root+"/"+f, now, now))
			}
			r, err := tr.glob(ctx(), test.in)
			require.NoError(t, err)
			assert.Equal(t, test.want, paths(r.Matches))
			assert.NotNil(t, r.Matches, "a list, if empty")
		})
	}
	r, err := tr.glob(ctx(), GlobArgs{Pattern: "**", Limit: 2})
	require.NoError(t, err)
	assert.True(t, r.Truncated)
	assert.Len(t, r.Matches, 2)
	for pattern, code := range map[string]tools.Code{"../*": tools.NotFound, "/etc/*": tools.NotFound, "[": tools.Invalid, "{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}": tools.Invalid} {
		_, err := tr.glob(ctx(), GlobArgs{Pattern: pattern})
		assert.Equal(t, code, asTold(t, err).Code, pattern)
	}
	_, err = tr.glob(ctx(), GlobArgs{Pattern: "*", Path: "no"})
	assert.Equal(t, tools.NotFound, asTold(t, err).Code)
}

// A name that could end a line, or steer a terminal, is quoted in texts, and exact
// in what programs read.
func TestOddNamesInTexts(t *testing.T) {
	odd := "x\ny\x1b[2J"
	tr := newTree(t, map[string]string{odd: "text\n", "d\te/f": "text\n", "plain.txt\t99": "text\n", `"q"`: "", "l\u202e => plain": ""})
	set := newSet(t, newLink(t, tr))
	for _, s := range []struct{ tool, args, says string }{
		{"list_dir", `{}`, "\"\\\"q\\\"\"\t0\n\"d\\te\"/\n\"l\\u202e\"\t(link)\n\"plain.txt\\t99\"\t5\n\"x\\ny\\x1b[2J\"\t5\n"},
		{"glob", `{"pattern":"x*"}`, "\"x\\ny\\x1b[2J\"\n"},
		{"grep", `{"pattern":"text","path":"d\te"}`, "\"d\\te/f\":1:text\n"},
		{"grep", `{"pattern":"text","glob":"x*","output":"files"}`, "\"x\\ny\\x1b[2J\"\n"},
		{"grep", `{"pattern":"text","glob":"x*","output":"count"}`, "\"x\\ny\\x1b[2J\":1\n"},
		{"write_file", `{"path":"x\ny\u001b[2J","content":"more\n"}`, "wrote \"x\\ny\\x1b[2J\", 5 bytes"},
		{"edit_file", `{"path":"d\te/f","edits":[{"old_text":"text","new_text":"t"}]}`, "--- \"a/d\\te/f\"\n+++ \"b/d\\te/f\"\n@@ -1,1 +1,1 @@\n-text\n+t\n"},
		{"move", `{"from":"x\ny\u001b[2J","to":"\u202e\u007f"}`, `{"from":"x\ny\u001b[2J","to":"\u202e\u007f"}`},
	} {
		r, err := set.Call(ctx(), tools.Call{Tool: s.tool, Args: json.RawMessage(s.args)})
		require.NoError(t, err, s.tool)
		assert.Equal(t, s.says, r.Content[0].Text, s.tool)
		if s.tool == "glob" {
			var out GlobResult
			require.NoError(t, json.Unmarshal(r.Structured, &out))
			assert.Equal(t, odd, out.Matches[0].Path)
		}
	}
	_, err := set.Call(ctx(), tools.Call{Tool: "read_file", Args: json.RawMessage(`{"path":"no\nsuch","offset":1.0}`)})
	assert.Equal(t, `not_found: no such file or directory: "no\nsuch"`, asTold(t, err).Error())
	r, err := set.Call(ctx(), tools.Call{Tool: "read_file", Args: json.RawMessage(`{"path":"d\te/f","offset":1.0,"limit":1e0}`)})
	require.NoError(t, err)
	assert.Equal(t, "t\n", r.Content[0].Text)
}
