package agentproc

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/internal/agentproc/wire"
	"github.com/scopefs/scopefs/internal/descriptors"
	"github.com/scopefs/scopefs/scope/network"
	"github.com/scopefs/scopefs/tools/egress"
)

// TestAttackAgentUnread: a process that reads no reply has a bound of requests.
func TestAttackAgentUnread(t *testing.T) {
	p, _ := hostile(t)
	var err error
	for id := uint64(1); id < 2*maxFlying && err == nil; id++ {
		err = p.handle(wire.Message{Op: wire.OpRequest, ID: id, Box: "box", Request: &egress.Request{Op: egress.OpLease}}, nil)
		for id%maxFlying == 0 && err == nil { // those that have a reply are sent
			p.mu.Lock()
			n := len(p.flying)
			p.mu.Unlock()
			if n < maxFlying/2 || n > maxFlying*9/10 {
				break
			}
			time.Sleep(time.Millisecond)
		}
	}
	assert.Error(t, err)
}

// lingers returns a socket whose close(2) waits for its peer, which reads nothing.
func lingers(t *testing.T) *os.File {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	c, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	peer, err := l.Accept()
	require.NoError(t, err)
	t.Cleanup(func() { peer.Close() })
	tcp := c.(*net.TCPConn)
	require.NoError(t, tcp.SetLinger(20))
	require.NoError(t, tcp.SetWriteDeadline(time.Now().Add(200*time.Millisecond)))
	for err == nil {
		_, err = tcp.Write(make([]byte, 1<<20))
	}
	f, err := tcp.File()
	require.NoError(t, err)
	tcp.Close()
	return f
}

// TestAttackAgentFiles: a process passes sockets alone, and with the request for them alone. None keeps a thread of the daemon.
func TestAttackAgentFiles(t *testing.T) {
	judge, peer := &egress.Request{Op: egress.OpJudge}, &egress.Request{Op: egress.OpPeer}
	for name, test := range map[string]struct {
		request *egress.Request
		files   int
	}{"another request": {judge, 1}, "two": {peer, 2}} {
		p, _ := hostile(t)
		var files []*os.File
		for range test.files {
			files = append(files, lingers(t))
		}
		began := time.Now()
		assert.Error(t, p.handle(wire.Message{Op: wire.OpRequest, ID: 1, Box: "box", Request: test.request}, files), name)
		assert.Less(t, time.Since(began), 10*time.Second, name)
		_, err := files[0].Stat()
		assert.ErrorIs(t, err, os.ErrClosed, name)
	}
	p, _ := hostile(t)
	began := time.Now()
	require.NoError(t, p.handle(wire.Message{Op: wire.OpRequest, ID: 1, Box: "box", Request: peer}, []*os.File{lingers(t)}))
	p.handled.Wait()
	assert.Less(t, time.Since(began), 10*time.Second)
}

// TestAttackAgentListEnds: the requests in a list that makes no sense end with it.
func TestAttackAgentListEnds(t *testing.T) {
	p, other := hostile(t)
	done := make(chan error, 1)
	go func() { done <- p.list() }()
	var asked wire.Message
	_, err := other.Receive(&asked)
	require.NoError(t, err)
	admit := &egress.Request{Op: egress.OpAdmit}
	for _, msg := range []wire.Message{{Op: wire.OpHello, ID: asked.ID}, {Op: wire.OpBox, Box: "b"}, {Op: wire.OpRequest, ID: 1, Box: "b", Request: admit}, {Op: wire.OpOpen}} {
		require.NoError(t, other.Send(msg))
	}
	require.Error(t, <-done)
	ended := make(chan struct{})
	go func() { p.handled.Wait(); close(ended) }()
	select {
	case <-ended:
	case <-time.After(5 * time.Second):
		require.Fail(t, "a request waits")
	}
}

// TestAgentGone: a process is gone when its requests are answered: a case of the next one may have the same number.
func TestAgentGone(t *testing.T) {
	p, _ := hostile(t)
	p.cancel, p.over = func() {}, false
	records, release := make(chan struct{}, 9), make(chan struct{})
	d := p.set.newDoor(Opening{Of: p.of, Box: "box", Tenant: egress.Tenant{Rules: func() egress.Rules { return nil },
		Record: func(context.Context, audit.Event) error { records <- struct{}{}; <-release; return nil }}})
	d.serve(d.o)
	require.True(t, p.attach(d))
	admit := &egress.Request{Op: egress.OpAdmit, Case: egress.Case{ID: 1, Op: "connect", Host: "a.example", Port: 443}}
	require.NoError(t, p.handle(wire.Message{Op: wire.OpRequest, ID: 1, Box: "box", Request: admit}, nil))
	<-records
	p.over = true
	go p.lost(errors.New("x"))
	select {
	case <-p.gone:
		assert.Fail(t, "a request is under way")
	case <-time.After(100 * time.Millisecond):
	}
	close(release)
	<-p.gone
}

// TestAttackAgentSettles: what a process claims of a sandbox that nobody has is its own agent's in the log.
func TestAttackAgentSettles(t *testing.T) {
	p, other := hostile(t)
	p.set.all = map[string]*process{p.of: p}
	close(p.started)
	p.cancel = func() {}
	p.left["the session of another"] = &remnant{claimed: make(chan struct{}), items: nil}
	go func() {
		for {
			var msg wire.Message
			if _, err := other.Receive(&msg); err != nil {
				return
			}
			if msg.Op == wire.OpUnport || msg.Op == wire.OpClose {
				if msg.Op == wire.OpClose {
					deny := &egress.Request{Op: egress.OpDeny, Case: egress.Case{Op: "connect"}, Refusal: &egress.Refusal{Message: "x", Verdict: audit.Deny}}
					_ = other.Send(wire.Message{Op: wire.OpRequest, ID: 9, Box: msg.Box, Request: deny})
					var reply wire.Message
					_, _ = other.Receive(&reply)
				}
				_ = other.Send(wire.Message{Op: wire.OpDone, ID: msg.ID})
			}
		}
	}()
	go func() {
		for {
			var msg wire.Message
			received, err := p.wire.Receive(&msg)
			if err != nil || p.handle(msg, received) != nil {
				return
			}
		}
	}()
	var mu sync.Mutex
	var events []audit.Event
	p.set.Settle(egress.Tenant{Record: func(_ context.Context, e audit.Event) error {
		mu.Lock()
		defer mu.Unlock()
		events = append(events, e)
		return nil
	}})
	mu.Lock()
	defer mu.Unlock()
	require.Len(t, events, 1)
	assert.Equal(t, p.of, events[0].Agent)
}

// TestAgentRoots: a file of certificates that is larger than a message reaches the process.
func TestAgentRoots(t *testing.T) {
	p, other := hostile(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	roots := strings.Repeat("-----BEGIN CERTIFICATE-----\n", 20000)
	d := p.set.newDoor(Opening{Of: p.of, Box: "box", Roots: roots, Listener: l, Init: func() (*os.File, error) { return os.Open(os.DevNull) },
		Tenant: egress.Tenant{Rules: func() egress.Rules { return nil }}})
	d.serve(d.o)
	done := make(chan error, 1)
	go func() { done <- p.open(d) }()
	got := ""
	for {
		require.NoError(t, other.Socket.SetReadDeadline(time.Now().Add(5*time.Second)))
		var msg wire.Message
		received, err := other.Receive(&msg)
		require.NoError(t, err)
		descriptors.Close(received)
		got += msg.Text
		if msg.Op == wire.OpOpen {
			break
		}
	}
	require.NoError(t, <-done)
	assert.Equal(t, roots, got)
}

// TestAgentLeftEnds: the ends of the connections of a sandbox are recorded when its network was to be left, and then is not.
func TestAgentLeftEnds(t *testing.T) {
	p, _ := hostile(t)
	rules, err := network.Compile(network.Spec{Allow: []network.HostRule{{Host: "a.example"}}})
	require.NoError(t, err)
	var outcomes []string
	d := p.set.newDoor(Opening{Of: p.of, Box: "box", Tenant: egress.Tenant{Rules: func() egress.Rules { return rules },
		Record: func(_ context.Context, e audit.Event) error { outcomes = append(outcomes, e.Outcome); return nil }}})
	d.serve(d.o)
	require.True(t, p.attach(d))
	admit := egress.Request{Op: egress.OpAdmit, Case: egress.Case{ID: 1, Op: "connect", Host: "a.example", Port: 443}}
	r, _, err := d.monitor.Answer(t.Context(), admit, nil)
	require.NoError(t, err)
	require.NotNil(t, r.Admitted)
	d.Leave()
	go d.run(p)
	d.Close()
	p.recordLeft()
	assert.Equal(t, []string{audit.OutcomeBegin, "failed"}, outcomes)
}

// TestAttackAgentRecheck: a process that reads nothing does not keep a reload, which is for all agents.
func TestAttackAgentRecheck(t *testing.T) {
	p, _ := hostile(t)
	var records atomic.Int32
	d := served(t, p, "box", &records)
	d.attach(p)
	var sent, before atomic.Int32
	go func() {
		for p.wire.Send(wire.Message{Op: wire.OpStop}) == nil {
			sent.Add(1)
		}
	}()
	require.Eventually(t, func() bool { return sent.Load() > 0 && before.Swap(sent.Load()) == sent.Load() }, 5*time.Second, 50*time.Millisecond)
	began := time.Now()
	d.Recheck()
	assert.Less(t, time.Since(began), 5*time.Second)
}

// TestAgentIdleEnds: a connection that comes when an idle process ends waits for the next process. It is no error.
func TestAgentIdleEnds(t *testing.T) {
	p, _ := hostile(t)
	var said bytes.Buffer
	p.set.Logger = slog.New(slog.NewTextHandler(&said, nil))
	p.set.all = map[string]*process{p.of: p}
	close(p.started)
	p.over = true // see rest
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	defer c.Close()
	init := make(chan struct{}, 9)
	d := p.set.newDoor(Opening{Of: p.of, Box: "box", Listener: l, Tenant: egress.Tenant{Rules: func() egress.Rules { return nil }},
		Init: func() (*os.File, error) { init <- struct{}{}; return os.Open(os.DevNull) }})
	d.serve(d.o)
	go d.run(nil)
	<-init
	time.Sleep(50 * time.Millisecond)
	p.set.stop()
	p.set.forget(p)
	close(p.gone)
	d.Close()
	assert.Empty(t, said.String())
}
