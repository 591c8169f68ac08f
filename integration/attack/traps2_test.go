package attack

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/integration/harness"
)

const deepLevels = 30 // of 200 bytes: more than PATH_MAX

// deep makes a path longer than PATH_MAX below its working directory, step by
// step, and then uses and removes it the same way.
func deep(args []string) error {
	name := strings.Repeat("n", 200)
	fd, err := unix.Open(args[0], unix.O_PATH|unix.O_DIRECTORY, 0)
	fds := []int{fd}
	for i := 0; i < deepLevels && err == nil; i++ {
		if err = unix.Mkdirat(fd, name, 0o755); err == nil {
			fd, err = unix.Openat(fd, name, unix.O_RDONLY|unix.O_DIRECTORY, 0)
			fds = append(fds, fd)
		}
	}
	if err != nil {
		return fmt.Errorf("level %d: %w", len(fds), err)
	}
	file, err := unix.Openat(fd, "f", unix.O_CREAT|unix.O_RDWR, 0o644)
	if err == nil {
		_, err = unix.Write(file, []byte("deep"))
	}
	var st unix.Stat_t
	steps := []func() error{
		func() error { return unix.Fstatat(fd, "f", &st, unix.AT_SYMLINK_NOFOLLOW) },
		func() error { return unix.Fchmodat(fd, "f", 0o600, 0) },
		func() error { return unix.Fchmod(fd, 0o700) },
		func() error { return unix.Symlinkat("f", fd, "l") },
		func() error { _, err := unix.Readlinkat(fd, "l", make([]byte, 9)); return err },
		func() error { return unix.Linkat(fd, "f", fd, "h", 0) },
		func() error { return unix.Renameat(fd, "h", fd, "g") },
		func() error { return unix.Fsetxattr(file, "user.x", []byte("x"), 0) },
		func() error { return unix.Ftruncate(file, 2) },
		func() error { f, err := unix.Openat(fd, "f", unix.O_RDWR|unix.O_TRUNC, 0); unix.Close(f); return err },
		func() error { n, err := unix.Getdents(fd, make([]byte, 4096)); return notZero(n, err) },
		func() error { return unix.Unlinkat(fd, "g", 0) },
		func() error { return unix.Unlinkat(fd, "l", 0) },
		func() error { return unix.Unlinkat(fd, "f", 0) },
		func() error { return unix.Fchmod(file, 0o644) },
	}
	for i, step := range steps {
		if err == nil {
			if err = step(); err != nil {
				err = fmt.Errorf("step %d: %w", i, err)
			}
		}
	}
	for i := deepLevels - 1; i >= 0 && err == nil; i-- {
		err = unix.Unlinkat(fds[i], name, unix.AT_REMOVEDIR)
	}
	return err
}

func notZero(n int, err error) error {
	if err == nil && n == 0 {
		return unix.ENODATA
	}
	return err
}

func TestTrapDeep(t *testing.T) {
	eachData(t, func(t *testing.T, h *harness.Host) {
		require.NoError(t, harness.Role("deep", h.Scope("trap")).Run(), "without a view it works")
		require.NoError(t, harness.Role("deep", h.View("trap")).Run())
		entries, err := os.ReadDir(h.Scope("trap"))
		require.NoError(t, err)
		assert.Empty(t, entries)
	})
}

// TestTrapManyFiles walks more files than the view may have open.
func TestTrapManyFiles(t *testing.T) {
	h := harness.LayOut(t, map[string]string{"trap": ""})
	require.NoError(t, unix.Mount("none", h.Scope("trap"), "tmpfs", 0, "")) // a disk takes half a minute
	t.Cleanup(func() { assert.NoError(t, unix.Unmount(h.Scope("trap"), unix.MNT_DETACH)) })
	const files, dirs = 30_000, 60
	for d := range dirs {
		dir := h.Scope("trap", fmt.Sprint("d", d))
		require.NoError(t, os.Mkdir(dir, 0o755))
		for f := range files / dirs {
			require.NoError(t, unix.Mknod(fmt.Sprintf("%s/f%d", dir, f), unix.S_IFREG|0o644, 0))
		}
	}
	h.StartWith(1024)
	seen := 0
	require.NoError(t, filepath.WalkDir(h.View("trap"), func(at string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			seen++
			_, err = d.Info()
		}
		return err
	}))
	assert.Equal(t, files, seen)
	for i := range 2000 { // opened and closed, more of them than the limit
		_, err := os.ReadFile(h.View("trap", fmt.Sprintf("d%d/f%d", i%dirs, i%500)))
		require.NoError(t, err)
	}
}

// TestTrapTmpfileLink: a file made without a name gets one.
func TestTrapTmpfileLink(t *testing.T) {
	eachData(t, func(t *testing.T, h *harness.Host) {
		var wg sync.WaitGroup
		for range 4 { // so that the view uses several threads
			wg.Go(func() { _ = harness.HostOps(t, h.View("trap"), slices.Repeat([]string{"list . x"}, 200)...) })
		}
		for i := range 50 {
			assert.Equal(t, []string{"ok"}, harness.HostOps(t, h.View("trap"), fmt.Sprint("tmplink . t", i)))
		}
		wg.Wait()
	})
}
