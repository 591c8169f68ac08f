package daemon

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/internal/servertest"
	"github.com/scopefs/scopefs/tools"
)

// TestQuotaStores: what stores hold for an agent counts with its files. Many calls at once do not exceed the limit, overwrites
// count once, what is removed gives room back, and a program of the stores that dies loses no count.
func TestQuotaStores(t *testing.T) {
	const limit = 4 << 20
	h := harness.LayOut(t, map[string]string{"a": "limits: {disk: 4MiB}", "b": ""})
	server := servertest.StartObjects(t, "secret")
	secret := filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(secret, []byte("secret\n"), 0o600))
	h.Put("scopefs.yaml", fmt.Sprintf(`stores:
  kv: {}
  sql: {}
  messages: {}
  objects: {url: %q, bucket: store, access_key: operator, secret_key: {file: %q}, addresses: [127.0.0.1]}
`, "http://"+server.Address, secret))
	h.Start()
	a, b := h.Connect("a"), h.Connect("b")
	use := func() int64 { return h.Agent("a").Disk.Bytes }
	h.Eventually("it is counted", func() bool { return !h.Agent("a").Disk.Counting })
	empty := use()

	const part = 200 << 10
	value := strings.Repeat("v", part)
	full := func(file bool) { // neither files nor stores have room
		t.Helper()
		h.Eventually("it is within its limit", func() bool { return use() <= limit })
		err := os.WriteFile(h.View("a", "file"), make([]byte, limit-2*part), 0o600)
		assert.Equal(t, file, err == nil, "%v", err)
		if !file {
			assert.ErrorIs(t, err, syscall.EDQUOT)
		}
		require.NoError(t, os.Remove(h.View("a", "file")))
	}
	for _, store := range []struct {
		put, remove, key, value string
	}{{"kv_set", "kv_delete", "key", "value"}, {"object_put", "object_delete", "key", "content"}} {
		var all sync.WaitGroup
		var keys, held, refused atomic.Int64
		put := func() {
			key := fmt.Sprint(keys.Add(1))
			r, err := a.Send(t.Context(), store.put, args{store.key: key, store.value: value})
			switch {
			case err != nil:
				t.Error(err)
			case r.IsError && assert.Contains(t, harness.Said(r), "disk is full"):
				refused.Add(1)
			default:
				held.Add(part)
			}
		}
		for range 30 {
			all.Go(put)
		}
		all.Wait()
		assert.Positive(t, refused.Load())
		h.Eventually("what fits is taken", func() bool { // while many ran at once, what was under way may have counted twice
			put()
			return held.Load() > limit-3*part-empty
		})
		assert.LessOrEqual(t, held.Load(), int64(limit))
		full(false)
		b.Call(store.put, args{store.key: "k", store.value: "of another agent"})
		for n := range keys.Load() {
			_, _ = a.Send(t.Context(), store.remove, args{store.key: fmt.Sprint(n + 1)})
		}
		h.Eventually("room is given back", func() bool { return use() < empty+part })
		full(true)
		for range 25 {
			a.Call(store.put, args{store.key: "same", store.value: value})
		}
		a.Call(store.remove, args{store.key: "same"})
	}

	a.Call("sql_execute", args{"sql": "CREATE TABLE t (x)"})
	const fill = `INSERT INTO t WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i < %d) SELECT zeroblob(10000) FROM n`
	assert.Equal(t, tools.TooLarge, a.Fails("sql_execute", args{"sql": fmt.Sprintf(fill, 2000)}).Code)
	for range 100 { // each may take half of what is left
		if r, err := a.Send(t.Context(), "sql_execute", args{"sql": fmt.Sprintf(fill, 20)}); err != nil || r.IsError {
			break
		}
	}
	full(false)
	assert.Greater(t, use(), int64(limit)/2)
	a.Call("sql_execute", args{"sql": "DELETE FROM t"})
	h.Eventually("rows give room back", func() bool { return use() < empty+1<<20+part })

	text := strings.Repeat("m", 60<<10)
	published := 0
	for ; published < 1000; published++ {
		if r, err := a.Send(t.Context(), "publish", args{"subject": "s", "text": text}); err != nil || r.IsError {
			break
		}
	}
	assert.Greater(t, published, 20)
	full(false)
	before := use()
	assert.Equal(t, tools.TooLarge, a.Fails("kv_set", args{"key": "k", "value": value}).Code, "stores count together")
	require.NoError(t, syscall.Kill(drivers(h), syscall.SIGKILL))
	h.Eventually("its next program knows", func() bool {
		r, err := a.Send(t.Context(), "kv_set", args{"key": "k", "value": value})
		return err == nil && r.IsError && strings.Contains(harness.Said(r), "disk is full")
	})
	assert.InDelta(t, before, use(), part)
	assert.Contains(t, h.Must("ps"), "of 4.0 MiB")
	h.Stop()
}
