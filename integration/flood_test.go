package integration

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/audit"
)

// What one agent can do to another, and to its own view, by asking too much. The
// flooder is this test binary, in the agent's sandbox.

func init() {
	roles["flood-metadata"] = func([]string) error {
		return forever(64, func(thread, round int) error {
			at := fmt.Sprintf("/workspace/m%d-%d", thread, round%7)
			for _, op := range churn(at, at+"-renamed") {
				if err := op(); err != nil {
					return err
				}
			}
			return nil
		})
	}
	roles["flood-denials"] = func([]string) error {
		return forever(16, func(int, int) error {
			if err := unix.Access("/workspace/.env", 0); err != unix.ENOENT {
				return fmt.Errorf(".env: %v", err)
			}
			_ = unix.Chmod("/workspace/secret", 0o600)
			return nil
		})
	}
	roles["flood-directories"] = func(args []string) error {
		most, _ := strconv.Atoi(args[0])
		return holdDirectories(most)
	}
	roles["flood-links"] = func(args []string) error {
		most, _ := strconv.Atoi(args[0])
		return makeLinks(most)
	}
}

func init() {
	// A descriptor of O_PATH is no open file to the view, and keeps what it knows of the file.
	roles["flood-paths"] = func([]string) error {
		for n := 0; ; n++ {
			if _, err := unix.Open(fmt.Sprintf("/workspace/many/entry-%d", n), unix.O_PATH|unix.O_CLOEXEC, 0); err != nil {
				made := os.WriteFile("/workspace/new", nil, 0o644)
				_, read := os.ReadFile("/workspace/many/entry-0")
				fmt.Println("ready", n, errnoOf(err), errnoOf(made), errnoOf(read))
				return wait()
			}
		}
	}
}

// forever runs f in so many threads.
func forever(threads int, f func(thread, round int) error) error {
	failed := make(chan error)
	for thread := range threads {
		go func() {
			for round := 0; ; round++ {
				if err := f(thread, round); err != nil {
					failed <- err
				}
			}
		}()
	}
	fmt.Println("ready")
	return <-failed
}

// holdDirectories opens one directory again and again, reads a bit of each, and keeps
// them open. It prints how many it has, and the errno of the next.
func holdDirectories(most int) error {
	n, err := 0, error(nil)
	for buf := make([]byte, 64); n < most; n++ {
		var fd int
		if fd, err = unix.Open("/workspace/many", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
			break
		}
		if _, err = unix.ReadDirent(fd, buf); err != nil {
			break
		}
	}
	_, again := os.ReadFile("/workspace/f") // a descriptor of its own, for a moment
	stat := unix.Stat("/workspace/many/entry-1", &unix.Stat_t{})
	fmt.Println("ready", n, errnoOf(err), errnoOf(again), errnoOf(stat))
	return wait()
}

// makeLinks gives a file names, with a look at the file after each. It prints how many,
// the errno of the next, and how many milliseconds that took.
func makeLinks(most int) error {
	began := time.Now()
	n, err := 1, error(nil)
	for ; n < most; n++ {
		name := fmt.Sprintf("/workspace/links/%d", n)
		if err = unix.Link("/workspace/linked", name); err != nil {
			break
		}
		if err = unix.Chmod(name, 0o640+uint32(n%2)); err != nil {
			break
		}
	}
	fmt.Println("ready", n, errnoOf(err), time.Since(began).Milliseconds())
	return wait()
}

func wait() error {
	_, err := io.Copy(io.Discard, os.Stdin)
	return err
}

// flooder is a role of this binary, run in an agent's sandbox.
type flooder struct {
	cmd   *exec.Cmd
	in    io.Closer
	ready string // its first line
}

// flood starts a flooder and waits until it is at work.
func (h *host) flood(agent, role string, argv ...string) *flooder {
	h.t.Helper()
	f := &flooder{cmd: h.inSandbox(agent, role, argv...)}
	var err error
	f.in, err = f.cmd.StdinPipe()
	require.NoError(h.t, err)
	out, err := f.cmd.StdoutPipe()
	require.NoError(h.t, err)
	require.NoError(h.t, f.cmd.Start())
	h.t.Cleanup(func() { f.stop() })
	f.ready, err = bufio.NewReader(out).ReadString('\n')
	require.NoError(h.t, err, "%s: it ended before it was ready", role)
	return f
}

func (f *flooder) stop() {
	f.in.Close()
	_ = f.cmd.Process.Signal(syscall.SIGTERM)
	_ = f.cmd.Wait()
}

// callers are clients of an agent that each keep so many calls under way.
func (h *host) callers(agent string, clients, each int) (stop func(), done *atomic.Int64) {
	var wg sync.WaitGroup
	var ended atomic.Bool
	done = new(atomic.Int64)
	var conns []*raw
	for range clients {
		r := h.dial(agent).greet()
		require.NoError(h.t, r.SetDeadline(time.Now().Add(5*time.Minute)))
		conns = append(conns, r)
		send := func(n int) error {
			_, err := io.WriteString(r, request(n, "read_file", `{"path":"f"}`))
			return err
		}
		for n := range each {
			require.NoError(h.t, send(n))
		}
		wg.Go(func() {
			for n := each; !ended.Load(); n++ {
				if _, err := r.in.ReadString('\n'); err != nil {
					return
				}
				done.Add(1)
				if send(n) != nil {
					return
				}
			}
		})
	}
	return func() {
		ended.Store(true)
		for _, r := range conns {
			r.Close()
		}
		wg.Wait()
	}, done
}

// latency is what so many calls, one after another, took.
type latency []time.Duration

func (l latency) at(percent int) time.Duration {
	slices.Sort(l)
	return l[(len(l)-1)*percent/100]
}

func (l latency) String() string {
	return fmt.Sprintf("p50 %.2f ms, p99 %.2f ms, max %.2f ms", l.at(50).Seconds()*1e3, l.at(99).Seconds()*1e3, l.at(100).Seconds()*1e3)
}

// measure calls read_file of an agent, one call after another.
func (h *host) measure(r *raw, count int) (l latency) {
	h.t.Helper()
	require.NoError(h.t, r.SetDeadline(time.Now().Add(5*time.Minute)))
	for n := range count {
		began := time.Now()
		_, err := io.WriteString(r, request(n, "read_file", `{"path":"f"}`))
		require.NoError(h.t, err)
		line := r.line()
		l = append(l, time.Since(began))
		require.NotContains(h.t, line, `"isError":true`, "%.300s", line)
	}
	return l
}

// measureView opens and reads a file of a view that the kernel asks for anew.
func (h *host) measureView(agent string, count int) (l latency) {
	h.t.Helper()
	for range count {
		began := time.Now()
		_, err := os.ReadFile(h.view(agent, "f"))
		l = append(l, time.Since(began))
		require.NoError(h.t, err)
	}
	return l
}

// memoryOf is the resident memory of a process in KiB, spentBy its processor time.
func memoryOf(pid int) int {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	_, after, _ := strings.Cut(string(text), "VmRSS:")
	fields := strings.Fields(after)
	if len(fields) == 0 {
		return 0
	}
	kb, _ := strconv.Atoi(fields[0])
	return kb
}

func spentBy(pid int) time.Duration {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, after, _ := strings.Cut(string(text), ") ")
	fields := strings.Fields(after)
	if len(fields) < 13 {
		return 0
	}
	user, _ := strconv.Atoi(fields[11])
	system, _ := strconv.Atoi(fields[12])
	return time.Duration(user+system) * 10 * time.Millisecond
}

func (h *host) viewPID(agent string) int { return h.agent(agent).ViewPID }

// floodHost has a flooder's agent, with limits, and its neighbour.
func floodHost(t *testing.T, limits string) *host {
	h := layOut(t, map[string]string{"loud": "view: {paths: {.env: hide, secret: read}}\n" + limits, "calm": ""})
	h.timeout = 10 * time.Minute
	plant(t, h.scope("loud"), "f", ".env", "secret", "linked", "links/", "many/")
	for i := range 200 {
		plant(t, h.scope("loud"), fmt.Sprintf("many/entry-%d", i))
	}
	require.NoError(t, os.WriteFile(h.scope("calm", "f"), []byte(strings.Repeat("some text\n", 400)), 0o644))
	h.start()
	return h
}

// TestFloods prints what each flood of one agent does to another's calls. It asserts
// nothing about time. SCOPEFS_FLOOD_PROGRAM names another build, to compare with.
func TestFloods(t *testing.T) {
	if os.Getenv("SCOPEFS_BENCH") != "1" {
		t.Skip("set SCOPEFS_BENCH=1 to measure")
	}
	if other := os.Getenv("SCOPEFS_FLOOD_PROGRAM"); other != "" {
		defer func(ours string) { program = ours }(program)
		program = other
	}
	count := 1000
	if text := os.Getenv("SCOPEFS_FLOOD_COUNT"); text != "" {
		count, _ = strconv.Atoi(text)
	}
	floods := []struct {
		name  string
		start func(h *host) (stop func(), what func() string)
	}{
		{"none", func(*host) (func(), func() string) { return func() {}, func() string { return "" } }},
		{"8 x 32 calls", func(h *host) (func(), func() string) {
			stop, done := h.callers("loud", 8, 32)
			began := time.Now()
			return stop, func() string {
				return fmt.Sprintf("%.0f calls/s", float64(done.Load())/time.Since(began).Seconds())
			}
		}},
		{"metadata, 64 threads", flooding("flood-metadata")},
		{"open directories", flooding("flood-directories", "19900")},
		{"hard links", flooding("flood-links", "20000")},
		{"denials, 16 threads", flooding("flood-denials")},
	}
	for _, f := range floods {
		if only := os.Getenv("SCOPEFS_FLOOD"); !strings.Contains(f.name, only) {
			continue
		}
		t.Run(f.name, func(t *testing.T) {
			h := floodHost(t, os.Getenv("SCOPEFS_FLOOD_LIMITS"))
			r := h.dial("calm").greet()
			h.measure(r, 20)
			pid := h.viewPID("loud")
			before := memoryOf(pid)
			stop, what := f.start(h)
			began, cpu := time.Now(), spentBy(pid)
			calls := h.measure(r, count)
			views := h.measureView("calm", count)
			used := (spentBy(pid) - cpu).Seconds() / time.Since(began).Seconds()
			fmt.Printf("| %-20s | read_file: %v | view: %v | view of the flooder: %d -> %d MiB, %.2f cores | %s |\n", f.name, calls, views,
				before>>10, memoryOf(pid)>>10, used, strings.TrimSpace(what()))
			stop()
		})
	}
}

func flooding(role string, argv ...string) func(h *host) (func(), func() string) {
	return func(h *host) (func(), func() string) {
		f := h.flood("loud", role, argv...)
		return f.stop, func() string { return strings.TrimPrefix(f.ready, "ready") }
	}
}

// TestFloodDirectories: a client that opens all it can is stopped by the limit of its
// agent, with EMFILE. What takes no handle works on, and an open directory takes no memory
// to speak of.
func TestFloodDirectories(t *testing.T) {
	h := floodHost(t, "limits: {open_files: 6000}")
	before := memoryOf(h.viewPID("loud"))
	f := h.flood("loud", "flood-directories", "19000")
	var n int
	var opened, read, stat string
	_, err := fmt.Sscanf(f.ready, "ready %d %s %s %s", &n, &opened, &read, &stat)
	require.NoError(t, err, f.ready)
	assert.InDelta(t, 6000, n, 10)
	assert.Equal(t, []string{"EMFILE", "EMFILE", "ok"}, []string{opened, read, stat})
	assert.Less(t, memoryOf(h.viewPID("loud"))-before, 48<<10, "KiB for 6000 open directories")
	f.stop()
	h.eventually("the handles are free again", func() bool { return hostOps(t, h.view("loud"), "read f")[0] == "ok" })
}

// TestFloodDescriptors: where the process may have few descriptors, requests that need one
// for a moment still have it.
func TestFloodDescriptors(t *testing.T) {
	h := layOut(t, map[string]string{"loud": ""})
	plant(t, h.scope("loud"), "f", "many/", "many/entry-1")
	old := program
	defer func() { program = old }()
	wrapper := filepath.Join(h.base, "few")
	require.NoError(t, os.WriteFile(wrapper, []byte("#!/bin/sh\nulimit -n 1024\nexec "+old+" \"$@\"\n"), 0o755))
	program = wrapper
	h.start()
	program = old
	var n int
	var opened, read, stat string
	_, err := fmt.Sscanf(h.flood("loud", "flood-directories", "19000").ready, "ready %d %s %s %s", &n, &opened, &read, &stat)
	require.NoError(t, err)
	assert.Equal(t, []string{"EMFILE", "EMFILE", "ok"}, []string{opened, read, stat}, "%d", n)
	assert.InDelta(t, 512, n, 20)
}

// TestFloodLinks: a file has so many names, and no operation on it costs more for that.
func TestFloodLinks(t *testing.T) {
	h := floodHost(t, "limits: {links: 1500}")
	var n, took int
	var errno string
	_, err := fmt.Sscanf(h.flood("loud", "flood-links", "20000").ready, "ready %d %s %d", &n, &errno, &took)
	require.NoError(t, err)
	assert.Equal(t, 1500, n)
	assert.Equal(t, "EMLINK", errno)

	many := floodHost(t, "limits: {links: 30000}")
	_, err = fmt.Sscanf(many.flood("loud", "flood-links", "20000").ready, "ready %d %s %d", &n, &errno, &took)
	require.NoError(t, err)
	assert.Equal(t, 20000, n)
	assert.Less(t, took, 30_000, "ms; it was 72 s before")
	t.Logf("20000 names in %d ms", took)
}

// TestFloodNames: the host has made thousands of names of a file. The most restricted one
// holds for all, whatever it costs to find it.
func TestFloodNames(t *testing.T) {
	h := layOut(t, map[string]string{"a": "view: {paths: {kept: read}}"})
	plant(t, h.scope("a"), "f", "d/", "kept/")
	const count = 15_000
	for i := range count {
		require.NoError(t, os.Link(h.scope("a", "f"), h.scope("a", "d", strconv.Itoa(i))))
	}
	require.NoError(t, os.Link(h.scope("a", "f"), h.scope("a", "kept", "f")))
	h.start()
	began, spent := time.Now(), spentBy(h.viewPID("a"))
	for i := range count {
		require.NoError(t, unix.Chmod(h.view("a", "d", strconv.Itoa(i)), 0o644))
	}
	cost := spentBy(h.viewPID("a")) - spent
	t.Logf("%d names: %v, of which the view %v", count, time.Since(began), cost)
	assert.Less(t, cost, 20*time.Second)
	assert.Equal(t, []string{"ok", "ok", "ok"}, hostOps(t, h.view("a"), "write f", "write d/7", "read kept/f"))
	assert.Equal(t, []string{"EACCES", "EACCES", "ok"}, hostOps(t, h.view("a"), "write f", "write d/7", "read d/8"))
}

// TestFloodMemory: a tree of any size can be walked in a view of little memory, for the
// kernel forgets what nobody uses. Who keeps it from that gets ENOMEM.
func TestFloodMemory(t *testing.T) {
	h := layOut(t, map[string]string{"loud": "limits: {view_memory: 1MiB}"})
	plant(t, h.scope("loud"), "f", "many/")
	const count = 8000
	for i := range count {
		plant(t, h.scope("loud"), fmt.Sprintf("many/entry-%d", i))
	}
	h.start()
	before := memoryOf(h.viewPID("loud"))
	for i := range count {
		_, err := os.Lstat(h.view("loud", "many", fmt.Sprintf("entry-%d", i)))
		require.NoError(t, err, "%d", i)
	}
	assert.Less(t, memoryOf(h.viewPID("loud"))-before, 24<<10, "KiB after %d files", count)
	f := h.flood("loud", "flood-paths")
	var n int
	var errno, made, read string
	_, err := fmt.Sscanf(f.ready, "ready %d %s %s %s", &n, &errno, &made, &read)
	require.NoError(t, err, f.ready)
	assert.Equal(t, []string{"ENOMEM", "ENOMEM", "ok"}, []string{errno, made, read}, "%d", n)
	f.stop()
	h.eventually("there is room again", func() bool { return hostOps(t, h.view("loud"), "create new")[0] == "ok" })
}

// TestLimitsHoldForView: what an agent makes its view do is done within its limits.
func TestLimitsHoldForView(t *testing.T) {
	h := floodHost(t, "limits: {cpu: 0.5, memory: 96MiB}")
	pid := h.viewPID("loud")
	groups, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	require.NoError(t, err)
	assert.Contains(t, string(groups), "-loud/view")
	f := h.flood("loud", "flood-metadata")
	spent, began := spentBy(pid), time.Now()
	time.Sleep(4 * time.Second) // the measure itself
	assert.Less(t, (spentBy(pid)-spent).Seconds()/time.Since(began).Seconds(), 0.6, "processors of the view")
	f.stop()
	u := h.connect("loud")
	out := u.call("bash", args{"command": "head -c 300M /dev/zero | tail"})
	assert.Equal(t, true, out["out_of_memory"], "%v", out)
	h.eventually("the log says so", func() bool {
		return h.recorded("loud", audit.Event{Event: audit.KindSandbox, Outcome: "out of memory"})
	})
	assert.Equal(t, pid, h.viewPID("loud"), "the view is killed last")
	u.bash("cat f")
	_, said, code := h.try("run", "-T", "loud", "--", "sh", "-c", "head -c 300M /dev/zero | exec tail; exit $?")
	assert.NotZero(t, code)
	assert.Contains(t, said, "out of memory")
	h.must("down", "loud")
	left, _ := filepath.Glob("/sys/fs/cgroup/*/scopefs-" + itoa(h.cmd.Process.Pid) + "-*-loud")
	assert.Empty(t, left)
}

// TestWorkerOutOfMemory: a call of a file tool whose process the kernel killed says so.
func TestWorkerOutOfMemory(t *testing.T) {
	h := layOut(t, map[string]string{"a": "limits: {memory: 32MiB}"})
	plant(t, h.scope("a"), "f")
	require.NoError(t, os.WriteFile(h.scope("a", "long"), bytes.Repeat([]byte("a line of text\n"), 7<<16), 0o644))
	h.start()
	u := h.connect("a")
	u.call("stat", args{"path": "f"})
	h.eventually("it is killed", func() bool {
		ctx := u.soon()
		for range 8 {
			go u.send(ctx, "edit_file", args{"path": "long", "edits": []args{{"old_text": "a line", "new_text": "b"}}})
		}
		r, err := u.send(ctx, "edit_file", args{"path": "long", "edits": []args{{"old_text": "a line", "new_text": "b"}}})
		return err == nil && strings.Contains(said(r), "out of memory")
	})
}

// TestViewOutOfMemory: a view that the kernel killed is back, and the log has the reason.
func TestViewOutOfMemory(t *testing.T) {
	h := layOut(t, map[string]string{"a": "limits: {memory: 16MiB}"})
	const count = 25_000
	name := func(i int) string { return fmt.Sprintf("d/%0200d", i) }
	plant(t, h.scope("a"), "f", "d/")
	for i := range count {
		plant(t, h.scope("a"), name(i)+"=")
	}
	h.start()
	pid := h.viewPID("a")
	failed := false
	for i := 0; i < count && !failed; i++ {
		_, err := os.Lstat(h.view("a", name(i)))
		failed = err != nil
	}
	assert.True(t, failed, "the view has %d KiB", memoryOf(pid))
	h.eventually("the log has why", func() bool {
		return h.recorded("a", audit.Event{Event: audit.KindView, Outcome: "out of memory"})
	})
	h.eventually("the view is back", func() bool { _, err := os.ReadFile(h.view("a", "f")); return err == nil })
	assert.NotEqual(t, pid, h.viewPID("a"))
}
