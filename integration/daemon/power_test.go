package daemon

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/internal/need"
)

// disk is an ext4 file system in an image file, mounted by a loop device.
type disk struct {
	t                 *testing.T
	image, at, device string
}

// newDisk makes a disk and mounts it at a directory until the test ends. It skips
// a test where the host has no loop devices.
func newDisk(t *testing.T, at string) *disk {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	d := &disk{t: t, image: filepath.Join(dir, "disk"), at: at}
	f, err := os.Create(d.image)
	require.NoError(t, err)
	require.NoError(t, f.Truncate(128<<20))
	require.NoError(t, f.Close())
	if err := d.attach(); err != nil {
		need.Skip(t, "needs loop devices: ", err)
	}
	require.NoError(t, exec.Command("losetup", "--detach", d.device).Run())
	out, err := exec.Command("mkfs.ext4", "-q", "-F", "-m", "0", d.image).CombinedOutput()
	require.NoError(t, err, "mkfs.ext4: %s", out)
	d.mount()
	t.Cleanup(d.unmount)
	return d
}

// attach makes a block device of the image.
func (d *disk) attach() error {
	out, err := exec.Command("losetup", "--find", "--show", d.image).CombinedOutput()
	if d.device = strings.TrimSpace(string(out)); err != nil {
		return fmt.Errorf("losetup: %w: %s", err, out)
	}
	return nil
}

// mount mounts the image. The device goes with the mount.
func (d *disk) mount() {
	d.t.Helper()
	require.NoError(d.t, d.attach())
	err := unix.Mount(d.device, d.at, "ext4", 0, "")
	out, detachErr := exec.Command("losetup", "--detach", d.device).CombinedOutput()
	require.NoError(d.t, err, "mount %s", d.device)
	require.NoError(d.t, detachErr, "losetup: %s", out)
}

// unmount waits for the processes that use the disk.
func (d *disk) unmount() {
	d.t.Helper()
	var err error
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if err = unix.Unmount(d.at, unix.UMOUNT_NOFOLLOW); err != unix.EBUSY {
			break
		}
	}
	if err != unix.EINVAL { // it is unmounted
		assert.NoError(d.t, err, "unmount %s", d.at)
	}
	// A namespace that is about to end may still have it. A second mount of the image would find half of the first one's journal.
	require.Eventually(d.t, func() bool { return !d.used() }, 20*time.Second, 10*time.Millisecond, "%s is still mounted somewhere", d.image)
}

// used reports whether a loop device has the image.
func (d *disk) used() bool {
	devices, err := os.ReadDir("/sys/block")
	require.NoError(d.t, err)
	return slices.ContainsFunc(devices, func(e os.DirEntry) bool {
		behind, _ := os.ReadFile(filepath.Join("/sys/block", e.Name(), "loop/backing_file"))
		return strings.TrimSpace(string(behind)) == d.image
	})
}

// EXT4_IOC_SHUTDOWN and EXT4_GOING_FLAGS_NOLOGFLUSH, fs/ext4/ext4.h: nothing that
// is not on the disk by now will be.
const (
	ext4Shutdown   = 0x8004587d
	ext4NoLogFlush = 2
)

// cut cuts the disk's power. It makes sure that the descriptor is of the image.
func (d *disk) cut() {
	d.t.Helper()
	f, err := os.Open(d.at)
	require.NoError(d.t, err)
	defer f.Close()
	var st unix.Stat_t
	require.NoError(d.t, unix.Fstat(int(f.Fd()), &st))
	var device unix.Stat_t
	require.NoError(d.t, unix.Stat(d.device, &device))
	require.Equal(d.t, device.Rdev, st.Dev, "%s is not on %s", d.at, d.device)
	behind, err := os.ReadFile(fmt.Sprintf("/sys/dev/block/%d:%d/loop/backing_file", unix.Major(st.Dev), unix.Minor(st.Dev)))
	require.NoError(d.t, err, "%s is not on a loop device", d.at)
	require.Equal(d.t, d.image, strings.TrimSpace(string(behind)), "%s is on another disk", d.at)
	require.NoError(d.t, unix.IoctlSetPointerInt(int(f.Fd()), ext4Shutdown, ext4NoLogFlush))
}

// restartOn starts the host again after the power was cut.
func restartOn(h *harness.Host, d *disk) {
	h.T.Helper()
	h.Abort()
	d.unmount()
	d.mount()
	h.Start()
}

// changes is what acknowledged calls have made: contents by path, "" for none, and
// a directory with a slash at its end.
type changes struct {
	mu    sync.Mutex
	files map[string]string
}

func (s *changes) set(path, content string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.files[path] = content
}

// missing returns what a directory has otherwise.
func (s *changes) missing(root string) (bad []string) {
	for path, want := range s.files {
		got, err := os.ReadFile(filepath.Join(root, path))
		info, statErr := os.Lstat(filepath.Join(root, path))
		switch {
		case want == "":
			if statErr == nil {
				bad = append(bad, path+": is there again")
			}
		case strings.HasSuffix(path, "/"):
			if statErr != nil || !info.IsDir() {
				bad = append(bad, path+": no directory")
			}
		case err != nil:
			bad = append(bad, path+": missing")
		case string(got) != want:
			bad = append(bad, fmt.Sprintf("%s: %d bytes, want %d", path, len(got), len(want)))
		}
	}
	return bad
}

// What a file tool has acknowledged is on the disk when the power fails.
func TestPowerLoss(t *testing.T) {
	need.Once(t)
	h := harness.LayOut(t, map[string]string{"a": ""})
	require.NoError(t, os.WriteFile(filepath.Join(h.Base, "scopefs.yaml"), []byte("memory: true\n"), 0o644))
	d := newDisk(t, filepath.Join(h.Base, "agents"))
	require.NoError(t, os.Mkdir(h.Scope("a"), 0o755))
	n := rounds(3)
	h.Timeout += time.Duration(n) * 10 * time.Second
	h.Start()
	total, lost := 0, 0
	for round := range n {
		s := &changes{files: map[string]string{}}
		users := []*harness.User{h.Connect("a"), h.Connect("a")}
		var all sync.WaitGroup
		for i, u := range users {
			all.Go(func() { change(h, u, s, fmt.Sprintf("round%d/user%d", round, i)) })
		}
		all.Wait()
		out := h.Must("call", "--agent", "a", "write_file", fmt.Sprintf("path=round%d/called", round), "content=by call")
		require.Contains(t, out, "created")
		s.set(fmt.Sprintf("round%d/called", round), "by call")
		d.cut()
		restartOn(h, d)
		for _, u := range users {
			_ = u.Session.Close()
		}
		bad := s.missing(h.Scope("a"))
		assert.Empty(t, bad, "round %d", round)
		assert.Empty(t, s.missing(h.View("a")), "round %d, in the view", round)
		total, lost = total+len(s.files), lost+len(bad)
		require.NoError(t, os.RemoveAll(h.Scope("a", fmt.Sprintf("round%d", round)))) // the disk is small
	}
	t.Logf("%d rounds, %d acknowledged changes, %d lost", n, total, lost)
	h.Stop()
}

// A change by a file tool need not wait for the disk where the operator says so:
// in scopefs.yaml for all agents, in a definition for one.
func TestPowerLossQuick(t *testing.T) {
	need.Once(t)
	h := harness.LayOut(t, map[string]string{"a": "durable: true", "b": ""})
	require.NoError(t, os.WriteFile(filepath.Join(h.Base, "scopefs.yaml"), []byte("durable: false\n"), 0o644))
	d := newDisk(t, filepath.Join(h.Base, "agents"))
	for _, id := range []string{"a", "b"} {
		require.NoError(t, os.Mkdir(h.Scope(id), 0o755))
	}
	h.Start()
	for _, id := range []string{"a", "b"} {
		u := h.Connect(id)
		for i := range 20 {
			u.Call("write_file", args{"path": fmt.Sprint(i), "content": "x"})
		}
	}
	d.cut()
	restartOn(h, d)
	full := map[string]int{}
	for _, id := range []string{"a", "b"} {
		for i := range 20 {
			if text, _ := os.ReadFile(h.Scope(id, fmt.Sprint(i))); string(text) == "x" {
				full[id]++
			}
		}
	}
	assert.Equal(t, 20, full["a"])
	assert.Less(t, full["b"], 20, "nothing was lost: is durable without effect?")
	h.Stop()
}

// change makes changes of all kinds, below a directory.
func change(h *harness.Host, u *harness.User, s *changes, dir string) {
	content := func(i int) string { return strings.Repeat(fmt.Sprintf("%s %d\n", dir, i), 1+i*i) }
	for i := range 50 {
		path := fmt.Sprintf("%s/new/%d", dir, i)
		u.Call("write_file", args{"path": path, "content": content(i)})
		s.set(path, content(i))
	}
	u.Call("copy", args{"from": dir + "/new", "to": dir + "/copied", "recursive": true})
	for i := range 50 {
		s.set(fmt.Sprintf("%s/copied/%d", dir, i), content(i))
	}
	u.Call("copy", args{"from": dir + "/new/1", "to": dir + "/copied/2", "overwrite": true})
	s.set(dir+"/copied/2", content(1))
	u.Call("edit_file", args{"path": dir + "/new/0", "edits": []args{{"old_text": content(0), "new_text": "edited\n"}}})
	s.set(dir+"/new/0", "edited\n")
	u.Call("write_file", args{"path": dir + "/new/1", "content": "overwritten"})
	s.set(dir+"/new/1", "overwritten")
	u.Call("write_file", args{"path": dir + "/new/2", "content": "more", "mode": "append"})
	s.set(dir+"/new/2", content(2)+"more")
	u.Call("write_file", args{"path": dir + "/new/appended", "content": "more", "mode": "append"})
	s.set(dir+"/new/appended", "more")
	u.Call("make_dir", args{"path": dir + "/a/b/c"})
	s.set(dir+"/a/b/c/", "directory")
	u.Call("make_dir", args{"path": dir + "/a/b/d"})
	s.set(dir+"/a/b/d/", "directory")
	u.Call("move", args{"from": dir + "/new/3", "to": dir + "/a/moved"})
	s.set(dir+"/a/moved", content(3))
	s.set(dir+"/new/3", "")
	u.Bash("cp " + dir + "/new/10 " + dir + "/by-hand") // not durable, until it is moved
	u.Call("move", args{"from": dir + "/by-hand", "to": dir + "/new/4", "overwrite": true})
	s.set(dir+"/new/4", content(10))
	u.Call("delete_file", args{"path": dir + "/new/5"})
	s.set(dir+"/new/5", "")
	name := strings.ReplaceAll(dir, "/", "-")
	u.Call("remember", args{"name": name, "text": "a note"})
	s.set(".memory/"+name+".md", "a note")
	u.Call("copy", args{"from": dir + "/a", "to": dir + "/gone", "recursive": true})
	u.Call("delete", args{"path": dir + "/gone", "recursive": true})
	s.set(dir+"/gone", "")
}
