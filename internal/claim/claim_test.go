package claim

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestClaim: the file is there while one process of this host uses it, and after a crash.
func TestClaim(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "host")
	one, err := Take(name, false)
	require.NoError(t, err)
	two, err := Take(name, false)
	require.NoError(t, err, "of the same host")
	one.Release()
	require.FileExists(t, name, "the other one uses it")
	two.Release()
	two.Release()
	require.NoFileExists(t, name)

	one, err = Take(name, false)
	require.NoError(t, err)
	one.Leave()
	one.Release()
	require.FileExists(t, name)
	one, err = Take(name, false)
	require.NoError(t, err, "after a crash of the same host")
	require.NoError(t, os.WriteFile(name+".new", []byte("0123 elsewhere\n"), 0o600))
	require.NoError(t, os.Rename(name+".new", name))
	one.Release()
	require.FileExists(t, name, "it is another host's now")
	var none *Claim
	none.Leave()
	none.Release()
}

// TestClaimRefused: a file of another host, and what is no such file.
func TestClaimRefused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	other := filepath.Join(dir, "other")
	require.NoError(t, os.WriteFile(other, []byte("0123 elsewhere\n"), 0o600))
	_, err := Take(other, false)
	used, ok := err.(*UsedError)
	require.True(t, ok, "%v", err)
	assert.Equal(t, UsedError{"elsewhere", other}, *used)
	assert.EqualError(t, err, `a daemon of the host "elsewhere" uses it: if that host is gone, remove `+other)

	fifo, link, empty := filepath.Join(dir, "fifo"), filepath.Join(dir, "link"), filepath.Join(dir, "empty")
	require.NoError(t, unix.Mkfifo(fifo, 0o600))
	require.NoError(t, os.Symlink(other, link))
	require.NoError(t, os.WriteFile(empty, nil, 0o600))
	for name, says := range map[string]string{fifo: "no file", link: "symbolic links", empty: "of a daemon that has died"} {
		_, err := Take(name, false)
		assert.ErrorContains(t, err, says, name)
	}
	text, err := os.ReadFile(other)
	require.NoError(t, err)
	assert.Equal(t, "0123 elsewhere\n", string(text))
	c, err := Take(other, true)
	require.NoError(t, err, "the other host is fenced")
	c.Release()
	assert.NoFileExists(t, other)
}

// TestClaimRaces: processes of two hosts take and release one file. Those of two hosts never have it at the same time.
func TestClaimRaces(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "host")
	var using [2]atomic.Int64
	var wg sync.WaitGroup
	for worker := range 8 {
		wg.Go(func() {
			host := worker % 2
			for taken, end := 0, time.Now().Add(time.Minute); taken < 20; {
				if !assert.True(t, time.Now().Before(end), "host %d does not get it", host) {
					return
				}
				c, has, err := open(name, fmt.Appendf(nil, "%d\n", host))
				if c == nil {
					assert.NoError(t, err)
					continue
				}
				if string(has) != fmt.Sprintf("%d\n", host) {
					c.file.Close()
					time.Sleep(time.Millisecond)
					continue
				}
				using[host].Add(1)
				assert.Zero(t, using[1-host].Load(), "both hosts use it")
				time.Sleep(time.Millisecond)
				using[host].Add(-1)
				c.Release()
				taken++
				time.Sleep(20 * time.Millisecond) // for the other host
			}
		})
	}
	wg.Wait()
}
