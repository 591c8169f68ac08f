package daemon

import (
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/internal/need"
)

// counts writes numbers to a file of the view, and every hundredth to its output, until the file "done" is there.
const counts = `i=0; echo 0; while ! [ -e done ]; do i=$((i+1)); echo $i >count || exit 9; [ "$(cat count)" = $i ] || exit 8; [ $((i % 100)) = 0 ] && echo $i; done; exit 7`

// beginRun starts a run whose command writes a line first. The client has its streams when beginRun returns.
func beginRun(h *harness.Host, agent, script string) *started {
	run := beginThin(h, "run", agent, "--", "sh", "-c", script)
	h.T.Cleanup(func() {
		if h.T.Failed() {
			h.T.Logf("run %s: %s", agent, &run.errs)
		}
	})
	h.Eventually("the command of "+agent+" runs", func() bool { return harness.ReadAll(h.T, run.out) != "" })
	return run
}

// sandboxOf returns process 1 of an agent's only sandbox.
func sandboxOf(h *harness.Host, agent string) int {
	var all []int
	defer func() {
		if len(all) != 1 {
			h.T.Log("sandboxes:", all, outcomes(h, agent))
		}
	}()
	h.Eventually("there is one sandbox of "+agent, func() bool {
		all = h.Agent(agent).Sandboxes
		return len(all) == 1
	})
	return all[0]
}

// outcomes returns the outcomes of the events of an agent's sandboxes in order, with the operation.
func outcomes(h *harness.Host, agent string) (all []string) {
	for _, e := range h.Events(agent) {
		if e.Event == audit.KindSandbox {
			all = append(all, strings.TrimSpace(e.Op+" "+e.Outcome))
		}
	}
	return all
}

// TestTakeOverRun: a command of scopefs run, its pipes and its exit status outlive the daemon. Rounds by SCOPEFS_TEST_ROUNDS.
func TestTakeOverRun(t *testing.T) {
	need.Once(t)
	for how, end := range map[string]func(*harness.Host){"SIGTERM": ends["SIGTERM"], "SIGKILL": ends["SIGKILL"], "upgrade": upgrade} {
		t.Run(how, func(t *testing.T) {
			h := onMemory(t, map[string]string{"a": "", "b": "limits: {memory: 200MiB, pids: 50}"})
			h.Timeout = 20 * time.Minute
			h.Start()
			runs := map[string]*started{}
			pids := map[string]int{}
			for _, id := range []string{"a", "b"} {
				runs[id] = beginRun(h, id, counts)
				h.Eventually("it counts", func() bool { return exists(h.Scope(id, "count")) })
				pids[id] = sandboxOf(h, id)
			}
			n := rounds(3)
			var first int
			for i := range n {
				end(h)
				before := harness.ReadAll(t, h.Scope("a", "count"))
				h.Start()
				h.Eventually("it counts on", func() bool { return harness.ReadAll(t, h.Scope("a", "count")) != before })
				for id, pid := range pids {
					assert.Equal(t, pid, sandboxOf(h, id))
				}
				if open := descriptors(t, h.HolderPID()); i == 0 {
					first = open
				} else {
					assert.LessOrEqual(t, open, first+4, "descriptors of the holder in round %d", i)
				}
			}
			for id, run := range runs {
				h.Put(filepath.Join("agents", id, "done"), "")
				code, errs := endThin(h, run)
				assert.Equal(t, 7, code, errs)
				for line := range strings.Lines(errs) {
					assert.Contains(t, line, "there is no daemon", "of a start that takes longer") // nothing else
				}
				for i, line := range strings.Fields(harness.ReadAll(t, run.out)) {
					require.Equal(t, strconv.Itoa(100*i), line)
				}
				want := slices.Concat([]string{"started", "exec begin"}, slices.Repeat([]string{"taken over"}, n), []string{"exec exit 7", "ended"})
				h.Eventually("the end is recorded", func() bool { return slices.Contains(outcomes(h, id), "ended") })
				assert.Equal(t, want, outcomes(h, id))
			}
			h.Must("run", "b", "--", "true") // the agent's group can be used
			h.Stop()
			assert.Empty(t, harness.ProcessesOf(h.Base))
			h.Unbroken()
		})
	}
}

// TestTakeOverRunTerminal: so does one on a terminal, which has the size of the user's and passes signals.
func TestTakeOverRunTerminal(t *testing.T) {
	need.All(t, "a daemon that ends, in one more place")
	for how, end := range ends {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			h := harness.NewHost(t, map[string]string{"a": ""})
			cmd := exec.Command(harness.Program, "--base", h.Base, "run", "a", "--", "sh")
			cmd.Env = append(os.Environ(), "TERM=dumb")
			ptmx, k := harness.OnTerminal(t, cmd, 30, 90)
			k.Expect("$ ")
			write := func(text string) { _, err := ptmx.WriteString(text); require.NoError(t, err) }
			write("x=kept; trap 'echo got\\term; exit 4' TERM; stty size\n")
			k.Expect("30 90")
			end(h)
			require.NoError(t, pty.Setsize(ptmx, &pty.Winsize{Rows: 40, Cols: 100}))
			write("echo is $x; until [ \"$(stty size)\" = '40 100' ]; do sleep 0.01; done; echo si\\zed\n") // SIGWINCH takes its time
			k.Expect("is kept")
			k.Expect("sized")
			require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
			h.Start()
			write("while :; do :; done\n") // sh(1) looks for signals between its commands
			k.Expect("gotterm")
			k.Drain()
			err := cmd.Wait()
			require.Error(t, err)
			assert.Equal(t, 4, cmd.ProcessState.ExitCode())
		})
	}
}

// TestTakeOverRunGap: what happens to a command without a daemon reaches its client from the next one, once.
func TestTakeOverRunGap(t *testing.T) {
	need.All(t, "a daemon that ends, in one more place")
	for how, end := range ends {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			h := harness.NewHost(t, map[string]string{"exits": "", "killed": "", "signal": "", "gone": ""})
			wait := func(more string) string { return "echo in; while ! [ -e done ]; do sleep 0.01; done; " + more }
			runs := map[string]*started{}
			for id, script := range map[string]string{"exits": wait("echo out; exit 3"), "killed": wait("kill -9 $$"), "signal": "trap 'exit 5' TERM; " + wait("exit 6"), "gone": wait("exit 6")} {
				runs[id] = beginRun(h, id, script)
			}
			pids := map[string]int{}
			for id := range runs {
				pids[id] = sandboxOf(h, id)
			}
			end(h)
			h.Put("agents/exits/done", "")
			h.Put("agents/killed/done", "")
			require.NoError(t, runs["signal"].Process.Signal(syscall.SIGTERM))
			require.NoError(t, runs["gone"].Process.Kill())
			h.Eventually("the output arrives", func() bool { return harness.ReadAll(t, runs["exits"].out) == "in\nout\n" })
			h.Start()
			for id, want := range map[string]int{"exits": 3, "killed": 128 + 9, "signal": 5} {
				code, errs := endThin(h, runs[id])
				assert.Equal(t, want, code, "%s: %s", id, errs)
			}
			h.Eventually("the sandbox without a client ends", func() bool { return harness.StateOf(pids["gone"]) == 0 })
			for id, want := range map[string]string{"exits": "exec exit 3", "killed": "exec signal 9", "signal": "exec exit 5", "gone": "exec sandbox ended"} {
				h.Eventually("the end is recorded", func() bool { return slices.Contains(outcomes(h, id), "ended") })
				assert.Equal(t, []string{"started", "exec begin", "taken over", want, "ended"}, outcomes(h, id), "%s: %+v", id, h.Events(id))
			}
		})
	}
}

// escaping starts a command that makes as many processes as it can, in sessions of their own, and returns process 1 and a word
// that all of them have.
func escaping(h *harness.Host, agent string) (run *started, pid int, word string) {
	word = harness.Seconds(len(agent))
	run = beginRun(h, agent, fmt.Sprintf(
		`trap '' HUP INT TERM; i=0; while [ $i -lt 20 ]; do i=$((i+1)); setsid sh -c 'trap "" HUP INT TERM; (sleep %[1]s; :) & (setsid sleep %[1]s; :) & wait' & done; echo in; wait`, word))
	h.Eventually("it runs", func() bool { return len(harness.Running("sleep", word)) == 40 })
	return run, sandboxOf(h, agent), word
}

// ending is how a daemon ends with all that would outlive it.
type ending struct {
	grace string
	end   func(*testing.T, *harness.Host)
}

var endings = map[string]ending{
	"grace":    {"2s", func(_ *testing.T, h *harness.Host) { h.Terminate() }},
	"no grace": {"0s", func(_ *testing.T, h *harness.Host) { h.Kill() }},
	"--stop":   {"60s", func(_ *testing.T, h *harness.Host) { h.Must("daemon", "--stop"); <-h.Ended }},
	"--stop without a daemon": {"60s", func(_ *testing.T, h *harness.Host) {
		h.Kill()
		h.Must("daemon", "--stop")
	}},
	"no holder": {"60s", func(t *testing.T, h *harness.Host) {
		pid := h.HolderPID()
		h.Kill()
		require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
	}},
}

// endingsAnd returns the endings and others.
func endingsAnd(others map[string]ending) map[string]ending {
	all := maps.Clone(endings)
	maps.Copy(all, others)
	return all
}

// TestTakeOverRunEnds: nothing survives by accident: without a daemon after grace, when it is stopped, and without a holder.
func TestTakeOverRunEnds(t *testing.T) {
	need.All(t, "a daemon that ends, in one more place")
	for name, test := range endingsAnd(map[string]ending{
		"grace after SIGKILL": {"2s", func(_ *testing.T, h *harness.Host) { h.Kill() }},
		"SIGINT":              {"60s", func(_ *testing.T, h *harness.Host) { h.Stop() }},
	}) {
		t.Run(name, func(t *testing.T) {
			h := harness.LayOut(t, map[string]string{"a": "limits: {pids: 200}"})
			h.Put("scopefs.yaml", "grace: "+test.grace+"\n")
			h.Start()
			run, _, word := escaping(h, "a")
			test.end(t, h)
			h.Eventually("no process is left", func() bool { return len(harness.Running("sleep", word)) == 0 })
			code, errs := endThin(h, run)
			assert.Equal(t, 125, code)
			assert.NotEmpty(t, errs)
			h.Start()
			h.Must("run", "a", "--", "true")
		})
	}
}

// TestTakeOverRunChanged: a sandbox that would be another one now ends, and its client reads why.
func TestTakeOverRunChanged(t *testing.T) {
	need.All(t, "a daemon that ends, in one more place")
	changes := map[string]func(h *harness.Host, id string){
		"limits":  func(h *harness.Host, id string) { h.Define(id, "limits: {pids: 77}") },
		"env":     func(h *harness.Host, id string) { h.Define(id, "env: {A: b}") },
		"network": func(h *harness.Host, id string) { h.Define(id, "network: host") },
		"view":    func(h *harness.Host, id string) { h.Define(id, "view: {record: all}") },
		"broken":  func(h *harness.Host, id string) { h.Define(id, "view: {paths: [}") },
		"gone": func(h *harness.Host, id string) {
			require.NoError(h.T, os.Remove(filepath.Join(h.Base, "agents.d", id+".md")))
		},
		"rules": func(h *harness.Host, id string) {
			h.Define(id, "view: {paths: {secret: hide}}\nnetwork: {allow: [example.com]}")
		}, // decided anew each time
	}
	for how, end := range ends {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			agents := map[string]string{}
			for id := range changes {
				agents[id] = ""
			}
			h := harness.NewHost(t, agents)
			runs, pids := map[string]*started{}, map[string]int{}
			for id := range changes {
				runs[id] = beginRun(h, id, "echo in; sleep 1000")
				pids[id] = sandboxOf(h, id)
			}
			end(h)
			for id, change := range changes {
				change(h, id)
			}
			h.Start()
			for id, run := range runs {
				if id == "rules" {
					assert.Equal(t, pids[id], sandboxOf(h, id))
					require.NoError(t, run.Process.Signal(syscall.SIGTERM))
					<-run.ended
					continue
				}
				h.Eventually(id+" has ended", func() bool { s := harness.StateOf(pids[id]); return s == 0 || s == 'Z' })
				code, errs := endThin(h, run)
				assert.Equal(t, 125, code, id)
				assert.NotContains(t, errs, "daemon is gone", id)
				t.Log(id, errs)
				if id != "gone" {
					assert.Equal(t, []string{"started", "exec begin", "exec sandbox ended", "ended"}, outcomes(h, id), id)
				}
			}
		})
	}
}

// TestTakeOverRunAttack: nobody but its client returns to a run: not by its name, not with another token, not twice, and not the
// user of its agent to one of the operator's.
func TestTakeOverRunAttack(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"a": "", "b": ""})
	run := beginRun(h, "a", "echo in; sleep 1000")
	pid := sandboxOf(h, "a")
	h.Kill()
	h.Start()
	h.Eventually("it is taken over", func() bool { return slices.Contains(outcomes(h, "a"), "taken over") })
	name := ""
	for _, e := range h.Events("a") {
		if e.Event == audit.KindSandbox {
			name = e.Session
		}
	}
	for _, agent := range []string{"a", "b"} {
		for _, token := range []string{"", "x", strings.Repeat("A", 26), strings.Repeat("x", 100_000)} {
			conn, err := net.Dial("unix", filepath.Join(h.Base, "run", "control.sock"))
			require.NoError(t, err)
			body := fmt.Sprintf(`{"argv":["id"],"resume":{"session":%q,"token":%q}}`, name, token)
			_, err = fmt.Fprintf(conn, "POST /v1/agents/%s/run HTTP/1.1\r\nHost: scopefs\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s", agent, len(body), body)
			require.NoError(t, err)
			answer, err := io.ReadAll(conn)
			require.NoError(t, err)
			conn.Close()
			assert.NotContains(t, string(answer), "101 Switching", agent)
			assert.Contains(t, string(answer), "the sandbox has ended", agent)
		}
	}
	assert.Equal(t, pid, sandboxOf(h, "a"))
	require.NoError(t, run.Process.Signal(syscall.SIGTERM))
	code, errs := endThin(h, run)
	assert.Equal(t, 128+15, code, errs)
}
