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
		return !below(shared, at) && at != shared+"/3" && !slices.Contains([]string{"", "proc", "sys", "dev", "usr", "etc"}, first)
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
		shows := 0
		if !below(s.host.starter.bwrap, "/usr") { // see needed
			shows = 6
		}
		assert.Equal(t, shows, mountsBelow(mountPoints(t, fmt.Sprint(s.bwrap.Process.Pid)), shared), "it shows nothing of them")
		all := newTestSession(t)
		assert.Equal(t, 6, mountsBelow(mountPoints(t, fmt.Sprint(all.bwrap.Process.Pid)), shared), "the thread has come back")
		assert.Equal(t, 6, mountsBelow(mountPoints(t, "self"), shared))
	})

	t.Run("what has gone", func(t *testing.T) {
		s := newTestSession(t, func(spec *Spec) { spec.Mounts = append(slices.Clone(kept), "/usr/gone") })
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

// TestNeeded: bwrap gets the mounts at, above and below what a plan shows, where links lead as well, and no others.
func TestNeeded(t *testing.T) {
	top := t.TempDir()
	file, link := filepath.Join(top, "disk", "file"), filepath.Join(top, "link")
	require.NoError(t, os.Mkdir(filepath.Dir(file), 0o755))
	require.NoError(t, os.WriteFile(file, nil, 0o644))
	require.NoError(t, os.Symlink(file, link))
	view, err := os.Open(top)
	require.NoError(t, err)
	mounts := []string{"/", "/dev", "/dev/pts", "/proc", "/proc/sys/fs/binfmt_misc", "/snap/a/1", "/sys", "/usr/share", filepath.Dir(file), top + "/other", top + "other"}
	wanted := []string{"/", "/dev", "/proc", "/proc/sys/fs/binfmt_misc", "/usr/share", filepath.Dir(file)}
	h, p := &Host{starter: starter{bwrap: "/usr/bin/bwrap"}}, &plan{args: []string{"--ro-bind-try", link, "/etc/resolv.conf"}}
	defer p.close()
	assert.Equal(t, wanted, h.needed(p, mounts))
	assert.Equal(t, file, p.args[1], "bwrap follows no link through a mount that it does not have")
	p.fd("--bind-fd", view, Workspace)
	assert.Equal(t, append(wanted, top+"/other"), h.needed(p, mounts), "below the view")
	assert.Nil(t, h.needed(p, nil))
	assert.Nil(t, (&Host{starter: starter{bwrap: "/opt/bwrap"}}).needed(p, mounts), "its libraries may be on any mount")
}

// TestSmall: a directory is copied that has few files, which every user may read.
func TestSmall(t *testing.T) {
	for name, c := range map[string]struct {
		dir    os.FileMode
		file   os.FileMode
		files  int
		link   bool
		copied bool
	}{
		"few":           {dir: 0o755, file: 0o644, files: maxSmall, copied: true},
		"empty":         {dir: 0o755, copied: true},
		"many":          {dir: 0o755, file: 0o644, files: maxSmall + 1},
		"a closed file": {dir: 0o755, file: 0o640, files: 1},
		"closed":        {dir: 0o750, file: 0o644, files: 1},
		"a link":        {dir: 0o755, link: true},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "of")
			require.NoError(t, os.Mkdir(dir, 0o755))
			for i := range c.files {
				at := filepath.Join(dir, fmt.Sprint(i))
				require.NoError(t, os.WriteFile(at, []byte("text"), 0o644))
				require.NoError(t, os.Chmod(at, c.file))
			}
			if c.link {
				require.NoError(t, os.Symlink("/etc/shadow", filepath.Join(dir, "link")))
			}
			require.NoError(t, os.Chmod(dir, c.dir))
			p := &plan{}
			defer p.close()
			assert.Equal(t, c.copied, p.small(dir))
			if assert.Len(t, p.files, map[bool]int{true: c.files}[c.copied]); !c.copied {
				assert.Empty(t, p.args)
			}
		})
	}
}
