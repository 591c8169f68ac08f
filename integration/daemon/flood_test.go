package daemon

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/internal/need"
)

// What one agent can do to another, and to its own view, by asking too much. The
// flooder is this test binary, in the agent's sandbox.

func init() {
	harness.Roles["flood-metadata"] = func([]string) error {
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
	harness.Roles["flood-denials"] = func([]string) error {
		return forever(16, func(int, int) error {
			if err := unix.Access("/workspace/.env", 0); err != unix.ENOENT {
				return fmt.Errorf(".env: %v", err)
			}
			_ = unix.Chmod("/workspace/secret", 0o600)
			return nil
		})
	}
	harness.Roles["flood-directories"] = func(args []string) error {
		most, _ := strconv.Atoi(args[0])
		return holdOpen(most, "/workspace/many", unix.ReadDirent)
	}
	harness.Roles["flood-files"] = func(args []string) error {
		most, _ := strconv.Atoi(args[0])
		return holdOpen(most, "/workspace/f", unix.Read)
	}
	harness.Roles["flood-links"] = func(args []string) error {
		most, _ := strconv.Atoi(args[0])
		return makeLinks(most)
	}
}

func init() {
	// A descriptor of O_PATH is no open file to the view, and keeps what it knows of the file.
	harness.Roles["flood-paths"] = func([]string) error {
		for n := 0; ; n++ {
			if _, err := unix.Open(fmt.Sprintf("/workspace/many/entry-%d", n), unix.O_PATH|unix.O_CLOEXEC, 0); err != nil {
				made := os.WriteFile("/workspace/new", nil, 0o644)
				_, read := os.ReadFile("/workspace/many/entry-0")
				fmt.Println("ready", n, harness.ErrnoOf(err), harness.ErrnoOf(made), harness.ErrnoOf(read))
				return wait()
			}
		}
	}
}

func init() {
	// Answers in HTTP/2 wait for a window that stays shut. A connection that ends is followed by another.
	harness.Roles["flood-windows"] = func(args []string) error {
		return forever(60, func(int, int) error {
			shutWindow("127.0.0.1:3128", args[0], 128)
			return nil
		})
	}
}

func init() {
	// Requests in HTTP/2 that are reset at once, each with 15 KiB of fields that HPACK has in as many bytes.
	harness.Roles["flood-resets"] = func(args []string) error {
		return forever(20, func(int, int) error {
			speak2("127.0.0.1:3128", args[0], func(f *http2.Framer) {
				head := headOf(args[0])
				head = append(head, bytes.Repeat([]byte{0x90}, 15<<10)...) // accept-encoding, of the static table
				for id := uint32(1); ; id += 2 {
					if f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: head, EndStream: true, EndHeaders: true}) != nil ||
						f.WriteRSTStream(id, http2.ErrCodeCancel) != nil {
						return
					}
				}
			})
			return nil
		})
	}
}

// shutWindow opens streams to a host through the proxy of a sandbox, on one connection whose window
// is 0. It returns when the connection ends.
func shutWindow(proxy, host string, streams int) {
	speak2(proxy, host, func(f *http2.Framer) {
		head := headOf(host, hpack.HeaderField{Name: "x", Value: strings.Repeat("x", 7<<10)})
		for id := uint32(1); id < uint32(2*streams); id += 2 {
			if f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: head, EndStream: true, EndHeaders: true}) != nil {
				return
			}
		}
	})
}

// headOf returns a request's head in HPACK.
func headOf(host string, more ...hpack.HeaderField) []byte {
	var head bytes.Buffer
	to := hpack.NewEncoder(&head)
	to.SetMaxDynamicTableSize(0)
	fields := append([]hpack.HeaderField{{Name: ":method", Value: "PUT"}, {Name: ":scheme", Value: "https"}, {Name: ":authority", Value: host},
		{Name: ":path", Value: "/"}}, more...)
	for _, field := range fields {
		_ = to.WriteField(field)
	}
	return head.Bytes()
}

// speak2 opens a connection to a host in HTTP/2 whose window is 0, through the proxy of a sandbox, and has it written. It returns when
// the connection ends.
func speak2(proxy, host string, write func(*http2.Framer)) {
	raw, err := net.Dial("tcp", proxy)
	if err != nil {
		return
	}
	defer raw.Close()
	fmt.Fprintf(raw, "CONNECT %[1]s:443 HTTP/1.1\r\nHost: %[1]s:443\r\n\r\n", host)
	if res, err := http.ReadResponse(bufio.NewReaderSize(raw, 16), nil); err != nil || res.StatusCode != http.StatusOK {
		return
	}
	c := tls.Client(raw, &tls.Config{ServerName: host, InsecureSkipVerify: true, NextProtos: []string{"h2"}})
	if c.Handshake() != nil || c.ConnectionState().NegotiatedProtocol != "h2" {
		return
	}
	_, _ = io.WriteString(c, http2.ClientPreface)
	f := http2.NewFramer(c, c)
	_ = f.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
	go write(f)
	for {
		if _, err := f.ReadFrame(); err != nil {
			return
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

// holdOpen opens one file or directory again and again, reads a bit of each, and keeps
// them open. It prints how many it has, and the errno of the next.
func holdOpen(most int, name string, read func(int, []byte) (int, error)) error {
	n, err := 0, error(nil)
	for buf := make([]byte, 64); n < most; n++ {
		var fd int
		if fd, err = unix.Open(name, unix.O_RDONLY|unix.O_CLOEXEC, 0); err != nil {
			break
		}
		if _, err = read(fd, buf); err != nil {
			break
		}
	}
	_, again := os.ReadFile("/workspace/f") // a descriptor of its own, for a moment
	stat := unix.Stat("/workspace/many/entry-1", &unix.Stat_t{})
	fmt.Println("ready", n, harness.ErrnoOf(err), harness.ErrnoOf(again), harness.ErrnoOf(stat))
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
	fmt.Println("ready", n, harness.ErrnoOf(err), time.Since(began).Milliseconds())
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

// startFlood starts a flooder and waits until it is at work.
func startFlood(h *harness.Host, agent, role string, argv ...string) *flooder {
	h.T.Helper()
	f := &flooder{cmd: h.InSandbox(agent, role, argv...)}
	var err error
	f.in, err = f.cmd.StdinPipe()
	require.NoError(h.T, err)
	out, err := f.cmd.StdoutPipe()
	require.NoError(h.T, err)
	require.NoError(h.T, f.cmd.Start())
	h.T.Cleanup(func() { f.stop() })
	f.ready, err = bufio.NewReader(out).ReadString('\n')
	require.NoError(h.T, err, "%s: it ended before it was ready", role)
	return f
}

func (f *flooder) stop() {
	f.in.Close()
	_ = f.cmd.Process.Signal(syscall.SIGTERM)
	_ = f.cmd.Wait()
}

func init() {
	// Clients that each keep so many calls under way: arguments are the socket, the tool and what it is called with.
	harness.Roles["flood-calls"] = func(args []string) error {
		return forever(8, func(int, int) error {
			conn, err := net.Dial("unix", args[0])
			if err != nil {
				return err
			}
			defer conn.Close()
			in := bufio.NewReader(conn)
			_, err = io.WriteString(conn, harness.Hello)
			for n := 0; err == nil; n++ {
				if n >= 32 {
					_, err = in.ReadString('\n')
				}
				if err == nil {
					_, err = io.WriteString(conn, harness.Request(n, args[1], args[2]))
				}
			}
			return err
		})
	}
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

// measureCalls calls read_file of an agent, one call after another.
func measureCalls(h *harness.Host, r *harness.Raw, count int) (l latency) {
	h.T.Helper()
	require.NoError(h.T, r.SetDeadline(time.Now().Add(5*time.Minute)))
	for n := range count {
		began := time.Now()
		_, err := io.WriteString(r, harness.Request(n, "read_file", `{"path":"f"}`))
		require.NoError(h.T, err)
		line := r.Line()
		l = append(l, time.Since(began))
		require.NotContains(h.T, line, `"isError":true`, "%.300s", line)
	}
	return l
}

// measureView opens and reads a file of a view that the kernel asks for anew.
func measureView(h *harness.Host, agent string, count int) (l latency) {
	h.T.Helper()
	for range count {
		began := time.Now()
		_, err := os.ReadFile(h.View(agent, "f"))
		l = append(l, time.Since(began))
		require.NoError(h.T, err)
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

// floodHost has a flooder's agent, with limits, and its neighbour.
func floodHost(t testing.TB, limits string) *harness.Host {
	h := harness.LayOut(t, map[string]string{"loud": "view: {paths: {.env: hide, secret: read}}\nnetwork: {allow: [{host: refused.test, methods: [GET]}]}\n" + limits, "calm": ""})
	h.Timeout = 10 * time.Minute
	harness.Plant(t, h.Scope("loud"), "f", ".env", "secret", "linked", "links/", "many/")
	for i := range 200 {
		harness.Plant(t, h.Scope("loud"), fmt.Sprintf("many/entry-%d", i))
	}
	h.Put("scopefs.yaml", "stores: {kv: {}}\n")
	require.NoError(t, os.WriteFile(h.Scope("calm", "f"), []byte(strings.Repeat("some text\n", 400)), 0o644))
	h.Start()
	return h
}

// floods are what an agent may do to another one, by name: each a role of this binary with its arguments, on the agent's socket or in
// its sandbox.
func floods() map[string][]string {
	all := map[string][]string{
		"8 x 32 calls":         {"flood-calls", "read_file", `{"path":"f"}`},
		"8 x 32 writes":        {"flood-calls", "write_file", `{"path":"w","content":"x"}`},
		"8 x 32 keys":          {"flood-calls", "kv_set", `{"key":"k","value":"v"}`},
		"metadata, 64 threads": {"flood-metadata"},
		"open directories":     {"flood-directories", "19900"},
		"hard links":           {"flood-links", "20000"},
		"denials, 16 threads":  {"flood-denials"},
		"shut windows":         {"flood-windows", "refused.test"},
		"streams reset":        {"flood-resets", "refused.test"},
	}
	for kind := range messageFloods() {
		all[kind] = []string{"flood-messages", kind}
	}
	return all
}

// floodWindow is how long calls are measured with and without a flood, in turns.
const floodWindow = 500 * time.Millisecond

// pausedFlood is a flood of the agent loud in a process that stands still but while it is let go.
type pausedFlood struct{ pid int }

// pauseFlood starts a flood, which is paused.
func pauseFlood(h *harness.Host, words []string) pausedFlood {
	h.T.Helper()
	role, argv := words[0], words[1:]
	if role == "flood-messages" || role == "flood-calls" {
		cmd := harness.Role(role, append([]string{h.Door("loud")}, argv...)...)
		in, err := cmd.StdinPipe()
		require.NoError(h.T, err)
		ready := harness.Stream(h.T, cmd)
		require.Equal(h.T, "ready", ready())
		h.T.Cleanup(func() { in.Close() })
		f := pausedFlood{cmd.Process.Pid}
		h.T.Cleanup(f.goOn)
		f.pause()
		return f
	}
	mark := harness.Seconds(1)
	startFlood(h, "loud", role, append(argv, mark)...)
	f := pausedFlood{(*harness.Way)(nil).Sandboxed(mark)}
	require.NotZero(h.T, f.pid)
	h.T.Cleanup(f.goOn)
	f.pause()
	return f
}

func (f pausedFlood) pause() { _ = syscall.Kill(f.pid, syscall.SIGSTOP) }
func (f pausedFlood) goOn()  { _ = syscall.Kill(f.pid, syscall.SIGCONT) }

// BenchmarkFloods prints what each flood of one agent does to another's calls, in turns with the same seconds without it. It asserts
// nothing about time. SCOPEFS_FLOOD_PROGRAM names another build, to compare with.
func BenchmarkFloods(b *testing.B) {
	if other := os.Getenv("SCOPEFS_FLOOD_PROGRAM"); other != "" {
		defer func(ours string) { harness.Program = ours }(harness.Program)
		harness.Program = other
	}
	count := 1000
	if text := os.Getenv("SCOPEFS_FLOOD_COUNT"); text != "" {
		count, _ = strconv.Atoi(text)
	}
	for _, name := range slices.Sorted(maps.Keys(floods())) {
		if only := os.Getenv("SCOPEFS_FLOOD"); !strings.Contains(name, only) {
			continue
		}
		b.Run(name, func(b *testing.B) {
			h := floodHost(b, os.Getenv("SCOPEFS_FLOOD_LIMITS"))
			r := h.Dial("calm").Greet()
			measureCalls(h, r, 20)
			pid := h.Cmd.Process.Pid
			before := memoryOf(pid)
			f := pauseFlood(h, floods()[name])
			var quiet, loud latency
			var used, took, usedQuiet, tookQuiet time.Duration
			most := 0
			window := func(calls *latency, used, took *time.Duration) {
				began, spent := time.Now(), spentBy(pid)
				for time.Since(began) < floodWindow {
					*calls = append(*calls, measureCalls(h, r, 10)...)
				}
				*used, *took = *used+spentBy(pid)-spent, *took+time.Since(began)
			}
			for len(loud) < count {
				var after latency
				var none time.Duration
				window(&after, &none, &none) // of the flood, that the daemon still has
				window(&quiet, &usedQuiet, &tookQuiet)
				f.goOn()
				window(&loud, &used, &took)
				f.pause()
				most = max(most, memoryOf(pid))
			}
			fmt.Printf("| %-22s | %.1f | flood: %v | quiet: %v | daemon: %d -> %d MiB, %.2f and %.2f cores |\n", name,
				float64(loud.at(99))/float64(quiet.at(99)), loud, quiet, before>>10, most>>10,
				used.Seconds()/took.Seconds(), usedQuiet.Seconds()/tookQuiet.Seconds())
		})
	}
}

// TestFloodEndsNoView: refused requests on 60 connections of HTTP/2 whose windows stay shut keep the daemon's
// processors. It ends neither the view of the agent nor another one. SCOPEFS_FLOOD_TIME is in seconds.
func TestFloodEndsNoView(t *testing.T) {
	need.Once(t)
	h := floodHost(t, "")
	seconds, err := strconv.Atoi(os.Getenv("SCOPEFS_FLOOD_TIME"))
	if err != nil {
		seconds = 5
	}
	f := startFlood(h, "loud", "flood-windows", "refused.test")
	for began := time.Now(); time.Since(began) < time.Duration(seconds)*time.Second; {
		measureView(h, "calm", 100)
	}
	f.stop()
	assert.Empty(t, died(h))
	assert.Equal(t, "mounted", h.Agent("loud").State)
}

// TestFloodDirectories: an open directory takes nothing in the view.
func TestFloodDirectories(t *testing.T) {
	need.Once(t)
	h := floodHost(t, "limits: {open_files: 600}")
	before := memoryOf(h.ViewPID("loud"))
	f := startFlood(h, "loud", "flood-directories", "19000")
	assert.Equal(t, "ready 19000 ok ok ok", strings.TrimSpace(f.ready))
	assert.Less(t, memoryOf(h.ViewPID("loud"))-before, 8<<10, "KiB")
}

// TestFloodFiles: a client that opens all it can is stopped by the limit of its agent, with
// EMFILE. Requests without a handle still succeed, and an open file takes little memory.
func TestFloodFiles(t *testing.T) {
	need.Once(t)
	h := floodHost(t, "limits: {open_files: 6000}")
	before := memoryOf(h.ViewPID("loud"))
	f := startFlood(h, "loud", "flood-files", "19000")
	var n int
	var opened, read, stat string
	_, err := fmt.Sscanf(f.ready, "ready %d %s %s %s", &n, &opened, &read, &stat)
	require.NoError(t, err, f.ready)
	assert.InDelta(t, 6000, n, 10)
	assert.Equal(t, []string{"EMFILE", "EMFILE", "ok"}, []string{opened, read, stat})
	assert.Less(t, memoryOf(h.ViewPID("loud"))-before, 48<<10, "KiB for 6000 open files")
	f.stop()
	h.Eventually("the handles are free again", func() bool { return harness.HostOps(t, h.View("loud"), "read f")[0] == "ok" })
}

// TestFloodDescriptors: where the process may have few descriptors, requests that need one
// for a moment still have it.
func TestFloodDescriptors(t *testing.T) {
	need.Once(t)
	h := harness.LayOut(t, map[string]string{"loud": ""})
	harness.Plant(t, h.Scope("loud"), "f", "many/", "many/entry-1")
	h.StartWith(1024)
	var n int
	var opened, read, stat string
	_, err := fmt.Sscanf(startFlood(h, "loud", "flood-files", "19000").ready, "ready %d %s %s %s", &n, &opened, &read, &stat)
	require.NoError(t, err)
	assert.Equal(t, []string{"EMFILE", "EMFILE", "ok"}, []string{opened, read, stat}, "%d", n)
	assert.InDelta(t, 512, n, 20)
}

// TestFloodLinks: a file has so many names, and no operation on it costs more for that.
func TestFloodLinks(t *testing.T) {
	need.Once(t)
	h := floodHost(t, "limits: {links: 1500}")
	var n, took int
	var errno string
	_, err := fmt.Sscanf(startFlood(h, "loud", "flood-links", "20000").ready, "ready %d %s %d", &n, &errno, &took)
	require.NoError(t, err)
	assert.Equal(t, 1500, n)
	assert.Equal(t, "EMLINK", errno)

	many := floodHost(t, "limits: {links: 30000}")
	_, err = fmt.Sscanf(startFlood(many, "loud", "flood-links", "20000").ready, "ready %d %s %d", &n, &errno, &took)
	require.NoError(t, err)
	assert.Equal(t, 20000, n)
	assert.Less(t, took, 30_000, "ms; it was 72 s before")
	t.Logf("20000 names in %d ms", took)
}

// TestFloodNames: the host has made thousands of names of a file. The most restricted one
// holds for all, whatever it costs to find it.
func TestFloodNames(t *testing.T) {
	need.Once(t)
	h := harness.LayOut(t, map[string]string{"a": "view: {paths: {kept: read}}"})
	harness.Plant(t, h.Scope("a"), "f", "d/", "kept/")
	const count = 15_000
	for i := range count {
		require.NoError(t, os.Link(h.Scope("a", "f"), h.Scope("a", "d", strconv.Itoa(i))))
	}
	require.NoError(t, os.Link(h.Scope("a", "f"), h.Scope("a", "kept", "f")))
	h.Start()
	began, spent := time.Now(), spentBy(h.ViewPID("a"))
	for i := range count {
		require.NoError(t, unix.Chmod(h.View("a", "d", strconv.Itoa(i)), 0o644))
	}
	cost := spentBy(h.ViewPID("a")) - spent
	t.Logf("%d names: %v, of which the view %v", count, time.Since(began), cost)
	assert.Less(t, cost, 20*time.Second)
	assert.Equal(t, []string{"ok", "ok", "ok"}, harness.HostOps(t, h.View("a"), "write f", "write d/7", "read kept/f"))
	assert.Equal(t, []string{"EACCES", "EACCES", "ok"}, harness.HostOps(t, h.View("a"), "write f", "write d/7", "read d/8"))
}

// TestFloodMemory: a tree of any size can be walked in a view of little memory, for the
// kernel forgets what nobody uses. Who keeps it from that gets ENOMEM.
func TestFloodMemory(t *testing.T) {
	need.Once(t)
	h := harness.LayOut(t, map[string]string{"loud": "limits: {view_memory: 1MiB}"})
	harness.Plant(t, h.Scope("loud"), "f", "many/")
	const count = 8000
	for i := range count {
		harness.Plant(t, h.Scope("loud"), fmt.Sprintf("many/entry-%d", i))
	}
	h.Start()
	before := memoryOf(h.ViewPID("loud"))
	for i := range count {
		_, err := os.Lstat(h.View("loud", "many", fmt.Sprintf("entry-%d", i)))
		require.NoError(t, err, "%d", i)
	}
	assert.Less(t, memoryOf(h.ViewPID("loud"))-before, 24<<10, "KiB after %d files", count)
	f := startFlood(h, "loud", "flood-paths")
	var n int
	var errno, made, read string
	_, err := fmt.Sscanf(f.ready, "ready %d %s %s %s", &n, &errno, &made, &read)
	require.NoError(t, err, f.ready)
	assert.Equal(t, []string{"ENOMEM", "ENOMEM", "ok"}, []string{errno, made, read}, "%d", n)
	f.stop()
	h.Eventually("there is room again", func() bool { return harness.HostOps(t, h.View("loud"), "create new")[0] == "ok" })
}

// TestLimitsHoldForView: what an agent makes its view do is done within its limits.
func TestLimitsHoldForView(t *testing.T) {
	h := floodHost(t, "limits: {cpu: 0.5, memory: 96MiB}")
	pid := h.ViewPID("loud")
	groups, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	require.NoError(t, err)
	assert.Contains(t, string(groups), "-loud/view")
	f := startFlood(h, "loud", "flood-metadata")
	spent, began := spentBy(pid), time.Now()
	time.Sleep(4 * time.Second) // the measure itself
	assert.Less(t, (spentBy(pid)-spent).Seconds()/time.Since(began).Seconds(), 0.6, "processors of the view")
	f.stop()
	u := h.Connect("loud")
	out := u.Call("bash", args{"command": "head -c 300M /dev/zero | tail"})
	assert.Equal(t, true, out["out_of_memory"], "%v", out)
	h.Eventually("the log says so", func() bool {
		return h.Recorded("loud", audit.Event{Event: audit.KindSandbox, Outcome: "out of memory"})
	})
	assert.Equal(t, pid, h.ViewPID("loud"), "the view is killed last")
	u.Bash("cat f")
	_, said, code := h.Try("run", "-T", "loud", "--", "sh", "-c", "head -c 300M /dev/zero | exec tail; exit $?")
	assert.NotZero(t, code)
	assert.Contains(t, said, "out of memory")
	h.Must("down", "loud")
	left, _ := filepath.Glob("/sys/fs/cgroup/*/scopefs-" + strconv.Itoa(h.Cmd.Process.Pid) + "-*-loud")
	assert.Empty(t, left)
}

// TestLimitsHoldForNetwork: the process of an agent's network is in the agent's group, and goes with it.
func TestLimitsHoldForNetwork(t *testing.T) {
	s := newHostOf(t)
	h := harness.LayOut(t, map[string]string{"loud": "limits: {memory: 256MiB}\n" + s.reaches("")})
	h.Start()
	h.Must("run", "-T", "loud", "--", "bash", "-c", byConnect)
	s.next()
	pid := agentProcesses(h, 1)[0]
	groups, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	require.NoError(t, err)
	assert.Contains(t, string(groups), "-loud/view")
	h.Must("down", "loud")
	agentProcesses(h, 0)
	left, _ := filepath.Glob("/sys/fs/cgroup/*/scopefs-" + strconv.Itoa(h.Cmd.Process.Pid) + "-*-loud")
	assert.Empty(t, left)
}

// TestWorkerOutOfMemory: a call of a file tool whose process the kernel killed says so.
func TestWorkerOutOfMemory(t *testing.T) {
	h := harness.LayOut(t, map[string]string{"a": "limits: {memory: 32MiB}"})
	harness.Plant(t, h.Scope("a"), "f")
	require.NoError(t, os.WriteFile(h.Scope("a", "long"), bytes.Repeat([]byte("a line of text\n"), 7<<16), 0o644))
	h.Start()
	u := h.Connect("a")
	u.Call("stat", args{"path": "f"})
	h.Eventually("it is killed", func() bool {
		ctx := u.Soon()
		for range 8 {
			go u.Send(ctx, "edit_file", args{"path": "long", "edits": []args{{"old_text": "a line", "new_text": "b"}}})
		}
		r, err := u.Send(ctx, "edit_file", args{"path": "long", "edits": []args{{"old_text": "a line", "new_text": "b"}}})
		return err == nil && strings.Contains(harness.Said(r), "out of memory")
	})
}

// TestViewOutOfMemory: a view that the kernel killed is back, and the log has the reason.
func TestViewOutOfMemory(t *testing.T) {
	need.Once(t)
	h := harness.LayOut(t, map[string]string{"a": "limits: {memory: 16MiB}"})
	const count = 25_000
	name := func(i int) string { return fmt.Sprintf("d/%0200d", i) }
	harness.Plant(t, h.Scope("a"), "f", "d/")
	for i := range count {
		harness.Plant(t, h.Scope("a"), name(i)+"=")
	}
	h.Start()
	pid := h.ViewPID("a")
	failed := false
	for i := 0; i < count && !failed; i++ {
		_, err := os.Lstat(h.View("a", name(i)))
		failed = err != nil
	}
	assert.True(t, failed, "the view has %d KiB", memoryOf(pid))
	h.Eventually("the log has why", func() bool {
		return h.Recorded("a", audit.Event{Event: audit.KindView, Outcome: "out of memory"})
	})
	h.Eventually("the view is back", func() bool { _, err := os.ReadFile(h.View("a", "f")); return err == nil })
	assert.NotEqual(t, pid, h.ViewPID("a"))
}
