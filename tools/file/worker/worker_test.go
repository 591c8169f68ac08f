package worker

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/internal/need"
	"github.com/scopefs/scopefs/internal/peer"
	"github.com/scopefs/scopefs/tools"
	"github.com/scopefs/scopefs/tools/file/message"
	"github.com/scopefs/scopefs/tools/sandbox"
)

// sized is a result with bytes beside it.
type sized struct {
	Path string `json:"path"`
	Size int    `json:"size"`
}

// read has the worker read f.
func read(ctx context.Context, w *Worker, again bool) (out sized, text string, err error) {
	_, err = w.Do(ctx, message.Request{Call: "c", Op: "read_file", Args: json.RawMessage(`{"path":"f"}`)}, again, func(a message.Reply) error {
		text = string(a.Blob)
		return peer.Decode(a.Result, &out)
	})
	return out, text, err
}

// write has it write size bytes.
func write(w *Worker, size int) error {
	_, err := w.Do(context.Background(), message.Request{Call: "c", Op: "write_file", Args: json.RawMessage(`{"path":"f"}`), Blob: make([]byte, size)}, false, nil)
	return err
}

// fake is a worker whose every word the test says.
type fake struct {
	in  *peer.Reader
	out *os.File
	*Worker
}

func newFake(t *testing.T, beat time.Duration) *fake {
	inR, inW, err := os.Pipe()
	require.NoError(t, err)
	outR, outW, err := os.Pipe()
	require.NoError(t, err)
	errR, errW, err := os.Pipe()
	require.NoError(t, err)
	end := sync.OnceFunc(func() { inR.Close(); outW.Close(); errW.Close() })
	first := true
	w := New(func(context.Context) (Pipes, error) {
		if !first {
			return Pipes{}, sandbox.ErrEnded
		}
		first = false
		return Pipes{In: inW, Out: outR, Err: errR, Kill: end}, nil
	})
	w.Beat = beat
	require.NoError(t, w.Start(context.Background()))
	t.Cleanup(func() { end(); w.Close() })
	return &fake{peer.NewReader(inR, message.MaxFrame), outW, w}
}

func raw(header, value, blob string, lengths ...uint32) []byte {
	if len(lengths) == 0 {
		lengths = []uint32{uint32(len(header)), uint32(len(value)), uint32(len(blob))}
	}
	var b []byte
	for _, n := range lengths {
		b = binary.LittleEndian.AppendUint32(b, n)
	}
	return append(b, header+value+blob...)
}

// What a worker may not send kills it, and fails the call.
func TestHostileWorker(t *testing.T) {
	const head, ok = `{"id":1}`, `{"path":"f","size":1}`
	for name, test := range map[string]struct {
		says []byte
		fine bool
	}{
		"a reply":           {says: raw(head, ok, "x"), fine: true},
		"another's":         {says: raw(`{"id":2}`, ok, "x")},
		"twice":             {says: append(raw(head, ok, "x"), raw(head, ok, "x")...), fine: true},
		"huge":              {says: raw("", "", "", 1<<31, 1<<31, 1<<31)},
		"a sum over 32 bit": {says: raw(head, ok, "", 8, 1<<32-1, 1)},
		"one too large":     {says: raw("", "", "", 2, 0, message.MaxFrame-1)},
		"no JSON":           {says: raw("hello", "", "")},
		"more JSON":         {says: raw(head+"{}", ok, "x")},
		"half a frame":      {says: raw(head, ok, "x")[:20]},
		"half a prefix":     {says: raw(head, ok, "x")[:5]},
		"unknown field":     {says: raw(head, `{"path":"f","size":1,"host":"/etc"}`, "x")},
		"unknown in header": {says: raw(`{"id":1,"host":"/etc"}`, ok, "x")},
		"wrong type":        {says: raw(head, `{"path":7}`, "x")},
		"nothing":           {says: raw(head, "", "")},
		"both":              {says: raw(`{"id":1,"error":{"code":"denied","message":""}}`, ok, "")},
		"an approval":       {says: raw(`{"id":1,"error":{"code":"approval_required","message":"","approval_id":"x"}}`, "", "")},
		"an invented code":  {says: raw(`{"id":1,"error":{"code":"fine","message":""}}`, "", "")},
		"a long message":    {says: raw(`{"id":1,"error":{"code":"denied","message":"`+strings.Repeat("x", 10<<10)+`"}}`, "", "")},
		"null":              {says: raw(`null`, "", "")},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake(t, 0)
			go func() {
				var r message.RequestFrame
				if err := message.Receive(f.in, &r, &r.Args, &r.Blob); err == nil {
					f.out.Write(test.says)
					if strings.HasPrefix(name, "half") {
						f.out.Close()
					}
				}
			}()
			c, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			defer cancel()
			conn, _ := f.current()
			_, text, err := read(c, f.Worker, false)
			require.NoError(t, c.Err())
			if test.fine {
				require.NoError(t, err)
				assert.Equal(t, "x", text)
			} else {
				require.Error(t, err)
				if told, ok := errors.AsType[*tools.Error](err); ok { // else the cause is for the log as well
					assert.Equal(t, "the process of the call has ended or cannot be started", told.Message)
				}
			}
			if !test.fine || name == "twice" {
				<-conn.calls.Closed()
			}
		})
	}
}

// A worker that does not end a cancelled request is killed.
func TestSilentWorker(t *testing.T) {
	need.Long(t, "waits for a time limit")
	f := newFake(t, 0)
	c, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	began := time.Now()
	_, _, err := read(c, f.Worker, true)
	assert.ErrorIs(t, err, context.DeadlineExceeded)
	assert.Less(t, time.Since(began), message.StopTime+15*time.Second)
	_, _, err = read(context.Background(), f.Worker, true)
	assert.ErrorIs(t, err, sandbox.ErrEnded, "it would be started again")
}

// A worker that is busy for long is not silent: it answers pings.
func TestBusyWorker(t *testing.T) {
	f := newFake(t, 10*time.Millisecond)
	pings := 0
	go func() {
		var first uint64
		for {
			var r message.RequestFrame
			if err := message.Receive(f.in, &r, &r.Args, &r.Blob); err != nil {
				return
			}
			switch r.Op {
			case message.OpPing:
				pings++
				f.out.Write(raw(fmt.Sprintf(`{"id":%d}`, r.ID), "", ""))
			default:
				first = r.ID
			}
			if pings == 3*maxSilent {
				f.out.Write(raw(fmt.Sprintf(`{"id":%d}`, first), `{"path":"f","size":1}`, "x"))
			}
		}
	}()
	_, text, err := read(context.Background(), f.Worker, false)
	require.NoError(t, err)
	assert.Equal(t, "x", text)
}

// A request that takes too long is cancelled and answered, whether or not the worker ends it.
func TestFrozenWorker(t *testing.T) {
	for name, answers := range map[string]bool{"cancelled": true, "stuck": false} {
		t.Run(name, func(t *testing.T) {
			if !answers {
				need.Long(t, "waits for a time limit")
			}
			f := newFake(t, 10*time.Millisecond)
			f.Longest = 50 * time.Millisecond
			go func() {
				var first uint64
				for {
					var r message.RequestFrame
					if err := message.Receive(f.in, &r, &r.Args, &r.Blob); err != nil {
						return
					}
					switch {
					case r.Op == message.OpPing:
						f.out.Write(raw(fmt.Sprintf(`{"id":%d}`, r.ID), "", ""))
					case r.Op != message.OpCancel:
						first = r.ID
					case answers:
						f.out.Write(raw(fmt.Sprintf(`{"id":%d,"error":{"code":"internal","message":"context canceled"}}`, first), "", ""))
					}
				}
			}()
			_, _, err := read(context.Background(), f.Worker, true)
			var e *tools.Error
			require.ErrorAs(t, err, &e)
			assert.Equal(t, tools.Unavailable, e.Code)
		})
	}
}

// A worker that does not read blocks no call.
func TestDeafWorker(t *testing.T) {
	f := newFake(t, 10*time.Millisecond)
	var all sync.WaitGroup
	for range 3 {
		all.Go(func() {
			e, _ := errors.AsType[*tools.Error](write(f.Worker, 1<<20))
			if assert.NotNil(t, e) {
				assert.Equal(t, tools.Unavailable, e.Code)
			}
		})
	}
	all.Wait()
	_, _, err := read(context.Background(), f.Worker, true)
	assert.ErrorIs(t, err, sandbox.ErrEnded, "it would be started again")
}

// A worker that writes to its stderr without end is not blocked, and fills no memory.
func TestNoisyWorker(t *testing.T) {
	r, w, err := os.Pipe()
	require.NoError(t, err)
	c := &conn{Pipes: Pipes{Err: r}}
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

// A request in flight when the worker dies fails at once.
func TestWorkerDies(t *testing.T) {
	f := newFake(t, 0)
	go func() {
		var r message.RequestFrame
		message.Receive(f.in, &r, &r.Args, &r.Blob)
		f.out.Close()
	}()
	assert.ErrorIs(t, write(f.Worker, 0), ErrDied)
}

func TestTooLarge(t *testing.T) {
	f := newFake(t, 0)
	e, _ := errors.AsType[*tools.Error](write(f.Worker, message.MaxFrame))
	require.NotNil(t, e)
	assert.Equal(t, tools.TooLarge, e.Code)
	conn, _ := f.current()
	assert.NotNil(t, conn, "and the worker lives")
}

// TestViewEnded: a worker whose view has ended says so, and lives.
func TestViewEnded(t *testing.T) {
	f := newFake(t, 0)
	go func() {
		var r message.RequestFrame
		_ = message.Receive(f.in, &r, &r.Args, &r.Blob)
		_, _ = f.out.Write(raw(`{"id":1,"error":{"code":"unavailable","message":"the view has ended","hint":"call again"}}`, "", ""))
	}()
	_, _, err := read(context.Background(), f.Worker, false)
	assert.Equal(t, &tools.Error{Code: tools.Unavailable, Message: "the view has ended", Hint: "call again"}, err)
}
