package daemon

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/internal/need"
)

// starving is a load of other programs on a host, and how long it lasts.
type starving struct {
	agents int           // whose clients create and remove files
	loops  int           // shell loops that start processes, at nice -5
	files  int           // programs that write and sync a file of 20 MB on the disk of the base
	time   time.Duration // of the load
}

// startLoad starts the load, which ends with the test. Each program is a session of its own.
func (l starving) startLoad(t testing.TB, dir string) (stop func()) {
	t.Helper()
	var all []*exec.Cmd
	start := func(script string, args ...string) {
		cmd := exec.Command("sh", append([]string{"-c", script, "sh"}, args...)...)
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL} // also if the test is killed
		require.NoError(t, cmd.Start())
		all = append(all, cmd)
	}
	stop = sync.OnceFunc(func() {
		for _, cmd := range all {
			_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		}
		for _, cmd := range all {
			_ = cmd.Wait()
		}
	})
	t.Cleanup(stop)
	for range l.loops {
		start(`exec nice -n -5 sh -c 'while :; do /bin/true; done'`)
	}
	for i := range l.files {
		start(`while :; do dd if=/dev/zero of="$1" bs=1M count=20 conv=fsync 2>/dev/null; done`, filepath.Join(dir, fmt.Sprint("written", i)))
	}
	late := time.AfterFunc(l.time+time.Minute, stop) // a client that waits for the daemon may wait for the load
	t.Cleanup(func() { late.Stop() })
	return stop
}

// died returns why views have ended.
func died(h *harness.Host) (why []string) {
	for _, e := range h.Events("") {
		if e.Event == audit.KindView && e.Outcome == "died" {
			why = append(why, e.Agent+": "+e.Detail)
		}
	}
	return why
}

// TestStarved: a host whose processors and disk other programs use ends no view. A view that is stopped or
// killed on that host is replaced all the same.
//
// SCOPEFS_STARVED_TIME, _AGENTS, _LOOPS and _FILES are for a longer run with more load. SCOPEFS_STARVED_PROGRAM names
// another build, to compare with.
func TestStarved(t *testing.T) {
	of := func(name string, usual int) int {
		n, err := strconv.Atoi(os.Getenv("SCOPEFS_STARVED_" + name))
		if err != nil {
			return usual
		}
		return n
	}
	l := starving{agents: of("AGENTS", 3), loops: of("LOOPS", 20), files: of("FILES", 8), time: time.Duration(need.Rounds("SCOPEFS_STARVED_TIME", 5, 20)) * time.Second}
	agents := map[string]string{}
	for i := range l.agents {
		agents[fmt.Sprint("a", i)] = ""
	}
	h := harness.LayOut(t, agents)
	h.Timeout = 5*time.Minute + 2*l.time
	var clients []*churner
	for id := range agents {
		require.NoError(t, os.Mkdir(h.Scope(id, "dir"), 0o755))
	}
	if program := os.Getenv("SCOPEFS_STARVED_PROGRAM"); program != "" {
		defer func(ours string) { harness.Program = ours }(harness.Program)
		harness.Program = program
	}
	// The scheduler gives a session a part of the processors by the session's own nice value (autogroup, sched(7)).
	h.StartBy("echo 10 2>/dev/null >/proc/self/autogroup; exec nice -n 10")
	for id := range agents {
		clients = append(clients, startChurners(t, h.View(id, "dir"), 1)...)
	}
	answered(t, clients, time.Minute)
	stop := l.startLoad(t, h.Base)
	var slowest time.Duration // call of the command line
	for began := time.Now(); time.Since(began) < l.time; time.Sleep(100 * time.Millisecond) {
		asked := time.Now()
		_, errs, code := h.Try("ps")
		assert.Zero(t, code, errs)
		slowest = max(slowest, time.Since(asked))
	}
	load, _ := os.ReadFile("/proc/loadavg")
	gone := died(h)
	done := int64(0)
	for _, c := range clients {
		done += c.lines.Load()
	}
	t.Logf("%+v, load %.5s: scopefs ps took up to %v, %d reports of clients, views ended: %d\n%s",
		l, load, slowest, done, len(gone), strings.Join(gone, "\n"))
	assert.Empty(t, gone)

	for name, signal := range map[string]syscall.Signal{"stopped": syscall.SIGSTOP, "killed": syscall.SIGKILL} {
		c, pid := clients[0], h.ViewPID("a0")
		require.Positive(t, pid)
		c.worst.Store(0)
		began := time.Now()
		require.NoError(t, syscall.Kill(pid, signal))
		took := answered(t, clients[:1], 30*time.Second)
		h.Eventually("another process serves the view", func() bool {
			now := h.Agent("a0")
			return now.ViewPID != pid && now.State == "mounted"
		})
		t.Logf("%s: the client had an answer after %v, its longest operation took %d ms; the view was back after %v",
			name, took, c.worst.Load(), time.Since(began))
	}
	stop()
	assert.Len(t, died(h), len(gone)+2)
}
