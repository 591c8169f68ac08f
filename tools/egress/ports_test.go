package egress

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/internal/servertest"
	"github.com/scopefs/scopefs/scope"
)

// portLab is a proxy with one port.
type portLab struct {
	*lab
	at      string
	allowed atomic.Bool
	wrong   atomic.Pointer[error] // of Check
	to      atomic.Pointer[string]
	made    atomic.Int64 // connections to where the port leads
}

func startPort(t *testing.T, way Way, limits Limits) *portLab {
	l := &portLab{}
	l.allowed.Store(true)
	echo := servertest.Answer(t, func(c net.Conn) { l.made.Add(1); _, _ = io.Copy(c, c) })
	l.to.Store(&echo)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	l.at = listener.Addr().String()
	port := Port{
		Way: way, At: 8000, Number: 3000, Listener: listener,
		Check: func(net.Conn) error {
			if err := l.wrong.Load(); err != nil {
				return *err
			}
			return nil
		},
		Connect: func(ctx context.Context) (net.Conn, error) {
			return (&net.Dialer{Timeout: 10 * time.Second}).DialContext(ctx, "tcp", *l.to.Load())
		},
	}
	l.lab = &lab{}
	tenant := Tenant{
		Agent: "a", Session: "s", Rules: func() Rules { return nil },
		Port: func(w Way, at, n uint16) scope.Decision {
			meant := w == way && at == 8000 && n == 3000
			return scope.Decision{Allow: meant && l.allowed.Load(), Kind: scope.KindPort, Rule: "network.publish: 3000"}
		},
		Record: func(_ context.Context, e audit.Event) error {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.events = append(l.events, e)
			return l.refuse
		},
	}
	l.ask(t, Options{Limits: limits}, tenant, port)
	proxy, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- l.Serve(ctx, proxy, l.PortOf(port.Way, port.At, port.Number, port.Listener)) }()
	t.Cleanup(func() {
		cancel()
		select {
		case err := <-done:
			assert.NoError(t, err)
		case <-time.After(time.Minute):
			t.Error("the proxy does not end")
		}
		_, err := net.Dial("tcp", l.at)
		assert.Error(t, err, "the port is closed")
	})
	return l
}

func (l *portLab) connectTo(t *testing.T) net.Conn {
	c, err := net.Dial("tcp", l.at)
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

// refuses reports whether a new connection ends at once: connect(2) may see that already.
func (l *portLab) refuses(t *testing.T) bool {
	c, err := net.Dial("tcp", l.at)
	if err != nil {
		assert.ErrorIs(t, err, unix.ECONNRESET)
		return true
	}
	defer c.Close()
	return ended(c)
}

// says sends text and returns what comes back.
func says(c net.Conn, text string) string {
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	_, _ = io.WriteString(c, text)
	got := make([]byte, len(text))
	n, _ := io.ReadFull(c, got)
	return string(got[:n])
}

// TestPort: a connection to a port passes as a tunnel does, recorded before it is made and at its end. It ends when the rules no longer
// allow it, and nothing is connected that is not allowed, not recorded, or comes from another.
func TestPort(t *testing.T) {
	for _, way := range []Way{Published, HostPort} {
		l := startPort(t, way, Limits{})
		c := l.connectTo(t)
		assert.Equal(t, "text", says(c, "text"))
		begin := l.logged(t, func(e audit.Event) bool { return e.Outcome == audit.OutcomeBegin })
		assert.Equal(t, []string{string(way), "127.0.0.1:3000", "allow", "network.publish: 3000", "port"},
			[]string{begin.Op, begin.Target, string(begin.Verdict), begin.Rule, begin.RuleKind})
		c.Close()
		end := l.logged(t, func(e audit.Event) bool { return e.Outcome == "end" })
		assert.Equal(t, []int64{4, 4}, []int64{end.Sent, end.Bytes})

		c = l.connectTo(t)
		assert.Equal(t, "text", says(c, "text"))
		l.allowed.Store(false)
		l.Recheck()
		assert.True(t, ended(c), "it is not allowed any more")
		made := l.made.Load()
		assert.True(t, l.refuses(t), "nor is another")
		l.logged(t, denial)

		l.allowed.Store(true)
		wrong := errors.New("user 1001 is not the agent's")
		l.wrong.Store(&wrong)
		assert.True(t, l.refuses(t))
		denied := l.logged(t, func(e audit.Event) bool { return e.Rule == string(way)+": user 1001 is not the agent's" })
		assert.Equal(t, []string{"deny", "port"}, []string{string(denied.Verdict), denied.RuleKind})
		l.wrong.Store(nil)

		l.mu.Lock()
		l.refuse = errors.New("the log is full")
		l.mu.Unlock()
		assert.True(t, l.refuses(t), "it cannot be recorded")
		l.mu.Lock()
		l.refuse = nil
		l.mu.Unlock()
		assert.Equal(t, made, l.made.Load(), "none of them was made")

		nobody := "127.0.0.1:1"
		l.to.Store(&nobody)
		assert.True(t, l.refuses(t))
		l.logged(t, func(e audit.Event) bool { return e.Outcome == "failed" && e.Op == string(way) })
	}
}

// TestPortFlood: more connections than slots are closed at once, and counted in the log; those that are open go on.
func TestPortFlood(t *testing.T) {
	l := startPort(t, Published, Limits{Connections: 4})
	var open []net.Conn
	for range 4 {
		c := l.connectTo(t)
		require.Equal(t, "x", says(c, "x"))
		open = append(open, c)
	}
	var all sync.WaitGroup
	for range 200 {
		all.Go(func() {
			if c, err := net.Dial("tcp", l.at); err == nil {
				assert.True(t, ended(c))
				c.Close()
			}
		})
	}
	all.Wait()
	for _, c := range open {
		assert.Equal(t, "still", says(c, "still"))
		c.Close()
	}
	assert.EqualValues(t, 4, l.made.Load())
	denials := 0
	for _, e := range l.log() {
		if denial(e) {
			denials++
		}
	}
	assert.Equal(t, 1, denials, "a line for all of them")
	require.Eventually(t, func() bool { // their slots are free
		c, err := net.Dial("tcp", l.at)
		require.NoError(t, err)
		defer c.Close()
		return says(c, "x") == "x"
	}, time.Minute, 10*time.Millisecond)
}
