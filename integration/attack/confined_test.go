package attack

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/scope/beneath"
	"github.com/scopefs/scopefs/scope/beneath/mounts"
)

// TestAttackConfinedView looks at a view process that serves, as the host's
// root sees it.
func TestAttackConfinedView(t *testing.T) {
	for name, c := range map[string]struct{ front, caps, uid, grace string }{
		"passthrough": {"user: 65534\nview: {allow_other: true}", "0000000000200000", "65534", "0s"}, // CAP_SYS_ADMIN
		"mediated":    {"user: 65534\nview: {data: mediated, allow_other: true}", "0000000000000000", "65534", "0s"},
		"caller":      {"identity: caller\nview: {data: mediated}", "00000000000000df", "0", "0s"},
		"lives on":    {"user: 65534\nview: {allow_other: true}", "0000000000200000", "65534", "60s"},
	} {
		t.Run(name, func(t *testing.T) {
			h := harness.LayOut(t, map[string]string{"view": c.front})
			require.NoError(t, os.Chown(h.Scope("view"), 65534, 65534))
			harness.Plant(t, h.Scope("view"), "f", "d/g")
			h.Put("scopefs.yaml", "grace: "+c.grace+"\n")
			// Whoever starts the daemon may have left a descriptor open.
			left, err := unix.Open("/", unix.O_RDONLY|unix.O_DIRECTORY, 0)
			require.NoError(t, err)
			h.Start()
			unix.Close(left)
			_ = harness.HostOps(t, h.View("view"), "read f", "list d g") // let it have worked
			proc := fmt.Sprintf("/proc/%d/", h.PS()[0].ViewPID)
			tasks, err := os.ReadDir(proc + "task")
			require.NoError(t, err)
			for _, task := range tasks { // each thread has its own
				status := "\n" + harness.ReadAll(t, proc+"task/"+task.Name()+"/status")
				for _, want := range []string{
					"CapEff:\t" + c.caps, "CapPrm:\t" + c.caps, "CapInh:\t0000000000000000", "CapAmb:\t0000000000000000",
					"Seccomp:\t2", "NoNewPrivs:\t1", "Uid:\t" + c.uid + "\t" + c.uid,
				} {
					assert.Contains(t, status, "\n"+want, task.Name())
				}
				if c.uid != "0" {
					assert.Contains(t, status, "\nGroups:\t \n")
				}
			}
			info := harness.ReadAll(t, proc+"mountinfo")
			assert.Equal(t, 1, strings.Count(info, "\n"), "%s", info)
			assert.Contains(t, info, " / ")
			assert.Contains(t, info, "nosuid,nodev")
			assert.NotContains(t, info, "shared:")
			entries, err := os.ReadDir(proc + "root")
			require.NoError(t, err)
			assert.Len(t, entries, 2, "its root is the scope")
			for _, ns := range []string{"mnt", "net", "ipc", "uts", "pid"} {
				ours, err := os.Readlink("/proc/self/ns/" + ns)
				require.NoError(t, err)
				theirs, err := os.Readlink(proc + "ns/" + ns)
				require.NoError(t, err)
				assert.NotEqual(t, ours, theirs, ns)
			}
			assert.Empty(t, strings.Trim(harness.ReadAll(t, proc+"environ"), "\x00"))
			waitIdle(h, "view")
			checkDescriptors(t, proc, c.grace != "0s")
		})
	}
}

func checkDescriptors(t *testing.T, proc string, holder bool) {
	t.Helper()
	fds, err := os.ReadDir(proc + "fd")
	require.NoError(t, err)
	all := map[string]string{}
	for _, fd := range fds {
		to, err := os.Readlink(proc + "fd/" + fd.Name())
		require.NoError(t, err, "the view is idle")
		all[fd.Name()] = to
	}
	t.Log(all)
	known := map[string]string{"0": "/dev/null", "1": "/dev/null", "2": "pipe:", "3": "/", "4": "/dev/fuse", "5": "socket:", "6": "socket:", "7": "/proc/"}
	if holder {
		known["14"], known["15"] = "socket:", "socket:"
	}
	for n, want := range known {
		assert.True(t, strings.HasPrefix(all[n], want), "%s is %s", n, all[n])
		delete(all, n)
	}
	for n, to := range all { // of the Go runtime, which reads the limits of its control group now and then
		// "/" is the scope itself, on which views of one scope take turns, and "/d" a directory that a client has used.
		ok := slices.Contains([]string{"anon_inode:[eventpoll]", "anon_inode:[eventfd]", "anon_inode:[pidfd]", "anon_inode:[fanotify]", "/", "/d"}, to) ||
			strings.HasPrefix(filepath.Base(to), "cpu.")
		assert.True(t, ok, "descriptor %s is %s", n, to)
	}
}

// confined starts testdata/confined of package serve as the daemon starts a view.
func confined(t *testing.T, h *harness.Host, mode string, root *os.File, cred *syscall.Credential, ambient []uintptr, beside ...*os.File) (lines map[string]string, out string) {
	t.Helper()
	at := filepath.Join(h.Base, "confined")
	if _, err := os.Stat(at); err != nil {
		build := exec.Command("go", "build", "-o", at, "github.com/scopefs/scopefs/internal/view/serve/testdata/confined")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		said, err := build.CombinedOutput()
		require.NoError(t, err, "%s", said)
	}
	fuse, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	require.NoError(t, err)
	defer fuse.Close()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	defer unix.Close(pair[0])
	wire := os.NewFile(uintptr(pair[1]), "wire")
	defer wire.Close()
	left, err := os.Open(h.Scope("other"))
	require.NoError(t, err)
	defer left.Close()
	cmd := exec.Command(at, mode, h.Scope("other", "FOREIGN"))
	cmd.Dir, cmd.Env = "/", []string{}
	spool, err := os.OpenFile(filepath.Join(t.TempDir(), "spool"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	require.NoError(t, err)
	defer spool.Close()
	stat, err := os.Open("/proc/self/stat")
	require.NoError(t, err)
	defer stat.Close()
	cmd.ExtraFiles = append([]*os.File{root, fuse, wire, left, stat, spool}, beside...)
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Setsid: true, Credential: cred, AmbientCaps: ambient,
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS | unix.CLONE_NEWPID,
	}
	text, _ := cmd.CombinedOutput()
	if bytes.Contains(text, []byte("own: spool")) {
		assert.Equal(t, "event", harness.ReadAll(t, spool.Name()))
	}
	lines = map[string]string{}
	for line := range strings.Lines(string(text)) {
		i := strings.LastIndex(line, ": ")
		if i > 0 {
			lines[line[:i]] = strings.TrimSpace(line[i+2:])
		}
	}
	return lines, string(text)
}

func confinedHost(t *testing.T) (*harness.Host, *os.File, *os.File) {
	h := harness.LayOut(t, map[string]string{"own": "", "other": ""})
	harness.Plant(t, h.Scope("own"), "f", "link => "+h.Scope("other", "FOREIGN"), "up => ../other")
	harness.Plant(t, h.Scope("other"), "FOREIGN")
	require.NoError(t, unix.Mknod(h.Scope("own", "zero"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 5))))
	root, err := beneath.OpenRoot(h.Base, "agents/own")
	require.NoError(t, err)
	t.Cleanup(func() { root.Close() })
	fd, err := mounts.Detach(root)
	require.NoError(t, err)
	tree := os.NewFile(uintptr(fd), "scope")
	t.Cleanup(func() { tree.Close() })
	plain, err := os.Open(h.Scope("own"))
	require.NoError(t, err)
	t.Cleanup(func() { plain.Close() })
	return h, tree, plain
}

// TestAttackFromWithin: a view that an attacker has taken over, with code of
// his own, still reaches nothing but its scope.
func TestAttackFromWithin(t *testing.T) {
	for _, mode := range []string{"passthrough", "caller", "mediated"} {
		t.Run(mode, func(t *testing.T) {
			h, tree, _ := confinedHost(t)
			before := harness.Picture(t, h.Scope("other"))
			lines, out := confined(t, h, mode, tree, nil, nil)
			require.Contains(t, out, "confined:", out)
			own := 0
			for what, got := range lines {
				switch {
				case strings.HasPrefix(what, "own: "):
					own++
					assert.Equal(t, "<nil>", got, what)
				case strings.HasPrefix(what, "path ") && (strings.HasSuffix(what, " link") || strings.HasSuffix(what, " up")):
					assert.Contains(t, []string{"ELOOP", "ENOENT", "ENOTDIR"}, got, what)
				case what == "call clone3":
					assert.Equal(t, "ENOSYS", got, what)
				case strings.HasPrefix(what, "call "):
					assert.Contains(t, []string{"EPERM"}, got, what)
				case strings.HasPrefix(what, "left open: "), what == "mknod", what == "device":
					assert.Contains(t, []string{"EACCES", "EPERM", "EXDEV"}, got, what)
				case !strings.HasPrefix(what, "confined"):
					assert.Contains(t, []string{"ENOENT", "ELOOP", "ENOTDIR", "EACCES"}, got, what)
				}
			}
			assert.Equal(t, 4, own)
			assert.Greater(t, len(lines), 100)
			assert.Equal(t, before, harness.Picture(t, h.Scope("other")))
		})
	}
}

// TestAttackBesideHistory: a view that an attacker has taken over, with the scope and the history in one mount, reaches
// nothing else of that mount.
func TestAttackBesideHistory(t *testing.T) {
	const user = 65534
	for name, cred := range map[string]*syscall.Credential{"agent's user": {Uid: user, Gid: user}, "root": nil} {
		t.Run(name, func(t *testing.T) {
			h, _, _ := confinedHost(t)
			harness.Plant(t, h.Base, "history/own/", "history/other/FOREIGN")
			for _, dir := range []string{h.Scope("own"), h.Scope("own", "f"), filepath.Join(h.Base, "history/own")} {
				if cred != nil {
					require.NoError(t, os.Chown(dir, user, user))
				}
			}
			require.NoError(t, os.Chmod(h.Scope("other"), 0o777), "only the confinement is tested")
			root, err := beneath.OpenRoot(h.Base, "agents/own")
			require.NoError(t, err)
			defer root.Close()
			history, err := beneath.OpenRoot(h.Base, "history/own")
			require.NoError(t, err)
			defer history.Close()
			pair, err := mounts.DetachWith(root, history)
			require.NoError(t, err)
			var files []*os.File
			for _, fd := range []int{pair.Scope, pair.Beside, pair.Mount} {
				files = append(files, os.NewFile(uintptr(fd), ""))
			}
			before := harness.Picture(t, h.Scope("other"))
			var ambient []uintptr
			if cred != nil {
				ambient = []uintptr{unix.CAP_SYS_ADMIN, unix.CAP_DAC_READ_SEARCH, unix.CAP_SYS_CHROOT}
			}
			lines, out := confined(t, h, "kept", files[0], cred, ambient, files[1:]...)
			for _, f := range files {
				f.Close()
			}
			require.Contains(t, out, "confined:", out)
			own, climbed, covers := 0, 0, 0
			for what, got := range lines {
				switch {
				case strings.HasPrefix(what, "own: "):
					own++
					assert.Equal(t, "<nil>", got, what)
				case strings.HasPrefix(what, "climb "):
					climbed++
					if got == "a cover" {
						covers++
					}
					assert.Contains(t, []string{"own", "a cover", "ENOENT", "EACCES", "ENOTDIR"}, got, what)
				case what == "call clone3":
					assert.Equal(t, "ENOSYS", got, what)
				case strings.HasPrefix(what, "call "):
					assert.Equal(t, "EPERM", got, what)
				case strings.HasPrefix(what, "left: "):
					assert.Contains(t, []string{"EACCES", "EROFS", "EXDEV", "ENOENT", "EBUSY"}, got, what)
				case strings.HasPrefix(what, "left open: "), what == "mknod", what == "device":
					assert.Contains(t, []string{"EACCES", "EPERM", "EXDEV"}, got, what)
				case strings.HasPrefix(what, "path ") && (strings.HasSuffix(what, " link") || strings.HasSuffix(what, " up")):
					assert.Contains(t, []string{"ELOOP", "ENOENT", "ENOTDIR", "EBADF"}, got, what)
				case !strings.HasPrefix(what, "confined"):
					assert.Contains(t, []string{"ENOENT", "ELOOP", "ENOTDIR", "EACCES", "EBADF"}, got, what)
				}
			}
			assert.Equal(t, 14, own)
			assert.Equal(t, 4*13*20, climbed)
			assert.Positive(t, covers)
			assert.Equal(t, before, harness.Picture(t, h.Scope("other")))
			assert.FileExists(t, filepath.Join(h.Base, "history/own/moved"))
		})
	}
}

// TestAttackUnconfined: what cannot be confined does not serve.
func TestAttackUnconfined(t *testing.T) {
	h, tree, plain := confinedHost(t)
	_, out := confined(t, h, "passthrough", plain, nil, nil)
	assert.Contains(t, out, "refused: ", "a root that is no detached mount")
	nobody := &syscall.Credential{Uid: 65534, Gid: 65534}
	_, out = confined(t, h, "passthrough", tree, nobody, nil)
	assert.Contains(t, out, "refused: ", "no capabilities")
	file, err := os.Open(h.Scope("own", "f"))
	require.NoError(t, err)
	defer file.Close()
	_, out = confined(t, h, "passthrough", file, nil, nil)
	assert.Contains(t, out, "refused: ", "a root that is a file")
	_, out = confined(t, h, "passthrough", tree, nobody, []uintptr{unix.CAP_SYS_ADMIN})
	assert.Contains(t, out, "confined:", "and as it should be")
}

// waitIdle waits until an agent's view has no request in flight and every thread of
// it sleeps. The kernel queues a RELEASE when a client closes a file or exits,
// and the view closes its descriptor after the answer.
func waitIdle(h *harness.Host, id string) {
	h.T.Helper()
	control, err := os.MkdirTemp("", harness.TempPrefix)
	require.NoError(h.T, err)
	defer func() { assert.NoError(h.T, os.Remove(control)) }()
	require.NoError(h.T, unix.Mount("none", control, "fusectl", 0, ""))
	defer unix.Unmount(control, unix.MNT_DETACH)
	var connection string // its number is the mount's minor device number
	for line := range strings.Lines(harness.ReadAll(h.T, "/proc/self/mountinfo")) {
		if fields := strings.Fields(line); fields[4] == h.View(id) {
			_, connection, _ = strings.Cut(fields[2], ":")
		}
	}
	require.NotEmpty(h.T, connection, "%s is not mounted", id)
	pid := h.ViewPID(id)
	require.NotZero(h.T, pid)
	h.Eventually("no request is in flight", func() bool {
		return harness.ReadAll(h.T, filepath.Join(control, connection, "waiting")) == "0\n" && asleep(h.T, pid)
	})
}

// asleep reports whether every thread of a process sleeps: proc_pid_stat(5).
func asleep(t testing.TB, pid int) bool {
	t.Helper()
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	require.NoError(t, err)
	for _, task := range tasks {
		text, err := os.ReadFile(task)
		if err != nil { // the thread has ended
			return false
		}
		_, state, _ := strings.Cut(string(text), ") ")
		if !strings.HasPrefix(state, "S") {
			return false
		}
	}
	return len(tasks) > 0
}
