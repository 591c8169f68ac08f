package state

import (
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/tools/approvals"
	"github.com/scopefs/scopefs/tools/limit"
)

func openAll(t *testing.T, dir string, host any) (*Approvals, []approvals.Approval, []error) {
	t.Helper()
	a, all, lost, err := OpenApprovals(dir, host)
	require.NoError(t, err)
	return a, all, lost
}

func TestApprovalsAreKept(t *testing.T) {
	dir := t.TempDir()
	a, all, lost := openAll(t, dir, "host")
	assert.Empty(t, all)
	assert.Empty(t, lost)
	asked := time.Now().Round(0)
	p := approvals.Approval{ID: "abc", State: approvals.Waits, Agent: "a", Tool: "bash", Arguments: json.RawMessage(`{"command":"<&>\u2028 é \"x\""}`),
		Policy: "p", Rule: "r", Path: "f", Content: "c", Replaced: "d", Asked: asked, Expires: asked.Add(time.Minute)}
	require.NoError(t, a.Put(p))
	p.State = approvals.Granted
	require.NoError(t, a.Put(p))
	info, err := os.Stat(filepath.Join(dir, "approvals"))
	require.NoError(t, err)
	assert.Equal(t, fs.FileMode(0o700), info.Mode().Perm())

	_, all, _ = openAll(t, dir, "host")
	require.Len(t, all, 1)
	assert.True(t, p.Asked.Equal(all[0].Asked) && p.Expires.Equal(all[0].Expires))
	all[0].Asked, all[0].Expires = p.Asked, p.Expires
	assert.Equal(t, p, all[0], "to the byte")

	require.NoError(t, a.Remove(p))
	assert.ErrorIs(t, a.Remove(p), fs.ErrNotExist, "it is used once, also by two daemons")
	_, all, _ = openAll(t, dir, "host")
	assert.Empty(t, all)
}

func TestApprovalsOfOtherSettingsAreVoid(t *testing.T) {
	dir := t.TempDir()
	a, _, _ := openAll(t, dir, map[string]string{"expose": "/a"})
	require.NoError(t, a.Put(approvals.Approval{ID: "abc", Agent: "a", Arguments: json.RawMessage("{}")}))
	_, all, lost := openAll(t, dir, map[string]string{"expose": "/b"})
	assert.Empty(t, all)
	assert.Empty(t, lost)
	_, all, _ = openAll(t, dir, map[string]string{"expose": "/a"})
	assert.Empty(t, all, "void is void")
}

// A file damaged by a crash or a disk affects only that approval.
func TestApprovalsDamaged(t *testing.T) {
	dir := t.TempDir()
	a, _, _ := openAll(t, dir, "host")
	require.NoError(t, a.Put(approvals.Approval{ID: "good", Agent: "a", Arguments: json.RawMessage("{}")}))
	whole, err := os.ReadFile(filepath.Join(dir, "approvals", "good.json"))
	require.NoError(t, err)
	for name, text := range map[string]string{
		"empty.json": "", "zeros.json": strings.Repeat("\x00", 100), "half.json": string(whole[:len(whole)/2]), ".good.json": string(whole), "other.json": string(whole),
	} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, "approvals", name), []byte(text), 0o600))
	}
	require.NoError(t, os.Symlink("/etc/passwd", filepath.Join(dir, "approvals", "link.json")))
	_, all, lost := openAll(t, dir, "host")
	assert.Len(t, all, 1)
	assert.Len(t, lost, 5)
	entries, err := os.ReadDir(filepath.Join(dir, "approvals"))
	require.NoError(t, err)
	assert.Len(t, entries, 1)
}

func TestRatesAreKept(t *testing.T) {
	dir := t.TempDir()
	at := time.Now().Round(0)
	update := func(change func(kept limit.Refills, lost bool)) {
		t.Helper()
		require.NoError(t, RatesOf(dir, "a").Update(change))
	}
	update(func(kept limit.Refills, lost bool) {
		assert.Empty(t, kept)
		assert.False(t, lost)
		kept["bash: 30/minute"], kept["*: 1/second"] = at, at
	})
	update(func(kept limit.Refills, lost bool) {
		assert.True(t, kept["bash: 30/minute"].Equal(at))
		assert.False(t, lost)
		delete(kept, "*: 1/second")
	})
	update(func(kept limit.Refills, lost bool) {
		assert.Len(t, kept, 1, "a shorter text leaves nothing of the longer")
		assert.False(t, lost)
	})
	info, err := os.Stat(filepath.Join(dir, "rates", "a"))
	require.NoError(t, err)
	assert.Equal(t, fs.FileMode(0o600), info.Mode().Perm())
	for _, text := range []string{"{", "null", "\x00\x00", `{"x": 1}`} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, "rates", "a"), []byte(text), 0o600))
		update(func(kept limit.Refills, lost bool) {
			assert.True(t, lost, text)
			kept["x"] = at
		})
	}
}

func TestRatesOfSeveralProcesses(t *testing.T) {
	dir := t.TempDir()
	var all sync.WaitGroup
	for range 8 { // each opens the file separately, as a process does
		all.Go(func() {
			for range 50 {
				assert.NoError(t, RatesOf(dir, "a").Update(func(kept limit.Refills, _ bool) {
					kept["n"] = kept["n"].Add(time.Second)
				}))
			}
		})
	}
	all.Wait()
	assert.NoError(t, RatesOf(dir, "a").Update(func(kept limit.Refills, _ bool) {
		assert.Equal(t, 400*time.Second, kept["n"].Sub(time.Time{}))
	}))
	// If a process holds the lock forever, others fail instead of waiting.
	f, err := os.Open(filepath.Join(dir, "rates", "a"))
	require.NoError(t, err)
	defer f.Close()
	require.NoError(t, unix.Flock(int(f.Fd()), unix.LOCK_EX))
	assert.ErrorIs(t, RatesOf(dir, "a").Update(func(limit.Refills, bool) {}), unix.EWOULDBLOCK)
}
