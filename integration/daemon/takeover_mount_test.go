package daemon

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/internal/child"
	"github.com/scopefs/scopefs/internal/need"
	"github.com/scopefs/scopefs/internal/reconnect"
)

// contextProcess returns the process of the one /context that there is.
func contextProcess(h *harness.Host) int {
	h.T.Helper()
	all := harness.ChildrenOf(h.Cmd.Process.Pid, child.Context)
	require.Len(h.T, all, 1)
	return all[0]
}

// begins has a client's call run a script in the background of the test, with a secret in its context, and waits until the
// script has written a file.
func (c *wireClient) begins(h *harness.Host, id int, script, begun string) {
	h.T.Helper()
	c.says(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"bash","arguments":{"command":%q},`+
		`"_meta":{"scopefs/context":[{"type":"notes","text":"secret"}]}}}`+"\n", id, script))
	h.Eventually("the script runs", func() bool { _, err := os.Stat(h.Scope("a", begun)); return err == nil })
}

// waiting is a function of scripts that waits for a file of the agent.
const waiting = `wait_for() { until [ -e /workspace/$1 ]; do sleep 0.01; done; }
`

// TestTakeOverContext: /context of a sandbox stays when the daemon ends, and when the next one does: a call in flight goes on with
// its open file and its working directory there. A process without a context goes on to see none.
func TestTakeOverContext(t *testing.T) {
	need.All(t, "a daemon that ends, in one more place")
	for how, end := range map[string]func(*harness.Host){"SIGTERM": ends["SIGTERM"], "SIGKILL": ends["SIGKILL"], "upgrade": upgrade} {
		t.Run(how, func(t *testing.T) {
			h := onMemory(t, map[string]string{"a": noting})
			h.Start()
			c := greetedBridge(h, "a")
			c.call(1, "bash", map[string]any{"command": "cd /context; (setsid sh -c 'exec 4<.; i=0; while sleep 0.01; do i=$((i+1)); ls >/tmp/listed.new 2>&1 && mv /tmp/listed.new /tmp/listed; done' >/dev/null 2>&1 </dev/null &)"})
			c.ran(1)
			c.begins(h, 2, waiting+`exec 3</context/notes.json; cd /context; stat -c "%d %i" . notes.json >/tmp/before; echo >/workspace/begun
				for i in 0 1 2; do wait_for go$i; (dd bs=1 count=20 status=none <&3) 2>&1; echo; done
				cat /proc/self/fd/3; ls; cat notes.json; stat -c "%d %i" . notes.json | cmp - /tmp/before && echo same`, "begun")
			lasts(h, 1)
			pid := contextProcess(h)
			for i := range 3 {
				end(h)
				h.Start()
				assert.Contains(t, c.back(), inSameSandbox)
				c.bash(10+i, "until rm /tmp/listed; do sleep 0.01; done; until [ -e /tmp/listed ]; do sleep 0.01; done; ! grep . /tmp/listed")
				h.Put(fmt.Sprint("agents/a/go", i), "")
			}
			out := c.ran(2)
			whole := `[{"type":"notes","text":"secret"}]`
			assert.Equal(t, whole[:20]+"\n"+whole[20:]+"\n\n"+whole+"notes.json\n"+whole+"same\n", out.Stdout, out.Stderr)
			assert.Contains(t, "RS", string(harness.StateOf(pid)))
			for _, e := range h.Events("a") {
				assert.NotEqual(t, "/context", e.Path, "%+v", e)
			}
			c.in.Close()
			h.Eventually("its process ends with the sandbox", func() bool { return harness.StateOf(pid) == 0 })
			h.Stop()
			h.Unbroken()
		})
	}
}

// TestTakeOverContextHTTP: likewise for a session over HTTP, whose call sees what context_set has set.
func TestTakeOverContextHTTP(t *testing.T) {
	need.All(t, "a daemon that ends, in one more place")
	for how, end := range ends {
		t.Run(how, func(t *testing.T) {
			w := serveWeb(onMemory(t, map[string]string{"a": noting}))
			c := w.client("a").greet()
			c.set("secret")
			stream := c.begins(1, waiting+`exec 3</context/notes.json; cd /context; echo >/workspace/begun; wait_for go
				until cat <&3; do :; done 2>/dev/null; cat notes.json; ls`)
			event := stream.event()
			w.Eventually("the script runs", func() bool { _, err := os.Stat(w.Scope("a", "begun")); return err == nil })
			pid := contextProcess(w.Host)
			end(w.Host)
			w.start()
			w.Put("agents/a/go", "")
			answer := c.reads(c.returns(event)).answer()
			require.NotNil(t, answer.Result, "%+v", answer.Error)
			whole := `[{"text":"secret","type":"notes"}]`
			assert.Equal(t, whole+whole+"notes.json\n", answer.Result.StructuredContent.Stdout, answer.Result.StructuredContent.Stderr)
			assert.NotZero(t, harness.StateOf(pid))
		})
	}
}

// TestTakeOverContextGap: without a daemon a request at /context waits, and fails with EIO. Nobody can write there.
func TestTakeOverContextGap(t *testing.T) {
	need.All(t, "a daemon that ends, in one more place")
	h := harness.NewHost(t, map[string]string{"a": noting})
	c := greetedBridge(h, "a")
	c.begins(h, 1, waiting+`exec 3</context/notes.json; cd /context; echo >/workspace/begun; wait_for go
		cat notes.json 2>&1; cat <&3 2>&1; echo x >notes.json; echo x >new; rm notes.json; mkdir d
		echo >/workspace/tried; wait_for back; until cat <&3; do :; done 2>/dev/null; cat notes.json`, "begun")
	lasts(h, 1)
	h.Kill()
	began := time.Now()
	h.Put("agents/a/go", "")
	h.Eventually("requests have ended", func() bool { _, err := os.Stat(h.Scope("a", "tried")); return err == nil })
	assert.Greater(t, time.Since(began), reconnect.GapTime, "a request waits, and the one behind it does not wait as long again")
	h.Start()
	assert.Contains(t, c.back(), inSameSandbox)
	h.Put("agents/a/back", "")
	out := c.ran(1)
	assert.NotContains(t, strings.SplitN(out.Stdout, "[", 2)[0], "secret")
	assert.Equal(t, 2, strings.Count(out.Stdout, "Input/output error"), out.Stdout)
	assert.Equal(t, 2, strings.Count(out.Stdout, "secret"), out.Stdout)
	assert.Len(t, regexp.MustCompile("Read-only file system|Input/output error").FindAllString(out.Stderr, -1), 4, out.Stderr)
}

// TestTakeOverContextAttack: what had no file of a call before the daemon has ended gets none without a daemon, none from the next one
// before the client has returned, and none afterwards; nor does the call itself, if the rules of the next daemon show it no context.
func TestTakeOverContextAttack(t *testing.T) {
	for name, now := range map[string]string{"the same rules": noting, "other rules": "scopes: {enum: [plan]}"} {
		t.Run(name, func(t *testing.T) {
			h := harness.NewHost(t, map[string]string{"a": noting})
			c := greetedBridge(h, "a")
			c.call(1, "bash", map[string]any{"command": `(setsid sh -c 'until [ -e done ]; do
				for p in /proc/[0-9]*; do cat $p/fd/3 $p/cwd/notes.json $p/root/context/notes.json; done; cat /context/*; done >/tmp/stolen 2>/tmp/errors; echo >/tmp/over' >/dev/null 2>&1 </dev/null &)`})
			c.ran(1)
			c.begins(h, 2, `exec 3</context/notes.json; cd /context; echo >/workspace/begun; until [ -e /workspace/go ]; do sleep 0.01; done; cat <&3; cat notes.json; ls`, "begun")
			lasts(h, 1)
			for range 2 {
				h.Kill()
				h.Define("a", now)
				h.Start()
				assert.Contains(t, c.back(), inSameSandbox)
			}
			h.Put("agents/a/go", "")
			c.call(3, "bash", map[string]any{"command": "echo >done; until [ -e /tmp/over ]; do sleep 0.01; done; cat /tmp/stolen"})
			if now == noting {
				assert.Equal(t, 2, strings.Count(c.ran(2).Stdout, "secret"))
			} else {
				assert.NotContains(t, fmt.Sprint(c.answer(2).Result), "secret")
			}
			assert.NotContains(t, c.ran(3).Stdout, "secret")
		})
	}
}

// TestTakeOverContextStuck: a process of /context that is stopped while no daemon runs is ended; its clients have an error, and the
// sandbox gets another /context from the next daemon.
func TestTakeOverContextStuck(t *testing.T) {
	need.All(t, "a daemon that ends, in one more place")
	for name, signal := range map[string]syscall.Signal{"stopped": syscall.SIGSTOP, "killed": syscall.SIGKILL} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := harness.NewHost(t, map[string]string{"a": noting})
			c := greetedBridge(h, "a")
			c.begins(h, 1, `echo >/workspace/begun; until [ -e /workspace/go ]; do sleep 0.01; done; cat /context/notes.json 2>&1; echo >/workspace/tried
				until [ -e /workspace/back ]; do sleep 0.01; done; cat /context/notes.json`, "begun")
			lasts(h, 1)
			pid := contextProcess(h)
			h.Kill()
			require.NoError(t, syscall.Kill(pid, signal))
			h.Put("agents/a/go", "")
			h.Eventually("it has an error", func() bool { _, err := os.Stat(h.Scope("a", "tried")); return err == nil })
			h.Start()
			assert.Contains(t, c.back(), inSameSandbox)
			h.Put("agents/a/back", "")
			out := c.ran(1)
			assert.Regexp(t, `(not connected|abort)(.|\n)*secret`, out.Stdout, out.Stderr)
			h.Eventually("it is gone", func() bool { return harness.StateOf(pid) == 0 })
		})
	}
}

// TestTakeOverContextEnds: nothing of /context is left without a daemon after grace, when it is stopped, and without a holder.
func TestTakeOverContextEnds(t *testing.T) {
	need.All(t, "a daemon that ends, in one more place")
	for name, test := range endingsAnd(map[string]ending{
		"another definition": {"60s", func(_ *testing.T, h *harness.Host) {
			h.Kill()
			h.Define("a", "limits: {pids: 77}\n"+noting)
			h.Start()
		}},
		"no client": {"60s", func(_ *testing.T, h *harness.Host) {
			h.Kill()
			h.Start()
		}},
	}) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := harness.LayOut(t, map[string]string{"a": noting})
			h.Put("scopefs.yaml", "grace: "+test.grace+"\n")
			h.Start()
			c := greetedBridge(h, "a")
			c.begins(h, 1, `exec 3</context/notes.json; cd /context; echo >/workspace/begun; sleep 1000`, "begun")
			if test.grace != "0s" {
				lasts(h, 1)
			}
			pid := contextProcess(h)
			if name == "no client" {
				require.NoError(t, c.cmd.Process.Kill())
			}
			test.end(t, h)
			h.Eventually("its process has ended", func() bool { return harness.StateOf(pid) == 0 })
		})
	}
}

// TestTakeOverContextDies: a process of /context that ends while its client is away is replaced when the client returns. The other
// one lives on like the first.
func TestTakeOverContextDies(t *testing.T) {
	need.All(t, "a daemon that ends, in one more place")
	h := harness.NewHost(t, map[string]string{"a": noting})
	c := greetedBridge(h, "a")
	c.begins(h, 1, waiting+`echo >/workspace/begun; wait_for back; cat /context/notes.json`, "begun")
	lasts(h, 1)
	pid := contextProcess(h)
	require.NoError(t, c.cmd.Process.Signal(syscall.SIGSTOP))
	h.Kill()
	h.Start()
	require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
	h.Eventually("the daemon knows it", func() bool {
		return slices.ContainsFunc(h.Events("a"), func(e audit.Event) bool { return e.Path == "/context" && e.Outcome == "died" })
	})
	require.NoError(t, c.cmd.Process.Signal(syscall.SIGCONT))
	assert.Contains(t, c.back(), inSameSandbox)
	c.bash(2, "ls /context") // the other one serves
	h.Kill()
	h.Start()
	assert.Contains(t, c.back(), inSameSandbox)
	assert.Empty(t, harness.ChildrenOf(h.Cmd.Process.Pid, child.Context), "this daemon has started none")
	h.Put("agents/a/back", "")
	out := c.ran(1)
	assert.Contains(t, out.Stdout, "secret", out.Stderr)
}

// TestTakeOverUnmounts: without a next daemon no dead mount stays after grace, neither of a view that has lived on nor of one that was
// killed meanwhile, nor without grace.
func TestTakeOverUnmounts(t *testing.T) {
	for name, grace := range map[string]string{"grace": "1s", "no grace": "0s"} {
		t.Run(name, func(t *testing.T) {
			h := harness.LayOut(t, map[string]string{"a": "", "b": ""})
			h.Put("scopefs.yaml", "grace: "+grace+"\n")
			h.Start()
			views := filepath.Join(h.Base, "run", "views")
			require.Equal(t, 2, h.Mounted(views))
			killed := h.ViewPID("b")
			h.Kill()
			_ = unix.Kill(killed, unix.SIGKILL)
			h.Eventually("no mount is left", func() bool { return h.Mounted(views) == 0 })
			h.Start()
			h.Must("run", "a", "--", "true")
		})
	}
}
