package view

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/integration/harness"
)

// TestReload: when reload returns, the new rules are in force, also for entries that
// the kernel cached under the old rules, and for clients that are at work meanwhile.
func TestReload(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"a": "view: {paths: {secret: hide}}", "b": ""})
	harness.Plant(t, h.Scope("a"), "secret/s", "ref/f", "ref/g", "free/f")
	v := h.View("a")
	known := []string{"stat secret", "stat ref/f", "stat free/f", "write ref/g", "list ref f"}
	assert.Equal(t, []string{"ENOENT", "ok", "ok", "ok", "ok"}, harness.HostOps(t, v, known...))
	open, err := os.OpenFile(filepath.Join(v, "ref/f"), os.O_RDWR, 0)
	require.NoError(t, err)
	defer open.Close()

	for range 10 {
		h.Define("a", "view: {paths: {\"ref/**\": read, free: hide}}")
		h.Must("reload") // or by itself: the daemon watches
		assert.Equal(t, []string{"ok", "ok", "ENOENT", "EACCES", "ok"}, harness.HostOps(t, v, known...))
		h.Define("a", "view: {paths: {secret: hide}}")
		h.Must("reload") // or by itself: the daemon watches
		assert.Equal(t, []string{"ENOENT", "ok", "ok", "ok", "ok"}, harness.HostOps(t, v, known...))
	}
	assert.Empty(t, h.Must("reload"), "nothing has changed")
	assert.True(t, h.Recorded("a", audit.Event{Event: audit.KindAgent, Outcome: "new rules hold"}))

	// What does not load changes nothing.
	h.Define("a", "view: {paths: {secret: show}}")
	_, errs, code := h.Try("reload")
	assert.Equal(t, 1, code)
	assert.Contains(t, errs, "agents.d/a.md:4: ")
	assert.Equal(t, []string{"ENOENT"}, harness.HostOps(t, v, "stat secret"))

	// More than rules waits; what is new is mounted; what is gone stays.
	h.Define("a", "view: {data: mediated}")
	h.Define("c", "")
	require.NoError(t, os.Remove(filepath.Join(h.Base, "agents.d", "b.md")))
	out := h.Must("reload")
	assert.Contains(t, out, "a: waits for scopefs down and up: view.data\nb: definition removed, mounted until scopefs down\n")
	assert.True(t, h.Recorded("c", audit.Event{Event: audit.KindAgent, Outcome: "mounted"}), out)
	assert.Equal(t, []string{"ok"}, harness.HostOps(t, v, "stat secret"), "its rules hold all the same")

	// A view that does not take them is ended, and the next one has them.
	old := h.PS()[0].ViewPID
	require.NoError(t, unix.Kill(old, syscall.SIGSTOP))
	h.Define("a", "view: {data: mediated, paths: {ref: hide}}")
	h.Try("reload")
	assert.True(t, h.Recorded("a", audit.Event{Event: audit.KindAgent, Outcome: "view restarted"}))
	h.Eventually("the view is back", func() bool { a := h.PS()[0]; return a.State == "mounted" && a.ViewPID != old })
	assert.Equal(t, []string{"ENOENT", "ok"}, harness.HostOps(t, v, "stat ref/f", "stat secret"))
}

// TestReloadFlood: new rules hold at once however much is denied meanwhile: the
// view that is flooded takes them, and is not replaced.
func TestReloadFlood(t *testing.T) {
	t.Parallel()
	h := harness.NewHost(t, map[string]string{"a": ""})
	// Each in a directory of its own: in one, the kernel would have them wait for each other.
	const flood = `import os, threading
for _ in range(64):
    os.mkdir("x" * 250)
    os.chdir("x" * 250)
def f(n):
    os.mkdir(n)
    while True:
        try: os.symlink("/etc/shadow", n + "/link")
        except OSError: pass
for n in range(100): threading.Thread(target=f, args=(str(n),)).start()
`
	require.NoError(t, os.WriteFile(h.Scope("a", "flood.py"), []byte(flood), 0o644))
	u := h.Connect("a")
	u.Call("bash", args{"command": "python3 flood.py", "background": true})
	denials := func() (n int) {
		for _, e := range h.Events("a") {
			if e.Verdict == audit.Violation {
				n++
			}
		}
		return n
	}
	h.Eventually("they are slowed down", func() bool { return denials() > 70 })
	pid := h.Agent("a").ViewPID
	for i := range 3 {
		h.Define("a", "view: {paths: {n"+strconv.Itoa(i)+": read}}")
		h.Must("reload") // or by itself: the daemon watches
	}
	assert.Equal(t, pid, h.Agent("a").ViewPID)
	assert.False(t, h.Recorded("a", audit.Event{Event: audit.KindAgent, Outcome: "view restarted"}))
}

// TestReloadByItself: a definition that was written holds soon, and one that is
// written over and over is never read half.
func TestReloadByItself(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"a": ""})
	harness.Plant(t, h.Scope("a"), "f")
	require.Equal(t, []string{"ok"}, harness.HostOps(t, h.View("a"), "stat f"))
	h.Define("a", "view: {paths: {f: hide}}")
	h.Eventually("the new rule holds", func() bool { return harness.HostOps(t, h.View("a"), "stat f")[0] == "ENOENT" })
	h.Define("a", "")
	h.Eventually("it holds no more", func() bool { return harness.HostOps(t, h.View("a"), "stat f")[0] == "ok" })
	require.NoError(t, exec.Command("cp", filepath.Join(h.Base, "agents.d/a.md"), filepath.Join(h.Base, "agents.d/b.md.tmp")).Run())
	assert.Equal(t, []string{"ok"}, harness.HostOps(t, h.View("a"), "stat f"))

	// The directory of definitions is replaced: meanwhile the last good ones hold.
	dir := filepath.Join(h.Base, "agents.d")
	require.NoError(t, os.Rename(dir, dir+".old"))
	_, errs, code := h.Try("reload")
	assert.Equal(t, 1, code)
	assert.Contains(t, errs, "agents.d")
	list := h.PS() // what is wrong, and the agent
	require.Len(t, list, 2)
	assert.Equal(t, "mounted", list[1].State)
	require.NoError(t, os.Mkdir(dir, 0o755))
	h.Define("a", "view: {paths: {f: hide}}")
	h.Eventually("the new directory is watched", func() bool { return harness.HostOps(t, h.View("a"), "stat f")[0] == "ENOENT" })
	h.Define("a", "")
	h.Eventually("and goes on to be", func() bool { return harness.HostOps(t, h.View("a"), "stat f")[0] == "ok" })
}
