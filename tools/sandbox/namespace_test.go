package sandbox

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/pinned"
)

// mountPoints are those of a thread's namespace, in the order of the kernel.
func mountPoints(t *testing.T, thread string) (all []string) {
	t.Helper()
	text, err := os.ReadFile("/proc/" + thread + "/mountinfo")
	require.NoError(t, err)
	for line := range strings.Lines(string(text)) {
		all = append(all, strings.Fields(line)[4])
	}
	return all
}

// mountsBelow counts the mount points at and below a directory.
func mountsBelow(all []string, dir string) (n int) {
	for _, at := range all {
		if strings.HasPrefix(at+"/", dir+"/") {
			n++
		}
	}
	return n
}

func TestStartAmong(t *testing.T) {
	needRoot(t, "it mounts")
	top := t.TempDir()
	mount := func(rel string) string {
		at := filepath.Join(top, rel)
		require.NoError(t, os.MkdirAll(at, 0o755))
		require.NoError(t, unix.Mount("none", at, "tmpfs", 0, "size=64k"))
		t.Cleanup(func() { assert.NoError(t, unix.Unmount(at, unix.MNT_DETACH)) })
		return at
	}
	// Shared, as systemd has all mounts: what is mounted in the new namespace must
	// not come back.
	shared := mount("shared")
	require.NoError(t, unix.Mount("", shared, "", unix.MS_SHARED, ""))
	for i := range 5 {
		mount(fmt.Sprintf("shared/%d", i))
	}
	all := mountPoints(t, "self")
	kept := slices.Compact(slices.Sorted(slices.Values(all)))
	kept = slices.DeleteFunc(kept, func(at string) bool { // other tests' come and go
		first, _, _ := strings.Cut(at[1:], "/")
		return at != shared && at != shared+"/3" && !slices.Contains([]string{"", "proc", "sys", "dev", "usr", "etc"}, first)
	})

	t.Run("namespace", func(t *testing.T) {
		var inside, after []string
		other := pinned.Start()
		require.NoError(t, other.Do(func() error {
			defer func() { inside = mountPoints(t, "thread-self") }()
			return enter(kept)
		}))
		other.Stop()
		slices.Sort(inside)
		assert.Equal(t, kept, inside)
		after = mountPoints(t, "self")
		assert.Equal(t, 6, mountsBelow(after, shared), "mounts that came back to the host")
	})

	t.Run("sandbox", func(t *testing.T) {
		s := newTestSession(t, func(spec *Spec) { spec.Mounts = kept })
		assert.Equal(t, "here\n", sh(t, s, "echo here"))
		assert.Equal(t, 2, mountsBelow(mountPoints(t, fmt.Sprint(s.bwrap.Process.Pid)), shared))
		all := newTestSession(t)
		assert.Equal(t, 6, mountsBelow(mountPoints(t, fmt.Sprint(all.bwrap.Process.Pid)), shared), "the thread has come back")
		assert.Equal(t, 6, mountsBelow(mountPoints(t, "self"), shared))
	})

	t.Run("what has gone", func(t *testing.T) {
		s := newTestSession(t, func(spec *Spec) { spec.Mounts = append(slices.Clone(kept), filepath.Join(top, "gone")) })
		assert.Equal(t, 6, mountsBelow(mountPoints(t, fmt.Sprint(s.bwrap.Process.Pid)), shared), "it starts among all")
	})
}

// TestAsideAlone: bwrap sees none of the host's mounts below the place for its own, and the host keeps them.
func TestAsideAlone(t *testing.T) {
	needRoot(t, "it mounts")
	dir, err := os.Open(t.TempDir())
	require.NoError(t, err)
	defer dir.Close()
	home, err := detached(dir, 0)
	require.NoError(t, err)
	defer home.Close()
	before, inside := mountsBelow(mountPoints(t, "self"), aside), 0
	other := pinned.Start()
	defer other.Stop()
	require.NoError(t, other.Do(func() error {
		_, err := startIn(nil, asides{mounts: map[string]*os.File{asideHome: home}}, func() error {
			inside = mountsBelow(mountPoints(t, "thread-self"), aside)
			return nil
		})
		return err
	}))
	assert.Equal(t, 2, inside, "the place, and HOME")
	assert.Equal(t, before, mountsBelow(mountPoints(t, "self"), aside))
}
