package fleet

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/internal/fleet"
	"github.com/scopefs/scopefs/internal/fleet/order"
)

// refused counts the refusals that a node has recorded with a text in their reason.
func refused(h *harness.Host, why string) (n int) {
	for _, e := range h.Events("") {
		if e.Outcome == fleet.Refused && strings.Contains(e.Detail, why) {
			n++
		}
	}
	return n
}

// TestFleetAttack: whoever has the server, even all of it, decides nothing. Each attempt is recorded, a flood of them in part.
func TestFleetAttack(t *testing.T) {
	n := newServer(t)
	h := newNode(t, n, "one")
	h.Must("fleet", "init")
	ada, mallory, twin := newOperator(t, h, "ada"), newOperator(t, h, "mallory"), newOperator(t, h, "ada")
	join(h, n, "one", ada)
	h.Start()
	js := n.client()
	send := func(text []byte) {
		t.Helper()
		_, err := js.Publish(t.Context(), "scopefs.orders.one", text)
		require.NoError(t, err)
	}
	w := waiting(t, h, "one", "new")
	good := func() order.Decision {
		return order.Decision{Node: "one", Request: w.ID, Hash: w.Hash, Approve: true, Expires: time.Now().Add(10 * time.Minute), Nonce: order.NewNonce()}
	}
	sign := func(o operator, change func(*order.Decision)) []byte {
		t.Helper()
		d := good()
		if change != nil {
			change(&d)
		}
		signed, err := d.Sign(o.private)
		require.NoError(t, err)
		return signed
	}
	changed := sign(ada, func(d *order.Decision) { d.Request = "other" })
	for why, text := range map[string][]byte{
		"no trusted key":  sign(mallory, nil),
		"it is for":       sign(ada, func(d *order.Decision) { d.Node = "two" }),
		"expired":         sign(ada, func(d *order.Decision) { d.Expires = time.Now().Add(-time.Second) }),
		"for longer than": sign(ada, func(d *order.Decision) { d.Expires = time.Now().Add(time.Hour) }),
		"not the one":     sign(ada, func(d *order.Decision) { d.Hash = strings.Repeat("0", 64) }),
		"it lacks":        sign(ada, func(d *order.Decision) { d.Hash = "" }),
		"no such":         sign(ada, func(d *order.Decision) { d.Request = "\x1b[2J" }),
		"larger":          []byte(strings.Repeat("x", order.Max+1)),
	} {
		send(text)
		h.Eventually("it is refused: "+why, func() bool { return refused(h, why) > 0 })
	}
	before := refused(h, "no trusted key")
	send(sign(twin, nil)) // another key of the same name
	send([]byte(strings.Replace(string(changed), "other", w.ID, 1)))
	h.Eventually("both are refused", func() bool { return refused(h, "no trusted key") == before+2 })
	for _, e := range h.Events("") {
		assert.NotContains(t, e.Detail, "\x1b")
	}

	// The server shows another call than the one that waits: the operator signs what was shown.
	kv, err := js.KeyValue(t.Context(), "scopefs_approvals")
	require.NoError(t, err)
	entry, err := kv.Get(t.Context(), "one."+w.ID)
	require.NoError(t, err)
	exchanged := strings.Replace(string(entry.Value()), `"new"`, `"harmless"`, 1)
	require.NotEqual(t, string(entry.Value()), exchanged)
	_, err = kv.Put(t.Context(), "one."+w.ID, []byte(exchanged))
	require.NoError(t, err)
	_, errs, code := h.Try("fleet", "approvals", "approve", "one", w.ID, "--key", ada.file, "--shown", w.Hash)
	assert.Equal(t, 1, code)
	assert.Contains(t, errs, "another one now")
	shown := h.Must("fleet", "approvals", "show", "one", w.ID)
	_, hash, ok := strings.Cut(strings.TrimSpace(shown), "hash ")
	require.True(t, ok)
	assert.NotEqual(t, w.Hash, hash, "the command computes the hash of what it shows")
	_, errs, code = h.Try("fleet", "approvals", "approve", "one", w.ID, "--key", ada.file, "--shown", hash)
	assert.Equal(t, 1, code)
	assert.Contains(t, errs, "not the one that was shown")

	// A flood is bounded in the log, and delays no decision for long.
	all := len(h.Events(""))
	for i := range 500 {
		_, err := js.PublishAsync("scopefs.orders.one", fmt.Appendf(nil, "%d", i))
		require.NoError(t, err)
	}
	<-js.PublishAsyncComplete()
	once := sign(ada, nil)
	send(once)
	h.Eventually("the decision holds", func() bool { return h.Recorded("a", audit.Event{Event: audit.KindApproval, Outcome: "approved"}) })
	assert.Less(t, len(h.Events("")), all+100)
	h.Connect("a").Text("write_file", map[string]any{"path": "new", "content": "x"})

	// The server repeats all orders, to the next daemon.
	h.Kill()
	consumers, err := js.Stream(t.Context(), "scopefs_orders")
	require.NoError(t, err)
	require.NoError(t, consumers.DeleteConsumer(t.Context(), "node_one"))
	require.NoError(t, consumers.Purge(t.Context(), jetstream.WithPurgeSubject("scopefs.orders.one")))
	send(once)
	h.Start()
	h.Eventually("it is refused", func() bool { return refused(h, "taken before") == 1 })

	// Nobody answers: the decision comes too late. A name of another node, or of none, reaches nobody.
	_, _, code = h.Try("fleet", "approvals", "approve", "two", w.ID, "--key", ada.file, "--shown", w.Hash)
	assert.Equal(t, 1, code)
	approved := 0
	for _, e := range h.Events("a") {
		if e.Event == audit.KindApproval && e.Outcome == "approved" {
			approved++
		}
	}
	assert.Equal(t, 1, approved)
}

// TestFleetHostileServer: what a server says of nodes controls no terminal, and ends no command in a crash.
func TestFleetHostileServer(t *testing.T) {
	n := newServer(t)
	h := newNode(t, n, "one")
	h.Must("fleet", "init")
	js := n.client()
	evil := "\x1b]0;x\x07\u202e\n\t"
	nodes, err := js.KeyValue(t.Context(), "scopefs_nodes")
	require.NoError(t, err)
	state, err := json.Marshal(map[string]any{"node": evil, "version": evil, "agents": []any{map[string]any{"agent": "a", "state": evil, "error": evil}}})
	require.NoError(t, err)
	for key, value := range map[string][]byte{"state.x": state, "state.y": []byte("{"), "beat.x": nil, "odd": nil} {
		_, err = nodes.Put(t.Context(), key, value)
		require.NoError(t, err)
	}
	waits, err := js.KeyValue(t.Context(), "scopefs_approvals")
	require.NoError(t, err)
	wait, err := json.Marshal(map[string]any{"node": "x", "id": "i", "state": "waits", "agent": "a", "tool": evil, "arguments": map[string]any{"k": evil}, "rule": evil, "session": evil, "policy": evil, "asked": time.Now()})
	require.NoError(t, err)
	for key, value := range map[string][]byte{"x.i": wait, "x.other": wait, "x.bad": []byte("[")} {
		_, err = waits.Put(t.Context(), key, value)
		require.NoError(t, err)
	}
	for _, line := range []string{`{"seq":1,"event":"call","agent":"a","detail":"\u001b[2J\u202e"}`, "no event", ""} {
		_, err = js.Publish(t.Context(), "scopefs.events.x.a", []byte(line))
		require.NoError(t, err)
	}
	for _, words := range [][]string{{"ps"}, {"agents"}, {"approvals"}, {"approvals", "show", "x", "i"}, {"audit"}, {"ps", "--json"}, {"agents", "--json"}, {"approvals", "--json"}, {"audit", "--json"}} {
		out, errs, code := h.Try(append([]string{"fleet"}, words...)...)
		assert.Zero(t, code, "%v: %s", words, errs)
		assert.NotEmpty(t, out, words)
		assert.NotContains(t, out+errs, "\x1b", words)
		assert.NotContains(t, out+errs, "\u202e", words)
	}
	lines := strings.Count(h.Must("fleet", "approvals"), "\n")
	assert.Equal(t, 2, lines, "a head, and one request: %s", h.Must("fleet", "approvals"))
}
