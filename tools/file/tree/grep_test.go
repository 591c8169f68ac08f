package tree

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/opentest"
	"github.com/scopefs/scopefs/tools/file/message"
)

func TestGrep(t *testing.T) {
	tr := newTree(t, map[string]string{
		"a.go": "one\ntwo\nthree\nfour\ntwo\nsix\nseven\neight\nnine\n", "b/c.txt": "TWO two\n", "b/bin": "two\x00", ".git/x": "two\n",
		"crlf": "x two\r\ny\r\n", "long": strings.Repeat("z", 2000) + "end\n", "span": "begin {\n  foo\n}\nno end",
		"latin1": "caf\xe9 \xe9\n", "cut": strings.Repeat("y", 499) + "éyy\n",
		"out => /etc/passwd": "",
	})
	require.NoError(t, unix.Mkfifo(tr.dirs.Own+"/fifo", 0o644))
	for name, test := range map[string]struct {
		in   message.GrepArgs
		want string
	}{
		"plain":       {message.GrepArgs{Pattern: "two"}, "a.go:2:two\na.go:5:two\nb/c.txt:1:TWO two\ncrlf:1:x two\n"},
		"start":       {message.GrepArgs{Pattern: "^two$"}, "a.go:2:two\na.go:5:two\n"},
		"end, crlf":   {message.GrepArgs{Pattern: "two$", Path: "crlf"}, "crlf:1:x two\n"},
		"any case":    {message.GrepArgs{Pattern: "TWO", IgnoreCase: true, Glob: "*.txt"}, "b/c.txt:1:TWO two\n"},
		"glob":        {message.GrepArgs{Pattern: "two", Glob: "b/**"}, "b/c.txt:1:TWO two\n"},
		"braces":      {message.GrepArgs{Pattern: "two", Glob: "*.{txt,md}"}, "b/c.txt:1:TWO two\n"},
		"files":       {message.GrepArgs{Pattern: "two", Output: message.OutputFiles}, "a.go\nb/c.txt\ncrlf\n"},
		"count":       {message.GrepArgs{Pattern: "two", Output: message.OutputCount, Limit: 1}, "a.go:2\n[there are more; narrow the search or raise the limit]\n"},
		"context":     {message.GrepArgs{Pattern: "seven", Context: 1}, "a.go-6-six\na.go:7:seven\na.go-8-eight\n"},
		"apart":       {message.GrepArgs{Pattern: "one|eight", After: 1, Path: "a.go"}, "a.go:1:one\na.go-2-two\n--\na.go:8:eight\na.go-9-nine\n"},
		"touching":    {message.GrepArgs{Pattern: "two", Before: 1, After: 1, Path: "a.go"}, "a.go-1-one\na.go:2:two\na.go-3-three\na.go-4-four\na.go:5:two\na.go-6-six\n"},
		"limit":       {message.GrepArgs{Pattern: "two", Limit: 2}, "a.go:2:two\na.go:5:two\n[there are more; narrow the search or raise the limit]\n"},
		"fixed":       {message.GrepArgs{Pattern: "begin {", Fixed: true}, "span:1:begin {\n"},
		"not spaces":  {message.GrepArgs{Pattern: `\s+foo`}, "span:2:  foo\n"},
		"not across":  {message.GrepArgs{Pattern: `\{\s+foo`}, "no matches\n"},
		"across":      {message.GrepArgs{Pattern: `\{.*foo`, Multiline: true}, "span:1:begin {\nspan:2:  foo\n"},
		"last line":   {message.GrepArgs{Pattern: "no end"}, "span:4:no end\n"},
		"long":        {message.GrepArgs{Pattern: "end$", Path: "long"}, "long:1:" + strings.Repeat("z", 500) + "… [1503 bytes cut]\n"},
		"git, named":  {message.GrepArgs{Pattern: "two", Path: ".git"}, ".git/x:1:two\n"},
		"not UTF-8":   {message.GrepArgs{Pattern: "caf"}, "latin1:1:caf\ufffd \ufffd\n[bytes that are NUL or not UTF-8, shown as \ufffd: 2; base64 or xxd prints them]\n"},
		"cut in one":  {message.GrepArgs{Pattern: "^yyy"}, "cut:1:" + strings.Repeat("y", 499) + "… [4 bytes cut]\n"},
		"nothing":     {message.GrepArgs{Pattern: "nowhere"}, "no matches\n"},
		"every line":  {message.GrepArgs{Pattern: "^", Path: "b/c.txt"}, "b/c.txt:1:TWO two\n"},
		"empty match": {message.GrepArgs{Pattern: "q*", Path: "crlf"}, "crlf:1:x two\ncrlf:2:y\n"},
		"by a link":   {message.GrepArgs{Pattern: "root", Path: "b"}, "no matches\n"},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := tr.grep(ctx(), test.in)
			require.NoError(t, err)
			assert.Equal(t, test.want, r.Text())
		})
	}
	for in, code := range map[message.GrepArgs]message.Code{
		{Pattern: "("}: message.Invalid, {Pattern: "x", Path: "no"}: message.NotFound, {Pattern: "x", Path: "../x"}: message.NotFound,
		{Pattern: "x", Path: "fifo"}: message.Invalid, {Pattern: "x", Glob: "["}: message.Invalid, {Pattern: "x", Path: "/etc"}: message.NotFound,
	} {
		_, err := tr.grep(ctx(), in)
		assert.Equal(t, code, asTold(t, err).Code, "%+v", in)
	}
}

// What is found is in the order of names, however many threads search.
func TestGrepOrder(t *testing.T) {
	tr := newTree(t, nil)
	var want strings.Builder
	for n := range 500 {
		name := fmt.Sprintf("%03d", n)
		require.NoError(t, os.WriteFile(tr.dirs.Own+"/"+name, []byte(strings.Repeat("x\n", n%7)+"found\n"), 0o644))
		fmt.Fprintf(&want, "%s:%d:found\n", name, n%7+1)
	}
	for range 20 {
		r, err := tr.grep(ctx(), message.GrepArgs{Pattern: "found", Limit: 1000})
		require.NoError(t, err)
		require.Equal(t, want.String(), r.Text())
	}
}

// TestSearchIsCancelled: a cancelled search opens no file but those that its searchers are about to open.
func TestSearchIsCancelled(t *testing.T) {
	tr := newTree(t, nil)
	for n := range 200 {
		require.NoError(t, os.WriteFile(fmt.Sprintf("%s/%d", tr.dirs.Own, n), []byte(strings.Repeat("aaaaaaaab", 100_000)), 0o644))
	}
	opened := opentest.Count(t, tr.dirs.Own)
	c, cancel := context.WithCancel(ctx())
	ended := make(chan error, 1)
	go func() {
		_, err := tr.grep(c, message.GrepArgs{Pattern: "(a|aa)+$", Output: message.OutputCount})
		ended <- err
	}()
	for opened() == 0 {
		time.Sleep(time.Millisecond)
	}
	cancel()
	opened()
	assert.Error(t, <-ended)
	assert.LessOrEqual(t, opened(), maxSearchers)
	_, err := tr.glob(c, message.GlobArgs{Pattern: "**"})
	assert.Error(t, err)
}
