package tools

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/integration/harness"
)

// TestStoresMessages: two agents publish on the same subject and never meet; a
// channel and an inbox are granted by name; a call that waits ends with its
// client and with its agent; messages outlive the daemon.
func TestStoresMessages(t *testing.T) {
	h := harness.LayOut(t, map[string]string{"a": "", "ab": "", "reader": "view: {access: read}", "none": "tools: [read_file]"})
	h.Put("scopefs.yaml", "stores: {messages: {channels: {team: [a, reader]}, inboxes: {ab: [a]}}}\n")
	for _, id := range []string{"a", "ab"} { // each command has a daemon and a server of its own
		h.Must("call", "publish", "subject=jobs.done", "text=of "+id, "--agent", id)
	}
	h.Start()
	users := map[string]*harness.User{}
	for _, id := range []string{"a", "ab"} {
		users[id] = h.Connect(id)
		got := users[id].Call("subscribe", args{"subject": "jobs.done"})["messages"].([]any)
		require.Len(t, got, 1)
		assert.Equal(t, "of "+id, got[0].(map[string]any)["text"])
	}
	for _, words := range [][]string{
		{"subscribe", "subject=*", "--agent", "a"}, {"subscribe", "subject=>", "--agent", "a"}, {"publish", "subject=$JS.API.INFO", "text=x", "--agent", "a"},
		{"subscribe", "channel=team", "--agent", "ab"}, {"publish", "channel=team", "text=x", "--agent", "ab"}, {"publish", "to=a", "text=x", "--agent", "ab"},
		{"subscribe", "inbox:=true", "--agent", "a"}, {"publish", "channel=team", "text=x", "--agent", "reader"}, {"subscribe", "--agent", "none"},
	} {
		_, errs, code := h.Try(append([]string{"call"}, words...)...)
		assert.Equal(t, 1, code, "%v: %s", words, errs)
		assert.Regexp(t, `"(invalid|denied|not_found)"`, errs, "%v", words)
	}
	h.Must("call", "publish", "channel=team", "text=hello team", "--agent", "a")
	assert.Contains(t, h.Must("call", "subscribe", "channel=team", "--agent", "reader"), "hello team")
	h.Must("call", "publish", "to=ab", "text=hello ab", "--agent", "a")

	ended := users["a"].Begin(h.Soon(), "subscribe", args{"subject": "later", "wait_seconds": 30})
	h.Must("call", "publish", "subject=later", "text=now", "--agent", "a")
	assert.NoError(t, <-ended)
	for i, end := range []func(cancel func()){func(cancel func()) { cancel() }, func(func()) { h.Must("down", "a") }} {
		ctx, cancel := context.WithCancel(h.Soon())
		ended = users["a"].Begin(ctx, "subscribe", args{"subject": "none", "wait_seconds": 30})
		h.Eventually("the call waits", func() bool { return len(h.Calls("a", "subscribe")) > 0 && h.Last("a", "subscribe").Outcome == "begin" })
		began := time.Now()
		end(cancel)
		assert.Error(t, <-ended, i)
		h.Eventually("its end is recorded", func() bool { return h.Last("a", "subscribe").Outcome != "begin" })
		assert.Less(t, time.Since(began), 15*time.Second)
		cancel()
	}
	assert.Regexp(t, `messages +nats embedded +ok +a,ab,reader +publish,subscribe`, h.Must("stores"))
	h.Stop()
	assert.Contains(t, h.Must("call", "subscribe", "inbox:=true", "--agent", "ab"), "hello ab")
	st, err := os.Stat(filepath.Join(h.Base, "state", "messages"))
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o700), st.Mode().Perm())
	out := h.Must("audit", "--json")
	assert.Contains(t, out, "channel team")
	assert.NotContains(t, out, "hello team")
}
