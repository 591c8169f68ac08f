package integration

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/audit"
)

// agent is what ps tells of one.
func (h *host) agent(id string) agent {
	for _, a := range h.ps() {
		if string(a.ID) == id {
			return a
		}
	}
	return agent{}
}

// killView kills the process that serves a view, once it is there, and returns
// what ps told of it.
func (h *host) killView(id string) (before agent) {
	h.t.Helper()
	h.eventually("it is mounted", func() bool { // ESRCH: it died, and the daemon is about to learn of it
		before = h.agent(id)
		return before.ViewPID > 1 && syscall.Kill(before.ViewPID, syscall.SIGKILL) == nil
	})
	return before
}

// mounted counts the views that are mounted below or at a directory.
func (h *host) mounted(dir string) (n int) {
	text, err := os.ReadFile("/proc/self/mounts")
	require.NoError(h.t, err)
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); f[2] == "fuse.scopefs" && strings.HasPrefix(f[1]+"/", dir+"/") {
			n++
		}
	}
	return n
}

// A killed view is there again within a second; in between the mount point is
// dead, never the directory beneath, and sandboxes of it have ended.
func TestDaemonViewKilled(t *testing.T) {
	h := newHost(t, map[string]string{"a": ""})
	require.NoError(t, os.WriteFile(h.scope("a", "file"), nil, 0o644))
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
			if names, err := os.ReadDir(h.view("a")); err == nil && len(names) == 0 {
				wrong = append(wrong, "nothing was listed")
			}
			_ = unix.Mkdir(h.view("a", "beneath"), 0o700)
			_ = unix.Rmdir(h.view("a", "beneath"))
		}
	}()
	for range 4 {
		before := h.killView("a")
		began := time.Now()
		h.eventually("the view is there again", func() bool {
			_, err := os.Lstat(h.view("a", "file"))
			return err == nil && h.agent("a").ViewPID != before.ViewPID
		})
		assert.Less(t, time.Since(began), 5*time.Second)
	}
	close(stop)
	assert.Empty(t, <-watched)
	assert.Equal(t, 1, h.mounted(h.base))
	died := 0
	for _, e := range h.events("a") {
		if e.Event == audit.KindView && e.Outcome == "died" {
			died++
			assert.Equal(t, h.view("a"), e.Path)
			assert.Contains(t, e.Detail, "killed")
		}
	}
	assert.Equal(t, 4, died)
	h.stop()
	assert.Zero(t, h.mounted(h.base))
	assert.NoDirExists(t, h.view("a"), "something was made beneath the view, or the mount point stays")
}

// A sandbox ends with the view it was started on.
func TestDaemonViewKilledUnderRun(t *testing.T) {
	h := newHost(t, map[string]string{"a": ""})
	m := &way{host: h, tmp: t.TempDir()}
	cmd, out := startTalking(t, m, "echo ready; exec sleep 100")
	out.expect("ready")
	h.killView("a")
	// Who comes while it is restarted waits.
	for range 5 {
		assert.Zero(t, m.run("a", "--", "touch", "x").code)
	}
	var exit *exec.ExitError
	require.True(t, errors.As(cmd.Wait(), &exit))
	assert.Equal(t, 125, exit.ExitCode())
	assert.True(t, h.recorded("a", audit.Event{Op: "exec", Outcome: "sandbox ended"}))
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
	h := newHost(t, map[string]string{"a": ""})
	m := &way{host: h, tmp: t.TempDir()}
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			for range 8 {
				if o := m.run("a", "--", "touch", "x"); o.code != 0 {
					assert.Regexp(t, lostView, fmt.Sprint(o.code, " ", o.stderr))
				}
			}
		})
	}
	for range 4 {
		h.killView("a")
		time.Sleep(30 * time.Millisecond)
	}
	wg.Wait()
	h.eventually("it works", func() bool { return m.run("a", "--", "true").code == 0 })
	assert.Empty(t, h.agent("a").Sandboxes)
	assert.Equal(t, 1, h.mounted(h.base))
}

// Many who ask for one view get that one; down and up take turns.
func TestDaemonUpTogether(t *testing.T) {
	h := newHost(t, map[string]string{"a": "", "b": ""})
	h.must("down", "a")
	all := func(f func(i int)) {
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() { f(i) })
		}
		wg.Wait()
	}
	all(func(int) {
		out, errs, code := h.try("up", "a")
		assert.Zero(t, code, errs)
		assert.Equal(t, h.view("a")+"\n", out)
	})
	assert.Equal(t, 1, h.mounted(h.view("a")))
	all(func(i int) {
		if i%2 == 0 {
			_, errs, code := h.try("up", "a")
			assert.True(t, code == 0 || strings.Contains(errs, "is down"), errs)
		} else if _, errs, code := h.try("down", "a"); code != 0 {
			assert.Equal(t, "scopefs: \"a\" is not mounted\n", errs)
		}
	})
	h.must("up", "a")
	assert.Equal(t, 1, h.mounted(h.view("a")))
	h.must("down", "a")
	assert.Zero(t, h.mounted(h.view("a")))
	views := 0
	exes, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, name := range exes {
		text, _ := os.ReadFile(name)
		stat, _ := os.ReadFile(filepath.Dir(name) + "/stat")
		if strings.HasPrefix(string(text), "scopefs-view") && len(stat) > 0 && strings.Fields(string(stat))[3] == itoa(h.cmd.Process.Pid) {
			views++
		}
	}
	assert.Equal(t, 1, views, "b's")
}

// --at: where it says, again after a crash, and never where files are.
func TestDaemonUpAt(t *testing.T) {
	h := newHost(t, map[string]string{"a": "", "b": ""})
	require.NoError(t, os.WriteFile(h.scope("a", "file"), nil, 0o644))
	link := filepath.Join(h.base, "link")
	require.NoError(t, os.Symlink(h.base, link))
	h.must("down", "a")
	at := filepath.Join(h.base, "other")
	assert.Equal(t, at+"\n", h.must("up", "a", "--at", filepath.Join(link, "other")))
	assert.FileExists(t, filepath.Join(at, "file"))
	assert.Equal(t, at+"\n", h.must("up", "a"))
	_, errs, code := h.try("up", "a", "--at", h.view("a"))
	assert.Equal(t, 1, code)
	assert.Contains(t, errs, "take it down first (scopefs down a)")

	h.kill()
	h.start()
	assert.Equal(t, at, h.agent("a").Mount)
	assert.FileExists(t, filepath.Join(at, "file"))
	assert.Equal(t, 2, h.mounted(h.base))
	h.must("down", "a")
	assert.Zero(t, h.mounted(at))
	assert.Equal(t, h.view("a")+"\n", h.must("up", "a"))

	h.must("down", "a")
	for at, want := range map[string]string{
		h.scope("b"):         "scopefs: mount point \"" + h.scope("b") + "\" is where the agents' files are: choose another with --at\n",
		h.base + "/no/where": "scopefs: mount point: mkdir " + h.base + "/no/where: no such file or directory\n",
		h.view("b"):          "scopefs: mount point \"" + h.view("b") + "\" has fuse.scopefs mounted on it: choose another with --at\n",
		"/proc/self/exe":     "scopefs: mount point: ",
	} {
		_, errs, code := h.try("up", "a", "--at", at)
		assert.NotZero(t, code)
		assert.Contains(t, errs, want)
		assert.Equal(t, 1, strings.Count(errs, "\n"))
	}
	assert.Equal(t, 1, h.mounted(h.base))
	assert.Equal(t, h.view("a")+"\n", h.must("up", "a"), "a failure changes nothing")
}

// One daemon a run directory.
func TestDaemonSecond(t *testing.T) {
	h := newHost(t, map[string]string{"a": ""})
	_, errs, code := h.try("daemon")
	assert.Equal(t, 1, code)
	assert.Equal(t, "scopefs: a daemon is running already with --run "+h.base+"/run\n", errs)
	assert.Equal(t, 1, h.mounted(h.base))
	h.must("run", "a", "--", "true")
}
