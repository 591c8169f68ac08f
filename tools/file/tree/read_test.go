package tree

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/tools/file/message"
)

func numbered(from, to int) string {
	var b strings.Builder
	for n := from; n <= to; n++ {
		fmt.Fprintf(&b, "line %d\n", n)
	}
	return b.String()
}

func TestRead(t *testing.T) {
	long := strings.Repeat("x", maxLine+5)
	tr := newTree(t, map[string]string{
		"empty": "", "one": "one", "three": "a\nb\nc\n", "bom": "\ufeffa\n", "crlf": "a\r\nb\r\n", "many": numbered(1, 5000),
		"long": long + "\nnext\n", "link => three": "", "cut": strings.Repeat("é", sniffed),
		"late": strings.Repeat("a\n", sniffed) + "\xe9\x00\xe9\n",
	})
	for name, test := range map[string]struct {
		in                message.ReadArgs
		text              string
		start, end, total int
		next              int
		truncated         bool
	}{
		"empty":            {in: message.ReadArgs{Path: "empty"}, start: 1},
		"no end":           {in: message.ReadArgs{Path: "one"}, text: "one", start: 1, end: 1, total: 1},
		"all":              {in: message.ReadArgs{Path: "three"}, text: "a\nb\nc\n", start: 1, end: 3, total: 3},
		"absolute":         {in: message.ReadArgs{Path: tr.dirs.Own + "/three"}, text: "a\nb\nc\n", start: 1, end: 3, total: 3},
		"link":             {in: message.ReadArgs{Path: "link"}, text: "a\nb\nc\n", start: 1, end: 3, total: 3},
		"offset":           {in: message.ReadArgs{Path: "three", Offset: 2}, text: "b\nc\n", start: 2, end: 3, total: 3},
		"offset and limit": {in: message.ReadArgs{Path: "three", Offset: 2, Limit: 1}, text: "b\n", start: 2, end: 2, total: 3, next: 3, truncated: true},
		"past the end":     {in: message.ReadArgs{Path: "three", Offset: 9}, start: 9, end: 8, total: 3},
		"tail":             {in: message.ReadArgs{Path: "three", Tail: 2}, text: "b\nc\n", start: 2, end: 3, total: 3},
		"tail of less":     {in: message.ReadArgs{Path: "three", Tail: 9}, text: "a\nb\nc\n", start: 1, end: 3, total: 3},
		"byte order mark":  {in: message.ReadArgs{Path: "bom"}, text: "a\n", start: 1, end: 1, total: 1},
		"carriage returns": {in: message.ReadArgs{Path: "crlf"}, text: "a\r\nb\r\n", start: 1, end: 2, total: 2},
		"default limit":    {in: message.ReadArgs{Path: "many"}, text: numbered(1, 2000), start: 1, end: 2000, total: 5000, next: 2001, truncated: true},
		"more":             {in: message.ReadArgs{Path: "many", Limit: 4000}, text: numbered(1, 4000), start: 1, end: 4000, total: 5000, next: 4001, truncated: true},
		"long line":        {in: message.ReadArgs{Path: "long"}, text: long[:maxLine] + "… [6 bytes cut]\nnext\n", start: 1, end: 2, total: 2, truncated: true},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := tr.read(ctx(), test.in)
			require.NoError(t, err)
			assert.Equal(t, test.text, r.Text)
			assert.Equal(t, message.LineRange{Start: test.start, End: test.end, Total: &test.total}, *r.Lines)
			assert.Equal(t, test.next, r.NextOffset)
			assert.Equal(t, test.truncated, r.Truncated)
			assert.Regexp(t, hashForm, r.Hash)
		})
	}
	r, err := tr.read(ctx(), message.ReadArgs{Path: "late", Tail: 1})
	require.NoError(t, err)
	assert.Equal(t, []any{"\ufffd\n", 3}, []any{r.Text, r.Replaced}, "after what shows whether it is text")
	_, err = tr.read(ctx(), message.ReadArgs{Path: "cut"})
	assert.NoError(t, err, "a rune is cut where sniffing ends")
}

func TestReadErrors(t *testing.T) {
	outsider := t.TempDir()
	require.NoError(t, os.WriteFile(outsider+"/secret", []byte("secret"), 0o644))
	tr := newTree(t, map[string]string{"nul": "a\x00b", "latin1": "caf\xe9 au lait", "f": "x", "d/": "", "loop => loop": ""})
	require.NoError(t, unix.Mkfifo(tr.dirs.Own+"/fifo", 0o644))
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	require.NoError(t, err)
	defer unix.Close(fd)
	require.NoError(t, unix.Bind(fd, &unix.SockaddrUnix{Name: tr.dirs.Own + "/socket"}))
	for name, test := range map[string]struct {
		path string
		code message.Code
		text string
	}{
		"nothing":        {"nothing", message.NotFound, "no such file or directory"},
		"above":          {"../x", message.NotFound, "no such file or directory"},
		"elsewhere":      {outsider + "/secret", message.NotFound, "no such file or directory"},
		"beside":         {tr.dirs.Own + "x", message.NotFound, "no such file or directory"},
		"of the kernel":  {"/proc/self/environ", message.NotFound, "no such file or directory"},
		"directory":      {"d", message.Invalid, "is a directory"},
		"below a file":   {"f/x", message.Invalid, "not a directory"},
		"fifo":           {"fifo", message.Invalid, "not a regular file: fifo"},
		"socket":         {"socket", message.Invalid, "not a regular file"},
		"binary":         {"nul", message.Invalid, "binary file, 3 bytes, application/octet-stream"},
		"not UTF-8":      {"latin1", message.Invalid, "binary file, 12 bytes, text/plain"},
		"loop":           {"loop", message.Invalid, "too many symbolic links"},
		"long name":      {strings.Repeat("n", 256), message.Invalid, "name too long"},
		"NUL in a name":  {"a\x00b", message.Invalid, "a path has no NUL in it"},
		"nothing, above": {"../../etc/passwd", message.NotFound, "no such file or directory"},
	} {
		t.Run(name, func(t *testing.T) {
			began := time.Now()
			_, err := tr.read(ctx(), message.ReadArgs{Path: test.path})
			e := asTold(t, err)
			assert.Equal(t, test.code, e.Code)
			assert.Equal(t, test.text, e.Message)
			assert.Equal(t, test.path, e.Path)
			assert.Less(t, time.Since(began), 10*time.Second)
		})
	}
	_, err = tr.read(ctx(), message.ReadArgs{Path: "f", Tail: 1, Limit: 1})
	assert.Equal(t, message.Invalid, asTold(t, err).Code)
}

// A file of ten gigabytes is not read to answer about some of its lines.
func TestReadHuge(t *testing.T) {
	tr := newTree(t, nil)
	f, err := os.Create(filepath.Join(tr.dirs.Own, "huge"))
	require.NoError(t, err)
	defer f.Close()
	head, tail := numbered(1, 10000), numbered(1, 100)
	_, err = f.WriteString(head)
	require.NoError(t, err)
	const size = 10 << 30
	_, err = f.WriteAt([]byte(tail), size-int64(len(tail)))
	require.NoError(t, err)

	began := time.Now()
	r, err := tr.read(ctx(), message.ReadArgs{Path: "huge", Offset: 5000, Limit: 2})
	require.NoError(t, err)
	assert.Equal(t, numbered(5000, 5001), r.Text)
	assert.Equal(t, &message.LineRange{Start: 5000, End: 5001}, r.Lines)
	assert.Equal(t, 5002, r.NextOffset)
	assert.Empty(t, r.Hash)
	assert.EqualValues(t, size, r.Size)

	r, err = tr.read(ctx(), message.ReadArgs{Path: "huge", Tail: 3})
	require.NoError(t, err)
	assert.Equal(t, numbered(98, 100), r.Text)
	assert.Less(t, time.Since(began), 10*time.Second)
}

// The parts of a large file are those of a small one.
func TestReadPartIsRead(t *testing.T) {
	text := numbered(1, 50) + strings.Repeat("y", 400<<10) + "\n" + numbered(52, 60) + "end"
	tr := newTree(t, map[string]string{"f": text})
	for _, in := range []message.ReadArgs{{}, {Offset: 3, Limit: 4}, {Offset: 50, Limit: 3}, {Offset: 58}, {Offset: 90}, {Offset: 61}} {
		in.Path = "f"
		want, err := tr.read(ctx(), in)
		require.NoError(t, err)
		f, err := os.Open(tr.dirs.Own + "/f")
		require.NoError(t, err)
		got, err := readPart(ctx(), place{rel: "f"}, f, in)
		require.NoError(t, err)
		f.Close()
		assert.Equal(t, want.Text, got.Text, "%+v", in)
		assert.Equal(t, want.Lines.Start, got.Lines.Start)
		assert.Equal(t, want.Lines.End, got.Lines.End)
	}
}
