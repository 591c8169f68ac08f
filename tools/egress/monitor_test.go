package egress

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/internal/credential"
	"github.com/scopefs/scopefs/scope/network"
)

// taken is a proxy's process that somebody has taken over: it asks what it wants.
type taken struct {
	*lab
	t      *testing.T
	server net.Listener
	read   []string // credentials
}

func takeOver(t *testing.T) *taken {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { listener.Close() })
	at := listener.Addr().(*net.TCPAddr).AddrPort()
	k := &taken{lab: &lab{}, t: t, server: listener}
	k.set(t, network.Spec{Allow: []network.HostRule{
		{Host: "a.example", Ports: []uint16{443}, Address: at},
		{Host: "b.example", Ports: []uint16{443}, Address: at, Secret: "KEY", Methods: []string{"GET"}},
	}})
	ca, err := OpenCA(t.TempDir())
	require.NoError(t, err)
	reads := func(name string) func(context.Context) (credential.Secret, error) {
		return func(context.Context) (credential.Secret, error) {
			k.read = append(k.read, name)
			return credential.Known("the-value-of-" + name), nil
		}
	}
	k.monitor = NewMonitor(Options{CA: ca}, Tenant{
		Agent: "a", Session: "s", Rules: func() Rules { k.mu.Lock(); defer k.mu.Unlock(); return k.rules },
		Record: func(_ context.Context, e audit.Event) error {
			k.mu.Lock()
			defer k.mu.Unlock()
			k.events = append(k.events, e)
			return k.refuse
		},
		Secrets: func() map[string]Secret { return map[string]Secret{"KEY": {Source: "now", Read: reads("KEY")}} },
	}, func(uint64) {}, Port{Way: Published, At: 8000, Number: 3000})
	return k
}

func (k *taken) asks(q Request) (Reply, net.Conn, error) {
	r, c, err := k.monitor.Answer(k.t.Context(), again(q), nil)
	if c != nil {
		k.t.Cleanup(func() { c.Close() })
	}
	return r, c, err
}

// TestAttackMonitor: an attacker who has an agent's process gets only connections that the rules allow and the log has, only the
// agent's credentials, and certificates only for hosts. What no process of ours asks is an error, which ends the process.
func TestAttackMonitor(t *testing.T) {
	a := Case{ID: 1, Op: "connect", Host: "a.example", Port: 443}
	deny := &Refusal{Message: "no", Verdict: audit.Deny}
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	require.NoError(t, err)
	otherKey, err := x509.MarshalPKIXPublicKey(rsaKey.Public())
	require.NoError(t, err)
	with := func(change func(*Case)) Case { c := a; change(&c); return c }
	for name, q := range map[string]Request{
		"no request":           {},
		"another one":          {Op: "steal"},
		"no case":              {Op: OpAdmit},
		"an unknown op":        {Op: OpAdmit, Case: with(func(c *Case) { c.Op = "exec" })},
		"no host":              {Op: OpAdmit, Case: with(func(c *Case) { c.Host = "" })},
		"a host in capitals":   {Op: OpAdmit, Case: with(func(c *Case) { c.Host = "A.example" })},
		"a host with a dot":    {Op: OpAdmit, Case: with(func(c *Case) { c.Host = "a.example." })},
		"a host with a path":   {Op: OpAdmit, Case: with(func(c *Case) { c.Host = "a.example/x" })},
		"no port":              {Op: OpAdmit, Case: with(func(c *Case) { c.Port = 0 })},
		"another way":          {Op: OpAdmit, Case: Case{ID: 2, Op: "exec", Way: "exec", Host: localhost, At: 8000, Port: 3000}},
		"a way to a host":      {Op: OpAdmit, Case: Case{ID: 2, Op: "publish", Way: Published, Host: "a.example", At: 8000, Port: 3000}},
		"a long path":          {Op: OpAdmit, Case: with(func(c *Case) { c.Op, c.Path = "request", strings.Repeat("/", maxText+1) })},
		"a long refusal":       {Op: OpDeny, Case: a, Refusal: &Refusal{Verdict: audit.Deny, Message: strings.Repeat("x", maxClip+1)}},
		"no byte, at length":   {Op: OpAdmit, Case: with(func(c *Case) { c.Spent = &Refusal{Cause: strings.Repeat("x", maxClip+1)} })},
		"fewer than none":      {Op: OpDeny, Case: with(func(c *Case) { c.Unrecorded = -1 }), Refusal: deny},
		"a denial of nothing":  {Op: OpDeny, Case: a},
		"an allowing denial":   {Op: OpDeny, Case: a, Refusal: &Refusal{Verdict: audit.Allow}},
		"another's approval":   {Op: OpDeny, Case: a, Refusal: &Refusal{Verdict: audit.Deny, ApprovalID: "x"}},
		"an end of nothing":    {Op: OpEnd, Case: a},
		"negative bytes":       {Op: OpEnd, Case: a, Ended: &Ended{Sent: -1}},
		"a negative time":      {Op: OpEnd, Case: a, Ended: &Ended{Took: -1}},
		"a negative lease":     {Op: OpLease, Least: -1},
		"a leaf of no host":    {Op: OpLeaf, Name: "*", Key: otherKey},
		"a leaf of two hosts":  {Op: OpLeaf, Name: "a.example,b.example", Key: otherKey},
		"a leaf of another":    {Op: OpLeaf, Name: "a.example", Key: otherKey},
		"a leaf of no key":     {Op: OpLeaf, Name: "a.example", Key: []byte("key")},
		"a peer of nobody":     {Op: OpPeer, Case: Case{Way: Published, At: 8000, Port: 3000}},
		"a peer of no port":    {Op: OpPeer, Case: a},
		"a peer that has gone": {Op: OpPeer, Case: Case{Way: HostPort, Port: 22}},
	} {
		k := takeOver(t)
		_, c, err := k.asks(q)
		assert.ErrorIs(t, err, errNonsense, name)
		assert.Nil(t, c, name)
		assert.Empty(t, k.events, name)
	}

	k := takeOver(t)
	for name, q := range map[string]Request{
		"a case that was not admitted": {Op: OpDial, Case: a},
		"its upstream":                 {Op: OpUpstream, Case: a},
		"its port":                     {Op: OpLead, Case: a},
		"an unknown credential":        {Op: OpSecret, Name: "OTHER", Source: (Secret{Source: "now"}).source()},
		"that of earlier rules":        {Op: OpSecret, Name: "KEY", Source: (Secret{Source: "before"}).source()},
		"a host without a rule":        {Op: OpAdmit, Case: Case{ID: 3, Op: "connect", Host: "c.example", Port: 443}},
		"another port":                 {Op: OpAdmit, Case: Case{ID: 4, Op: "connect", Host: "a.example", Port: 22}},
		"another method":               {Op: OpAdmit, Case: Case{ID: 5, Op: "request", Host: "b.example", Port: 443, Method: "POST", Path: "/", Scheme: "https"}},
	} {
		r, c, err := k.asks(q)
		require.NoError(t, err, name)
		assert.NotNil(t, r.Refusal, name)
		assert.Nil(t, r.Admitted.stateOf(), name)
		assert.Nil(t, c, name)
		assert.Empty(t, r.Value, name)
	}
	assert.Empty(t, k.read)
	for _, id := range []uint64{3, 4, 5} { // they were denied
		r, c, err := k.asks(Request{Op: OpDial, Case: Case{ID: id}})
		require.NoError(t, err)
		assert.NotNil(t, r.Refusal)
		assert.Nil(t, c)
	}

	r, _, err := k.asks(Request{Op: OpAdmit, Case: a})
	require.NoError(t, err)
	require.NotNil(t, r.Admitted)
	_, _, err = k.asks(Request{Op: OpAdmit, Case: a})
	assert.ErrorIs(t, err, errNonsense, "a case twice")
	r, c, err := k.asks(Request{Op: OpDial, Case: Case{ID: 1, Host: "b.example", Port: 22}}) // what was admitted counts
	require.NoError(t, err)
	require.NotNil(t, c, "%+v", r.Refusal)
	assert.Equal(t, k.server.Addr().String(), c.RemoteAddr().String())
	k.set(t, network.Spec{})
	r, c, err = k.asks(Request{Op: OpDial, Case: Case{ID: 1}})
	require.NoError(t, err)
	assert.NotNil(t, r.Refusal, "the rules have changed")
	assert.Nil(t, c)
	_, _, err = k.asks(Request{Op: OpEnd, Case: Case{ID: 1}, Ended: &Ended{}})
	require.NoError(t, err)
	for range 2 { // of a case that has ended there is no second end
		_, _, err = k.asks(Request{Op: OpEnd, Case: Case{ID: 1}, Ended: &Ended{}})
		require.NoError(t, err)
	}
	ends := 0
	for _, e := range k.log() {
		assert.Equal(t, []string{"a", "s"}, []string{e.Agent, e.Session})
		if e.Outcome == "end" {
			ends++
		}
	}
	assert.Equal(t, 1, ends)

	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	text, err := x509.MarshalPKIXPublicKey(key.Public())
	require.NoError(t, err)
	r, _, err = k.asks(Request{Op: OpLeaf, Name: "a.example", Key: text})
	require.NoError(t, err)
	require.Len(t, r.Chain, 2)
	leaf, err := x509.ParseCertificate(r.Chain[0])
	require.NoError(t, err)
	assert.False(t, leaf.IsCA)
	assert.Equal(t, []string{"a.example"}, leaf.DNSNames)
	assert.Less(t, time.Until(leaf.NotAfter), 100*time.Hour)
}

// stateOf returns the state of an admitted case; nil: it was not.
func (a *Admitted) stateOf() json.RawMessage {
	if a == nil {
		return nil
	}
	return a.State
}

// TestMonitorContinue: the next daemon's Monitor goes on with what its rules allow, and ends the rest. What no Monitor with its key has
// admitted is an error.
func TestMonitorContinue(t *testing.T) {
	allowed := Item{Case: Case{ID: 1, Op: "connect", Host: "a.example", Port: 443}, State: json.RawMessage(`{"rule":"r","kind":"host","route":{"Address":"","CA":""}}`)}
	k := takeOver(t)
	r, _, err := k.asks(Request{Op: OpAdmit, Case: allowed.Case})
	require.NoError(t, err)
	allowed.State = r.Admitted.State
	sealed := func(c Case, s state) Item {
		s.Seal = k.monitor.seal(c, s)
		text, err := json.Marshal(s)
		require.NoError(t, err)
		return Item{Case: c, State: text}
	}
	was := state{Rule: "r", Kind: "host"}
	denied := sealed(Case{ID: 3, Op: "connect", Host: "c.example", Port: 443}, was)
	was.Route.CA = "another"
	moved := sealed(Case{ID: 2, Op: "connect", Host: "a.example", Port: 443}, was)
	claimed := moved
	claimed.Case.ID = 4

	stopped := make(chan uint64, 3)
	next := NewMonitor(Options{}, *k.monitor.of.Load(), func(id uint64) { stopped <- id })
	next.Seal(k.monitor.key)
	require.NoError(t, next.Continue([]Item{allowed, moved, denied}))
	assert.ElementsMatch(t, []uint64{2, 3}, []uint64{<-stopped, <-stopped})
	assert.Empty(t, stopped)
	assert.Equal(t, 3, next.Open())
	next.Died(t.Context(), "it was killed")
	assert.Zero(t, next.Open())
	failed := 0
	for _, e := range k.log() {
		if e.Outcome == "failed" && strings.Contains(e.Detail, "it was killed") {
			failed++
		}
	}
	assert.Equal(t, 3, failed)

	for name, items := range map[string][]Item{
		"a case twice":   {allowed, allowed},
		"another case":   {claimed},
		"without state":  {{Case: allowed.Case}},
		"no host":        {{Case: Case{ID: 1, Op: "connect", Port: 443}, State: allowed.State}},
		"a long address": {{Case: allowed.Case, State: allowed.State, Remote: strings.Repeat("1", 1000)}},
	} {
		next := NewMonitor(Options{}, *k.monitor.of.Load(), func(uint64) {})
		next.Seal(k.monitor.key)
		assert.ErrorIs(t, next.Continue(items), errNonsense, name)
	}
}
