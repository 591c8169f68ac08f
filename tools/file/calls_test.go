package file

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"image"
	"image/png"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/tools"
)

var readOp = operation{"read_file", true}

func TestWorkerCalls(t *testing.T) {
	tr := newTree(t, map[string]string{"f": "text\n"})
	w := newLink(t, tr)
	r, err := do[ReadArgs, ReadResult](ctx(), w, "c", readOp, ReadArgs{Path: "f"})
	require.NoError(t, err)
	assert.Equal(t, "text\n", r.Text)
	_, err = do[ReadArgs, ReadResult](ctx(), w, "c", readOp, ReadArgs{Path: "no"})
	assert.Equal(t, &tools.Error{Code: tools.NotFound, Message: "no such file or directory", Path: "no"}, asTold(t, err))

	big := strings.Repeat("é\"\\\n", 1<<20)
	wr, err := do[WriteArgs, WriteResult](ctx(), w, "c", operation{name: "write_file"}, WriteArgs{Path: "big", Content: big})
	require.NoError(t, err)
	assert.Equal(t, fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(big))), wr.Hash)
	assert.Equal(t, big, tr.content(t, "big"))
	_, err = do[WriteArgs, WriteResult](ctx(), w, "c", operation{name: "write_file"}, WriteArgs{Path: "big", Content: big + big})
	assert.Equal(t, tools.TooLarge, asTold(t, err).Code)

	hash, err := w.Object(ctx(), "read_file", "big", false)
	require.NoError(t, err)
	assert.Equal(t, wr.Hash, hash.Content)
	assert.Equal(t, "big", hash.Path)
	for _, path := range []string{"no", "../x", "/etc/passwd", ".", "big/x"} {
		hash, err = w.Object(ctx(), "read_file", path, false)
		assert.NoError(t, err)
		assert.Empty(t, hash.Content)
	}
	before, err := w.Object(ctx(), "read_file", ".", true)
	require.NoError(t, err)
	assert.Regexp(t, "^tree:", before.Content)
	hash, err = w.Object(ctx(), "read_file", ".", true)
	require.NoError(t, err)
	assert.Equal(t, before, hash)
	require.NoError(t, os.Chtimes(filepath.Join(tr.root, "big"), time.Now(), time.Now()))
	hash, err = w.Object(ctx(), "read_file", ".", true)
	require.NoError(t, err)
	assert.NotEqual(t, before.Content, hash.Content)
	_, err = do[ReadArgs, ReadResult](ctx(), w, "c", operation{name: "nothing"}, ReadArgs{})
	assert.Equal(t, tools.Invalid, asTold(t, err).Code)
}

func TestWorkerConcurrent(t *testing.T) {
	files := map[string]string{}
	for n := range 100 {
		files[fmt.Sprint(n)] = strings.Repeat(fmt.Sprint(n), 1000+n)
	}
	w := newLink(t, newTree(t, files))
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() {
			for name, content := range files {
				r, err := do[ReadArgs, ReadResult](ctx(), w, "c", readOp, ReadArgs{Path: name})
				if assert.NoError(t, err) {
					assert.Equal(t, content, r.Text)
				}
			}
		})
	}
	all.Wait()
}

// A call that is cancelled has ended when it returns, and others go on.
func TestWorkerCancel(t *testing.T) {
	tr := newTree(t, map[string]string{"f": "x"})
	// A worker ends a cancelled search after a file, and is killed if that takes five seconds: the files are many and small.
	for n := range 3000 {
		require.NoError(t, os.WriteFile(fmt.Sprintf("%s/%d.txt", tr.root, n), []byte(strings.Repeat("aaaaaaaab", 5000)), 0o644))
	}
	w := newLink(t, tr)
	err := context.DeadlineExceeded
	for limit := 50 * time.Millisecond; errors.Is(err, context.DeadlineExceeded); limit *= 2 { // until the worker has the call in time
		c, cancel := context.WithTimeout(ctx(), limit)
		began := time.Now()
		_, err = do[GrepArgs, GrepResult](c, w, "c", operation{"grep", true}, GrepArgs{Pattern: "(a|aa)+$", Output: OutputCount})
		cancel()
		assert.Less(t, time.Since(began), limit+15*time.Second)
	}
	assert.Equal(t, "cancelled", asTold(t, err).Message)
	_, err = do[ReadArgs, ReadResult](ctx(), w, "c", readOp, ReadArgs{Path: "f"})
	assert.NoError(t, err)
}

func TestReadImage(t *testing.T) {
	var b bytes.Buffer
	require.NoError(t, png.Encode(&b, image.NewRGBA(image.Rect(0, 0, 3, 3))))
	tr := newTree(t, map[string]string{"a.txt": b.String()})
	w := newLink(t, tr)
	r, err := do[ReadArgs, ReadResult](ctx(), w, "c", operation{"read_file", true}, ReadArgs{Path: "a.txt"})
	require.NoError(t, err)
	assert.Equal(t, []tools.Content{{Data: b.Bytes(), MIME: "image/png"}}, r.Content())
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
