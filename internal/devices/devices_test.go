package devices

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestStore: two processes, as two stores, see each other's changes, and lose none.
func TestStore(t *testing.T) {
	state := t.TempDir()
	a, err := Open(state)
	require.NoError(t, err)
	defer a.Close()
	b, err := Open(state)
	require.NoError(t, err)
	defer b.Close()
	list, err := a.List()
	require.NoError(t, err)
	assert.Empty(t, list)

	var wait sync.WaitGroup
	for i := range 10 {
		wait.Go(func() {
			s := []*Store{a, b}[i%2]
			assert.NoError(t, s.Add(Device{Name: fmt.Sprint("d", i), ID: fmt.Sprint("id", i), Role: Look, Key: []byte{1}}, "/root"))
		})
	}
	wait.Wait()
	list, err = b.List()
	require.NoError(t, err)
	assert.Len(t, list, 10)
	path, err := a.Path()
	require.NoError(t, err)
	assert.Equal(t, "/root", path)

	assert.ErrorContains(t, b.Add(Device{Name: "d1", ID: "x"}, "/root"), "exists")
	assert.ErrorContains(t, b.Add(Device{Name: "new", ID: "x"}, "/other"), "start this one again")
	now := time.Now().Truncate(time.Second)
	require.NoError(t, a.Update("id3", func(d *Device) { d.Seen = now }))
	got, err := b.Get("id3")
	require.NoError(t, err)
	assert.True(t, got.Seen.Equal(now))

	require.NoError(t, a.Remove("d3"))
	_, err = b.Get("id3")
	require.ErrorIs(t, err, ErrUnknown)
	require.ErrorIs(t, b.Update("id3", func(*Device) {}), ErrUnknown, "what was removed stays removed")
	require.ErrorIs(t, b.Remove("d3"), ErrUnknown)
	for i := range 10 {
		if i != 3 {
			require.NoError(t, b.Remove(fmt.Sprint("d", i)))
		}
	}
	path, err = a.Path()
	require.NoError(t, err)
	assert.Empty(t, path, "the path ends with the last device that knows it")
}

// TestStoreFile: others cannot read the file, and one that is broken lets nobody in.
func TestStoreFile(t *testing.T) {
	state := t.TempDir()
	s, err := Open(state)
	require.NoError(t, err)
	defer s.Close()
	require.NoError(t, s.Add(Device{Name: "phone", ID: "x", Role: All}, "/root"))
	for name, want := range map[string]os.FileMode{"": 0o700, file: 0o600, lock: 0o600} {
		info, err := os.Stat(filepath.Join(Dir(state), name))
		require.NoError(t, err)
		assert.Equal(t, want, info.Mode().Perm(), name)
	}
	for _, text := range []string{"", "{", `{"devices": 1}`, strings.Repeat(" ", maxFile+1)} {
		require.NoError(t, os.WriteFile(filepath.Join(Dir(state), file), []byte(text), 0o600))
		_, err := s.Get("x")
		assert.ErrorContains(t, err, "pair the devices again")
		assert.ErrorContains(t, s.Add(Device{Name: "y", ID: "y"}, "/root"), "pair the devices again")
	}
}

func TestRoles(t *testing.T) {
	for role, may := range map[Role][]bool{Look: {true, false, false}, Decide: {true, true, false}, All: {true, true, true}, "": {false, false, false}, "root": {false, false, false}} {
		for i, need := range Roles {
			assert.Equal(t, may[i], role.Covers(need), "%s for %s", role, need)
		}
		assert.False(t, role.Covers(""), "a page without a role is nobody's")
	}
}

func TestNames(t *testing.T) {
	for _, name := range []string{"phone", "a", "my-phone.2", strings.Repeat("a", 32)} {
		assert.NoError(t, CheckName(name))
	}
	for _, name := range []string{"", "-x", "A", "a b", "a\n", "a/b", "ä", strings.Repeat("a", 33), "a\u202e"} {
		assert.Error(t, CheckName(name), name)
	}
}

// TestHostile: a console's process that an attacker has taken over blocks neither the daemon nor the operator's commands.
func TestHostile(t *testing.T) {
	bounds := func(t *testing.T, f func() error) {
		t.Helper()
		done := make(chan error, 1)
		go func() { done <- f() }()
		select {
		case err := <-done:
			assert.Error(t, err)
		case <-time.After(30 * time.Second):
			require.Fail(t, "it blocks")
		}
	}
	for _, name := range []string{file, lock} {
		t.Run("a FIFO in place of "+name, func(t *testing.T) {
			s, err := Open(t.TempDir())
			require.NoError(t, err)
			defer s.Close()
			fifo := filepath.Join(s.root.Name(), name)
			require.NoError(t, unix.Mkfifo(fifo, 0o600))
			if name == file {
				bounds(t, func() error { _, err := s.List(); return err })
			}
			bounds(t, func() error { return s.Remove("phone") })
		})
	}
	t.Run("the lock is held", func(t *testing.T) {
		s, err := Open(t.TempDir())
		require.NoError(t, err)
		defer s.Close()
		s.wait = 50 * time.Millisecond
		held, err := s.root.OpenFile(lock, os.O_CREATE|os.O_RDWR, 0o600)
		require.NoError(t, err)
		defer held.Close()
		require.NoError(t, unix.Flock(int(held.Fd()), unix.LOCK_EX))
		bounds(t, func() error { return s.Remove("phone") })
	})
	t.Run("a FIFO for the next content", func(t *testing.T) {
		s, err := Open(t.TempDir())
		require.NoError(t, err)
		defer s.Close()
		require.NoError(t, unix.Mkfifo(filepath.Join(s.root.Name(), "."+file), 0o600))
		assert.NoError(t, s.Add(Device{Name: "phone", ID: "id", Role: Look}, "/root"))
	})
}
