package egress

import (
	"context"
	"encoding/json"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/internal/credential"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/network"
)

// tenant changes what the Monitor has of its tenant.
func (k *taken) tenant(change func(*Tenant)) {
	of := *k.monitor.of.Load()
	change(&of)
	k.monitor.of.Store(&of)
}

// outcomes counts the events of network with an outcome.
func (l *lab) outcomes() map[string]int {
	all := map[string]int{}
	for _, e := range l.log() {
		all[e.Outcome]++
	}
	return all
}

// TestAttackMonitorPort: a case that was admitted leads to no port that the rules have ceased to allow.
func TestAttackMonitorPort(t *testing.T) {
	k := takeOver(t)
	var allow atomic.Bool
	allow.Store(true)
	connects := 0
	k.tenant(func(of *Tenant) {
		of.Port = func(Way, uint16, uint16) scope.Decision {
			return scope.Decision{Allow: allow.Load(), Kind: scope.KindPort, Rule: "r"}
		}
	})
	k.monitor.ports = []Port{{Way: HostPort, Number: 5432, Connect: func(context.Context) (net.Conn, error) {
		connects++
		return net.Dial("tcp", k.server.Addr().String())
	}}}
	r, _, err := k.asks(Request{Op: OpAdmit, Case: Case{ID: 1, Op: "host-port", Way: HostPort, Host: localhost, Port: 5432}})
	require.NoError(t, err)
	require.NotNil(t, r.Admitted.stateOf())
	allow.Store(false)
	k.monitor.Recheck()
	r, c, err := k.asks(Request{Op: OpLead, Case: Case{ID: 1}})
	require.NoError(t, err)
	assert.NotNil(t, r.Refusal)
	assert.Nil(t, c)
	assert.Zero(t, connects)
}

// TestMonitorPortGone: a port that an earlier daemon had is refused. The process that asks for it makes sense.
func TestMonitorPortGone(t *testing.T) {
	k := takeOver(t)
	gone := Case{ID: 1, Op: "publish", Way: Published, Host: localhost, At: 8000, Port: 22}
	given, other := net.Pipe()
	defer given.Close()
	defer other.Close()
	r, _, err := k.monitor.Answer(t.Context(), Request{Op: OpPeer, Case: gone}, given)
	require.NoError(t, err)
	assert.NotNil(t, r.Refusal)
	r, _, err = k.asks(Request{Op: OpAdmit, Case: gone})
	require.NoError(t, err)
	assert.NotNil(t, r.Refusal)
	assert.Nil(t, r.Admitted.stateOf())
	r, _, err = k.asks(Request{Op: OpDeny, Case: gone, Refusal: &Refusal{Message: "no", Verdict: audit.Deny}})
	require.NoError(t, err)
	assert.NotNil(t, r.Refusal)
	for _, e := range k.log() {
		assert.True(t, denial(e))
	}
	assert.Len(t, k.log(), 2)
}

// TestAttackMonitorClaims: a process claims cases that no daemon has admitted: the log has none of them.
func TestAttackMonitorClaims(t *testing.T) {
	k := takeOver(t)
	route, err := json.Marshal(state{Rule: "r", Kind: scope.KindHost})
	require.NoError(t, err)
	for name, item := range map[string]Item{
		"an allowed host": {Case: Case{ID: 1, Op: "connect", Host: "a.example", Port: 443}, State: route},
		"another's seal":  {Case: Case{ID: 1, Op: "connect", Host: "a.example", Port: 443}, State: json.RawMessage(`{"rule":"r","seal":"AAAA"}`)},
	} {
		assert.ErrorIs(t, k.monitor.Continue([]Item{item}), errNonsense, name)
	}
}

// TestAttackMonitorEnds: two ends of a case at a time are one in the log.
func TestAttackMonitorEnds(t *testing.T) {
	k := takeOver(t)
	r, _, err := k.asks(Request{Op: OpAdmit, Case: Case{ID: 1, Op: "connect", Host: "a.example", Port: 443}})
	require.NoError(t, err)
	require.NotNil(t, r.Admitted)
	record := k.monitor.of.Load().Record
	records, release := make(chan struct{}, 9), make(chan struct{})
	k.tenant(func(of *Tenant) {
		of.Record = func(ctx context.Context, e audit.Event) error {
			records <- struct{}{}
			<-release
			return record(ctx, e)
		}
	})
	done := make(chan struct{}, 2)
	end := func() {
		_, _, _ = k.monitor.Answer(context.Background(), Request{Op: OpEnd, Case: Case{ID: 1}, Ended: &Ended{Remote: "x"}}, nil)
		done <- struct{}{}
	}
	go end()
	<-records
	go end()
	select {
	case <-records:
	case <-done:
		done <- struct{}{}
	}
	close(release)
	<-done
	<-done
	assert.Equal(t, 1, k.outcomes()["end"])
}

// TestMonitorDiesMeanwhile: a case that is admitted while its process dies has an end, too, and stays in no list.
func TestMonitorDiesMeanwhile(t *testing.T) {
	k := takeOver(t)
	record := k.monitor.of.Load().Record
	records, release := make(chan struct{}, 9), make(chan struct{})
	k.tenant(func(of *Tenant) {
		of.Record = func(ctx context.Context, e audit.Event) error {
			records <- struct{}{}
			<-release
			return record(ctx, e)
		}
	})
	done := make(chan Reply, 1)
	go func() {
		r, _, _ := k.monitor.Answer(context.Background(), Request{Op: OpAdmit, Case: Case{ID: 1, Op: "connect", Host: "a.example", Port: 443}}, nil)
		done <- r
	}()
	<-records
	k.monitor.Died(t.Context(), "it was killed")
	close(release)
	assert.NotNil(t, (<-done).Refusal)
	assert.Equal(t, map[string]int{audit.OutcomeBegin: 1, "failed": 1}, k.outcomes())
	k.monitor.tenancy.mu.Lock()
	defer k.monitor.tenancy.mu.Unlock()
	assert.Empty(t, k.monitor.open)
}

// TestAttackMonitorSecret: a credential is read once at a time, whoever asks: its source may be a program of the operator.
func TestAttackMonitorSecret(t *testing.T) {
	k := takeOver(t)
	var now, most atomic.Int32
	k.tenant(func(of *Tenant) {
		of.Secrets = func() map[string]Secret {
			return map[string]Secret{"KEY": {Source: "now", Read: func(context.Context) (credential.Secret, error) {
				defer now.Add(-1)
				most.Store(max(most.Load(), now.Add(1)))
				time.Sleep(5 * time.Millisecond)
				return credential.Known("value"), nil
			}}}
		}
	})
	done := make(chan Reply)
	for range 10 {
		go func() {
			r, _, _ := k.monitor.Answer(context.Background(), Request{Op: OpSecret, Name: "KEY", Source: (Secret{Source: "now"}).source()}, nil)
			done <- r
		}()
	}
	for range 10 {
		assert.Equal(t, "value", (<-done).Value)
	}
	assert.EqualValues(t, 1, most.Load())
}

// TestAttackMonitorDials: a case is a few connections, whatever its process asks.
func TestAttackMonitorDials(t *testing.T) {
	k := takeOver(t)
	r, _, err := k.asks(Request{Op: OpAdmit, Case: Case{ID: 1, Op: "connect", Host: "a.example", Port: 443}})
	require.NoError(t, err)
	require.NotNil(t, r.Admitted)
	made := 0
	for range 100 {
		r, c, err := k.asks(Request{Op: OpDial, Case: Case{ID: 1}})
		require.NoError(t, err)
		if c != nil {
			made++
		} else {
			assert.NotNil(t, r.Refusal)
		}
	}
	assert.Less(t, made, 50)
}

// TestMonitorUpstreamGone: a request that an earlier daemon has admitted for its upstream proxy is refused by one that has none.
func TestMonitorUpstreamGone(t *testing.T) {
	tenant := Tenant{Agent: "a", Session: "s", Rules: func() Rules {
		rules, _ := network.Compile(network.Spec{Allow: []network.HostRule{{Host: "up.example", Ports: []uint16{80}}}})
		return rules
	}, Record: func(context.Context, audit.Event) error { return nil }}
	before := NewMonitor(Options{Dialer: Dialer{Upstream: &Upstream{Address: "127.0.0.1:1"}}}, tenant, func(uint64) {})
	before.Seal([]byte("key"))
	c := Case{ID: 1, Op: "request", Host: "up.example", Port: 80, Scheme: "http", Method: "GET", Path: "/"}
	r, _, err := before.Answer(t.Context(), Request{Op: OpAdmit, Case: c}, nil)
	require.NoError(t, err)
	require.True(t, r.Admitted.Upward)
	next := NewMonitor(Options{}, tenant, func(uint64) {})
	next.Seal([]byte("key"))
	require.NoError(t, next.Continue([]Item{{Case: c, State: r.Admitted.State}}))
	for _, op := range []Op{OpUpward, OpUpstream} {
		r, made, err := next.Answer(t.Context(), Request{Op: op, Case: Case{ID: 1}}, nil)
		require.NoError(t, err, op)
		assert.NotNil(t, r.Refusal, op)
		assert.Nil(t, made, op)
	}
}
