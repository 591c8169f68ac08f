package view

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/scope/beneath"
)

// TestTaskParties: what the caller's user puts in the place of a task's file is not written through, and neither delays a daemon
// nor counts.
func TestTaskParties(t *testing.T) {
	dir := t.TempDir()
	state, err := beneath.OpenDir(dir)
	require.NoError(t, err)
	defer state.Close()
	name, secret := filepath.Join(dir, partiesName), filepath.Join(t.TempDir(), "secret")
	want := Parties{"a", "b"}
	require.NoError(t, want.Write(state))
	got, err := ReadParties(dir)
	require.NoError(t, err)
	assert.Equal(t, want, got)

	text, err := os.ReadFile(name)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(secret, text, 0o600))
	for what, forge := range map[string]func() error{
		"FIFO":      func() error { return unix.Mkfifo(name, 0o600) },
		"link":      func() error { return os.Symlink(secret, name) },
		"hard link": func() error { return os.Link(secret, name) },
		"device":    func() error { return os.Symlink("/dev/zero", name) },
		"directory": func() error { return os.Mkdir(name, 0o700) },
		"huge":      func() error { return errors.Join(os.WriteFile(name, text, 0o600), os.Truncate(name, 1<<40)) },
		"another user's": func() error {
			if os.Geteuid() != 0 {
				return os.WriteFile(name, nil, 0o600) // only root can give it away
			}
			return errors.Join(os.WriteFile(name, text, 0o600), os.Chown(name, 4321, 4321))
		},
	} {
		require.NoError(t, os.RemoveAll(name))
		require.NoError(t, forge(), what)
		require.Error(t, want.Write(state), what)
		_, err := ReadParties(dir)
		require.Error(t, err, what)
	}
	now, err := os.ReadFile(secret)
	require.NoError(t, err)
	assert.Equal(t, text, now)
}
