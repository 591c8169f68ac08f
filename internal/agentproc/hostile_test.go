package agentproc

import (
	"context"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/internal/agentproc/wire"
	"github.com/scopefs/scopefs/internal/descriptors"
	"github.com/scopefs/scopefs/internal/packets"
	"github.com/scopefs/scopefs/tools/egress"
)

// hostile returns a process whose other end is the test's, and that end.
func hostile(t *testing.T) (p *process, other *packets.Wire) {
	p = newProcess(&Set{Logger: slog.New(slog.NewTextHandler(io.Discard, nil))}, "a")
	ours, theirs, err := descriptors.Pair(unix.SOCK_SEQPACKET)
	require.NoError(t, err)
	open := func(f *os.File) *packets.Wire {
		defer f.Close()
		w, err := openWire(f)
		require.NoError(t, err)
		t.Cleanup(func() { w.Close() })
		return w
	}
	p.wire, other = open(ours), open(theirs)
	return p, other
}

// served returns a door of a process, whose tenant allows nothing.
func served(t *testing.T, p *process, box string, records *atomic.Int32) *Door {
	d := p.set.newDoor(Opening{Of: p.of, Box: box, Tenant: egress.Tenant{Agent: "a", Rules: func() egress.Rules { return nil },
		Record: func(context.Context, audit.Event) error { records.Add(1); return nil }}})
	d.serve(d.o)
	require.True(t, p.attach(d))
	t.Cleanup(d.cancel)
	return d
}

// TestAttackAgentMessages: what no process of ours says ends the process. A request about the sandbox of another agent is one about none.
func TestAttackAgentMessages(t *testing.T) {
	for name, msg := range map[string]wire.Message{
		"nothing":                 {},
		"an unknown message":      {Op: "x"},
		"a message of ours":       {Op: wire.OpOpen, Box: "box"},
		"a request without one":   {Op: wire.OpRequest, ID: 1, Box: "box"},
		"an item outside a list":  {Op: wire.OpItem, Box: "box", Item: &egress.Item{}},
		"it cannot be confined":   {Op: wire.OpFailed, Text: "x"},
		"a greeting of no daemon": {Op: wire.OpHello, ID: 1},
	} {
		p, _ := hostile(t)
		assert.Error(t, p.handle(msg, nil), name)
	}
	var records atomic.Int32
	p, other := hostile(t)
	served(t, p, "box", &records)
	admit := egress.Request{Op: egress.OpAdmit, Case: egress.Case{ID: 1, Op: "connect", Host: "a.example", Port: 443}}
	require.NoError(t, p.handle(wire.Message{Op: wire.OpRequest, ID: 1, Box: "box of another agent", Request: &admit}, nil))
	var reply wire.Message
	_, err := other.Receive(&reply)
	require.NoError(t, err)
	require.NotNil(t, reply.Reply)
	assert.NotNil(t, reply.Reply.Refusal)
	assert.Zero(t, records.Load())
	require.NoError(t, p.handle(wire.Message{Op: wire.OpRequest, ID: 2, Box: "box", Request: &admit}, nil))
	_, err = other.Receive(&reply)
	require.NoError(t, err)
	assert.Nil(t, reply.Reply.Admitted.State)
	assert.EqualValues(t, 1, records.Load(), "its own is denied, and recorded")
	require.NoError(t, p.handle(wire.Message{Op: wire.OpCancel, ID: 77}, nil), "nobody waits for it")
	require.NoError(t, p.handle(wire.Message{Op: wire.OpDone, ID: 77}, nil))
}

// TestAttackAgentList: the next daemon takes no list that cannot be, and believes nothing that comes before the answer to its greeting.
func TestAttackAgentList(t *testing.T) {
	hello := "hello"
	box, item := wire.Message{Op: wire.OpBox, Box: "b"}, wire.Message{Op: wire.OpItem, Box: "b", Item: &egress.Item{}}
	listed := wire.Message{Op: wire.OpListed}
	for name, test := range map[string]struct {
		says []any
		ok   bool
	}{
		"nothing":             {[]any{hello, listed}, true},
		"a sandbox":           {[]any{hello, box, item, item, listed}, true},
		"the last daemon's":   {[]any{item, listed, wire.Message{Op: wire.OpHello, ID: 1}, hello, box, listed}, true},
		"a request":           {[]any{hello, box, wire.Message{Op: wire.OpRequest, ID: 1, Box: "x", Request: &egress.Request{}}, listed}, true},
		"a sandbox twice":     {[]any{hello, box, box}, false},
		"an item of nothing":  {[]any{hello, item}, false},
		"an item without one": {[]any{hello, box, wire.Message{Op: wire.OpItem, Box: "b"}}, false},
		"a message of ours":   {[]any{hello, wire.Message{Op: wire.OpOpen}}, false},
		"a request twice":     {[]any{hello, box, wire.Message{Op: wire.OpRequest, ID: 1, Box: "b", Request: &egress.Request{}}, wire.Message{Op: wire.OpRequest, ID: 1, Box: "b", Request: &egress.Request{}}}, false},
		"no JSON":             {[]any{hello, "x"}, false},
		"an end at once":      {nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			p, other := hostile(t)
			done := make(chan error, 1)
			go func() { done <- p.list() }()
			var asked wire.Message
			_, err := other.Receive(&asked)
			require.NoError(t, err)
			for _, msg := range test.says {
				if msg == any(hello) {
					msg = wire.Message{Op: wire.OpHello, ID: asked.ID}
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
			p.mu.Lock()
			defer p.mu.Unlock()
			for _, cancel := range p.flying {
				cancel()
			}
		})
	}
}

// TestAgentMissing: where the program is not installed a client's connection ends, also one to a port, and the error is logged once.
func TestAgentMissing(t *testing.T) {
	listen := func() net.Listener {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		t.Cleanup(func() { l.Close() })
		return l
	}
	l, port := listen(), listen()
	var lines strings.Builder
	s := &Set{Logger: slog.New(slog.NewTextHandler(&lines, nil))}
	d := s.Open(Opening{Of: "a", Box: "box", Listener: l, Ports: []egress.Port{{Way: egress.Published, Listener: port}},
		Tenant: egress.Tenant{Agent: "a", Rules: func() egress.Rules { return nil }}})
	for _, to := range []net.Listener{l, port, l, port} {
		c, err := net.Dial("tcp", to.Addr().String())
		require.NoError(t, err)
		_ = c.SetReadDeadline(time.Now().Add(20 * time.Second))
		_, err = c.Read(make([]byte, 1))
		assert.ErrorIs(t, err, io.EOF)
		c.Close()
	}
	d.Close()
	assert.Equal(t, 1, strings.Count(lines.String(), "scopefs-agent"), lines.String())
}
