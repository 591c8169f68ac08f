package tools

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/internal/servertest"
)

// TestStoresObjects: two agents use the same keys of one bucket and never meet. A
// server that goes away costs them the calls of this store, and no other.
func TestStoresObjects(t *testing.T) {
	const hush = "s3cret-of-the-operator"
	h := harness.LayOut(t, map[string]string{"a": "", "ab": "", "reader": "view: {access: read}"})
	server := servertest.StartObjects(t, hush)
	secret := filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(secret, []byte(hush+"\n"), 0o600))
	h.Put("scopefs.yaml", fmt.Sprintf(`stores:
  kv:
  objects: {url: %q, bucket: store, prefix: team, access_key: operator, secret_key: {file: %q}, addresses: [127.0.0.1]}
`, "http://"+server.Address, secret))
	h.Start()
	users := map[string]*harness.User{"a": h.Connect("a"), "ab": h.Connect("ab")}
	a, reader := users["a"], h.Connect("reader")

	for id, u := range users {
		u.Call("object_put", args{"key": "b/k", "content": "of " + id})
		assert.FileExists(t, filepath.Join(server.Dir, "team/agents", id, "b/k"))
	}
	for id, u := range users {
		assert.Equal(t, "of "+id, u.Call("object_get", args{"key": "b/k"})["content"])
		assert.Len(t, u.Call("object_list", nil)["objects"], 1)
	}
	for _, key := range []string{"../ab/b/k", "/team/agents/ab/b/k", "b/../../ab/b/k"} {
		assert.Equal(t, "outside_scope", string(a.Fails("object_get", args{"key": key}).Code), key)
		assert.Equal(t, "violation", string(h.Last("a", "object_get").Verdict), key)
	}
	assert.Equal(t, "invalid", string(a.Fails("object_delete", args{"key": "%2e%2e/ab/b/k"}).Code))
	assert.Equal(t, "not_found", string(reader.Fails("object_get", args{"key": "b/k"}).Code))
	assertAbsent(reader, "reader", "object_put", args{"key": "k", "content": "x"})
	a.Call("object_delete", args{"key": "b/k"})
	assert.Equal(t, "of ab", users["ab"].Call("object_get", args{"key": "b/k"})["content"])

	assert.Regexp(t, `objects +s3 +ok +a,ab,reader +object_get`, h.Must("stores"))
	server.Kill()
	began := time.Now()
	assert.Equal(t, "unavailable", string(a.Fails("object_put", args{"key": "k", "content": "x"}).Code))
	assert.Less(t, time.Since(began), 30*time.Second)
	a.Call("kv_set", args{"key": "k", "value": "v"})
	stores, errs, code := h.Try("stores")
	assert.Equal(t, 1, code, stores)
	server.Start(t)
	a.Call("object_put", args{"key": "k", "content": "again"})
	assert.Equal(t, "again", a.Call("object_get", args{"key": "k"})["content"])
	for _, text := range []string{h.Must("audit", "--json"), h.Must("agents", "show", "a", "--json"), stores, errs, a.Heard.String()} {
		assert.NotContains(t, text, hush)
	}
}
