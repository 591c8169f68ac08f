package file

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

	"github.com/scopefs/scopefs/tools"
)

func TestGrep(t *testing.T) {
	tr := newTree(t, map[string]string{
		"a.go": "one\ntwo\nthree\nfour\ntwo\nsix\nseven\neight\nnine\n", "b/c.txt": "TWO two\n", "b/bin": "two\x00", ".git/x": "two\n",
		"crlf": "x two\r\ny\r\n", "long": strings.Repeat("z", 2000) + "end\n", "span": "begin {\n  foo\n}\nno end",
		"out => /etc/passwd": "",
	})
	require.NoError(t, unix.Mkfifo(tr.root+"/fifo", 0o644))
	for name, test := range map[string]struct {
		in   grepArgs
		want string
	}{
		"plain":       {grepArgs{Pattern: "two"}, "a.go:2:two\na.go:5:two\nb/c.txt:1:TWO two\ncrlf:1:x two\n"},
		"start":       {grepArgs{Pattern: "^two$"}, "a.go:2:two\na.go:5:two\n"},
		"end, crlf":   {grepArgs{Pattern: "two$", Path: "crlf"}, "crlf:1:x two\n"},
		"any case":    {grepArgs{Pattern: "TWO", IgnoreCase: true, Glob: "*.txt"}, "b/c.txt:1:TWO two\n"},
		"glob":        {grepArgs{Pattern: "two", Glob: "b/**"}, "b/c.txt:1:TWO two\n"},
		"braces":      {grepArgs{Pattern: "two", Glob: "*.{txt,md}"}, "b/c.txt:1:TWO two\n"},
		"files":       {grepArgs{Pattern: "two", Output: outputFiles}, "a.go\nb/c.txt\ncrlf\n"},
		"count":       {grepArgs{Pattern: "two", Output: outputCount, Limit: 1}, "a.go:2\n[there are more; narrow the search or raise the limit]\n"},
		"context":     {grepArgs{Pattern: "seven", Context: 1}, "a.go-6-six\na.go:7:seven\na.go-8-eight\n"},
		"apart":       {grepArgs{Pattern: "one|eight", After: 1, Path: "a.go"}, "a.go:1:one\na.go-2-two\n--\na.go:8:eight\na.go-9-nine\n"},
		"touching":    {grepArgs{Pattern: "two", Before: 1, After: 1, Path: "a.go"}, "a.go-1-one\na.go:2:two\na.go-3-three\na.go-4-four\na.go:5:two\na.go-6-six\n"},
		"limit":       {grepArgs{Pattern: "two", Limit: 2}, "a.go:2:two\na.go:5:two\n[there are more; narrow the search or raise the limit]\n"},
		"fixed":       {grepArgs{Pattern: "begin {", Fixed: true}, "span:1:begin {\n"},
		"not spaces":  {grepArgs{Pattern: `\s+foo`}, "span:2:  foo\n"},
		"not across":  {grepArgs{Pattern: `\{\s+foo`}, "no matches\n"},
		"across":      {grepArgs{Pattern: `\{.*foo`, Multiline: true}, "span:1:begin {\nspan:2:  foo\n"},
		"last line":   {grepArgs{Pattern: "no end"}, "span:4:no end\n"},
		"long":        {grepArgs{Pattern: "end$", Path: "long"}, "long:1:" + strings.Repeat("z", 500) + "… [1503 bytes cut]\n"},
		"git, named":  {grepArgs{Pattern: "two", Path: ".git"}, ".git/x:1:two\n"},
		"nothing":     {grepArgs{Pattern: "nowhere"}, "no matches\n"},
		"every line":  {grepArgs{Pattern: "^", Path: "b/c.txt"}, "b/c.txt:1:TWO two\n"},
		"empty match": {grepArgs{Pattern: "q*", Path: "crlf"}, "crlf:1:x two\ncrlf:2:y\n"},
		"by a link":   {grepArgs{Pattern: "root", Path: "b"}, "no matches\n"},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := tr.grep(ctx(), test.in)
			require.NoError(t, err)
			assert.Equal(t, test.want, r.Content()[0].Text)
		})
	}
	for in, code := range map[grepArgs]tools.Code{
		{Pattern: "("}: tools.Invalid, {Pattern: "x", Path: "no"}: tools.NotFound, {Pattern: "x", Path: "../x"}: tools.NotFound,
		{Pattern: "x", Path: "fifo"}: tools.Invalid, {Pattern: "x", Glob: "["}: tools.Invalid, {Pattern: "x", Path: "/etc"}: tools.NotFound,
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
		require.NoError(t, os.WriteFile(tr.root+"/"+name, []byte(strings.Repeat("x\n", n%7)+"found\n"), 0o644))
		fmt.Fprintf(&want, "%s:%d:found\n", name, n%7+1)
	}
	for range 20 {
		r, err := tr.grep(ctx(), grepArgs{Pattern: "found", Limit: 1000})
		require.NoError(t, err)
		require.Equal(t, want.String(), r.Content()[0].Text)
	}
}

func TestSearchIsCancelled(t *testing.T) {
	tr := newTree(t, nil)
	for n := range 200 {
		require.NoError(t, os.WriteFile(fmt.Sprintf("%s/%d", tr.root, n), []byte(strings.Repeat("aaaaaaaab", 100_000)), 0o644))
	}
	for name, f := range map[string]func(context.Context) error{
		"grep": func(c context.Context) error {
			_, err := tr.grep(c, grepArgs{Pattern: "(a|aa)+$", Output: outputCount})
			return err
		},
		"glob": func(c context.Context) error {
			<-c.Done() // a sleep may end before the context's timer has run
			_, err := tr.glob(c, globArgs{Pattern: "**"})
			return err
		},
	} {
		c, cancel := context.WithTimeout(context.Background(), 30*time.Millisecond)
		began := time.Now()
		assert.Error(t, f(c), name)
		assert.Less(t, time.Since(began), 10*time.Second)
		cancel()
	}
}
