package tools

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/internal/need"
	"github.com/scopefs/scopefs/internal/servertest"
)

// storesForget has two agents write to the stores, lists what forget would remove of one, and forgets that one. The other's data stay,
// and the first finds nothing when it is there again.
func storesForget(t *testing.T, text, kinds string, objects bool) *harness.Host {
	h := harness.LayOut(t, map[string]string{"a": "", "ab": ""})
	h.Put("scopefs.yaml", text)
	h.Start()
	for _, id := range []string{"a", "ab"} {
		u := h.Connect(id)
		u.Call("kv_set", args{"key": "k", "value": "of " + id})
		u.Call("publish", args{"subject": "s", "text": "of " + id})
		if objects {
			u.Call("object_put", args{"key": "d/k", "content": "of " + id})
		}
	}
	token := h.Token("a")
	_, errs, code := h.Try("forget", "a", "--yes")
	assert.Equal(t, 1, code)
	assert.Contains(t, errs, "scopefs down a ends that")
	assert.Equal(t, "of a", h.Connect("a").Call("kv_get", args{"key": "k"})["value"])
	h.Must("down", "a")
	out, _, code := h.Try("forget", "a")
	assert.Equal(t, 2, code, "it asks")
	assert.Regexp(t, kinds, out)
	assert.Regexp(t, `remove  token t\w{9}\n`, out)
	assert.Contains(t, h.Must("token", "list"), " a ", "nothing is gone yet")
	assert.Regexp(t, kinds+`(?s:.*)a: forgotten`, h.Must("forget", "a", "--yes"))
	assert.NotContains(t, h.Must("token", "list"), " a ")
	assert.True(t, h.Recorded("a", audit.Event{Event: audit.KindAgent, Outcome: "token revoked"}))
	assert.Equal(t, "nothing is kept of a\n", h.Must("forget", "a"), token)
	h.Must("up", "a")
	u, other := h.Connect("a"), h.Connect("ab")
	assert.Equal(t, "not_found", string(u.Fails("kv_get", args{"key": "k"}).Code))
	assert.Empty(t, u.Call("subscribe", nil)["messages"])
	assert.Equal(t, "of ab", other.Call("kv_get", args{"key": "k"})["value"])
	assert.Len(t, other.Call("subscribe", nil)["messages"], 1)
	if objects {
		assert.Empty(t, u.Call("object_list", nil)["objects"])
		assert.Equal(t, "of ab", other.Call("object_get", args{"key": "d/k"})["content"])
	}
	u.Call("kv_set", args{"key": "k", "value": "anew"})
	return h
}

// TestStoresForget: forget removes what an agent has in the embedded stores. A store that does not answer is reported before
// anything is removed.
func TestStoresForget(t *testing.T) {
	h := storesForget(t, "stores: {kv: , messages: }\n", `remove  \d+ bytes in the store kv \(sqlite\)\nremove  \d+ bytes in the store messages \(nats embedded\)\n`, false)
	h.Must("down", "a")
	h.Stop()
	file := filepath.Join(h.Base, "state", "kv.db")
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(file, []byte("nonsense"), 0o600))
	out, errs, code := h.Try("forget", "a", "--yes")
	assert.Equal(t, 1, code)
	assert.Empty(t, out)
	assert.Contains(t, errs, "store kv: ")
	require.NoError(t, os.WriteFile(file, text, 0o600))
	assert.Contains(t, h.Must("forget", "a", "--yes"), "in the store kv", "without a daemon")
}

// TestStoresForgetServers: likewise on servers.
func TestStoresForgetServers(t *testing.T) {
	need.Once(t)
	redis, nats := startRedis(t), startNATS(t)
	objects := servertest.StartObjects(t, serverSecret)
	secret := filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(secret, []byte(serverSecret+"\n"), 0o600))
	storesForget(t, fmt.Sprintf(`stores:
  kv: {redis: %q}
  messages: {url: %q}
  objects: {url: "http://%s", bucket: store, access_key: operator, secret_key: {file: %q}, addresses: [127.0.0.1]}
`, redis, nats, objects.Address, secret), `remove  \d+ bytes in the store kv \(redis\)\nremove  \d+ bytes in the store messages \(nats\)\nremove  \d+ bytes in the store objects \(s3\)\n`, true)
}
