package daemon

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/internal/need"
	"github.com/scopefs/scopefs/tools"
	"github.com/scopefs/scopefs/tools/sql/engine"
)

// storesOnDisk is a host whose state is on a disk of its own, but for the log.
func storesOnDisk(t *testing.T) (*harness.Host, *disk) {
	const front = "user: \"1000\"\ntools: [\"*\"]"
	h := harness.LayOut(t, map[string]string{"a": front, "b": front})
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(server.Close)
	h.Put("scopefs.yaml", fmt.Sprintf("stores:\n  kv: {size: 1GiB}\n  sql: {size: 1GiB, timeout: 1s}\n  services: {s: {url: %q, addresses: [127.0.0.1]}}\n", server.URL))
	state := filepath.Join(h.Base, "state")
	require.NoError(t, os.Mkdir(state, 0o700))
	d := newDisk(t, state)
	log, at := filepath.Join(h.Base, "log"), filepath.Join(state, "audit")
	require.NoError(t, os.Mkdir(log, 0o700))
	require.NoError(t, os.Mkdir(at, 0o700))
	require.NoError(t, unix.Mount(log, at, "", unix.MS_BIND, ""))
	t.Cleanup(func() { assert.NoError(t, unix.Unmount(at, unix.MNT_DETACH)) })
	for _, id := range []string{"a", "b"} {
		harness.Plant(t, h.Scope(id), "f")
	}
	h.Start()
	return h, d
}

// TestStoresFrozenDisk: while the disk of the stores is frozen their calls are refused in
// bounded time, and other calls go on. When it thaws the stores work again, and an answer
// that was given holds.
func TestStoresFrozenDisk(t *testing.T) {
	need.Once(t)
	t.Parallel()
	h, d := storesOnDisk(t)
	a, b := h.Connect("a"), h.Connect("b")
	for _, u := range []*harness.User{a, b} {
		u.Call("kv_set", args{"key": "k", "value": "before"})
	}
	a.Call("sql_execute", args{"sql": "CREATE TABLE t (x)"})
	thaw := d.freeze()
	var all sync.WaitGroup
	for _, call := range []struct {
		u    *harness.User
		tool string
		in   args
	}{
		{a, "kv_set", args{"key": "k", "value": "after"}}, {b, "kv_set", args{"key": "k", "value": "after"}},
		{a, "sql_execute", args{"sql": "INSERT INTO t VALUES (1)"}}, {b, "sql_execute", args{"sql": "CREATE TABLE t (x)"}},
	} {
		all.Go(func() {
			for range 2 {
				began := time.Now()
				assert.Equal(t, tools.Unavailable, call.u.Fails(call.tool, call.in).Code, call.tool)
				assert.Less(t, time.Since(began), 20*time.Second, call.tool)
			}
		})
	}
	ended := make(chan struct{})
	go func() { all.Wait(); close(ended) }()
	others := 0
	for running := true; running; others++ {
		began := time.Now()
		a.Call("read_file", args{"path": "f"})
		b.Call("http_request", args{"service": "s"})
		assert.Less(t, time.Since(began), 10*time.Second, "other calls wait")
		select {
		case <-ended:
			running = false
		case <-time.After(50 * time.Millisecond):
		}
	}
	assert.Greater(t, others, 10)
	_, _, code := h.Try("stores")
	t.Logf("scopefs stores on a frozen disk: exit status %d; %d other calls", code, others)
	thaw()
	for _, u := range []*harness.User{a, b} {
		h.Eventually("the stores work again", func() bool {
			r, err := u.Send(u.Soon(), "kv_set", args{"key": "k", "value": "thawed"})
			s, err2 := u.Send(u.Soon(), "sql_execute", args{"sql": "CREATE TABLE IF NOT EXISTS t (x)"})
			return err == nil && err2 == nil && !r.IsError && !s.IsError
		})
		assert.Contains(t, fmt.Sprint(u.Call("kv_get", args{"key": "k"})), "thawed")
	}
	assert.NotContains(t, fmt.Sprint(a.Call("sql_query", args{"sql": "SELECT count(*) AS rows FROM t"})), `"rows":[[2`)
	h.Stop()
}

// TestStoresFullDisk: while the disk of the stores is full changes are refused and reads
// work, and nothing is half done.
func TestStoresFullDisk(t *testing.T) {
	h, d := storesOnDisk(t)
	a := h.Connect("a")
	a.Call("kv_set", args{"key": "k", "value": "before"})
	a.Call("sql_execute", args{"sql": "CREATE TABLE t (x)"})
	a.Call("sql_execute", args{"sql": "INSERT INTO t VALUES (1)"})
	ballast := filepath.Join(d.At, "ballast")
	fill(t, ballast)
	big := strings.Repeat("x", 1<<20)
	for range 20 { // SQLite reuses space of its files
		r, err := a.Send(a.Soon(), "kv_set", args{"key": "big", "value": big})
		require.NoError(t, err)
		if r.IsError {
			break
		}
	}
	e := a.Fails("kv_set", args{"key": "k", "value": big})
	assert.Equal(t, tools.Unavailable, e.Code)
	assert.Contains(t, e.Hint, "full")
	e = a.Fails("sql_execute", args{"sql": "INSERT INTO t WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i < 2000) SELECT zeroblob(4000) FROM n"})
	assert.Equal(t, tools.TooLarge, e.Code, e.Message)
	assert.Contains(t, e.Message, "full")
	assert.Contains(t, fmt.Sprint(a.Call("kv_get", args{"key": "k"})), "before")
	assert.Contains(t, fmt.Sprint(a.Call("sql_query", args{"sql": "SELECT count(*) FROM t"})), `[[1]]`)
	a.Call("read_file", args{"path": "f"})
	require.NoError(t, os.Remove(ballast))
	a.Call("kv_set", args{"key": "k", "value": "after"})
	a.Call("sql_execute", args{"sql": "INSERT INTO t VALUES (2)"})
	assert.Contains(t, fmt.Sprint(a.Call("sql_query", args{"sql": "SELECT count(*) FROM t"})), `[[2]]`)
	h.Stop()
}

// fill writes a file until its disk is full.
func fill(t *testing.T, name string) {
	f, err := os.Create(name)
	require.NoError(t, err)
	defer f.Close()
	for _, size := range []int{1 << 20, 4096, 1} {
		for block := make([]byte, size); err == nil; {
			_, err = f.Write(block)
		}
		require.ErrorIs(t, err, unix.ENOSPC)
		err = nil
	}
	require.NoError(t, f.Sync())
}

// TestStoresDown: the database process of an agent ends when the agent goes down, and
// another agent's does not.
func TestStoresDown(t *testing.T) {
	h := harness.LayOut(t, map[string]string{"a": "", "b": ""})
	h.Put("scopefs.yaml", "stores: {sql: {}}\n")
	h.Start()
	engines := func() []int { return harness.ChildrenOf(h.Cmd.Process.Pid, engine.Name) }
	for _, id := range []string{"a", "b"} {
		h.Connect(id).Call("sql_execute", args{"sql": "CREATE TABLE t (x)"})
	}
	require.Len(t, engines(), 2)
	h.Must("down", "a")
	assert.Len(t, engines(), 1)
	h.Must("up", "a")
	assert.Contains(t, fmt.Sprint(h.Connect("a").Call("sql_tables", nil)), "name:t")
	assert.Len(t, engines(), 2)
}
