package csi

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/internal/need"
)

// gvisor is a node whose pods run in gVisor.
type gvisor struct {
	*node
	dir   string   // of bundles, and of runsc's state
	flags []string // of runsc
	file  string   // the process of gVisor that opens a volume's files
	test  string   // this test binary, written once: containers run it
	count int      // of containers
}

// eachGVisor runs a test with both ways in which gVisor reaches files of the node: the sandbox's kernel opens them, or a process
// beside it, the gofer, does.
func eachGVisor(t *testing.T, test func(t *testing.T, g *gvisor)) {
	need.Target(t, "test-gvisor", "SCOPEFS_TEST_GVISOR", "1")
	need.Root(t, "runsc")
	need.Program(t, "runsc")
	for file, flag := range map[string]string{"runsc-sandbox": "--directfs=true", "runsc-gofer": "--directfs=false"} {
		t.Run(file, func(t *testing.T) {
			g := &gvisor{node: newNode(t, ""), file: file}
			g.test = harness.TestBinary(t, g.Host)
			g.dir = filepath.Join(g.node.dir, "gvisor")
			g.flags = []string{flag, "--root=" + filepath.Join(g.dir, "root"), "--network=none", "--ignore-cgroups"}
			t.Cleanup(func() {
				var err error
				for err == nil { // containers that begin at once each mount it
					err = unix.Unmount(filepath.Join(g.dir, "root/null-netns"), unix.MNT_DETACH)
				}
				if !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
					t.Error("unmount gVisor's network namespace: ", err)
				}
			})
			test(t, g)
		})
	}
}

func (g *gvisor) runsc(args ...string) *exec.Cmd {
	return exec.Command("runsc", append(slices.Clone(g.flags), args...)...)
}

// container returns a command that runs another one in a container as a user, with a pod's volume at /workspace. The container has the
// node's /usr, and root in it what a privileged one has. A program of this test's has the role.
func (g *gvisor) container(p pod, uid int, role string, args ...string) *exec.Cmd {
	g.T.Helper()
	g.count++
	id := fmt.Sprintf("%s-%d", p.uid, g.count)
	bundle := filepath.Join(g.dir, id)
	require.NoError(g.T, os.MkdirAll(filepath.Join(bundle, "rootfs"), 0o755))
	for _, name := range []string{"bin", "lib", "lib64"} {
		require.NoError(g.T, os.Symlink("usr/"+name, filepath.Join(bundle, "rootfs", name)))
	}
	type set = map[string]any
	bind := func(from, to string, options ...string) set {
		return set{"type": "bind", "source": from, "destination": to, "options": append(options, "rbind")}
	}
	capabilities := []string{"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_DAC_READ_SEARCH", "CAP_FOWNER", "CAP_MKNOD", "CAP_SETGID", "CAP_SETUID", "CAP_SYS_ADMIN"}
	if uid != 0 {
		capabilities = nil
	}
	text, err := json.Marshal(set{
		"ociVersion": "1.0.0",
		"root":       set{"path": "rootfs"},
		"process": set{
			"user": set{"uid": uid, "gid": uid}, "cwd": "/workspace", "args": args,
			"env":          []string{"PATH=/usr/sbin:/usr/bin", harness.RoleEnv + "=" + role, "GORACE=atexit_sleep_ms=0"},
			"capabilities": set{"bounding": capabilities, "effective": capabilities, "permitted": capabilities},
		},
		"mounts": []set{
			{"type": "proc", "source": "proc", "destination": "/proc"}, bind("/usr", "/usr", "ro"), bind(g.target(p), "/workspace", "rw", "rslave"),
			bind(g.test, "/test", "ro"), bind(harness.Program, "/scopefs", "ro"), bind(harness.Daemon(), "/scopefsd", "ro"),
		},
		"linux": set{"namespaces": []set{{"type": "pid"}, {"type": "mount"}, {"type": "ipc"}, {"type": "uts"}, {"type": "network"}}},
	})
	require.NoError(g.T, err)
	require.NoError(g.T, os.WriteFile(filepath.Join(bundle, "config.json"), text, 0o644))
	g.T.Cleanup(func() {
		out, err := g.runsc("delete", "--force", id).CombinedOutput()
		assert.NoError(g.T, err, "%s", out)
	})
	return g.runsc("run", "--bundle", bundle, id)
}

// begin starts a container that does operations, and returns a function that does one and returns how it ended, and another that ends the
// container. An operation may take 20 seconds.
func (g *gvisor) begin(p pod, uid int) (do func(op string) string, end func()) {
	g.T.Helper()
	cmd := g.container(p, uid, "ops", "/test")
	in, err := cmd.StdinPipe()
	require.NoError(g.T, err)
	from, to, err := os.Pipe()
	require.NoError(g.T, err)
	cmd.Stdout, cmd.Stderr = to, os.Stderr
	require.NoError(g.T, cmd.Start())
	require.NoError(g.T, to.Close())
	lines := bufio.NewScanner(from)
	end = sync.OnceFunc(func() {
		in.Close()
		_ = cmd.Wait()
		from.Close()
	})
	g.T.Cleanup(end)
	return func(op string) string {
		g.T.Helper()
		_, err := fmt.Fprintln(in, op)
		require.NoError(g.T, err)
		require.NoError(g.T, from.SetReadDeadline(time.Now().Add(20*time.Second)))
		require.True(g.T, lines.Scan(), "%s: %v", op, lines.Err())
		return lines.Text()
	}, end
}

// hide is a pod whose view hides and fixes files.
func (g *gvisor) hide(uid string) pod {
	at := filepath.Join(g.prefix, "b-1")
	harness.Plant(g.T, at, "file=text", "other=text", "fixed=text", "secret.pem=key", "dir/below=text")
	return pod{uid: uid, namespace: "team-b", account: "x", attributes: map[string]string{"agent": "b-1",
		"definition": "view: {paths: {'*.pem': hide, fixed: read}}"}}
}

// TestGVisor: the rules of a view hold for root in gVisor, and the log has what was denied, by the process of gVisor that opens files.
func TestGVisor(t *testing.T) {
	eachGVisor(t, func(t *testing.T, g *gvisor) {
		p, out := g.hide("p"), g.outside()
		at := filepath.Join(g.prefix, "b-1")
		require.NoError(t, os.Symlink(out+"/secret", at+"/out"))
		require.NoError(t, os.Symlink("../../../../../../../../../etc/passwd", at+"/up"))
		require.NoError(t, os.Symlink("/workspace/file", at+"/absolute"))
		require.NoError(t, g.publish(p))
		var before, after unix.Stat_t
		require.NoError(t, unix.Stat(at+"/fixed", &before))
		do, end := g.begin(p, 0)
		for _, c := range []struct{ op, want, recorded string }{ // recorded: operation and path
			{"read file", "ok", ""},
			{"write file", "ok", ""},
			{"mmap file", "ok", ""},
			{"fallocate file", "ok", ""},
			{"copyrange file other", "ok", ""},
			{"reopen file", "ok", ""},
			{"xchg file other", "ok", ""},
			{"symlink file to-file", "ok", ""},
			{"read to-file", "ok", ""},
			{"read absolute", "ok", ""},
			{"link file hard", "ok", ""},
			{"write hard", "ok", ""},
			{"create new", "ok", ""},
			{"mkdir made", "ok", ""},
			{"rename new made/new", "ok", ""},
			{"setxattr file", "ok", ""},
			{"bind socket", "ok", ""},
			{"fifo fifo", "ok", ""},

			{"read secret.pem", "ENOENT", "lookup secret.pem"},
			{"stat secret.pem", "ENOENT", ""},
			{"list . secret.pem", "ENOENT", ""},
			{"create secret.pem", "EACCES", "create secret.pem"},
			{"mkdir a.pem", "EACCES", "mkdir a.pem"},
			{"rename file b.pem", "EACCES", "rename b.pem"},
			{"link file c.pem", "EACCES", "link c.pem"},

			{"read fixed", "ok", ""},
			{"write fixed", "EACCES", "open-write fixed"},
			{"o-trunc fixed", "EACCES", ""},
			{"reopen fixed", "EACCES", ""},
			{"repath fixed", "EACCES", ""},
			{"mmap fixed", "EACCES", ""},
			{"fallocate fixed", "EACCES", ""},
			{"copyrange file fixed", "EACCES", ""},
			{"unlink fixed", "EACCES", "unlink fixed"},
			{"rename other fixed", "EACCES", "rename fixed"},
			{"rename fixed other", "EACCES", ""},
			{"xchg file fixed", "EACCES", ""},
			{"link fixed second", "EACCES", "link-from fixed"},
			{"fdlink fixed second", "EACCES", ""},
			// gVisor loses the error that these get, on volumes of every kind. They change nothing all the same.
			{"trunc fixed", "", ""},
			{"retrunc fixed", "", ""},
			{"chmod fixed", "", "setattr fixed"},
			{"chown fixed", "", ""},
			{"utimes fixed", "", ""},

			{"read out", "EACCES", "readlink out"},
			{"write out", "EACCES", ""},
			{"readlink out", "EACCES", ""},
			{"read up", "EACCES", "readlink up"},
			{"symlink /etc/passwd new-out", "EACCES", "symlink new-out"},
			{"symlink ../x new-up", "EACCES", "symlink new-up"},
			{"read ../" + at + "/fixed", "ENOENT", ""},
			{"link /usr/bin/env env", "EXDEV", ""},
			{"rename dir ../dir", "EXDEV", ""},
			{"byhandle fixed .", "ENOTSUP", ""},
			{"ioctl file 0x80086601", "ENOTTY", ""},
			{"chr device", "EPERM", ""},
			{"blk device", "EPERM", ""},
		} {
			got := do(c.op)
			if c.want != "" {
				assert.Equal(t, c.want, got, c.op)
			}
			if op, rel, recorded := strings.Cut(c.recorded, " "); recorded {
				g.deniedBy(op, rel)
			}
		}
		require.Equal(t, "ENOENT", do("stat late"))
		require.NoError(t, os.WriteFile(filepath.Join(g.target(p), "late"), nil, 0o644))
		assert.Equal(t, "ok", do("stat late"), "another process's changes are seen at once")
		require.NoError(t, os.Remove(filepath.Join(g.target(p), "late")))
		assert.Equal(t, "ENOENT", do("read late"))
		end()
		require.NoError(t, unix.Stat(at+"/fixed", &after))
		before.Atim, after.Atim = unix.Timespec{}, unix.Timespec{}
		assert.Equal(t, before, after)
		assert.Equal(t, "text", harness.ReadAll(t, at+"/fixed"))
		assert.Equal(t, "secret", harness.ReadAll(t, out+"/secret"))
		assert.Equal(t, "WRITTEN", harness.ReadAll(t, at+"/hard"))
		require.NoError(t, g.unpublish(p))
		assert.Zero(t, g.Mounted(g.pods()))
	})
}

// deniedBy checks that an event names the process of gVisor that opens files.
func (g *gvisor) deniedBy(op, rel string) {
	g.T.Helper()
	for _, e := range g.Events("b-1") {
		if e.Event == audit.KindFile && e.Op == op && e.Path == rel && e.Verdict != audit.Allow {
			argv, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", e.PID))
			assert.NoError(g.T, err, "%s %s", op, rel)
			name, _, _ := strings.Cut(string(argv), "\x00")
			assert.Equal(g.T, g.file, name, "%s %s", op, rel)
			assert.Equal(g.T, "exe", e.Program)
			if assert.NotNil(g.T, e.UID) {
				assert.Zero(g.T, *e.UID)
			}
			return
		}
	}
	g.T.Errorf("the log has no denial of %s %s", op, rel)
}

// TestGVisorUser: a pod's user in gVisor has the files that its user has. Because gVisor's processes are root's, the view must let
// others enter: else the container does not start.
func TestGVisorUser(t *testing.T) {
	eachGVisor(t, func(t *testing.T, g *gvisor) {
		g.Put("node/csi.yaml", `
rules:
  - {namespace: a, service_account: "*", agents: ["a"], definition: {user: "1000"}}
  - {namespace: b, service_account: "*", agents: ["b"], definition: {user: "1000", view: {allow_other: true}}}
  - {namespace: c, service_account: "*", agents: ["c"], definition: {user: "1000", identity: caller, view: {allow_other: true}}}
`)
		for _, team := range []string{"a", "b", "c"} {
			p := pod{uid: team, namespace: team, account: "x", attributes: map[string]string{"agent": team}}
			require.NoError(t, g.publish(p))
			at := g.Scope(team)
			harness.Plant(t, at, "mine=text", "theirs=text")
			require.NoError(t, os.Chown(at+"/mine", 1000, 1000))
			require.NoError(t, os.Chmod(at+"/theirs", 0o600))
			if team == "a" {
				o := harness.Finish(t, g.container(p, 1000, "ops", "/test"))
				assert.Equal(t, 128, o.Code)
				assert.Contains(t, o.Stderr, "cannot create sandbox")
			} else {
				do, end := g.begin(p, 1000)
				for op, want := range map[string]string{
					"read mine": "ok", "write mine": "ok", "chmod mine": "ok", "create new": "ok", "mkdir dir": "ok",
					"read theirs": "EACCES", "write theirs": "EACCES", "chmod theirs": "EPERM",
				} {
					assert.Equal(t, want, do(op), "%s: %s", team, op)
				}
				end()
				for _, name := range []string{"new", "dir"} {
					var st unix.Stat_t
					require.NoError(t, unix.Stat(filepath.Join(at, name), &st))
					assert.EqualValues(t, 1000, st.Uid, "%s: %s", team, name)
				}
			}
			require.NoError(t, g.unpublish(p))
		}
	})
}

func init() { harness.Roles["mine"] = mine }

// mine writes and reads a file again and again, and fails once it reads what it has not written.
func mine(args []string) error {
	done := 0
	for range 1000 {
		if err := os.WriteFile(args[0], []byte("mine"), 0o644); err != nil {
			continue
		}
		text, err := os.ReadFile(args[0])
		if err == nil && string(text) != "mine" {
			return fmt.Errorf("read %q", text)
		}
		if err == nil {
			done++
		}
	}
	fmt.Println(done)
	return nil
}

// TestGVisorRace: processes exchange a directory of the volume for a link that leads out, in a container and on the node below the view, while
// another container reads and writes by way of it.
func TestGVisorRace(t *testing.T) {
	eachGVisor(t, func(t *testing.T, g *gvisor) {
		p, q, out := builder("p"), builder("q"), g.outside()
		require.NoError(t, g.publish(p))
		require.NoError(t, g.publish(q))
		dir := g.Scope("one", "dir")
		require.NoError(t, os.Mkdir(dir, 0o755))
		require.NoError(t, os.Symlink(out, dir+"-link"))
		ends := []func(){g.attack(dir, dir+"-link"), g.attackBy(g.container(q, 0, "exchange", "/test", "dir", "dir-link"))}
		o := harness.Finish(t, g.container(p, 0, "mine", "/test", "dir/secret"))
		assert.Zero(t, o.Code, o.Stderr)
		t.Logf("%s of 1000 came through", strings.TrimSpace(o.Stdout))
		for _, end := range ends {
			end()
		}
		g.untouched(out)
		assert.Equal(t, "secret", harness.ReadAll(t, out+"/secret"))
		require.NoError(t, g.unpublish(p))
		require.NoError(t, g.unpublish(q))
	})
}

// signal sends a signal to a process, and waits until the process has one of several states.
func (g *gvisor) signal(pid int, sig syscall.Signal, states ...byte) {
	g.T.Helper()
	require.NoError(g.T, syscall.Kill(pid, sig))
	g.Eventually("the signal has its effect", func() bool { return slices.Contains(states, harness.StateOf(pid)) })
}

// TestGVisorEnd: a container whose view stops, dies or is taken down gets errors, whatever it has open. The next container has the next view.
func TestGVisorEnd(t *testing.T) {
	eachGVisor(t, func(t *testing.T, g *gvisor) {
		p := builder("p")
		require.NoError(t, g.publish(p))
		for name, stop := range map[string]func(){
			"stops": func() { g.signal(g.ViewPID("one"), syscall.SIGSTOP, 'T') },
			"dies":  func() { g.signal(g.ViewPID("one"), syscall.SIGKILL, 'Z', 0) },
			"down":  func() { g.Must("down", "one") },
		} {
			do, end := g.begin(p, 0)
			require.Equal(t, "ok", do("read file"), name)
			stop()
			for _, op := range []string{"read file", "write file", "create new", "stat file", "mkdir dir"} {
				begun := time.Now()
				assert.Contains(t, []string{"ENOTCONN", "ECONNABORTED"}, do(op), "%s: %s", name, op)
				t.Logf("%s: %s after %v", name, op, time.Since(begun))
			}
			assert.Equal(t, "ok", do("stat /usr/bin"), "the container runs")
			end()
			if name == "down" {
				g.Must("up", "one")
			}
			g.Eventually("the pod has the next view", func() bool {
				text, err := os.ReadFile(filepath.Join(g.target(p), "file"))
				return err == nil && string(text) == "of one"
			})
		}
		require.NoError(t, g.unpublish(p))
	})
}

// TestGVisorWithin: scopefs does not run in gVisor, and says what it lacks.
func TestGVisorWithin(t *testing.T) {
	eachGVisor(t, func(t *testing.T, g *gvisor) {
		p := builder("p")
		require.NoError(t, g.publish(p))
		o := harness.Finish(t, g.container(p, 0, "", "/scopefs", "doctor"))
		assert.Regexp(t, `(?m)^missing .* landlock .*function not implemented`, o.Stdout)
		assert.Regexp(t, `(?m)^missing .* seccomp `, o.Stdout)
		assert.NotZero(t, o.Code)
		o = harness.Finish(t, g.container(p, 0, "", "/scopefs", "run", "--dir", "/workspace", "--", "cat", "file"))
		assert.Equal(t, 125, o.Code, "%s", o.Stdout)
		assert.Contains(t, o.Stderr, "landlock")
		require.NoError(t, g.unpublish(p))
	})
}
