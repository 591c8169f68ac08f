package daemon

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/fs/history"
	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/internal/need"
)

func init() { harness.Roles["fill"] = fillQuota }

// fills are the ways in which a program can make files grow. Each goes on until an error, in a directory of its own.
var fills = map[string]func(dir string) error{
	"write": func(dir string) error {
		return opened(dir, func(f *os.File) error {
			for {
				if _, err := f.Write(make([]byte, 128<<10)); err != nil {
					return err
				}
			}
		})
	},
	"append": func(dir string) error {
		f, err := os.OpenFile(dir+"/append", os.O_APPEND|os.O_WRONLY|os.O_CREATE, 0o600)
		if err != nil {
			return err
		}
		defer f.Close()
		for err == nil {
			_, err = f.Write(make([]byte, 64<<10))
		}
		return err
	},
	"unlinked": func(dir string) error {
		return opened(dir, func(f *os.File) error {
			if err := os.Remove(f.Name()); err != nil {
				return err
			}
			for {
				if _, err := f.Write(make([]byte, 128<<10)); err != nil {
					return err
				}
			}
		})
	},
	"tmpfile": func(dir string) error {
		fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_RDWR, 0o600)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		for err == nil {
			_, err = unix.Write(fd, make([]byte, 128<<10))
		}
		return err
	},
	"fallocate": func(dir string) error {
		return opened(dir, func(f *os.File) error {
			for i := int64(0); ; i++ {
				if err := unix.Fallocate(int(f.Fd()), 0, i<<20, 1<<20); err != nil {
					return err
				}
			}
		})
	},
	"keep size": func(dir string) error {
		return opened(dir, func(f *os.File) error {
			for i := int64(0); ; i++ {
				if err := unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_KEEP_SIZE, i<<20, 1<<20); err != nil {
					return err
				}
			}
		})
	},
	"holes": func(dir string) error {
		return opened(dir, func(f *os.File) error {
			if err := f.Truncate(1 << 30); err != nil {
				return err
			}
			for i := int64(0); ; i++ {
				if _, err := f.WriteAt(make([]byte, 64<<10), i*(64<<10)); err != nil {
					return err
				}
			}
		})
	},
	"blocks behind the end": func(dir string) error { // as many as the bytes to be written
		return opened(dir, func(f *os.File) error {
			const mib = 8
			if err := unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_KEEP_SIZE, 1<<30, mib<<20); err != nil {
				return err
			}
			for i := int64(0); i < 64; i++ {
				if err := f.Truncate((i + 1) << 20); err != nil {
					return err
				}
				if _, err := f.WriteAt(make([]byte, 1<<20), i<<20); err != nil {
					_ = f.Sync()
					return err
				}
			}
			return nil
		})
	},
	"mmap": func(dir string) error {
		return opened(dir, func(f *os.File) error {
			const size = 256 << 20
			if err := f.Truncate(size); err != nil {
				return err
			}
			p, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
			if err != nil {
				return err
			}
			defer unix.Munmap(p)
			for i := 0; i < size; i += 4 << 20 {
				for j := range 4 << 20 {
					p[i+j] = 1
				}
				if err := unix.Msync(p[i:i+4<<20], unix.MS_SYNC); err != nil {
					return err
				}
			}
			return nil
		})
	},
	"copy_file_range": func(dir string) error {
		return opened(dir, func(f *os.File) error {
			if _, err := f.Write(make([]byte, 1<<20)); err != nil {
				return err
			}
			to, err := os.Create(f.Name() + "2")
			if err != nil {
				return err
			}
			defer to.Close()
			for {
				from := int64(0)
				if _, err := unix.CopyFileRange(int(f.Fd()), &from, int(to.Fd()), nil, 1<<20, 0); err != nil {
					return err
				}
			}
		})
	},
	"splice": func(dir string) error {
		return opened(dir, func(f *os.File) error {
			var pipe [2]int
			if err := unix.Pipe(pipe[:]); err != nil {
				return err
			}
			for {
				if _, err := unix.Write(pipe[1], make([]byte, 64<<10)); err != nil {
					return err
				}
				if _, err := unix.Splice(pipe[0], nil, int(f.Fd()), nil, 64<<10, 0); err != nil {
					return err
				}
			}
		})
	},
	"small files": func(dir string) error {
		return many(dir, func(name string) error { return os.WriteFile(name, []byte("x"), 0o600) })
	},
	"empty files": func(dir string) error {
		return many(dir, func(name string) error { return os.WriteFile(name, nil, 0o600) })
	},
	"directories": func(dir string) error { return many(dir, func(name string) error { return os.Mkdir(name, 0o700) }) },
	"links": func(dir string) error {
		return many(dir, func(name string) error { return os.Symlink(strings.Repeat("x", 1000), name) })
	},
	"fifos": func(dir string) error { return many(dir, func(name string) error { return unix.Mkfifo(name, 0o600) }) },
	"xattrs": func(dir string) error {
		return many(dir, func(name string) error {
			if err := os.WriteFile(name, nil, 0o600); err != nil {
				return err
			}
			return unix.Setxattr(name, "user.x", make([]byte, 600), 0)
		})
	},
	"replaced": func(dir string) error { // each rename removes a file, and another is made
		return many(dir, func(name string) error {
			if err := os.WriteFile(name, make([]byte, 256<<10), 0o600); err != nil {
				return err
			}
			return os.Link(name, name+"l")
		})
	},
}

func opened(dir string, do func(*os.File) error) error {
	f, err := os.Create(dir + "/f")
	if err != nil {
		return err
	}
	defer f.Close()
	if err := do(f); err != nil {
		return err
	}
	return f.Sync()
}

func many(dir string, do func(name string) error) error {
	for i := range 100_000 {
		if err := do(fmt.Sprintf("%s/%d%s", dir, i, strings.Repeat("n", 200))); err != nil {
			return err
		}
	}
	return nil
}

// fillQuota fills the current directory in one way, and says how that ended.
func fillQuota(args []string) error {
	fmt.Println(harness.ErrnoOf(fills[args[0]](".")))
	return nil
}

// allocated returns what is allocated below directories, each object once, and how many objects there are.
func allocated(t testing.TB, dirs ...string) (bytes, files int64) {
	seen := map[uint64]bool{}
	for _, dir := range dirs {
		require.NoError(t, filepath.Walk(dir, func(_ string, info os.FileInfo, err error) error {
			if err != nil {
				if os.IsNotExist(err) { // the history gives room back meanwhile
					return nil
				}
				return err
			}
			st := info.Sys().(*syscall.Stat_t)
			if !seen[st.Ino] {
				seen[st.Ino] = true
				bytes, files = bytes+st.Blocks*512, files+1
			}
			return nil
		}))
	}
	return bytes, files
}

// quotaMiB and quotaFiles are the limits of agent a.
const quotaMiB, quotaFiles = 24, 500

// quotaHost is a host on whose disk agent a has a limit, and b has none.
type quotaHost struct {
	*harness.Host
	dirs []string // that count as a's
}

func limited(t *testing.T, keys string) *quotaHost {
	h := harness.LayOut(t, nil)
	srv := filepath.Join(h.Base, "srv")
	require.NoError(t, os.Mkdir(srv, 0o755))
	harness.NewDisk(t, srv)
	q := &quotaHost{h, nil}
	for _, dir := range []string{"a", "b", "history"} {
		require.NoError(t, os.Mkdir(filepath.Join(srv, dir), 0o711))
	}
	h.Define("a", fmt.Sprintf("dir: %s/a\nlimits: {disk: %dMiB, files: %d}\nhistory: {size: 1MiB, dir: %s/history}\n%s", srv, quotaMiB, quotaFiles, srv, keys))
	h.Define("b", "dir: "+srv+"/b")
	q.dirs = []string{srv + "/a"}
	if strings.Contains(keys, "kept") {
		q.dirs = append(q.dirs, srv+"/history/a")
	}
	harness.Plant(t, srv+"/a", "f", "old")
	harness.Plant(t, srv+"/b", "f")
	return q
}

// counted waits for the first count.
func (h *quotaHost) counted() {
	h.T.Helper()
	h.Eventually("it is counted", func() bool { return !h.Agent("a").Disk.Counting && h.Agent("a").Disk.Bytes > 0 })
}

// TestQuota: an agent with limits.disk writes in every way until the limit. The limit holds, removal gives the space back,
// another agent and the log go on, and df shows it.
func TestQuota(t *testing.T) {
	t.Parallel()
	for kind, keys := range map[string]string{
		"direct": "view: {xattrs: true}", "kept": "view: {xattrs: true, changes: kept}",
	} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			h := limited(t, keys)
			h.Start()
			h.counted()
			for way := range fills {
				t.Run(way, func(t *testing.T) {
					cmd := harness.Role("fill")
					cmd.Args = append(cmd.Args, way)
					cmd.Dir = h.View("a", "fill")
					h.Eventually("the history has given room back", func() bool { return os.Mkdir(cmd.Dir, 0o700) == nil })
					out, err := cmd.Output()
					require.NoError(t, err, "%s", out)
					bytes, files := allocated(t, h.dirs...)
					t.Logf("%s: %s, %d KiB in %d files", way, strings.TrimSpace(string(out)), bytes>>10, files)
					assert.Contains(t, []string{"EDQUOT", "EIO"}, strings.TrimSpace(string(out)))
					assert.LessOrEqual(t, bytes, int64(quotaMiB+2)<<20)
					most := int64(quotaFiles + 1)
					if kind == "kept" {
						most += 2 // the history makes a generation's directory and journal when it must
					}
					assert.LessOrEqual(t, files, most)
					assert.NoError(t, os.WriteFile(h.View("b", "f"), make([]byte, 64<<10), 0o600), "its neighbour goes on")
					var st unix.Statfs_t
					require.NoError(t, unix.Statfs(h.View("a"), &st))
					assert.EqualValues(t, quotaMiB<<20, st.Blocks*uint64(st.Frsize))
					require.NoError(t, os.RemoveAll(cmd.Dir))
					h.Eventually("the space is given back", func() bool {
						bytes, files := allocated(t, h.dirs...)
						use := h.Agent("a").Disk
						if kind == "kept" { // small files of the history count at the next walk
							return max(use.Bytes-bytes, bytes-use.Bytes) < 256<<10 && max(use.Files-files, files-use.Files) < 16
						}
						return use.Bytes == bytes && use.Files == files
					})
				})
			}
		})
	}
}

// TestQuotaRecount: what is open without a name counts on after the files are counted again.
func TestQuotaRecount(t *testing.T) {
	h := limited(t, "view: {changes: kept}")
	h.Start()
	h.counted()
	f, err := os.Create(h.View("a", "unlinked"))
	require.NoError(t, err)
	defer f.Close()
	_, err = f.Write(make([]byte, 16<<20))
	require.NoError(t, err)
	require.NoError(t, os.Remove(f.Name()))
	h.Eventually("it has counted", func() bool { return h.Agent("a").Disk.Bytes > 16<<20 })
	for i := range int64(2) {
		before := h.Agent("a").Disk.Bytes
		require.NoError(t, os.WriteFile(filepath.Join(h.dirs[0], fmt.Sprint(i)), make([]byte, 1<<20), 0o644), "by the host")
		h.Try("undo", "a", "--since", "1ms")
		h.Eventually("it is counted again", func() bool { return h.Agent("a").Disk.Bytes != before })
		assert.Greater(t, h.Agent("a").Disk.Bytes, (17+i)<<20)
	}
}

// TestQuotaBlocks: what the history keeps of a large file, block by block, counts; it counts no more when the history gives it up.
func TestQuotaBlocks(t *testing.T) {
	h := limited(t, "view: {changes: kept}")
	at := filepath.Join(h.dirs[0], "large")
	large, err := os.Create(at)
	require.NoError(t, err)
	defer large.Close()
	_, err = large.Write(make([]byte, 8<<20))
	require.NoError(t, err)
	require.NoError(t, large.Truncate(history.MaxCopy+1))
	harness.Plant(t, h.dirs[0], "other="+strings.Repeat("x", 6<<20))
	h.Start()
	h.counted()
	matches := func() bool {
		bytes, files := allocated(t, h.dirs...)
		use := h.Agent("a").Disk
		return max(use.Bytes-bytes, bytes-use.Bytes) < 256<<10 && max(use.Files-files, files-use.Files) < 16
	}
	f, err := os.OpenFile(h.View("a", "large"), os.O_WRONLY, 0)
	require.NoError(t, err)
	_, err = f.Write(make([]byte, 4<<20))
	require.NoError(t, err)
	require.NoError(t, f.Close())
	h.Eventually("what is kept counts", matches)
	require.NoError(t, os.Remove(h.View("a", "large")))
	assert.ErrorIs(t, os.WriteFile(h.View("a", "more"), make([]byte, (quotaMiB+1)<<20), 0o600), syscall.EDQUOT)
	require.NoError(t, os.Remove(h.View("a", "more")))
	h.Eventually("what is given up does not", func() bool { return h.Agent("a").Disk.Bytes < 7<<20 && matches() })
}

// TestQuotaHeld: what a view copies needs room, and a file of the scope that goes gives none back.
func TestQuotaHeld(t *testing.T) {
	h := limited(t, "view: {changes: held}")
	require.NoError(t, os.WriteFile(filepath.Join(h.dirs[0], "large"), make([]byte, 32<<20), 0o666))
	require.NoError(t, os.WriteFile(filepath.Join(h.dirs[0], "gone"), make([]byte, 16<<20), 0o666))
	h.Start()
	h.Eventually("it is counted", func() bool { return !h.Agent("a").Disk.Counting })
	large, gone := h.View("a", "large"), h.View("a", "gone")
	_, err := os.OpenFile(large, os.O_RDWR, 0)
	assert.ErrorIs(t, err, syscall.EDQUOT)
	assert.ErrorIs(t, os.Chmod(large, 0o644), syscall.EDQUOT)
	require.NoError(t, os.Rename(large, large+"2"), "nothing is copied")
	assert.ErrorIs(t, os.Link(large+"2", large), syscall.EDQUOT)
	f, err := os.Open(gone)
	require.NoError(t, err)
	require.NoError(t, os.Remove(gone))
	require.NoError(t, f.Close())
	assert.ErrorIs(t, os.WriteFile(h.View("a", "more"), make([]byte, (quotaMiB+1)<<20), 0o600), syscall.EDQUOT)
}

// TestQuotaAlarm: the log has one event when an agent comes near its limit, and another one after it was well below.
func TestQuotaAlarm(t *testing.T) {
	t.Parallel()
	h := harness.NewHost(t, map[string]string{"a": "limits: {disk: 10MiB}"})
	h.Eventually("it is counted", func() bool { return !h.Agent("a").Disk.Counting })
	alarms := func(outcome string) (n int) {
		for _, e := range h.Events("a") {
			if e.Event == audit.KindAgent && e.Outcome == outcome {
				n++
			}
		}
		return n
	}
	for round := 1; round <= 2; round++ {
		f, err := os.Create(h.View("a", "f"))
		require.NoError(t, err)
		for i := range 3 { // three times above it is one alarm
			_, err := f.WriteAt(make([]byte, 19<<19), 0)
			require.NoError(t, err)
			if i == 0 {
				h.Eventually("there is an alarm", func() bool { return alarms("nearly full") == round })
			}
		}
		require.NoError(t, f.Close())
		require.NoError(t, os.Remove(h.View("a", "f")))
		h.Eventually("it is well below", func() bool { return alarms("has room") == round })
	}
	assert.Contains(t, h.Must("ps"), "of 10.0 MiB")
	assert.Equal(t, 2, alarms("nearly full"))
}

// TestQuotaBranch: what an agent's branch has counts as the agent's. It is copied from the agent's files when it is written.
func TestQuotaBranch(t *testing.T) {
	h := limited(t, "")
	h.Define("br", "branch: a")
	require.NoError(t, os.WriteFile(h.Base+"/srv/a/big", make([]byte, 8<<20), 0o644))
	h.Start()
	h.counted()
	h.Eventually("the branch is mounted", func() bool { return h.Agent("br").State == "mounted" })
	before := h.Agent("a").Disk.Bytes
	f, err := os.OpenFile(h.View("br", "big"), os.O_WRONLY, 0)
	require.NoError(t, err)
	require.NoError(t, f.Close())
	h.Eventually("the copy counts", func() bool { return h.Agent("a").Disk.Bytes >= before+8<<20 })
	for _, id := range []string{"br", "a"} {
		assert.ErrorIs(t, os.WriteFile(h.View(id, "more"), make([]byte, 12<<20), 0o600), syscall.EDQUOT, id)
		require.NoError(t, os.Remove(h.View(id, "more")))
	}
	h.Stop()
}

// TestQuotaRewrites: a file that is written again and again does not let the history grow beyond the limit.
func TestQuotaRewrites(t *testing.T) {
	t.Parallel()
	h := limited(t, "view: {changes: kept}")
	h.Start()
	h.counted()
	for i := range need.Rounds("SCOPEFS_TEST_ROUNDS", 3000, 10_000) { // more than twice the limit
		if err := os.WriteFile(h.View("a", "old"), make([]byte, 20<<10), 0o600); err != nil {
			require.ErrorIs(t, err, syscall.EDQUOT, "%d", i)
		}
	}
	bytes, _ := allocated(t, h.dirs...)
	assert.LessOrEqual(t, bytes, int64(quotaMiB+2)<<20)
	require.NoError(t, os.WriteFile(h.View("b", "f"), []byte("x"), 0o600))
	h.Stop()
}

// TestAttackLimitHistory: an agent that reaches its limit, with files or with what its changes destroy, gets EDQUOT, and the undo of an
// earlier session stays. What its changes beyond a quarter of the limit cost is said beforehand.
func TestAttackLimitHistory(t *testing.T) {
	h := limited(t, "view: {changes: kept}")
	h.Define("a", fmt.Sprintf("dir: %s\nlimits: {disk: %dMiB, files: %d}\nhistory: {dir: %s}\nview: {changes: kept}", h.dirs[0],
		quotaMiB, quotaFiles, filepath.Dir(h.dirs[1])))
	harness.Plant(t, h.dirs[0], "precious=mine")
	h.Start()
	h.counted()
	h.Must("run", "-q", "a", "--", "rm", "precious")
	h.Must("down", "a") // it ends what the session has kept
	h.Must("up", "a")
	h.counted()
	pruned := func() (outcomes []string) {
		for _, e := range h.Events("a") {
			if e.Event == audit.KindHistory && e.Op == "pruned" {
				outcomes = append(outcomes, e.Outcome)
			}
		}
		return outcomes
	}
	fill := "head -c 40000000 /dev/zero >big; "
	_, stderr, _ := h.Try("run", "-q", "a", "--", "sh", "-c", "for i in 1 2 3 4 5 6; do "+fill+"rm big; done; "+fill)
	assert.Contains(t, stderr, "Disk quota exceeded")
	_, stderr, _ = h.Try("run", "-q", "a", "--", "sh", "-c", "for i in $(seq 600); do : >n$i || break; done")
	assert.Contains(t, stderr, "Disk quota exceeded")
	assert.Empty(t, pruned())
	h.Must("undo", "a", "--since", "1h", "precious")
	assert.FileExists(t, filepath.Join(h.dirs[0], "precious"))
	h.Must("run", "-q", "a", "--", "sh", "-c", "rm -f big n*")
	h.Eventually("the history is over its part", func() bool {
		h.Try("run", "-q", "a", "--", "sh", "-c", "head -c 3000000 /dev/urandom >churn")
		return len(pruned()) > 1
	})
	assert.Equal(t, []string{"nearly full", "done"}, pruned()[:2])
	h.Stop()
}

// TestQuotaHome: what an agent has in a lasting HOME counts with its files. It cannot fill the file system of the log, and
// programs work there as before.
func TestQuotaHome(t *testing.T) {
	t.Parallel()
	h := harness.LayOut(t, map[string]string{"a": "limits: {disk: 24MiB}\nsandbox: {home: lasting}", "b": "sandbox: {home: lasting}"})
	state := filepath.Join(h.Base, "state")
	require.NoError(t, os.Mkdir(state, 0o700))
	harness.NewDisk(t, state)
	h.Start()
	h.Must("run", "a", "--", "sh", "-c", `cd && echo x > f && ln -s /home/agent/f to && cat to && mkfifo p && mkdir -p a/b && mv f a/b/ &&
		printf '#!/bin/sh\necho runs\n' > s && chmod +x s && ./s`)
	h.Must("run", "b", "--", "sh", "-c", "echo x > ~/f")
	assert.DirExists(t, filepath.Join(state, "home", "a", "a", "b"))
	out, errText, code := h.Try("run", "a", "--", "sh", "-c", "dd if=/dev/zero of=$HOME/big bs=1M count=200; df -k $HOME | tail -1")
	assert.Zero(t, code)
	assert.Contains(t, errText, "Disk quota exceeded", "%s", out)
	bytes, _ := allocated(t, filepath.Join(state, "home", "a"))
	assert.LessOrEqual(t, bytes, int64(25<<20))
	_, errText, _ = h.Try("run", "a", "--", "dd", "if=/dev/zero", "of=/workspace/f", "bs=1M", "count=4")
	assert.Contains(t, errText, "Disk quota exceeded", "HOME and files count together")
	h.Must("run", "b", "--", "sh", "-c", "echo y > ~/f && echo y > /workspace/f")
	h.Must("run", "a", "--", "sh", "-c", "rm ~/big && dd if=/dev/zero of=/workspace/f bs=1M count=4")
	assert.Zero(t, h.Mounted(filepath.Join(h.Base, "run", "views", "home-b")), "no limit, no view")
	h.Must("down", "a")
	assert.Zero(t, h.Mounted(filepath.Join(h.Base, "run", "views", "home-a")))
	h.Stop()
}

// TestQuotaTakenOver: the daemon that follows knows what a view that it takes over has counted, and the view goes on with the
// limits of the next definition.
func TestQuotaTakenOver(t *testing.T) {
	h := onMemory(t, map[string]string{"a": "limits: {disk: 24MiB}"})
	harness.Plant(t, h.Scope("a"), "f")
	h.Start()
	require.NoError(t, os.WriteFile(h.View("a", "big"), make([]byte, 20<<20), 0o600))
	h.Eventually("it is counted", func() bool { return !h.Agent("a").Disk.Counting && h.Agent("a").Disk.Bytes > 20<<20 })
	before, pid := h.Agent("a").Disk, h.ViewPID("a")
	for how, end := range ends {
		end(h)
		h.Start()
		assert.Equal(t, pid, h.ViewPID("a"), how)
		assert.Equal(t, before, h.Agent("a").Disk, how)
		assert.ErrorIs(t, os.WriteFile(h.View("a", "more"), make([]byte, 8<<20), 0o600), syscall.EDQUOT, how)
		require.NoError(t, os.Remove(h.View("a", "more")))
	}
	h.Stop()
}

// TestQuotaReloaded: changed limits reach a mounted view with the definition. What its process writes into the page that it
// shares with the daemon does not change them.
func TestQuotaReloaded(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"a": "limits: {disk: 4MiB}"})
	h.Eventually("it is counted", func() bool { return !h.Agent("a").Disk.Counting })
	pid, big := h.ViewPID("a"), h.View("a", "big")
	assert.ErrorIs(t, os.WriteFile(big, make([]byte, 8<<20), 0o600), syscall.EDQUOT)
	h.Define("a", "limits: {disk: 16MiB}")
	h.Must("reload")
	assert.NoError(t, os.WriteFile(big, make([]byte, 8<<20), 0o600))
	assert.Equal(t, pid, h.ViewPID("a"))

	var page *os.File
	fds, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", h.Cmd.Process.Pid))
	require.NoError(t, err)
	for _, fd := range fds {
		if to, _ := os.Readlink(fd); strings.HasPrefix(to, "/memfd:quota") {
			page, err = os.OpenFile(fd, os.O_RDWR, 0)
			require.NoError(t, err)
			defer page.Close()
		}
	}
	require.NotNil(t, page)
	var st unix.Stat_t
	require.NoError(t, unix.Fstat(int(page.Fd()), &st))
	words := make([]byte, st.Size)
	for i := range words {
		words[i] = 0x7f
	}
	_, err = page.WriteAt(words, 0)
	require.NoError(t, err)
	disk := h.Agent("a").Disk
	assert.EqualValues(t, 16<<20, disk.MaxBytes, "the limit is the daemon's")
	assert.Positive(t, disk.Bytes)
	assert.Error(t, page.Truncate(0), "it is sealed")
	h.Must("down", "a")
}
