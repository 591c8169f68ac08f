package daemon

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
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

// report is what a worker has seen.
type report struct {
	Ops     int
	Longest map[string]int64 // microseconds, of each kind of operation
	Errors  []string
}

func init() {
	// worker DIR NAME: works in a view with an open file, a working directory, a mapping and a lock, until its standard
	// input has a line. Then it prints a report, and works on.
	harness.Roles["worker"] = func(args []string) error {
		if err := os.Chdir(args[0]); err != nil {
			return err
		}
		name := args[1]
		open, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			return err
		}
		if err := open.Truncate(4096); err != nil {
			return err
		}
		if err := unix.Flock(int(open.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
			return err
		}
		mapped, err := unix.Mmap(int(open.Fd()), 0, 4096, unix.PROT_READ, unix.MAP_PRIVATE)
		if err != nil {
			return err
		}
		stop := make(chan struct{}, 1)
		go func() {
			for in := bufio.NewScanner(os.Stdin); in.Scan(); {
				stop <- struct{}{}
			}
			os.Exit(0)
		}()
		fmt.Println("ready")
		r := report{Longest: map[string]int64{}}
		for i := 0; ; i++ {
			for _, op := range []struct {
				kind string
				do   func() error
			}{
				{"stat", func() error { _, err := os.Stat("."); return err }},
				{"read", func() error { _, err := open.ReadAt(make([]byte, 100), 0); return err }},
				{"write", func() error { _, err := open.WriteAt([]byte(strconv.Itoa(i)), 100); return err }},
				{"open", func() error {
					f, err := os.Open(name)
					if err == nil {
						err = f.Close()
					}
					return err
				}},
				{"list", func() error { _, err := os.ReadDir("."); return err }},
				{"create", func() error { return os.WriteFile(name+"-new", []byte("x"), 0o600) }},
				{"remove", func() error { return os.Remove(name + "-new") }},
			} {
				began := time.Now()
				err := op.do()
				r.Ops++
				r.Longest[op.kind] = max(r.Longest[op.kind], time.Since(began).Microseconds())
				if err != nil && len(r.Errors) < 10 {
					r.Errors = append(r.Errors, op.kind+": "+err.Error())
				}
			}
			_ = mapped[i%4096]
			select {
			case <-stop:
				text, _ := json.Marshal(r)
				fmt.Println(string(text))
				r = report{Longest: map[string]int64{}}
			default:
			}
		}
	}
}

// worker is a program of the host in a view.
type worker struct {
	t    *testing.T
	cmd  *exec.Cmd
	in   interface{ Write([]byte) (int, error) }
	next func() string
}

func startWorker(t *testing.T, h *harness.Host, agent, name string) *worker {
	cmd := harness.Role("worker", h.View(agent), name)
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	w := &worker{t: t, cmd: cmd, in: in}
	w.next = harness.Stream(t, cmd)
	require.Equal(t, "ready", w.next())
	return w
}

func (w *worker) report() (r report) {
	w.t.Helper()
	_, err := w.in.Write([]byte("\n"))
	require.NoError(w.t, err)
	require.NoError(w.t, json.Unmarshal([]byte(w.next()), &r))
	return r
}

// ends are the ways in which a daemon ends and another one follows.
var ends = map[string]func(h *harness.Host){
	"SIGTERM": func(h *harness.Host) { h.Terminate() },
	"SIGKILL": func(h *harness.Host) { h.Kill() },
}

// upgrade ends the daemon and puts another build of the programs into their place.
func upgrade(h *harness.Host) {
	h.Terminate()
	for _, one := range []string{"d", "-view", "-context"} {
		name := harness.Program + one
		text, err := os.ReadFile(name)
		require.NoError(h.T, err)
		harness.Executable(h.T, name+".new", append(text, '\n')) // elf(5) allows bytes at the end
		require.NoError(h.T, os.Rename(name+".new", name))
	}
}

// onMemory lays out a host whose run directory is on tmpfs, as /run is: views have spools.
func onMemory(t *testing.T, agents map[string]string) *harness.Host {
	h := harness.LayOut(t, agents)
	run := filepath.Join(h.Base, "run")
	require.NoError(t, os.Mkdir(run, 0o755))
	require.NoError(t, unix.Mount("none", run, "tmpfs", 0, ""))
	t.Cleanup(func() { assert.NoError(t, unix.Unmount(run, unix.MNT_DETACH)) })
	return h
}

// descriptors counts those of a process.
func descriptors(t *testing.T, pid int) int {
	all, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	require.NoError(t, err)
	return len(all)
}

// TestTakeOver: programs in a view see no error when the daemon ends and another one takes over. The view stays, and no
// descriptor grows. Rounds by SCOPEFS_TEST_ROUNDS.
func TestTakeOver(t *testing.T) {
	need.Once(t)
	for how, end := range map[string]func(*harness.Host){"SIGTERM": ends["SIGTERM"], "SIGKILL": ends["SIGKILL"], "upgrade": upgrade} {
		t.Run(how, func(t *testing.T) {
			h := onMemory(t, map[string]string{"a": "", "b": "view: {record: writes}", "c": "view: {changes: direct}"})
			h.Timeout = 20 * time.Minute
			h.Start()
			var workers []*worker
			pids, groups := map[string]int{}, map[string]string{}
			groupOf := func(id string) string {
				text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pids[id]))
				require.NoError(t, err)
				return string(text)
			}
			for _, id := range []string{"a", "b", "c"} {
				workers = append(workers, startWorker(t, h, id, "w"))
				pids[id] = h.ViewPID(id)
				groups[id] = groupOf(id)
			}
			longest := map[string]int64{}
			var first []int
			for i := range rounds(4) {
				end(h)
				h.Start()
				for i, w := range workers {
					r := w.report()
					assert.Empty(t, r.Errors, "%d", i)
					for kind, us := range r.Longest {
						kind = string("abc"[i]) + " " + kind
						longest[kind] = max(longest[kind], us)
					}
				}
				open := []int{descriptors(t, h.HolderPID()), descriptors(t, pids["a"]), descriptors(t, pids["b"])}
				if i == 0 {
					first = open
				}
				for j := range open {
					assert.LessOrEqual(t, open[j], first[j]+32, "descriptors of process %d in round %d", j, i) // of operations in flight
				}
			}
			for id, pid := range pids {
				assert.Equal(t, pid, h.ViewPID(id), id)
				assert.Equal(t, groups[id], groupOf(id), "a move would make processes wait")
				assert.True(t, h.Recorded(id, audit.Event{Event: audit.KindView, Outcome: "taken over"}))
			}
			t.Logf("longest operation in microseconds: %v", longest)
			h.Must("run", "a", "--", "true")
			h.Stop()
			assert.Zero(t, h.Mounted(h.Base))
			h.Unbroken()
		})
	}
}

// TestTakeOverLimits: a view that lives on is moved to a control group by the limits of now, and sandboxes are beside it.
func TestTakeOverLimits(t *testing.T) {
	need.All(t, "a daemon that ends, in one more place")
	h := onMemory(t, map[string]string{"a": "limits: {memory: 400MiB}"})
	h.Start()
	view := h.ViewPID("a")
	groupOf := func(pid string) string {
		text, err := os.ReadFile("/proc/" + pid + "/cgroup")
		require.NoError(t, err)
		return filepath.Dir(regexp.MustCompile(`scopefs-[^\n]*`).FindString(string(text)))
	}
	group := groupOf(strconv.Itoa(view))
	before := "400MiB"
	for _, memory := range []string{"400MiB", "300MiB", "300MiB", "400MiB"} {
		h.Kill()
		h.Define("a", "limits: {memory: "+memory+"}")
		h.Start()
		require.Equal(t, view, h.ViewPID("a"))
		now := groupOf(strconv.Itoa(view))
		assert.Equal(t, memory == before, group == now, "%s, then %s by %s", group, now, memory)
		group, before = now, memory
		ready := filepath.Join(h.Scope("a"), "ready")
		job := make(chan string, 1)
		go func() {
			job <- h.Must("run", "a", "--", "sh", "-c", "touch ready; while test -e ready; do sleep 0.01; done")
		}()
		h.Eventually("it runs", func() bool { _, err := os.Stat(ready); return err == nil })
		for _, pid := range h.Agent("a").Sandboxes {
			assert.Equal(t, group, groupOf(strconv.Itoa(pid)))
		}
		require.NoError(t, os.Remove(ready))
		<-job
	}

	// Other daemons remove a group of a dead daemon when no process is in it: here, after the view has died.
	require.NoError(t, h.Cmd.Process.Signal(unix.SIGSTOP))
	require.NoError(t, unix.Kill(view, unix.SIGKILL))
	h.Eventually("the group is removed", func() bool {
		all, err := filepath.Glob("/sys/fs/cgroup/*/" + group) // version 1
		require.NoError(t, err)
		below, err := filepath.Glob("/sys/fs/cgroup/" + group)
		require.NoError(t, err)
		for _, dir := range append(all, below...) {
			_ = exec.Command("find", dir, "-depth", "-type", "d", "-exec", "rmdir", "{}", ";").Run()
			if _, err := os.Stat(dir); err == nil {
				return false
			}
		}
		return len(all)+len(below) > 0
	})
	require.NoError(t, h.Cmd.Process.Signal(unix.SIGCONT))
	h.Must("run", "a", "--", "true")
	assert.Contains(t, groupOf(strconv.Itoa(h.ViewPID("a"))), "scopefs-")
	h.Stop()
}

// TestTakeOverRules: a daemon that follows makes views decide by the rules of its start, before it says that it is ready.
// What has changed otherwise, and agents that are gone, have another view or none.
func TestTakeOverRules(t *testing.T) {
	need.All(t, "a daemon that ends, in one more place")
	h := harness.LayOut(t, map[string]string{"rules": "", "more": "", "gone": "", "broken": ""})
	for _, id := range []string{"rules", "more", "gone", "broken"} {
		h.Put(filepath.Join("agents", id, "secret"), "x")
	}
	h.Start()
	pids := map[string]int{}
	for _, id := range []string{"rules", "more", "gone", "broken"} {
		pids[id] = h.ViewPID(id)
		assert.FileExists(t, h.View(id, "secret"))
	}
	open, err := os.Open(h.View("rules"))
	require.NoError(t, err)
	defer open.Close()
	h.Kill()
	assert.FileExists(t, h.View("rules", "secret"), "without a daemon the rules of the last one hold")
	h.Define("rules", `view: {paths: {"secret": hide}}`)
	h.Define("more", "view: {record: all, paths: {secret: hide}}")
	h.Define("broken", "view: {paths: [}")
	require.NoError(t, os.Remove(filepath.Join(h.Base, "agents.d", "gone.md")))
	h.Start()
	var st unix.Stat_t
	assert.ErrorIs(t, unix.Fstatat(int(open.Fd()), "secret", &st, 0), syscall.ENOENT, "in a directory that was open before")
	assert.Equal(t, pids["rules"], h.ViewPID("rules"))
	assert.NotEqual(t, pids["more"], h.ViewPID("more"))
	assert.NoFileExists(t, h.View("more", "secret"))
	for _, id := range []string{"gone", "broken"} {
		h.Eventually("nothing is at its mount point", func() bool { // the kernel answers from its caches until it is unmounted
			_, err := os.Stat(h.View(id, "secret"))
			return err != nil
		})
		h.Eventually("its view has ended", func() bool { return harness.StateOf(pids[id]) == 0 || harness.StateOf(pids[id]) == 'Z' })
	}
	h.Eventually("two views are mounted", func() bool { return h.Mounted(h.Base) == 2 })
}

// TestTakeOverGrace: without a next daemon everything ends after grace.
func TestTakeOverGrace(t *testing.T) {
	need.All(t, "a daemon that ends, in one more place")
	for how, end := range ends {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			h := harness.LayOut(t, map[string]string{"a": ""})
			h.Put("scopefs.yaml", "grace: 3s\n")
			h.Put("agents/a/f", "x")
			h.Start()
			view, holder := h.ViewPID("a"), h.HolderPID()
			began := time.Now()
			end(h)
			assert.FileExists(t, h.View("a", "f"))
			h.Eventually("it ends", func() bool { // what the kernel has in its caches, it answers for longer
				err := os.Mkdir(h.View("a", "new"+time.Now().String()), 0o755)
				return errors.Is(err, syscall.ENOTCONN) || errors.Is(err, syscall.EPERM) // the mount point, when it is unmounted
			})
			assert.Greater(t, time.Since(began), 2*time.Second)
			h.Eventually("no process is left", func() bool {
				return !slices.ContainsFunc([]int{view, holder}, func(pid int) bool { s := harness.StateOf(pid); return s != 0 && s != 'Z' })
			})
			h.Start()
			assert.FileExists(t, h.View("a", "f"))
		})
	}
	t.Run("0s", func(t *testing.T) {
		t.Parallel()
		h := harness.LayOut(t, map[string]string{"a": ""})
		h.Put("scopefs.yaml", "grace: 0s\n")
		h.Start()
		h.Terminate()
		assert.Zero(t, h.Mounted(h.Base))
	})
}

// TestTakeOverStop: scopefs daemon --stop ends everything at once, with a daemon and without.
func TestTakeOverStop(t *testing.T) {
	need.All(t, "a daemon that ends, in one more place")
	h := harness.NewHost(t, map[string]string{"a": "", "b": ""})
	for name, before := range map[string]func(*harness.Host){"it runs": func(*harness.Host) {}, "killed": ends["SIGKILL"], "ended": ends["SIGTERM"]} {
		view := h.ViewPID("a")
		before(h)
		began := time.Now()
		h.Must("daemon", "--stop")
		assert.Less(t, time.Since(began), stopTime, name)
		_, err := os.Stat(h.View("a"))
		assert.True(t, err != nil || !isFUSE(h.View("a")), "%s: %v", name, err)
		h.Eventually("the view has ended", func() bool { s := harness.StateOf(view); return s == 0 || s == 'Z' })
		<-h.Ended
		h.Must("daemon", "--stop") // there is nothing to end
		h.Start()
	}
}

// TestTakeOverSays: a daemon that leaves views says so, and how to end them. Without a daemon a command says the same.
func TestTakeOverSays(t *testing.T) {
	need.All(t, "a daemon that ends, in one more place")
	for how, end := range ends {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			h := harness.NewHost(t, map[string]string{"a": ""})
			_, errs, code := h.Try("ps")
			require.Zero(t, code, errs)
			end(h)
			ending := "end them with scopefs daemon --stop --base " + h.Base
			assert.Equal(t, how == "SIGTERM", strings.Contains(h.Log.String(), "views live on for 1m0s for the next daemon: start it, or "+ending), "%s", h.Log)
			_, errs, code = h.Try("ps")
			assert.NotZero(t, code)
			assert.Contains(t, errs, ending)
			words := strings.Fields(ending[strings.Index(ending, "daemon"):])
			out, err := exec.Command(harness.Program, words...).CombinedOutput()
			require.NoError(t, err, "%s", out)
			assert.Zero(t, h.Mounted(h.Base))
			_, errs, _ = h.Try("ps")
			assert.Contains(t, errs, "no daemon is running at")
		})
	}
}

// TestTakeOverBuild: ps says which views run another build of the program than the daemon, until they are mounted anew.
func TestTakeOverBuild(t *testing.T) {
	need.All(t, "a daemon that ends, in one more place")
	h := harness.NewHost(t, map[string]string{"a": "", "b": ""})
	other := func() (ids []string) {
		var all []struct {
			Agent   string
			Program string `json:"view_program"`
		}
		require.NoError(t, json.Unmarshal([]byte(h.Must("ps", "--json")), &all))
		for _, a := range all {
			if a.Program != "" {
				ids = append(ids, a.Agent)
			}
		}
		return ids
	}
	assert.Empty(t, other())
	h.Terminate()
	h.Start()
	assert.Empty(t, other(), "the same program")
	upgrade(h)
	h.Start()
	assert.Equal(t, []string{"a", "b"}, other())
	assert.Contains(t, h.Must("ps"), "(the view runs another build, devel: scopefs down a, then up)")
	h.Must("down", "a")
	h.Must("up", "a")
	assert.Equal(t, []string{"b"}, other())
	h.Kill()
	h.Start()
	assert.Equal(t, []string{"b"}, other(), "the next daemon of that build")
}

// TestProgramsOpened: a daemon starts each view from the program that was there when the daemon started.
func TestProgramsOpened(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"a": "", "b": ""})
	h.Must("down", "b")
	harness.Plant(t, h.Scope("b"), "file")
	name := harness.Program + "-view"
	require.NoError(t, os.Rename(name, name+".was"))
	defer func() { require.NoError(t, os.Rename(name+".was", name)) }()
	harness.Executable(t, name, []byte("#!/bin/sh\nexit 1\n"))
	h.Must("up", "b")
	assert.FileExists(t, h.View("b", "file"))
}

// TestTakeOverVersions: a daemon that is older than the holder or a view refuses to start, says what to do, and ends nothing.
// It mounts anew the views that are too old for it.
func TestTakeOverVersions(t *testing.T) {
	need.All(t, "a daemon that ends, in one more place")
	for name, c := range map[string]struct {
		answers []string
		refused bool
		logged  string
	}{
		"newer holder":   {[]string{`{"op":"refused","older":true}`}, true, ""},
		"newer view":     {[]string{`{"op":"item","id":1,"meta":{"protocol":2,"agent":"a","new":[]}}`, `{"op":"items"}`}, true, ""},
		"too old holder": {[]string{`{"op":"refused","text":"the holder's protocol is number 0"}`}, false, "the views of the last daemon end"},
		"too old view":   {[]string{`{"op":"item","id":1,"meta":{"protocol":0,"agent":"a"}}`, `{"op":"items"}`}, false, "a view of the last daemon ends"},
	} {
		t.Run(name, func(t *testing.T) {
			h := harness.LayOut(t, map[string]string{"a": ""})
			require.NoError(t, os.MkdirAll(filepath.Join(h.Base, "run"), 0o711))
			listener, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
			require.NoError(t, err)
			defer unix.Close(listener)
			require.NoError(t, unix.Bind(listener, &unix.SockaddrUnix{Name: filepath.Join(h.Base, "run", "holder.sock")}))
			require.NoError(t, unix.Listen(listener, 8))
			got := make(chan string, 100)
			go func() { // a holder of another release
				for {
					fd, _, err := unix.Accept4(listener, unix.SOCK_CLOEXEC)
					if err != nil {
						return
					}
					for buf := make([]byte, 1<<16); ; {
						n, err := unix.Read(fd, buf)
						if err != nil || n == 0 {
							break
						}
						got <- string(buf[:n])
						if !strings.Contains(string(buf[:n]), `"hello"`) {
							break
						}
						for _, a := range c.answers {
							_ = unix.Sendmsg(fd, []byte(a), nil, nil, unix.MSG_NOSIGNAL)
						}
					}
					unix.Close(fd)
				}
			}()
			if c.refused {
				_, errs, code := h.Try("daemon")
				assert.NotZero(t, code)
				assert.Contains(t, errs, "views of a newer scopefs run: start that version again, or end them with scopefs daemon --stop")
				assert.Contains(t, <-got, `"protocol":1,"oldest":1`)
				assert.Empty(t, got, "it ends nothing")
				return
			}
			h.Start()
			assert.True(t, isFUSE(h.View("a")))
			h.Stop()
			assert.Contains(t, h.Log.String(), c.logged)
		})
	}
}

// TestTakeOverHolder: a daemon replaces a holder that was killed. With both killed, views end.
func TestTakeOverHolder(t *testing.T) {
	need.All(t, "a daemon that ends, in one more place")
	h := harness.NewHost(t, map[string]string{"a": ""})
	h.Put("agents/a/f", "x")
	view, first := h.ViewPID("a"), h.HolderPID()
	require.NoError(t, syscall.Kill(first, syscall.SIGKILL))
	h.Eventually("there is another holder", func() bool {
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
		require.NoError(t, err)
		defer unix.Close(fd)
		return harness.StateOf(first) == 0 && unix.Connect(fd, &unix.SockaddrUnix{Name: filepath.Join(h.Base, "run", "holder.sock")}) == nil
	})
	h.Kill()
	assert.FileExists(t, h.View("a", "f"))
	h.Start()
	assert.Equal(t, view, h.ViewPID("a"))

	last := h.HolderPID()
	h.Kill()
	require.NoError(t, syscall.Kill(last, syscall.SIGKILL))
	h.Eventually("the view has ended", func() bool { s := harness.StateOf(view); return s == 0 || s == 'Z' })
	h.Start()
	assert.FileExists(t, h.View("a", "f"))
}

// TestTakeOverStuck: a view that does not answer the next daemon is replaced.
func TestTakeOverStuck(t *testing.T) {
	need.All(t, "a daemon that ends, in one more place")
	h := harness.NewHost(t, map[string]string{"a": "", "b": ""})
	h.Put("agents/a/f", "x")
	stuck, other := h.ViewPID("a"), h.ViewPID("b")
	h.Kill()
	require.NoError(t, syscall.Kill(stuck, syscall.SIGSTOP))
	h.Start()
	assert.NotEqual(t, stuck, h.ViewPID("a"))
	assert.Equal(t, other, h.ViewPID("b"))
	assert.FileExists(t, h.View("a", "f"))
}

// TestTakeOverDenials: each denial that a client was given is in the log once, also if the daemon was killed meanwhile.
func TestTakeOverDenials(t *testing.T) {
	need.All(t, "a daemon that ends, in one more place")
	for how, end := range ends {
		t.Run(how, func(t *testing.T) {
			h := onMemory(t, map[string]string{"a": `view: {paths: {"ro/**": read}}`})
			require.NoError(t, os.Mkdir(h.Scope("a", "ro"), 0o755))
			h.Start()
			stop := make(chan struct{})
			denied := make(chan map[string]error)
			const clients = 4
			for c := range clients {
				go func() {
					all := map[string]error{}
					for i := 0; ; i++ {
						select {
						case <-stop:
							denied <- all
							return
						default:
						}
						name := fmt.Sprintf("ro/%d-%d", c, i)
						all[name] = os.Mkdir(h.View("a", name), 0o755)
					}
				}()
			}
			for range rounds(3) {
				h.Eventually("denials are recorded", func() bool { return len(h.Events("a")) > 0 })
				end(h)
				h.Start()
			}
			close(stop)
			all := map[string]error{}
			for range clients {
				for name, err := range <-denied {
					all[name] = err
				}
			}
			h.Stop()
			recorded := map[string]int{}
			for _, e := range h.Events("a") {
				if e.Op == "mkdir" && e.Verdict == audit.Deny {
					recorded[e.Path]++
				}
			}
			for name, err := range all {
				require.Error(t, err, name)
				if errors.Is(err, syscall.EACCES) {
					assert.Equal(t, 1, recorded[name], name)
				} else { // there was no daemon for long
					assert.ErrorIs(t, err, syscall.EIO)
					assert.LessOrEqual(t, recorded[name], 1, name)
				}
			}
			t.Logf("%d denials", len(all))
		})
	}
}

// TestTakeOverTogether: the kernel has the clients that create in one directory wait for each other. Without a spool and a daemon each
// has its EIO after 1.5 s all the same, for a change that is recorded and for a denial, and all go on with the next daemon.
func TestTakeOverTogether(t *testing.T) {
	const clients, gap = 8, 1500 * time.Millisecond
	h := harness.NewHost(t, map[string]string{"a": "view: {record: writes, paths: {\"ro/**\": read}}"}) // the run directory is on a disk
	require.NoError(t, os.Mkdir(h.Scope("a", "ro"), 0o755))
	require.NoError(t, os.Mkdir(h.View("a", "rw"), 0o755))
	h.Kill()
	for round := range 2 {
		for _, dir := range []string{"rw", "ro"} {
			took := make(chan time.Duration, clients)
			begun := time.Now()
			for c := range clients {
				go func() {
					err := os.Mkdir(h.View("a", dir, fmt.Sprint(round, "-", c)), 0o755)
					assert.ErrorIs(t, err, syscall.EIO, dir)
					took <- time.Since(begun)
				}()
			}
			for range clients {
				if d := <-took; d > gap+time.Second { // a busy host
					t.Errorf("a client in %s was told after %v", dir, d)
				}
			}
		}
	}
	h.Start()
	require.NoError(t, os.Mkdir(h.View("a", "rw", "after"), 0o755))
	assert.ErrorIs(t, os.Mkdir(h.View("a", "ro", "after"), 0o755), syscall.EACCES)
	assert.Equal(t, []string{"after"}, names(t, h.Scope("a", "rw")))
}

// names returns the entries of a directory.
func names(t *testing.T, dir string) (list []string) {
	all, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, e := range all {
		list = append(list, e.Name())
	}
	return list
}

// TestTakeOverAttack: nobody but the next daemon gets anything from the holder, and nothing that connects keeps the next
// daemon from it.
func TestTakeOverAttack(t *testing.T) {
	t.Parallel()
	h := harness.NewHost(t, map[string]string{"a": ""})
	h.Put("agents/a/f", "x")
	view := h.ViewPID("a")
	socket := filepath.Join(h.Base, "run", "holder.sock")
	lock, err := os.OpenFile(filepath.Join(h.Base, "run", "lock"), os.O_RDWR, 0)
	require.NoError(t, err)
	defer lock.Close()
	other, err := os.Create(filepath.Join(t.TempDir(), "lock"))
	require.NoError(t, err)
	defer other.Close()

	// says sends a packet and returns the answer, and how many descriptors came with it.
	says := func(text string, files ...*os.File) (answer string, got int) {
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
		require.NoError(t, err)
		defer unix.Close(fd)
		require.NoError(t, unix.Connect(fd, &unix.SockaddrUnix{Name: socket}))
		var rights []byte
		for _, f := range files {
			rights = append(rights, unix.UnixRights(int(f.Fd()))...)
		}
		require.NoError(t, unix.Sendmsg(fd, []byte(text), rights, nil, 0))
		buf, oob := make([]byte, 1<<16), make([]byte, 1024)
		n, noob, _, _, err := unix.Recvmsg(fd, buf, oob, unix.MSG_CMSG_CLOEXEC)
		require.NoError(t, err)
		return string(buf[:n]), noob
	}
	attacks := map[string][]*os.File{
		`{"op":"hello","protocol":1}`:            nil,
		`{"op":"hello","protocol":1} `:           {other},
		`{"op":"hello","protocol":0}`:            {lock},
		`{"op":"hello","protocol":9,"oldest":2}`: {lock},
		`{"op":"settled","grace":1}`:             nil,
		`{"op":"add","id":1,"hold":true}`:        {other},
		`{"op":"end"}`:                           nil,
		`{"op":"item","id":1}`:                   nil,
		`nonsense`:                               nil,
		`{"op":"hello","protocol":1,"x":"` + strings.Repeat("x", 100_000) + `"}`: {lock},
	}
	attack := func() {
		for text, files := range attacks {
			answer, got := says(text, files...)
			assert.Contains(t, answer, `"refused"`, "%.40s", text)
			assert.Zero(t, got, "%.40s", text)
		}
	}
	attack()
	answer, got := says(`{"op":"hello","protocol":2}`, lock) // the lock file, which another open file has locked
	assert.Contains(t, answer, "another daemon has the run directory's lock")
	assert.Zero(t, got)

	// A user cannot connect.
	cmd := exec.Command("sh", "-c", `exec 3<"$0"`, socket)
	as(cmd, alice)
	assert.Error(t, cmd.Run())
	info, err := os.Stat(socket)
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o600), info.Mode().Perm())

	// A second daemon is refused, and the first one goes on.
	second := exec.Command(harness.Program, "daemon", "--base", h.Base)
	out, err := second.CombinedOutput()
	require.Error(t, err)
	assert.Contains(t, string(out), "a daemon is running already")
	assert.FileExists(t, h.View("a", "f"))

	h.Kill()
	attack()
	var silent []int
	for range 3 { // connections that say nothing
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
		require.NoError(t, err)
		silent = append(silent, fd)
	}
	require.NoError(t, unix.Connect(silent[0], &unix.SockaddrUnix{Name: socket}))
	assert.FileExists(t, h.View("a", "f"))
	h.Start()
	for _, fd := range silent {
		unix.Close(fd)
	}
	assert.Equal(t, view, h.ViewPID("a"), "the next daemon takes over all the same")
	h.Stop()
	assert.Zero(t, h.Mounted(h.Base))
}
