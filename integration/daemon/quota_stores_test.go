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
	h, a := storesOfQuota(t, "")
	empty := a.fill("kv_set", "kv_delete", "value")

	a.Call("sql_execute", args{"sql": "CREATE TABLE t (x)"})
	const fill = `INSERT INTO t WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i < %d) SELECT zeroblob(10000) FROM n`
	assert.Equal(t, tools.TooLarge, a.Fails("sql_execute", args{"sql": fmt.Sprintf(fill, 2000)}).Code)
	for range 100 { // each may take half of what is left
		if r, err := a.Send(t.Context(), "sql_execute", args{"sql": fmt.Sprintf(fill, 20)}); err != nil || r.IsError {
			break
		}
	}
	a.full(false)
	assert.Greater(t, a.use(), int64(quotaLimit)/2)
	a.Call("sql_execute", args{"sql": "DELETE FROM t"})
	h.Eventually("rows give room back", func() bool { return a.use() < empty+1<<20+quotaPart })

	text := strings.Repeat("m", 60<<10)
	published := 0
	for ; published < 1000; published++ {
		if r, err := a.Send(t.Context(), "publish", args{"subject": "s", "text": text}); err != nil || r.IsError {
			break
		}
	}
	assert.Greater(t, published, 20)
	a.full(false)
	before := a.use()
	assert.Equal(t, tools.TooLarge, a.Fails("kv_set", args{"key": "k", "value": quotaValue}).Code, "stores count together")
	require.NoError(t, syscall.Kill(drivers(h), syscall.SIGKILL))
	h.Eventually("its next program knows", func() bool {
		r, err := a.Send(t.Context(), "kv_set", args{"key": "k", "value": quotaValue})
		return err == nil && r.IsError && strings.Contains(harness.Said(r), "disk is full")
	})
	assert.InDelta(t, before, a.use(), quotaPart)
	assert.Contains(t, h.Must("ps"), "of 4.0 MiB")
	h.Stop()
}

// TestQuotaObjects: objects count as the other stores do.
func TestQuotaObjects(t *testing.T) {
	server := servertest.StartObjects(t, "secret")
	secret := filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(secret, []byte("secret\n"), 0o600))
	h, a := storesOfQuota(t, fmt.Sprintf("  objects: {url: %q, bucket: store, access_key: operator, secret_key: {file: %q}, addresses: [127.0.0.1]}\n",
		"http://"+server.Address, secret))
	a.fill("object_put", "object_delete", "content")
	h.Stop()
}

const (
	quotaLimit = 4 << 20
	quotaPart  = 200 << 10
)

var quotaValue = strings.Repeat("v", quotaPart)

// quotaAgent is a client of the agent a, whose files and stores have a limit.
type quotaAgent struct {
	*harness.User
	h *harness.Host
}

// storesOfQuota starts a host with stores, and more of them.
func storesOfQuota(t *testing.T, more string) (*harness.Host, quotaAgent) {
	h := harness.LayOut(t, map[string]string{"a": "limits: {disk: 4MiB}", "b": ""})
	h.Put("scopefs.yaml", "stores:\n  kv: {}\n  sql: {}\n  messages: {}\n"+more)
	h.Start()
	h.Eventually("it is counted", func() bool { return !h.Agent("a").Disk.Counting })
	return h, quotaAgent{h.Connect("a"), h}
}

func (a quotaAgent) use() int64 { return a.h.Agent("a").Disk.Bytes }

// full checks that neither files nor stores have room, or with file that both have.
func (a quotaAgent) full(file bool) {
	t := a.h.T
	t.Helper()
	a.h.Eventually("it is within its limit", func() bool { return a.use() <= quotaLimit })
	err := os.WriteFile(a.h.View("a", "file"), make([]byte, quotaLimit-2*quotaPart), 0o600)
	assert.Equal(t, file, err == nil, "%v", err)
	if !file {
		assert.ErrorIs(t, err, syscall.EDQUOT)
	}
	require.NoError(t, os.Remove(a.h.View("a", "file")))
}

// fill fills a store by its tools and empties it. It returns what the agent used before.
func (a quotaAgent) fill(set, remove, content string) (empty int64) {
	t, b := a.h.T, a.h.Connect("b")
	empty = a.use()
	var all sync.WaitGroup
	var keys, held, refused atomic.Int64
	put := func() {
		key := fmt.Sprint(keys.Add(1))
		r, err := a.Send(t.Context(), set, args{"key": key, content: quotaValue})
		switch {
		case err != nil:
			t.Error(err)
		case r.IsError && assert.Contains(t, harness.Said(r), "disk is full"):
			refused.Add(1)
		default:
			held.Add(quotaPart)
		}
	}
	for range 30 {
		all.Go(put)
	}
	all.Wait()
	assert.Positive(t, refused.Load())
	a.h.Eventually("what fits is taken", func() bool { // while many ran at once, what was under way may have counted twice
		put()
		return held.Load() > quotaLimit-3*quotaPart-empty
	})
	assert.LessOrEqual(t, held.Load(), int64(quotaLimit))
	a.full(false)
	b.Call(set, args{"key": "k", content: "of another agent"})
	for n := range keys.Load() {
		_, _ = a.Send(t.Context(), remove, args{"key": fmt.Sprint(n + 1)})
	}
	a.h.Eventually("room is given back", func() bool { return a.use() < empty+quotaPart })
	a.full(true)
	for range 25 {
		a.Call(set, args{"key": "same", content: quotaValue})
	}
	a.Call(remove, args{"key": "same"})
	return empty
}
