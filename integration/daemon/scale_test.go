package daemon

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/internal/need"
	"github.com/scopefs/scopefs/internal/opentest"
)

// readBytes returns how many bytes a process has read: files, /proc and sockets;
// proc_pid_io(5).
func readBytes(t *testing.T, pid int) int {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/io", pid))
	require.NoError(t, err)
	for line := range strings.Lines(string(text)) {
		if number, ok := strings.CutPrefix(line, "rchar: "); ok {
			n, err := strconv.Atoi(strings.TrimSpace(number))
			require.NoError(t, err)
			return n
		}
	}
	t.Fatal("the kernel does not count what processes read (CONFIG_TASK_IO_ACCOUNTING)")
	return 0
}

// TestScale counts the work of a start, of a run and of a reload: it must not grow
// with the square of the agents, or with the agents at all. The time that it takes
// is for make bench-scale to measure. SCOPEFS_SCALE is the number of agents.
func TestScale(t *testing.T) {
	need.Once(t)
	many := 150
	if text := os.Getenv("SCOPEFS_SCALE"); text != "" {
		var err error
		many, err = strconv.Atoi(text)
		require.NoError(t, err)
	}
	few := many / 5
	cost := map[int]int{} // bytes that the daemon has read, by agents
	for _, count := range []int{few, many} {
		t.Run(fmt.Sprint(count), func(t *testing.T) { cost[count] = startMany(t, count) })
	}
	each := (cost[many] - cost[few]) / (many - few)
	t.Logf("a start reads %d bytes for each agent", each)
	// A mount that reads the table of all mounts once reads 120 bytes for each of them.
	assert.Less(t, each, 8<<10, "%d bytes read to start %d agents, %d to start %d", cost[few], few, cost[many], many)
}

func startMany(t *testing.T, count int) (cost int) {
	agents := map[string]string{}
	for i := range count {
		agents[fmt.Sprintf("a%d", i)] = "view: {cache: none}" // so many groups of fanotify a user does not have
	}
	h := harness.LayOut(t, agents)
	h.Timeout += time.Duration(count) * time.Second / 5
	files := opentest.Count(t, filepath.Join(h.Base, "agents.d"))
	began := time.Now()
	h.Launch()
	var list []harness.Agent
	h.Eventually("the daemon answers", func() bool { list = h.PS(); return list != nil })
	assert.Less(t, time.Since(began), 3*time.Second, "until the control socket answers; wanted is one")
	assert.Len(t, list, count)
	starting := 0
	for _, a := range list {
		assert.Contains(t, []string{"starting", "mounted"}, a.State)
		if a.State == "starting" {
			starting++
		}
	}
	if count > 100 {
		assert.NotZero(t, starting, "it answers before all are mounted")
	}
	last := fmt.Sprintf("a%d", count-1)
	assert.Equal(t, "here\n", h.Must("run", last, "--", "echo", "here"), "it waits for its own view alone")
	for end := time.Now().Add(h.Timeout); ; time.Sleep(50 * time.Millisecond) {
		if h.Mounted(h.Base) == count {
			break
		}
		require.True(t, time.Now().Before(end), "not mounted: %v", h.PS())
	}
	cost = readBytes(t, h.Cmd.Process.Pid)
	// Once to load it, and again by the reload that follows a start and by our run:
	// a file that changed in the last seconds is compared.
	assert.LessOrEqual(t, files(), 4*count, "definitions opened by a start")

	h.Eventually("definitions that are left alone are not opened", func() bool {
		files()
		h.Must("run", last, "--", "true")
		h.Must("reload") // each was written at another time
		return files() == 0
	})
	h.Must("run", "a0", "--", "true")
	h.Must("reload")
	h.Must("down", last)
	h.Must("up", last)
	assert.Zero(t, files(), "definitions opened though nothing has changed")

	if count > 100 {
		assert.Equal(t, 1, viewsBeside(t, h, last), "views in the namespace where a sandbox starts")
	}

	h.Define("a1", "view: {cache: none, access: read}")
	files()
	h.Must("reload")
	assert.LessOrEqual(t, files(), 4, "definitions opened for one that has changed") // the daemon notices by itself as well
	assert.ErrorIs(t, os.WriteFile(h.View("a1", "file"), nil, 0o644), unix.EACCES)
	return cost
}

// viewsBeside counts the host's views that are mounted where an agent's sandbox is started. Those that others mount meanwhile come
// there as well, mount_namespaces(7).
func viewsBeside(t *testing.T, h *harness.Host, id string) int {
	t.Helper()
	cmd := exec.Command(harness.Program, "--base", h.Base, "run", id, "--", "sleep", "100")
	require.NoError(t, cmd.Start())
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	var sandboxes []int
	h.Eventually("the sandbox is there", func() bool { sandboxes = h.Agent(id).Sandboxes; return len(sandboxes) > 0 })
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", sandboxes[0]))
	require.NoError(t, err)
	_, rest, _ := strings.Cut(string(stat), ") ") // state, then the parent: bwrap
	mounts, err := os.ReadFile("/proc/" + strings.Fields(rest)[1] + "/mountinfo")
	require.NoError(t, err)
	n := 0
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, " scopefs:") && strings.Contains(line, " "+h.Base+"/") {
			n++
		}
	}
	return n
}
