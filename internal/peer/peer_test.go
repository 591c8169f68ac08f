package peer

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

const max = 1 << 10

func raw(text string, lengths ...uint32) []byte {
	var b []byte
	for _, n := range lengths {
		b = binary.LittleEndian.AppendUint32(b, n)
	}
	return append(b, text...)
}

func TestFrame(t *testing.T) {
	var pipe bytes.Buffer
	w := NewWriter(&pipe, max, time.Second)
	full := strings.Repeat("x", max)
	for _, want := range [][2]string{{"a", "bc"}, {"", ""}, {"", full}, {full, ""}} {
		require.NoError(t, w.Write([]byte(want[0]), []byte(want[1])))
	}
	assert.ErrorIs(t, w.Write([]byte(full), []byte("x")), ErrTooLarge)
	r := NewReader(&pipe, max)
	for _, want := range [][2]string{{"a", "bc"}, {"", ""}, {"", full}, {full, ""}} {
		var a, b []byte
		require.NoError(t, r.Read(&a, &b))
		assert.Equal(t, want, [2]string{string(a), string(b)})
		_ = append(a, '!') // must not reach the next part
		assert.Equal(t, want[1], string(b))
	}
	var a, b []byte
	assert.Equal(t, io.EOF, r.Read(&a, &b), "what was too large has not been written")
}

func TestHostileFrame(t *testing.T) {
	for name, test := range map[string]struct {
		sent []byte
		err  error
	}{
		"nothing":           {nil, io.EOF},
		"half a prefix":     {raw("", 1)[:3], io.ErrUnexpectedEOF},
		"one length":        {raw("", 1), io.ErrUnexpectedEOF},
		"no parts":          {raw("", 1, 1), io.ErrUnexpectedEOF},
		"half a part":       {raw("a", 1, 1), io.ErrUnexpectedEOF},
		"huge":              {raw("", 1<<32-1, 1<<32-1), ErrTooLarge},
		"a sum over 32 bit": {raw("", 1, 1<<32-1), ErrTooLarge},
		"a byte too many":   {raw(strings.Repeat("x", max+1), max, 1), ErrTooLarge},
	} {
		t.Run(name, func(t *testing.T) {
			var a, b []byte
			assert.ErrorIs(t, NewReader(bytes.NewReader(test.sent), max).Read(&a, &b), test.err)
			assert.Nil(t, a)
		})
	}
}

// A huge length costs no memory.
func TestHugeLengthAllocates(t *testing.T) {
	r := NewReader(nil, 1<<20)
	frame := raw("", 1<<32-1)
	allocated := testing.Benchmark(func(b *testing.B) {
		for b.Loop() {
			r.in.Reset(bytes.NewReader(frame))
			var p []byte
			_ = r.Read(&p)
		}
	}).AllocedBytesPerOp()
	assert.Less(t, allocated, int64(4<<10))
}

// Frames of several goroutines do not mix, and a slow reader loses none.
func TestSlowReader(t *testing.T) {
	in, out := io.Pipe()
	w := NewWriter(out, max, 0)
	var all sync.WaitGroup
	for _, c := range []byte("abcdefgh") {
		all.Go(func() {
			for range 20 {
				assert.NoError(t, w.Write(bytes.Repeat([]byte{c}, max)))
			}
		})
	}
	go func() { all.Wait(); out.Close() }()
	r, n := NewReader(iotest{in}, max), 0
	for ; ; n++ {
		var p []byte
		err := r.Read(&p)
		if err == io.EOF {
			break
		}
		require.NoError(t, err)
		assert.Equal(t, bytes.Repeat(p[:1], max), p)
	}
	assert.Equal(t, 160, n)
}

// iotest reads a byte at a time.
type iotest struct{ io.Reader }

func (r iotest) Read(b []byte) (int, error) { return r.Reader.Read(b[:1]) }

// A reader that reads nothing does not block the writer for ever.
func TestDeafReader(t *testing.T) {
	r, out, err := os.Pipe()
	require.NoError(t, err)
	defer r.Close()
	defer out.Close()
	w := NewWriter(out, 1<<20, 20*time.Millisecond)
	assert.ErrorIs(t, w.Write(make([]byte, 1<<20)), os.ErrDeadlineExceeded)
}

func TestRequests(t *testing.T) {
	c := NewRequests[string](2)
	ctx := context.Background()
	one, err := c.Begin(ctx)
	require.NoError(t, err)
	two, err := c.Begin(ctx)
	require.NoError(t, err)
	assert.NotEqual(t, one.ID, two.ID)

	soon, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
	defer cancel()
	_, err = c.Begin(soon)
	assert.ErrorIs(t, err, context.DeadlineExceeded, "two are in flight")

	assert.False(t, c.Deliver(99, ""), "unknown id")
	assert.False(t, c.Deliver(0, ""))
	assert.True(t, c.Deliver(two.ID, "second"))
	assert.False(t, c.Deliver(two.ID, "again"), "duplicate reply")
	got, err := two.Wait(ctx, nil, 0)
	require.NoError(t, err)
	assert.Equal(t, "second", got)
	two.End()
	assert.Equal(t, 1, c.Waiting())
	three, err := c.Begin(ctx)
	require.NoError(t, err, "there is room again")
	three.End()
	assert.False(t, c.Deliver(three.ID, "late"))

	assert.True(t, c.Deliver(one.ID, "first"))
	gone := errors.New("gone")
	assert.True(t, c.Close(gone))
	assert.False(t, c.Close(errors.New("later")))
	got, err = one.Wait(ctx, nil, 0)
	require.NoError(t, err, "it came before the end")
	assert.Equal(t, "first", got)
	one.End()
	four, err := c.Begin(ctx)
	if err == nil { // there is room: it fails when it waits
		_, err = four.Wait(ctx, nil, 0)
		four.End()
	}
	assert.Equal(t, gone, err)
}

func TestRequestsCancel(t *testing.T) {
	c := NewRequests[string](0)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	call, err := c.Begin(ctx)
	require.NoError(t, err)
	got, err := call.Wait(ctx, func() { c.Deliver(call.ID, "so far") }, time.Minute)
	require.NoError(t, err)
	assert.Equal(t, "so far", got)
	call.End()

	call, err = c.Begin(ctx)
	require.NoError(t, err)
	defer call.End()
	_, err = call.Wait(ctx, func() {}, time.Millisecond)
	assert.ErrorIs(t, err, ErrStuck)
}

// TestRequestsStopped: a reply that comes after the process itself was stopped for longer than grace is in time.
func TestRequestsStopped(t *testing.T) {
	const env = "PEER_TEST_STOPPED"
	if os.Getenv(env) == "" {
		cmd := exec.Command("/proc/self/exe", "-test.run", "^TestRequestsStopped$")
		cmd.Env = append(os.Environ(), env+"=1")
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		require.NoError(t, cmd.Start())
		info := unix.Siginfo{}
		require.NoError(t, unix.Waitid(unix.P_PID, cmd.Process.Pid, &info, unix.WSTOPPED, nil))
		time.Sleep(1500 * time.Millisecond)
		require.NoError(t, cmd.Process.Signal(unix.SIGCONT))
		require.NoError(t, cmd.Wait(), "%s", out.String())
		return
	}
	c := NewRequests[string](0)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	call, err := c.Begin(ctx)
	require.NoError(t, err)
	defer call.End()
	got, err := call.Wait(ctx, func() {
		go func() {
			assert.NoError(t, unix.Kill(os.Getpid(), unix.SIGSTOP))
			time.Sleep(10 * time.Millisecond)
			c.Deliver(call.ID, "so far")
		}()
	}, time.Second)
	require.NoError(t, err)
	assert.Equal(t, "so far", got)
}

// Close ends every request that waits, and every Begin.
func TestRequestsClose(t *testing.T) {
	c := NewRequests[int](4)
	gone := errors.New("gone")
	var all sync.WaitGroup
	for range 16 {
		all.Go(func() {
			call, err := c.Begin(context.Background())
			if err == nil {
				_, err = call.Wait(context.Background(), nil, 0)
				call.End()
			}
			assert.Equal(t, gone, err)
		})
	}
	require.Eventually(t, func() bool { return c.Waiting() == 4 }, 20*time.Second, time.Millisecond)
	c.Close(gone)
	all.Wait()
	assert.Zero(t, c.Waiting())
}

func FuzzRead(f *testing.F) {
	f.Add(raw("abc", 1, 2))
	f.Add(raw("", 1<<31, 1<<31))
	f.Fuzz(func(t *testing.T, b []byte) {
		var p, q []byte
		if NewReader(bytes.NewReader(b), max).Read(&p, &q) == nil {
			assert.LessOrEqual(t, len(p)+len(q), min(max, len(b)))
		}
	})
}
