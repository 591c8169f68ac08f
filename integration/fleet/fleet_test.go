package fleet

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/tools/approvals"
)

// seen returns how often the fleet's audit prints each event of a node.
func seen(t *testing.T, h *harness.Host, node string) map[uint64]int {
	t.Helper()
	got := map[uint64]int{}
	for line := range strings.Lines(h.Must("fleet", "audit", "--node", node, "--json")) {
		var one struct {
			Node  string
			Event audit.Event
		}
		require.NoError(t, json.Unmarshal([]byte(line), &one))
		assert.Equal(t, node, one.Node)
		got[one.Event.Seq]++
	}
	return got
}

// exact reports whether the server has each event of a node once, and whether it has all.
func exact(t *testing.T, h *harness.Host, node string) bool { return exactOf(t, h, h, node) }

// exactOf is exact by the command of another host.
func exactOf(t *testing.T, h, operator *harness.Host, node string) bool {
	got := seen(t, operator, node)
	for _, e := range h.Events("") {
		if got[e.Seq] != 1 {
			return false
		}
	}
	return true
}

// TestFleetFollow: audit -f prints each event once and in order, over pages that are full by their number and by their bytes, with one
// consumer, and also when that is lost.
func TestFleetFollow(t *testing.T) {
	n := newServer(t)
	h := newNode(t, n, "one")
	h.Must("fleet", "init")
	js := n.client()
	stream, err := js.Stream(t.Context(), "scopefs_events")
	require.NoError(t, err)
	published := 0
	publish := func(count, size int) {
		for range count {
			published++
			line := fmt.Sprintf(`{"seq":%d,"event":"call","agent":"a","detail":%q}`, published, strings.Repeat("x", size))
			_, err := js.PublishAsync("scopefs.events.x.a", []byte(line), jetstream.WithMsgID(fmt.Sprint("l/", published)))
			require.NoError(t, err)
		}
		<-js.PublishAsyncComplete()
	}
	publish(2500, 10)
	publish(30, 500_000)
	follow := exec.Command(harness.Program, "--base", h.Base, "fleet", "audit", "-f", "--json")
	follow.Stderr = t.Output()
	out, err := follow.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, follow.Start())
	defer func() { _ = follow.Process.Kill(); _ = follow.Wait() }()
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 1<<20)
	printed := 0
	await := func() {
		for printed < published {
			require.True(t, lines.Scan())
			var one struct{ Event audit.Event }
			require.NoError(t, json.Unmarshal(lines.Bytes(), &one))
			printed++
			require.EqualValues(t, printed, one.Event.Seq)
		}
	}
	await()
	consumers := func() (names []string) {
		for name := range stream.ConsumerNames(t.Context()).Name() {
			names = append(names, name)
		}
		return names
	}
	was := consumers()
	for range 20 {
		publish(1, 10)
		await()
	}
	assert.Equal(t, was, consumers())
	for range 3 {
		for _, name := range consumers() {
			_ = stream.DeleteConsumer(t.Context(), name) // one of an earlier page may have ended by itself
		}
		publish(3, 10)
		await()
	}
	require.NoError(t, follow.Process.Signal(os.Interrupt))
	assert.NoError(t, follow.Wait())
}

// TestFleet: two nodes publish their events, agents and requests. While the server is away neither waits for it; afterwards it
// has each event once. ps says which node is not heard.
func TestFleet(t *testing.T) {
	n := newServer(t)
	one, two := newNode(t, n, "one"), newNode(t, n, "two")
	one.Must("fleet", "init")
	one.Start()
	two.Start()
	one.Eventually("both are heard", func() bool {
		return len(regexp.MustCompile(`(?m)^(one|two) +heard +\d+s +1 +1 +0 +0 `).FindAllString(one.Must("fleet", "ps"), -1)) == 2
	})
	assert.Regexp(t, `(?m)^two +a +mounted `, one.Must("fleet", "agents"))
	deny(t, one, 50)
	n.kill()
	began := time.Now()
	deny(t, one, 300)
	deny(t, two, 300)
	assert.Less(t, time.Since(began), 30*time.Second, "a server that is away delays nothing")
	one.Connect("a").Waits("write_file", map[string]any{"path": "new", "content": "x"})
	n.start()
	one.Eventually("each event of one is there once", func() bool { return exact(t, one, "one") })
	one.Eventually("each event of two is there once", func() bool { return exact(t, two, "two") })
	one.Eventually("the request is there", func() bool {
		return regexp.MustCompile(`(?m)^one +\w{13} +a +write_file +.*new`).MatchString(two.Must("fleet", "approvals"))
	})
	assert.Contains(t, two.Must("fleet", "audit", "--node", "one", "--denied", "--agent", "a"), "fixed/x")
	assert.Regexp(t, `(?m)^fleet +sends `, one.Must("ps"))
	two.Stop()
	one.Eventually("two is silent", func() bool { return regexp.MustCompile(`(?m)^two +silent `).MatchString(one.Must("fleet", "ps")) })
}

// waiting has a call of a node wait, and returns it as the fleet shows it.
func waiting(t *testing.T, h *harness.Host, node, path string) (got approvals.Approval) {
	t.Helper()
	h.Connect("a").Waits("write_file", map[string]any{"path": path, "content": "x"})
	h.Eventually("the request is there", func() bool {
		var all []struct {
			Node string `json:"node"`
			approvals.Approval
		}
		require.NoError(t, json.Unmarshal([]byte(h.Must("fleet", "approvals", "--json")), &all))
		for _, w := range all {
			if w.Node == node && w.Path == path {
				got = w.Approval
				return true
			}
		}
		return false
	})
	return got
}

// TestFleetDecides: an operator decides on another host. The node records the name of the key.
func TestFleetDecides(t *testing.T) {
	n := newServer(t)
	h := newNode(t, n, "one")
	h.Must("fleet", "init")
	ada := newOperator(t, h, "ada")
	info, err := os.Stat(ada.file)
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	_, errs, code := h.Try("fleet", "keygen", "ada", "--key", ada.file)
	assert.Equal(t, 1, code)
	assert.Contains(t, errs, "exists")
	join(h, n, "one", ada)
	h.Start()

	w := waiting(t, h, "one", "new")
	assert.Equal(t, w.Hash, w.Digest(), "JSON keeps what the hash is of")
	shown := h.Must("fleet", "approvals", "show", "one", w.ID)
	assert.Contains(t, shown, "hash "+w.Hash)
	_, errs, code = h.Try("fleet", "approvals", "approve", "one", w.ID, "--key", ada.file)
	assert.Equal(t, 2, code)
	assert.Contains(t, errs, "--shown")
	assert.Contains(t, h.Must("fleet", "approvals", "approve", "one", w.ID, "--key", ada.file, "--shown", w.Hash), "approved")
	h.Connect("a").Text("write_file", map[string]any{"path": "new", "content": "x"})
	assert.FileExists(t, h.Scope("a", "new"))

	w = waiting(t, h, "one", "other")
	assert.Contains(t, h.Must("fleet", "approvals", "deny", "one", w.ID, "--key", ada.file, "--shown", w.Hash, "--reason", "not today"), "denied")
	assert.Contains(t, h.Connect("a").Fails("write_file", map[string]any{"path": "other", "content": "x"}).Message, "not today")
	assert.NoFileExists(t, filepath.Join(h.Scope("a"), "other"))
	for _, outcome := range []string{"approved", "denied"} {
		assert.True(t, h.Recorded("a", audit.Event{Event: audit.KindApproval, Outcome: outcome}), outcome)
	}
	by := 0
	for _, e := range h.Events("a") {
		if e.Event == audit.KindApproval && strings.Contains(e.Detail, `as "the fleet's key ada"`) && e.UID == nil {
			by++
		}
	}
	assert.Equal(t, 2, by)
	h.Eventually("nothing waits any more", func() bool { return h.Must("fleet", "approvals") == "" })
}
