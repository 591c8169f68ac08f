package daemon

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
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
)

// killView kills the process that serves a view, once it is there, and returns
// what ps told of it.
func killView(h *harness.Host, id string) (before harness.Agent) {
	h.T.Helper()
	h.Eventually("it is mounted", func() bool { // ESRCH: it died, and the daemon is about to learn of it
		before = h.Agent(id)
		return before.ViewPID > 1 && syscall.Kill(before.ViewPID, syscall.SIGKILL) == nil
	})
	return before
}

// A killed view is there again within a second; in between the mount point is
// dead, never the directory beneath, and sandboxes of it have ended.
func TestDaemonViewKilled(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"a": ""})
	require.NoError(t, os.WriteFile(h.Scope("a", "file"), nil, 0o644))
	stop, watched := make(chan struct{}), make(chan []string, 1)
	go func() {
		var wrong []string
		for {
			select {
			case <-stop:
				watched <- wrong
				return
			default:
			}
			if names, err := os.ReadDir(h.View("a")); err == nil && len(names) == 0 {
				wrong = append(wrong, "nothing was listed")
			}
			_ = unix.Mkdir(h.View("a", "beneath"), 0o700)
			_ = unix.Rmdir(h.View("a", "beneath"))
		}
	}()
	for range 4 {
		before := killView(h, "a")
		began := time.Now()
		h.Eventually("the view is there again", func() bool {
			_, err := os.Lstat(h.View("a", "file"))
			return err == nil && h.Agent("a").ViewPID != before.ViewPID
		})
		assert.Less(t, time.Since(began), 5*time.Second)
	}
	close(stop)
	assert.Empty(t, <-watched)
	assert.Equal(t, 1, h.Mounted(h.Base))
	died := 0
	for _, e := range h.Events("a") {
		if e.Event == audit.KindView && e.Outcome == "died" {
			died++
			assert.Equal(t, h.View("a"), e.Path)
			assert.Contains(t, e.Detail, "killed")
		}
	}
	assert.Equal(t, 4, died)
	h.Stop()
	assert.Zero(t, h.Mounted(h.Base))
	assert.NoDirExists(t, h.View("a"), "something was made beneath the view, or the mount point stays")
}

// A sandbox ends with the view it was started on.
func TestDaemonViewKilledUnderRun(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"a": ""})
	m := &harness.Way{Host: h, Tmp: t.TempDir()}
	cmd, out := harness.StartTalking(t, m, "echo ready; exec sleep 100")
	out.Expect("ready")
	killView(h, "a")
	// Who comes while it is restarted waits.
	for range 5 {
		assert.Zero(t, m.Run("a", "--", "touch", "x").Code)
	}
	var exit *exec.ExitError
	require.True(t, errors.As(cmd.Wait(), &exit))
	assert.Equal(t, 125, exit.ExitCode())
	assert.True(t, h.Recorded("a", audit.Event{Op: "exec", Outcome: "sandbox ended"}))
}

// lostView matches the status and messages of "touch x" in a sandbox whose view
// died: scopefs reports it with status 125, and touch may report the errno of a dead
// mount before that, or alone.
var lostView = func() *regexp.Regexp {
	const dead = `(transport endpoint is not connected|software caused connection abort)`
	return regexp.MustCompile(`(?i)^125 (touch: .*: ` + dead + `\n)?scopefs: .*(sandbox session has ended|the view has ended|` + dead + `)|^1 touch: .*: ` + dead + `\n$`)
}()

// Runs and restarts in each other's way: each run works, or reports that its view
// died.
func TestDaemonRunDuringRestarts(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"a": ""})
	m := &harness.Way{Host: h, Tmp: t.TempDir()}
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			for range 8 {
				if o := m.Run("a", "--", "touch", "x"); o.Code != 0 {
					assert.Regexp(t, lostView, fmt.Sprint(o.Code, " ", o.Stderr))
				}
			}
		})
	}
	for range 4 {
		killView(h, "a")
		time.Sleep(30 * time.Millisecond)
	}
	wg.Wait()
	h.Eventually("it works", func() bool { return m.Run("a", "--", "true").Code == 0 })
	assert.Empty(t, h.Agent("a").Sandboxes)
	assert.Equal(t, 1, h.Mounted(h.Base))
}

// Many who ask for one view get that one; down and up take turns.
func TestDaemonUpTogether(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"a": "", "b": ""})
	h.Must("down", "a")
	all := func(f func(i int)) {
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() { f(i) })
		}
		wg.Wait()
	}
	all(func(int) {
		out, errs, code := h.Try("up", "a")
		assert.Zero(t, code, errs)
		assert.Equal(t, h.View("a")+"\n", out)
	})
	assert.Equal(t, 1, h.Mounted(h.View("a")))
	all(func(i int) {
		if i%2 == 0 {
			_, errs, code := h.Try("up", "a")
			assert.True(t, code == 0 || strings.Contains(errs, "is down"), errs)
		} else if _, errs, code := h.Try("down", "a"); code != 0 {
			assert.Equal(t, "scopefs: \"a\" is not mounted\n", errs)
		}
	})
	h.Must("up", "a")
	assert.Equal(t, 1, h.Mounted(h.View("a")))
	h.Must("down", "a")
	assert.Zero(t, h.Mounted(h.View("a")))
	views := 0
	exes, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, name := range exes {
		text, _ := os.ReadFile(name)
		stat, _ := os.ReadFile(filepath.Dir(name) + "/stat")
		if strings.HasPrefix(string(text), "scopefs-view") && len(stat) > 0 && strings.Fields(string(stat))[3] == strconv.Itoa(h.Cmd.Process.Pid) {
			views++
		}
	}
	assert.Equal(t, 1, views, "b's")
}

// --at: where it says, again after a crash, and never where files are.
func TestDaemonUpAt(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"a": "", "b": ""})
	require.NoError(t, os.WriteFile(h.Scope("a", "file"), nil, 0o644))
	link := filepath.Join(h.Base, "link")
	require.NoError(t, os.Symlink(h.Base, link))
	h.Must("down", "a")
	at := filepath.Join(h.Base, "other")
	assert.Equal(t, at+"\n", h.Must("up", "a", "--at", filepath.Join(link, "other")))
	assert.FileExists(t, filepath.Join(at, "file"))
	assert.Equal(t, at+"\n", h.Must("up", "a"))
	_, errs, code := h.Try("up", "a", "--at", h.View("a"))
	assert.Equal(t, 1, code)
	assert.Contains(t, errs, "take it down first (scopefs down a)")

	h.Kill()
	h.Start()
	assert.Equal(t, at, h.Agent("a").Mount)
	assert.FileExists(t, filepath.Join(at, "file"))
	assert.Equal(t, 2, h.Mounted(h.Base))
	h.Must("down", "a")
	assert.Zero(t, h.Mounted(at))
	assert.Equal(t, h.View("a")+"\n", h.Must("up", "a"))

	h.Must("down", "a")
	for at, want := range map[string]string{
		h.Scope("b"):         "scopefs: mount point \"" + h.Scope("b") + "\" is where the agents' files are: choose another with --at\n",
		h.Base + "/no/where": "scopefs: mount point: mkdir " + h.Base + "/no/where: no such file or directory\n",
		h.View("b"):          "scopefs: mount point \"" + h.View("b") + "\" has fuse.scopefs mounted on it: choose another with --at\n",
		"/proc/self/exe":     "scopefs: mount point: ",
	} {
		_, errs, code := h.Try("up", "a", "--at", at)
		assert.NotZero(t, code)
		assert.Contains(t, errs, want)
		assert.Equal(t, 1, strings.Count(errs, "\n"))
	}
	assert.Equal(t, 1, h.Mounted(h.Base))
	assert.Equal(t, h.View("a")+"\n", h.Must("up", "a"), "a failure changes nothing")
}

// One daemon a run directory.
func TestDaemonSecond(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"a": ""})
	_, errs, code := h.Try("daemon")
	assert.Equal(t, 1, code)
	assert.Equal(t, "scopefs: a daemon is running already with --run "+h.Base+"/run\n", errs)
	assert.Equal(t, 1, h.Mounted(h.Base))
	h.Must("run", "a", "--", "true")
}
