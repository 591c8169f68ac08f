package branch

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/need"
)

// inMemory mounts an ext4 whose disk is memory, and returns its directory: inodes, names and links behave as on a disk, and fsync, for
// which a model waits most of its time, costs nothing. Where the host has no loop devices, it returns a directory of the disk.
func inMemory(t *testing.T) string {
	t.Helper()
	need.Root(t, "it mounts a view")
	dir := t.TempDir()
	memory, at := filepath.Join(dir, "memory"), filepath.Join(dir, "at")
	require.NoError(t, os.Mkdir(memory, 0o700))
	require.NoError(t, os.Mkdir(at, 0o755))
	require.NoError(t, unix.Mount("tmpfs", memory, "tmpfs", 0, "size=300m"))
	unmount(t, memory)
	disk := filepath.Join(memory, "ext4")
	require.NoError(t, os.WriteFile(disk, nil, 0o600))
	require.NoError(t, os.Truncate(disk, 256<<20))
	out, err := exec.Command("mkfs.ext4", "-q", "-F", "-m", "0", disk).CombinedOutput()
	require.NoError(t, err, "mkfs.ext4: %s", out)
	if out, err := exec.Command("mount", "-o", "loop", disk, at).CombinedOutput(); err != nil {
		t.Logf("on the disk: mount: %v: %s", err, out)
		return at
	}
	unmount(t, at)
	return at
}

// unmount detaches a mount when the test ends: the kernel may still hold files of a view that has ended.
func unmount(t *testing.T, at string) {
	t.Cleanup(func() { assert.NoError(t, unix.Unmount(at, unix.MNT_DETACH)) })
}

// seeds runs a model with each seed: few of them in make test, all in make test-all. The ranges of seeds run in processes of their own,
// side by side: a program that a process starts for one seed would wait for the frozen view of another seed, whose files it inherits until
// its execve(2). To repeat seed 40 alone: BRANCH_SEEDS="40 41" go test -run '^TestModel$'.
func seeds(t *testing.T, few, all int, model func(t *testing.T, seed uint64, top string)) {
	need.Once(t)
	at := os.Getenv("BRANCH_AT")
	if at == "" {
		at = inMemory(t)
	}
	if text, ok := os.LookupEnv("BRANCH_SEEDS"); ok {
		var from, to uint64
		_, err := fmt.Sscan(text, &from, &to)
		require.NoError(t, err)
		for seed := range to - from {
			t.Run(fmt.Sprint(from+seed), func(t *testing.T) {
				top := filepath.Join(at, t.Name())
				require.NoError(t, os.MkdirAll(top, 0o755))
				t.Cleanup(func() { assert.NoError(t, os.RemoveAll(top)) })
				model(t, from+seed, top)
			})
		}
		return
	}
	const each = 25
	count := need.Rounds("SCOPEFS_TEST_BRANCH_SEEDS", few, all)
	for from := 0; from < count; from += each {
		to := min(from+each, count)
		t.Run(fmt.Sprintf("%d-%d", from, to-1), func(t *testing.T) {
			t.Parallel()
			// The timeout is below the limits of go test and of progress, which print the goroutines of this process alone.
			child := exec.Command(os.Args[0], "-test.run=^"+filepath.Dir(t.Name())+"$", "-test.timeout=9m")
			child.Env = append(os.Environ(), "BRANCH_AT="+at, fmt.Sprintf("BRANCH_SEEDS=%d %d", from, to))
			child.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
			out, err := child.CombinedOutput()
			require.NoError(t, err, "%s", out)
		})
	}
}
