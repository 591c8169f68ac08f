package history

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/need"
)

// ends are the ways in which a daemon ends and another one follows.
var ends = map[string]func(h *harness.Host){
	"SIGTERM": func(h *harness.Host) { h.Terminate() },
	"SIGKILL": func(h *harness.Host) { h.Kill() },
}

// TestTakeOverHeld: a view that holds changes lives on when its daemon ends, with its open files, its sandbox and what it holds. The
// next daemon lists that and takes it over. Without a daemon nobody else uses the branch.
func TestTakeOverHeld(t *testing.T) {
	need.All(t, "a daemon that ends, in one more place")
	for kind, def := range map[string]string{
		"all": "view: {changes: held}", "all, counted": "limits: {disk: 1GiB}\nview: {changes: held}",
		"by rule": fmt.Sprintf(holdRules, "direct"), "by rule, counted and kept": "limits: {disk: 1GiB}\n" + fmt.Sprintf(holdRules, "kept"),
	} {
		for how, end := range ends {
			t.Run(kind+"/"+how, func(t *testing.T) {
				h := harness.LayOut(t, map[string]string{"a": def})
				dir := h.Scope("a")
				harness.Plant(t, dir, ".dot/set=1", "pack.json=old")
				k := started(h)
				ruled, at := strings.HasPrefix(kind, "by rule"), h.Base+"/history/a"
				list, changes := k.held, k.client.HistoryOf
				if ruled {
					list, changes, at = k.ruled, k.client.HeldOf, at+"/hold"
				}
				view := h.ViewPID("a")
				open, err := os.OpenFile(h.View("a", "pack.json"), os.O_RDWR, 0)
				require.NoError(t, err)
				defer open.Close()
				job := exec.Command(harness.Program, "--base", h.Base, "run", "a", "--", "sh", "-ec",
					"cd .dot; echo x >loop; echo runs; while ! test -e stop; do echo x >loop; sleep 0.01; done; echo done")
				job.Stderr = t.Output()
				out, err := job.StdoutPipe()
				require.NoError(t, err)
				require.NoError(t, job.Start())
				defer func() { _ = job.Process.Kill(); _ = job.Wait() }()
				lines := bufio.NewScanner(out)
				require.True(t, lines.Scan(), "the client has the command's streams, so it outlives the daemon")
				before := harness.Dumped(t, dir, 0)
				for round := range 3 {
					end(h)
					_, err = open.WriteAt([]byte(fmt.Sprint("n", round)), 0)
					require.NoError(t, err)
					require.NoError(t, os.WriteFile(h.View("a", ".dot", fmt.Sprint("gap", round)), nil, 0o644))
					assert.Equal(t, before, harness.Dumped(t, dir, 0), "the directory has changed")
					used, err := os.Open(at + "/used")
					require.NoError(t, err)
					assert.ErrorIs(t, unix.Flock(int(used.Fd()), unix.LOCK_EX|unix.LOCK_NB), unix.EWOULDBLOCK)
					used.Close()
					stop := k.lists(changes("a"))
					h.Start()
					stop()
					assert.Equal(t, view, h.ViewPID("a"))
					assert.Contains(t, list("a"), fmt.Sprint("added .dot/gap", round))
					assert.Contains(t, list("a"), "changed pack.json")
				}
				require.NoError(t, os.WriteFile(h.View("a", ".dot", "stop"), nil, 0o644))
				assert.True(t, lines.Scan())
				assert.Equal(t, "done", lines.Text())
				assert.NoError(t, job.Wait())
				r, err := changes("a").Commit(t.Context(), api.CommitOptions{Paths: []string{"pack.json", ".dot/gap*"}})
				require.NoError(t, err)
				assert.Empty(t, r.Conflicts)
				assert.Len(t, r.Taken, 4)
				assert.Equal(t, "n2d", read(t, dir+"/pack.json"))
				k.run("a", "echo n3 >pack.json")
				assert.Contains(t, list("a"), "changed pack.json")
				assert.Equal(t, "n2d", read(t, dir+"/pack.json"))
				if how == "SIGKILL" {
					end(h)
					h.Start()
					list("a")
					require.NoError(t, unix.Kill(view, unix.SIGKILL))
					h.Eventually("it is mounted anew", func() bool { pid := h.ViewPID("a"); return pid != 0 && pid != view })
					assert.Equal(t, "n3\n", k.run("a", "cat pack.json"))
				}
				end(h)
				h.Must("daemon", "--stop")
				assert.Zero(t, h.Mounted(h.Base))
				h.Start()
				assert.Equal(t, "n3\n", k.run("a", "cat pack.json"))
				h.Stop()
				h.Unbroken()
			})
		}
	}
}

// lists asks for what is held again and again, until stop. Errors are those of no daemon.
func (k *keeper) lists(h *api.History) (stop func()) {
	over, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-over:
				return
			case <-time.After(time.Millisecond):
				_, _ = h.Diff(k.T.Context(), nil, false)
			}
		}
	}()
	return func() { close(over); <-done }
}

// TestTakeOverHeldNot: what the next daemon cannot continue with is mounted anew, with all that is held.
func TestTakeOverHeldNot(t *testing.T) {
	need.All(t, "a daemon that ends, in one more place")
	for kind, def := range map[string]string{"all": "view: {changes: held}", "by rule": fmt.Sprintf(holdRules, "direct")} {
		for what, change := range map[string]func(t *testing.T, h *harness.Host, at string){
			"definition": func(_ *testing.T, h *harness.Host, _ string) {
				h.Define("a", strings.Replace(def, "{", "{record: all, ", 1))
			},
			"unfinished commit": func(t *testing.T, _ *harness.Host, at string) {
				require.NoError(t, os.WriteFile(at+"/intent", []byte("{}"), 0o600))
			},
		} {
			t.Run(kind+"/"+what, func(t *testing.T) {
				h := harness.LayOut(t, map[string]string{"a": def})
				dir := h.Scope("a")
				harness.Plant(t, dir, ".dot/set=1", "held=1")
				k := started(h)
				at := h.Base + "/history/a"
				if kind == "by rule" {
					at += "/hold"
				}
				k.run("a", "echo 2 >held; echo n >.dot/n")
				view := h.ViewPID("a")
				h.Kill()
				change(t, h, at)
				h.Start()
				assert.NotEqual(t, view, h.ViewPID("a"))
				assert.Equal(t, "2\n", k.run("a", "cat held; echo 3 >held"))
				assert.NoFileExists(t, at+"/intent")
				assert.Equal(t, "1", read(t, dir+"/held"))
				h.Stop()
			})
		}
	}
}

// TestTakeOverHeldGone: what is held of an agent without a definition stays, and a view that cannot hold what rules say lives on.
func TestTakeOverHeldGone(t *testing.T) {
	need.All(t, "a daemon that ends, in one more place")
	h := harness.LayOut(t, map[string]string{"gone": "view: {changes: held}", "direct": "view: {changes: held}", "caller": "identity: caller\n" + fmt.Sprintf(holdRules, "direct")})
	for _, id := range []string{"gone", "direct"} {
		harness.Plant(t, h.Scope(id), "f=1")
	}
	started(h)
	require.NoError(t, os.WriteFile(h.View("gone", "f"), []byte("2"), 0o600))
	caller := h.ViewPID("caller")
	h.Kill()
	require.NoError(t, os.Remove(h.Base+"/agents.d/gone.md"))
	h.Define("direct", "view: {changes: direct}")
	h.Start()
	assert.Equal(t, caller, h.ViewPID("caller"))
	assert.Equal(t, "2", read(t, h.Base+"/history/gone/upper/f"))
	h.Stop()
}

// TestTakeOverCommit: the daemon is killed while it takes changes over, and clients go on. Afterwards each change is in the
// directory or held, and none is lost.
func TestTakeOverCommit(t *testing.T) {
	need.All(t, "a daemon that ends, in one more place")
	for kind, def := range map[string]string{"all": "view: {changes: held}", "by rule": fmt.Sprintf(holdRules, "direct")} {
		t.Run(kind, func(t *testing.T) {
			h := harness.LayOut(t, map[string]string{"a": def})
			dir := h.Scope("a")
			require.NoError(t, os.Mkdir(dir+"/.dot", 0o777))
			k := started(h)
			changes := k.client.HistoryOf
			if kind == "by rule" {
				changes = k.client.HeldOf
			}
			const files = 60
			for round := range 4 {
				k.run("a", fmt.Sprintf("for i in $(seq %d); do echo %d-$i >.dot/$i; done", files, round))
				ended := make(chan struct{})
				go func() {
					defer close(ended)
					_, _ = changes("a").Commit(t.Context(), api.CommitOptions{Theirs: true})
				}()
				time.Sleep(time.Duration(round*5) * time.Millisecond)
				h.Kill()
				<-ended
				h.Start()
				k.run("a", "echo ok >.dot/after; cat .dot/after")
				_, err := changes("a").Commit(t.Context(), api.CommitOptions{Theirs: true})
				require.NoError(t, err)
				for i := 1; i <= files; i++ {
					require.Equal(t, fmt.Sprintf("%d-%d\n", round, i), read(t, fmt.Sprint(dir, "/.dot/", i)))
				}
			}
		})
	}
}
