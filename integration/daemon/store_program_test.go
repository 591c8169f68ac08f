package daemon

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/internal/driver"
	"github.com/scopefs/scopefs/internal/need"
	"github.com/scopefs/scopefs/internal/stores"
	"github.com/scopefs/scopefs/tools"
	"github.com/scopefs/scopefs/tools/sql/engine"
)

// withDrivers starts a daemon with embedded stores and two agents.
func withDrivers(t *testing.T) *harness.Host {
	h := harness.LayOut(t, map[string]string{"a": "", "b": ""})
	h.Timeout = 15 * time.Minute // for a hundred starts on a busy host
	h.Put("scopefs.yaml", "stores: {kv: {}, sql: {}, messages: {}}\n")
	h.Start()
	return h
}

// drivers returns the process of the drivers, 0 if there is none.
func drivers(h *harness.Host) int {
	for _, pid := range harness.ChildrenOf(h.Cmd.Process.Pid, driver.Name) {
		return pid
	}
	return 0
}

// TestStoresProgram: the drivers start with the first call of a store, as a user of their own, without
// capabilities, sockets or secrets in their environment, and see nothing of the host.
func TestStoresProgram(t *testing.T) {
	h := withDrivers(t)
	a := h.Connect("a")
	h.Must("stores")
	require.Zero(t, drivers(h), "a look at stores starts nothing")
	a.Call("kv_set", args{"key": "k", "value": "v"})
	pid := drivers(h)
	require.NotZero(t, pid)
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	require.NoError(t, err)
	for _, want := range []string{"CapEff:\t0000000000000000", "CapPrm:\t0000000000000000", "CapAmb:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2",
		"Groups:\t \n", fmt.Sprintf("Uid:\t%d\t%[1]d\t%[1]d\t%[1]d\n", stores.StoresUser)} {
		assert.Contains(t, string(status), want)
	}
	environ, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	require.NoError(t, err)
	assert.NotContains(t, string(environ), "PATH=")
	inside, err := os.ReadDir(fmt.Sprintf("/proc/%d/root", pid))
	require.NoError(t, err)
	names := []string{}
	for _, one := range inside {
		names = append(names, one.Name())
	}
	assert.ElementsMatch(t, []string{"kv.db", "kv.db-journal", "messages"}, names)
	links, err := os.ReadDir(fmt.Sprintf("/proc/%d/ns", pid))
	require.NoError(t, err)
	assert.NotEmpty(t, links)
	ours, _ := os.Readlink("/proc/self/ns/net")
	theirs, _ := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", pid))
	assert.NotEqual(t, ours, theirs)
	h.Stop()
	assert.Error(t, syscall.Kill(pid, 0), "it ends with the daemon")
}

// TestStoresOfRoot: files that an earlier version made as root are used as they are.
func TestStoresOfRoot(t *testing.T) {
	h := withDrivers(t)
	a := h.Connect("a")
	a.Call("kv_set", args{"key": "k", "value": "before"})
	a.Call("publish", args{"subject": "s", "text": "before"})
	h.Stop()
	state := filepath.Join(h.Base, "state")
	require.NoError(t, filepath.WalkDir(state, func(name string, _ os.DirEntry, err error) error {
		if err == nil && (strings.Contains(name, "kv.db") || strings.Contains(name, "messages")) {
			err = os.Lchown(name, 0, 0)
		}
		return err
	}))
	require.NoError(t, os.Remove(filepath.Join(state, "kv.db-journal")))
	h.Start()
	a = h.Connect("a")
	assert.Equal(t, "before", a.Call("kv_get", args{"key": "k"})["value"])
	assert.Contains(t, a.Text("subscribe", args{"subject": "s"}), "before")
	a.Call("publish", args{"subject": "s", "text": "after"})
}

// TestStoresProgramKilled: whatever happens to the process of the drivers and to those of databases, no daemon
// ends, each call ends in a result or in an error that says so, and the stores work again.
func TestStoresProgramKilled(t *testing.T) {
	need.Long(t, "kills processes many times")
	need.Once(t)
	t.Parallel()
	rounds := need.Rounds("SCOPEFS_TEST_ROUNDS", 10, 100)
	h := withDrivers(t)
	users := []*harness.User{h.Connect("a"), h.Connect("b")}
	for _, u := range users {
		u.Call("kv_set", args{"key": "kept", "value": "kept"})
		u.Call("sql_execute", args{"sql": "CREATE TABLE t (x)"})
	}
	const bound = 13 * time.Second // to start the program, and of a call
	calls := []struct {
		tool string
		in   args
	}{
		{"kv_set", args{"key": "k", "value": strings.Repeat("x", 1000)}}, {"kv_get", args{"key": "kept"}}, {"kv_list", nil},
		{"publish", args{"subject": "s", "text": "x"}}, {"subscribe", args{"subject": "s"}},
		{"sql_execute", args{"sql": "INSERT INTO t VALUES (1)"}}, {"sql_query", args{"sql": "SELECT count(*) FROM t"}},
	}
	var ended atomic.Bool
	var good, failed atomic.Int64
	var all sync.WaitGroup
	for _, u := range users {
		for _, c := range calls {
			all.Go(func() {
				for !ended.Load() {
					began := time.Now()
					r, err := u.Send(t.Context(), c.tool, c.in)
					if !assert.NoError(t, err, c.tool) {
						return
					}
					assert.Less(t, time.Since(began), bound, c.tool)
					if good.Add(1); r.IsError {
						good.Add(-1)
						failed.Add(1)
						var e tools.Error
						assert.NoError(t, json.Unmarshal([]byte(harness.Said(r)), &e), harness.Said(r))
						if e.Code != tools.Conflict || c.tool != "subscribe" { // with its own predecessor, which still runs
							assert.Equal(t, tools.Unavailable, e.Code, "%s: %+v", c.tool, e)
						}
					}
					time.Sleep(20 * time.Millisecond) // the calls of all fourteen are not what takes the processors
				}
			})
		}
	}
	signals := []syscall.Signal{syscall.SIGKILL, syscall.SIGSEGV, syscall.SIGQUIT, syscall.SIGKILL, syscall.SIGSTOP}
	for i := range rounds {
		var pid int
		h.Eventually("the drivers run", func() bool { pid = drivers(h); return pid != 0 })
		for _, pid := range harness.ChildrenOf(h.Cmd.Process.Pid, engine.Name) {
			if i%5 == 0 {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		}
		h.Eventually("they were replaced", func() bool {
			_ = syscall.Kill(pid, signals[i%len(signals)]) // again: process 1 ignores signals before it has a handler
			now := drivers(h)
			return now != 0 && now != pid
		})
	}
	ended.Store(true)
	all.Wait()
	t.Logf("%d rounds: %d calls with a result, %d with an error", rounds, good.Load(), failed.Load())
	assert.Positive(t, good.Load())
	for _, u := range users {
		h.Eventually("the stores work", func() bool {
			r, err := u.Send(u.Soon(), "kv_get", args{"key": "kept"})
			return err == nil && !r.IsError && strings.Contains(harness.Said(r), "kept")
		})
		u.Call("kv_set", args{"key": "k", "value": "after"})
		u.Call("sql_execute", args{"sql": "INSERT INTO t VALUES (2)"})
		u.Call("publish", args{"subject": "s", "text": "after"})
	}
	h.Stop()
}

// TestStoresProgramEnds: a call that waits for a store gets its error as soon as the drivers are gone.
func TestStoresProgramEnds(t *testing.T) {
	t.Parallel()
	h := withDrivers(t)
	a := h.Connect("a")
	a.Call("publish", args{"subject": "s", "text": "x"})
	for _, signal := range []syscall.Signal{syscall.SIGKILL, syscall.SIGSTOP} {
		waiting := a.Begin(t.Context(), "subscribe", args{"subject": "none", "wait_seconds": 30})
		time.Sleep(300 * time.Millisecond) // whether it waits already does not matter
		pid := drivers(h)
		began := time.Now()
		require.NoError(t, syscall.Kill(pid, signal))
		assert.ErrorContains(t, <-waiting, `"unavailable"`)
		took := time.Since(began)
		t.Logf("%v: %v", signal, took.Round(time.Millisecond))
		if signal == syscall.SIGKILL {
			assert.Less(t, took, time.Second)
		}
		assert.Less(t, took, 5*time.Second)
		a.Call("publish", args{"subject": "s", "text": "x"})
	}
}
