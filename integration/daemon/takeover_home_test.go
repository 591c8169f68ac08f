package daemon

import (
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/internal/need"
)

const homed = "limits: {disk: 24MiB, files: 1k}\nsandbox: {home: lasting}"

// homeViewOf returns the process of the view that serves the HOME of agent a.
func homeViewOf(h *harness.Host) int {
	h.T.Helper()
	all := slices.DeleteFunc(harness.ChildrenOf(h.Cmd.Process.Pid, "scopefs-view"), func(pid int) bool { return pid == h.ViewPID("a") })
	require.Len(h.T, all, 1)
	return all[0]
}

// TestTakeOverHome: the sandboxes of an agent with limits of its disk, whose HOME has a view of its own, outlive the daemon: of
// scopefs run and of scopefs mcp. Files in HOME stay open, and the limit holds as before. Rounds by SCOPEFS_TEST_ROUNDS.
func TestTakeOverHome(t *testing.T) {
	need.All(t, "a daemon that ends, in one more place")
	need.Once(t)
	for how, end := range map[string]func(*harness.Host){"SIGTERM": ends["SIGTERM"], "SIGKILL": ends["SIGKILL"], "upgrade": upgrade} {
		t.Run(how, func(t *testing.T) {
			h := onMemory(t, map[string]string{"a": homed})
			h.Start()
			run := beginRun(h, "a", `cd && exec 3>open && echo in; i=0; while ! [ -e /workspace/done ]; do i=$((i+1)); echo $i >&3 || exit 9
				echo $i >new && mv new count && [ "$(cat count)" = $i ] || exit 8; sleep 0.01; done; exit 7`)
			c := greetedBridge(h, "a")
			c.bash(1, "echo kept >/tmp/kept; cd ~ && setsid sh -c 'while ! [ -e /workspace/done ]; do date >~/date || exit 9; sleep 0.01; done; echo over >~/over' >/dev/null 2>&1 </dev/null &")
			pids := h.Agent("a").Sandboxes
			require.Len(t, pids, 2)
			count := filepath.Join(h.Base, "state/home/a/count")
			h.Eventually("it counts", func() bool { return exists(count) })
			n := rounds(2)
			for i := range n {
				end(h)
				before := harness.ReadAll(t, count)
				h.Start()
				require.Contains(t, c.back(), inSameSandbox, "%+v", h.Events("a"))
				h.Eventually("it counts on", func() bool { return harness.ReadAll(t, count) != before })
				assert.ElementsMatch(t, pids, h.Agent("a").Sandboxes)
				assert.Contains(t, c.bash(10*i+11, "cat /tmp/kept; dd if=/dev/zero of=$HOME/big bs=1M count=30 2>&1; rm ~/big"), "Disk quota exceeded")
			}
			h.Put("agents/a/done", "")
			code, errs := endThin(h, run)
			assert.Equal(t, 7, code, errs)
			assert.Equal(t, "over\n", c.bash(1000, "until [ -e ~/over ]; do sleep 0.01; done; cat ~/over"))
			c.in.Close()
			_, errText, _ := h.Try("run", "a", "--", "dd", "if=/dev/zero", "of=/home/agent/big", "bs=1M", "count=30")
			assert.Contains(t, errText, "Disk quota exceeded")
			h.Stop()
			assert.Empty(t, harness.ProcessesOf(h.Base))
			assert.Zero(t, h.Mounted(filepath.Join(h.Base, "run", "views", "home-a")))
			h.Unbroken()
		})
	}
}

// TestTakeOverHomeChanged: a sandbox whose HOME would be another one now ends: a limit of the disk that is new or gone, and a view
// of the HOME that has died in the gap.
func TestTakeOverHomeChanged(t *testing.T) {
	need.All(t, "a daemon that ends, in one more place")
	for name, test := range map[string]struct {
		before string
		change func(h *harness.Host, home int)
	}{
		"limit is gone": {homed, func(h *harness.Host, _ int) { h.Define("a", "sandbox: {home: lasting}") }},
		"limit is new":  {"sandbox: {home: lasting}", func(h *harness.Host, _ int) { h.Define("a", homed) }},
		"view has died": {homed, func(h *harness.Host, home int) {
			require.NoError(h.T, syscall.Kill(home, syscall.SIGKILL))
			h.Eventually("it is dead", func() bool { s := harness.StateOf(home); return s == 0 || s == 'Z' })
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := harness.NewHost(t, map[string]string{"a": test.before})
			run := beginRun(h, "a", "echo in; sleep 1000")
			pid, home := sandboxOf(h, "a"), 0
			if test.before == homed {
				home = homeViewOf(h)
			}
			h.Terminate()
			test.change(h, home)
			h.Start()
			h.Eventually("it has ended", func() bool { s := harness.StateOf(pid); return s == 0 || s == 'Z' })
			code, errs := endThin(h, run)
			assert.Equal(t, 125, code, errs)
			assert.Contains(t, errs, "the next daemon has ended the sandbox")
			h.Must("run", "a", "--", "sh", "-c", "echo y > ~/f")
		})
	}
}

// TestTakeOverLongCommand: so does a command line that is longer than what the holder keeps of it.
func TestTakeOverLongCommand(t *testing.T) {
	need.All(t, "a daemon that ends, in one more place")
	for how, end := range ends {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			h := harness.NewHost(t, map[string]string{"a": ""})
			run := beginRun(h, "a", "echo in; : "+strings.Repeat("\x01long ", 15<<10)+"; while ! [ -e done ]; do sleep 0.01; done; exit 7")
			pid := sandboxOf(h, "a")
			end(h)
			h.Start()
			assert.Equal(t, pid, sandboxOf(h, "a"))
			h.Put("agents/a/done", "")
			code, errs := endThin(h, run)
			assert.Equal(t, 7, code, errs)
			h.Eventually("the end is recorded", func() bool { return slices.Contains(outcomes(h, "a"), "ended") })
			assert.Equal(t, []string{"started", "exec begin", "taken over", "exec exit 7", "ended"}, outcomes(h, "a"))
		})
	}
}
