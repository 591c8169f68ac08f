package driver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/credential"
	"github.com/scopefs/scopefs/internal/descriptors"
	"github.com/scopefs/scopefs/internal/peer"
	"github.com/scopefs/scopefs/tools"
	"github.com/scopefs/scopefs/tools/egress"
)

const (
	echo = Method[string, string]("echo")
	hang = Method[None, None]("hang")
	fail = Method[None, None]("fail")
)

// ends returns the two ends of a connection; the other one serves handlers.
func ends(t *testing.T, handlers Handlers) (one, other *Conn) {
	t.Helper()
	a, b, err := descriptors.Pair(unix.SOCK_STREAM)
	require.NoError(t, err)
	one, other = NewConn(a, nil), NewConn(b, handlers)
	var all sync.WaitGroup
	all.Go(func() { _ = one.Serve() })
	all.Go(func() { _ = other.Serve() })
	t.Cleanup(func() { one.Close(); other.Close(); all.Wait() })
	return one, other
}

// TestCalls: calls run side by side, and end with their contexts.
func TestCalls(t *testing.T) {
	var running atomic.Int32
	handlers := Handlers{}
	echo.Handle(handlers, func(_ context.Context, text string) (string, error) { return text, nil })
	hang.Handle(handlers, func(ctx context.Context, _ None) (None, error) {
		running.Add(1)
		defer running.Add(-1)
		<-ctx.Done()
		return None{}, ctx.Err()
	})
	one, other := ends(t, handlers)
	ctx, cancel := context.WithCancel(t.Context())
	var hanging sync.WaitGroup
	for range 8 {
		hanging.Go(func() {
			_, err := hang.Call(ctx, one, None{})
			assert.Error(t, err)
		})
	}
	var all sync.WaitGroup
	for _, text := range []string{"", "x", "\x00\"", strings.Repeat("x", 1<<20)} {
		all.Go(func() {
			got, err := echo.Call(t.Context(), one, text)
			assert.NoError(t, err)
			assert.Equal(t, text, got)
		})
	}
	all.Wait()
	_, err := echo.Call(t.Context(), one, strings.Repeat("x", maxFrame))
	e, ok := errors.AsType[*tools.Error](err)
	require.True(t, ok, "%v", err)
	assert.Equal(t, tools.TooLarge, e.Code)
	cancel()
	hanging.Wait()
	require.Eventually(t, func() bool { return running.Load() == 0 }, 10*time.Second, time.Millisecond)
	got, err := echo.Call(t.Context(), one, "still there")
	require.NoError(t, err)
	assert.Equal(t, "still there", got)
	other.Close()
	_, err = echo.Call(t.Context(), one, "x")
	assert.ErrorIs(t, err, ErrLost)
}

// TestFaults: an error keeps what callers tell apart, and no other end decides for the door.
func TestFaults(t *testing.T) {
	var next error
	handlers := Handlers{}
	fail.Handle(handlers, func(context.Context, None) (None, error) { return None{}, next })
	one, _ := ends(t, handlers)
	call := func(err error) error {
		next = err
		_, got := fail.Call(t.Context(), one, None{})
		return got
	}
	told := tools.Errorf(tools.Conflict, "another")
	told.Hint = "read it"
	e, ok := errors.AsType[*tools.Error](call(told.Because(&net.OpError{Op: "dial", Err: syscall.ECONNREFUSED})))
	require.True(t, ok)
	assert.Equal(t, "conflict: another (read it)", e.Error())
	assert.ErrorIs(t, e, syscall.ECONNREFUSED)
	_, ok = errors.AsType[*net.OpError](e)
	assert.True(t, ok)
	assert.ErrorIs(t, call(errors.Join(egress.ErrAddress)), egress.ErrAddress)
	assert.ErrorIs(t, call(context.DeadlineExceeded), context.DeadlineExceeded)
	dns, ok := errors.AsType[*net.DNSError](call(&net.DNSError{Err: "no such host"}))
	require.True(t, ok)
	assert.Contains(t, dns.Err, "no such host")
	for _, code := range []tools.Code{tools.Denied, tools.ApprovalRequired, tools.OutsideScope, "odd"} {
		e, ok := errors.AsType[*tools.Error](call(tools.Errorf(code, "x")))
		require.True(t, ok)
		assert.Equal(t, tools.Unavailable, e.Code, code)
	}
	e, ok = errors.AsType[*tools.Error](call(tools.Errorf(tools.Invalid, "%s\x1b", strings.Repeat("x", 1<<20))))
	require.True(t, ok)
	assert.LessOrEqual(t, len(e.Message), maxText+10)
	assert.NotContains(t, e.Message, "\x1b")
}

// TestHostile: an end that breaks the protocol loses the connection, and costs nothing more.
func TestHostile(t *testing.T) {
	for name, send := range map[string]func(w *peer.Writer, raw *os.File){
		"no JSON":        func(w *peer.Writer, _ *os.File) { _ = w.Write([]byte("{"), nil) },
		"unknown field":  func(w *peer.Writer, _ *os.File) { _ = w.Write([]byte(`{"id":1,"x":1}`), nil) },
		"unknown method": func(w *peer.Writer, _ *os.File) { _ = w.Write([]byte(`{"id":1,"method":"x"}`), nil) },
		"an id twice": func(w *peer.Writer, _ *os.File) {
			_ = w.Write([]byte(`{"id":1,"method":"hang"}`), []byte("{}"))
			_ = w.Write([]byte(`{"id":1,"method":"hang"}`), []byte("{}"))
		},
		"a huge frame":    func(_ *peer.Writer, raw *os.File) { _, _ = raw.Write([]byte(strings.Repeat("\xff", 8))) },
		"too many calls":  func(w *peer.Writer, _ *os.File) { flood(w) },
		"a reply to none": func(w *peer.Writer, raw *os.File) { _ = w.Write([]byte(`{"id":7}`), nil); raw.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, b, err := descriptors.Pair(unix.SOCK_STREAM)
			require.NoError(t, err)
			defer b.Close()
			handlers := Handlers{}
			hang.Handle(handlers, func(ctx context.Context, _ None) (None, error) { <-ctx.Done(); return None{}, nil })
			c := NewConn(a, handlers)
			ended := make(chan error, 1)
			go func() { ended <- c.Serve() }()
			go func() { _, _ = io.Copy(io.Discard, b) }()
			send(peer.NewWriter(b, maxFrame, time.Second), b)
			select {
			case err := <-ended:
				assert.Error(t, err)
			case <-time.After(10 * time.Second):
				t.Fatal("the connection lasts")
			}
			_, err = echo.Call(t.Context(), c, "x")
			assert.ErrorIs(t, err, ErrLost)
		})
	}
}

func flood(w *peer.Writer) {
	for id := range maxCalls + 1 {
		_ = w.Write(fmt.Appendf(nil, `{"method":"hang","id":%d}`, id+1), []byte("{}"))
	}
}

// TestReach: a driver gets the connections and the credential of its name.
func TestReach(t *testing.T) {
	server, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer server.Close()
	go func() {
		for {
			conn, err := server.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(conn, "hello")
			conn.Close()
		}
	}()
	left, right, err := descriptors.Pair(unix.SOCK_SEQPACKET)
	require.NoError(t, err)
	socket := func(f *os.File) *net.UnixConn {
		defer f.Close()
		c, err := net.FileConn(f)
		require.NoError(t, err)
		t.Cleanup(func() { c.Close() })
		return c.(*net.UnixConn)
	}
	grants := Grants{
		Dial: func(ctx context.Context, s Server) (net.Conn, error) {
			if s.Driver != "kv" {
				return nil, errors.New("not granted")
			}
			var d net.Dialer
			return d.DialContext(ctx, "tcp", server.Addr().String())
		},
		Secret: func(_ context.Context, name string) (credential.Secret, error) {
			return credential.Known("of " + name), nil
		},
	}
	one, _ := ends(t, grants.Handlers(socket(left)))
	d := newDaemon(one, socket(right))
	var all sync.WaitGroup
	for range 32 {
		all.Go(func() {
			conn, err := d.Reach("kv").Dial(t.Context(), "tcp", "anywhere:1")
			if assert.NoError(t, err) {
				text, err := io.ReadAll(conn)
				assert.NoError(t, err)
				assert.Equal(t, "hello", string(text))
				conn.Close()
			}
		})
	}
	all.Wait()
	_, err = d.Reach("objects").Dial(t.Context(), "tcp", server.Addr().String())
	assert.ErrorContains(t, err, "not granted")
	secret, err := d.Reach("kv").Secret(t.Context())
	require.NoError(t, err)
	assert.Equal(t, "of kv", secret.Reveal())
}

// TestOpenBinary: the error says where the program was looked for.
func TestOpenBinary(t *testing.T) {
	_, err := OpenBinary(Name, "")
	assert.ErrorContains(t, err, "scopefs-stores is not installed beside")
}
