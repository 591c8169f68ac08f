package tunnels

import (
	"io"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/packets"
	"github.com/scopefs/scopefs/internal/tunnels/relay"
)

// known returns a process with the owner a/1 and the tunnel 1, which had moved 10 bytes when it began.
func known() (*process, *moving) {
	p := newProcess(&Set{Logger: slog.New(slog.NewTextHandler(io.Discard, nil))}, 0)
	of := &share{known: true}
	m := &moving{process: p, id: 1, of: of, sent: 10, ended: make(chan struct{}), left: make(chan struct{})}
	p.all[1], p.owners["a/1"] = m, of
	return p, m
}

// TestHostileAnswers: what a process says of tunnels that it has not, twice, or with numbers that cannot be, makes no sense, and
// ends no tunnel.
func TestHostileAnswers(t *testing.T) {
	for name, msg := range map[string]relay.Message{
		"unknown tunnel":       {Op: relay.OpEnded, ID: 2, Sent: 10},
		"fewer bytes":          {Op: relay.OpEnded, ID: 1, Sent: 9},
		"negative bytes":       {Op: relay.OpEnded, ID: 1, Sent: 10, Got: -1},
		"negative time":        {Op: relay.OpEnded, ID: 1, Sent: 10, Took: -1},
		"unknown owner":        {Op: relay.OpMore, Owner: "b/1"},
		"an item":              {Op: relay.OpItem, ID: 3},
		"a message of ours":    {Op: relay.OpOpen, ID: 3},
		"an unknown operation": {Op: "x"},
	} {
		p, m := known()
		assert.ErrorIs(t, p.handle(msg), errNonsense, name)
		select {
		case <-m.ended:
			assert.Fail(t, "the tunnel has ended", name)
		default:
		}
	}
	p, m := known()
	end := relay.Message{Op: relay.OpEnded, ID: 1, Sent: 12, Got: 3, Took: time.Second, Error: "broke"}
	require.NoError(t, p.handle(end))
	assert.ErrorIs(t, p.handle(end), errNonsense, "twice")
	moved, err := m.Wait()
	assert.EqualError(t, err, "broke")
	assert.Equal(t, []int64{12, 3}, []int64{moved.Sent, moved.Got})
}

// TestHostileList: the next daemon takes no list that cannot be, and believes nothing that comes before the answer.
func TestHostileList(t *testing.T) {
	hello := "hello"
	for name, test := range map[string]struct {
		says []any
		ok   bool
	}{
		"nothing":           {[]any{hello, relay.Message{Op: relay.OpListed}}, true},
		"the last daemon's": {[]any{relay.Message{Op: relay.OpEnded, ID: 9}, relay.Message{Op: relay.OpListed}, relay.Message{Op: relay.OpHello, ID: 1}, hello, relay.Message{Op: relay.OpItem, ID: 1}, relay.Message{Op: relay.OpListed}}, true},
		"a tunnel twice":    {[]any{hello, relay.Message{Op: relay.OpItem, ID: 1}, relay.Message{Op: relay.OpItem, ID: 1}}, false},
		"an end twice":      {[]any{hello, relay.Message{Op: relay.OpItem, ID: 1, Ended: true}, relay.Message{Op: relay.OpItem, ID: 1}}, false},
		"negative bytes":    {[]any{hello, relay.Message{Op: relay.OpItem, ID: 1, Sent: -1}}, false},
		"a negative end":    {[]any{hello, relay.Message{Op: relay.OpItem, ID: 1, Ended: true, Got: -1}}, false},
		"a long owner":      {[]any{hello, relay.Message{Op: relay.OpOwner, Owner: strings.Repeat("x", relay.MaxOwner+1)}}, false},
		"a long message":    {[]any{hello, relay.Message{Op: relay.OpItem, ID: 1, Error: strings.Repeat("x", 100<<10)}}, false},
		"no JSON":           {[]any{hello, "x"}, false},
		"an end at once":    {nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			p := newProcess(&Set{}, 0)
			other := connected(t, p)
			done := make(chan error, 1)
			go func() { done <- p.list() }()
			var asked relay.Message
			_, err := other.Receive(&asked)
			require.NoError(t, err)
			for _, msg := range test.says {
				if msg == any(hello) {
					msg = relay.Message{Op: relay.OpHello, ID: asked.ID}
				}
				require.NoError(t, other.Send(msg))
			}
			if !test.ok {
				other.Close()
			}
			select {
			case err := <-done:
				assert.Equal(t, test.ok, err == nil, "%v", err)
			case <-time.After(time.Minute):
				require.Fail(t, "the daemon waits")
			}
			other.Close()
		})
	}
}

// connected returns the other end of the control socket of p.
func connected(t *testing.T, p *process) (other *packets.Wire) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	p.wire, err = packets.Open(fds[0], relay.MaxMessage)
	require.NoError(t, err)
	other, err = packets.Open(fds[1], relay.MaxMessage)
	require.NoError(t, err)
	t.Cleanup(func() { p.wire.Close(); other.Close() })
	return other
}

// TestOwnerWithoutTunnels: an owner of an earlier daemon gets its bytes when a proxy has it.
func TestOwnerWithoutTunnels(t *testing.T) {
	p, _ := known()
	other := connected(t, p)
	p.set.now = p
	require.NoError(t, p.handle(relay.Message{Op: relay.OpMore, Owner: "a/1"}))
	p.set.Of("a/1", func() (*os.File, error) { return nil, os.ErrInvalid }).Limit(func() (int64, error) { return 7, nil })
	got := map[relay.Op]relay.Message{}
	for range 2 {
		var msg relay.Message
		_, err := other.Receive(&msg)
		require.NoError(t, err)
		got[msg.Op] = msg
	}
	assert.False(t, got[relay.OpLimit].Free)
	assert.EqualValues(t, 7, got[relay.OpGive].Bytes)
}
