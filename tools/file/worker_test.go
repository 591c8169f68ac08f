package file

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/tools"
	"github.com/scopefs/scopefs/tools/sandbox"
)

var readOp = operation{"read_file", true}

func TestWorkerCalls(t *testing.T) {
	tr := newTree(t, map[string]string{"f": "text\n"})
	w := newLink(t, tr)
	r, err := do[readArgs, readResult](ctx(), w, "c", readOp, readArgs{Path: "f"})
	require.NoError(t, err)
	assert.Equal(t, "text\n", r.Text)
	_, err = do[readArgs, readResult](ctx(), w, "c", readOp, readArgs{Path: "no"})
	assert.Equal(t, &tools.Error{Code: tools.NotFound, Message: "no such file or directory", Path: "no"}, asTold(t, err))

	big := strings.Repeat("é\"\\\n", 1<<20)
	wr, err := do[writeArgs, writeResult](ctx(), w, "c", operation{name: "write_file"}, writeArgs{Path: "big", Content: big})
	require.NoError(t, err)
	assert.Equal(t, hashOf([]byte(big)), wr.Hash)
	assert.Equal(t, big, tr.content(t, "big"))
	_, err = do[writeArgs, writeResult](ctx(), w, "c", operation{name: "write_file"}, writeArgs{Path: "big", Content: big + big})
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
	_, err = do[readArgs, readResult](ctx(), w, "c", operation{name: "nothing"}, readArgs{})
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
				r, err := do[readArgs, readResult](ctx(), w, "c", readOp, readArgs{Path: name})
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
	for n := range 300 {
		require.NoError(t, os.WriteFile(fmt.Sprintf("%s/%d.txt", tr.root, n), []byte(strings.Repeat("aaaaaaaab", 50_000)), 0o644))
	}
	w := newLink(t, tr)
	c, cancel := context.WithTimeout(ctx(), 50*time.Millisecond)
	defer cancel()
	began := time.Now()
	_, err := do[grepArgs, grepResult](c, w, "c", operation{"grep", true}, grepArgs{Pattern: "(a|aa)+$", Output: outputCount})
	assert.Equal(t, "cancelled", asTold(t, err).Message)
	assert.Less(t, time.Since(began), 15*time.Second)
	_, err = do[readArgs, readResult](ctx(), w, "c", readOp, readArgs{Path: "f"})
	assert.NoError(t, err)
}

// fake is a worker whose every word the test says.
type fake struct {
	in  *bufio.Reader
	out *os.File
	*Worker
}

func newFake(t *testing.T) *fake {
	inR, inW, err := os.Pipe()
	require.NoError(t, err)
	outR, outW, err := os.Pipe()
	require.NoError(t, err)
	errR, errW, err := os.Pipe()
	require.NoError(t, err)
	w := NewWorker(dead{})
	end := sync.OnceFunc(func() { inR.Close(); outW.Close(); errW.Close() })
	require.NoError(t, w.adopt(newConn(pipes{in: inW, out: outR, err: errR, kill: end})))
	t.Cleanup(func() { end(); w.Close() })
	return &fake{bufio.NewReader(inR), outW, w}
}

// dead is a place where nothing starts.
type dead struct{}

func (dead) Exec(context.Context, sandbox.Command) (*sandbox.Process, error) {
	return nil, sandbox.ErrEnded
}

func raw(header string, blob string, lengths ...uint32) []byte {
	b := make([]byte, prefix)
	if len(lengths) == 0 {
		lengths = []uint32{uint32(len(header)), uint32(len(blob))}
	}
	binary.LittleEndian.PutUint32(b, lengths[0])
	binary.LittleEndian.PutUint32(b[4:], lengths[1])
	return append(append(b, header...), blob...)
}

// What a worker may not say ends it, and the call.
func TestHostileWorker(t *testing.T) {
	ok := `{"id":1,"result":{"path":"f","size":1,"lines":{"start":1,"end":1}}}`
	for name, test := range map[string]struct {
		says []byte
		fine bool
	}{
		"an answer":          {says: raw(ok, "x"), fine: true},
		"another's":          {says: raw(strings.Replace(ok, "1", "2", 1), "x")},
		"twice":              {says: append(raw(ok, "x"), raw(ok, "x")...), fine: true},
		"huge":               {says: raw("", "", 1<<31, 1<<31)},
		"one too large":      {says: raw("", "", 2, maxFrame-1)},
		"no JSON":            {says: raw("hello", "")},
		"more JSON":          {says: raw(ok+"{}", "x")},
		"half a frame":       {says: raw(ok, "x")[:20]},
		"unknown field":      {says: raw(`{"id":1,"result":{"path":"f","size":1,"host":"/etc"}}`, "x")},
		"wrong type":         {says: raw(`{"id":1,"result":{"path":7}}`, "x")},
		"text in two places": {says: raw(`{"id":1,"result":{"path":"f","size":1,"text":"y"}}`, "x")},
		"no image":           {says: raw(`{"id":1,"result":{"path":"f","size":1,"mime":"image/png"}}`, "<html>")},
		"nothing":            {says: raw(`{"id":1}`, "")},
		"both":               {says: raw(`{"id":1,"result":{"path":"f","size":1},"error":{"code":"denied","message":""}}`, "")},
		"an approval":        {says: raw(`{"id":1,"error":{"code":"approval_required","message":"","approval_id":"x"}}`, "")},
		"an invented code":   {says: raw(`{"id":1,"error":{"code":"fine","message":""}}`, "")},
		"a long message":     {says: raw(`{"id":1,"error":{"code":"denied","message":"`+strings.Repeat("x", 10<<10)+`"}}`, "")},
		"null":               {says: raw(`null`, "")},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake(t)
			go func() {
				var r asked
				if _, err := readFrame(f.in, &r); err == nil {
					f.out.Write(test.says)
					if name == "half a frame" {
						f.out.Close()
					}
				}
			}()
			c, cancel := context.WithTimeout(ctx(), 10*time.Second)
			defer cancel()
			conn, _ := f.current()
			r, err := do[readArgs, readResult](c, f.Worker, "c", operation{name: "read_file"}, readArgs{Path: "f"})
			require.NoError(t, c.Err())
			if test.fine {
				require.NoError(t, err)
				assert.Equal(t, "x", r.Text)
			} else {
				require.Error(t, err)
				var e *tools.Error
				assert.False(t, errors.As(err, &e), "the cause is for the log: %v", err)
				assert.Empty(t, r)
			}
			if !test.fine || name == "twice" {
				<-conn.dead
			}
		})
	}
}

// A worker that does not stop is ended; one that is silent holds no call.
func TestSilentWorker(t *testing.T) {
	f := newFake(t)
	c, cancel := context.WithTimeout(ctx(), 20*time.Millisecond)
	defer cancel()
	began := time.Now()
	_, err := do[readArgs, readResult](c, f.Worker, "c", readOp, readArgs{Path: "f"})
	assert.ErrorIs(t, err, context.DeadlineExceeded)
	assert.Less(t, time.Since(began), stopTimeout+15*time.Second)
	_, err = do[readArgs, readResult](ctx(), f.Worker, "c", readOp, readArgs{Path: "f"})
	assert.ErrorIs(t, err, sandbox.ErrEnded, "and would be started again")
}

// A worker that is busy for long is not silent: it answers pings.
func TestBusyWorker(t *testing.T) {
	f := newFake(t)
	conn, _ := f.current()
	conn.beatPause = 10 * time.Millisecond
	pings := 0
	go func() {
		var first uint64
		for {
			var r asked
			if _, err := readFrame(f.in, &r); err != nil {
				return
			}
			switch r.Op {
			case opPing:
				pings++
				f.out.Write(raw(fmt.Sprintf(`{"id":%d,"result":{}}`, r.ID), ""))
			default:
				first = r.ID
			}
			if pings == 3*maxSilent {
				f.out.Write(raw(fmt.Sprintf(`{"id":%d,"result":{"path":"f","size":1,"lines":{"start":1,"end":1}}}`, first), "x"))
			}
		}
	}()
	r, err := do[readArgs, readResult](ctx(), f.Worker, "c", operation{name: "read_file"}, readArgs{Path: "f"})
	require.NoError(t, err)
	assert.Equal(t, "x", r.Text)
}

// One that does not read, either, holds no call.
func TestDeafWorker(t *testing.T) {
	f := newFake(t)
	conn, _ := f.current()
	conn.beatPause = 10 * time.Millisecond
	var all sync.WaitGroup
	for range 3 {
		all.Go(func() {
			_, err := do[writeArgs, writeResult](ctx(), f.Worker, "c", operation{name: "write_file"}, writeArgs{Path: "f", Content: strings.Repeat("x", 1<<20)})
			assert.Equal(t, tools.Unavailable, asTold(t, err).Code)
		})
	}
	all.Wait()
	_, err := do[readArgs, readResult](ctx(), f.Worker, "c", readOp, readArgs{Path: "f"})
	assert.ErrorIs(t, err, sandbox.ErrEnded, "and would be started again")
}

// One that writes to its stderr without end does not stop, nor fill the daemon.
func TestNoisyWorker(t *testing.T) {
	r, w, err := os.Pipe()
	require.NoError(t, err)
	c := &conn{pipes: pipes{err: r}}
	go func() {
		for range 1000 {
			w.Write(make([]byte, 10<<10))
		}
		w.Write([]byte("the end"))
		w.Close()
	}()
	c.drain()
	assert.Len(t, c.said, keptStderr)
	assert.True(t, strings.HasSuffix(string(c.said), "the end"))
	r.Close()
}

// A call under way when the worker dies fails at once.
func TestWorkerDies(t *testing.T) {
	f := newFake(t)
	go func() {
		var r asked
		readFrame(f.in, &r)
		f.out.Close()
	}()
	_, err := do[writeArgs, writeResult](ctx(), f.Worker, "c", operation{name: "write_file"}, writeArgs{Path: "f"})
	assert.ErrorIs(t, err, errDied)
}

func FuzzReadFrame(f *testing.F) {
	f.Add(raw(`{"id":1,"result":{}}`, "x"))
	f.Add(raw("", "", 1<<31, 1))
	f.Fuzz(func(t *testing.T, b []byte) {
		var a answer
		blob, err := readFrame(bufio.NewReader(strings.NewReader(string(b))), &a)
		if err == nil {
			var out readResult
			assert.LessOrEqual(t, len(blob), len(b))
			if a.Result != nil {
				_ = strict(a.Result, &out)
				_, _ = json.Marshal(out)
			}
		}
	})
}
