package integration

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/audit"
)

// TestReload: when reload returns the new rules hold, also for what the kernel
// knew by the old ones, and for who is at work meanwhile.
func TestReload(t *testing.T) {
	h := newHost(t, map[string]string{"a": "view: {paths: {secret: hide}}", "b": ""})
	plant(t, h.scope("a"), "secret/s", "ref/f", "ref/g", "free/f")
	v := h.view("a")
	known := []string{"stat secret", "stat ref/f", "stat free/f", "write ref/g", "list ref f"}
	assert.Equal(t, []string{"ENOENT", "ok", "ok", "ok", "ok"}, hostOps(t, v, known...))
	open, err := os.OpenFile(filepath.Join(v, "ref/f"), os.O_RDWR, 0)
	require.NoError(t, err)
	defer open.Close()

	for range 10 {
		h.define("a", "view: {paths: {\"ref/**\": read, free: hide}}")
		h.must("reload") // or by itself: the daemon watches
		assert.Equal(t, []string{"ok", "ok", "ENOENT", "EACCES", "ok"}, hostOps(t, v, known...))
		h.define("a", "view: {paths: {secret: hide}}")
		h.must("reload") // or by itself: the daemon watches
		assert.Equal(t, []string{"ENOENT", "ok", "ok", "ok", "ok"}, hostOps(t, v, known...))
	}
	assert.Empty(t, h.must("reload"), "nothing has changed")
	assert.True(t, h.recorded("a", audit.Event{Event: audit.KindAgent, Outcome: "new rules hold"}))

	// What does not load changes nothing.
	h.define("a", "view: {paths: {secret: show}}")
	_, errs, code := h.try("reload")
	assert.Equal(t, 1, code)
	assert.Contains(t, errs, "agents.d/a.md:4: ")
	assert.Equal(t, []string{"ENOENT"}, hostOps(t, v, "stat secret"))

	// More than rules waits; what is new is mounted; what is gone stays.
	h.define("a", "view: {data: mediated}")
	h.define("c", "")
	require.NoError(t, os.Remove(filepath.Join(h.base, "agents.d", "b.md")))
	out := h.must("reload")
	assert.Contains(t, out, "a: waits for scopefs down and up\nb: definition removed, mounted until scopefs down\n")
	assert.True(t, h.recorded("c", audit.Event{Event: audit.KindAgent, Outcome: "mounted"}), out)
	assert.Equal(t, []string{"ok"}, hostOps(t, v, "stat secret"), "its rules hold all the same")

	// A view that does not take them is ended, and the next one has them.
	old := h.ps()[0].ViewPID
	require.NoError(t, unix.Kill(old, syscall.SIGSTOP))
	h.define("a", "view: {data: mediated, paths: {ref: hide}}")
	h.try("reload")
	assert.True(t, h.recorded("a", audit.Event{Event: audit.KindAgent, Outcome: "view restarted"}))
	h.eventually("the view is back", func() bool { a := h.ps()[0]; return a.State == "mounted" && a.ViewPID != old })
	assert.Equal(t, []string{"ENOENT", "ok"}, hostOps(t, v, "stat ref/f", "stat secret"))
}

// TestReloadFlood: new rules hold at once however much is denied meanwhile: the
// view that is flooded takes them, and is not replaced.
func TestReloadFlood(t *testing.T) {
	t.Parallel()
	h := newHost(t, map[string]string{"a": ""})
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
	require.NoError(t, os.WriteFile(h.scope("a", "flood.py"), []byte(flood), 0o644))
	u := h.connect("a")
	u.call("bash", args{"command": "python3 flood.py", "background": true})
	denials := func() (n int) {
		for _, e := range h.events("a") {
			if e.Verdict == audit.Violation {
				n++
			}
		}
		return n
	}
	h.eventually("they are slowed down", func() bool { return denials() > 70 })
	pid := h.agent("a").ViewPID
	for i := range 3 {
		h.define("a", "view: {paths: {n"+itoa(i)+": read}}")
		h.must("reload") // or by itself: the daemon watches
	}
	assert.Equal(t, pid, h.agent("a").ViewPID)
	assert.False(t, h.recorded("a", audit.Event{Event: audit.KindAgent, Outcome: "view restarted"}))
}

// TestReloadByItself: a definition that was written holds soon, and one that is
// written over and over is never read half.
func TestReloadByItself(t *testing.T) {
	h := newHost(t, map[string]string{"a": ""})
	plant(t, h.scope("a"), "f")
	require.Equal(t, []string{"ok"}, hostOps(t, h.view("a"), "stat f"))
	h.define("a", "view: {paths: {f: hide}}")
	h.eventually("the new rule holds", func() bool { return hostOps(t, h.view("a"), "stat f")[0] == "ENOENT" })
	h.define("a", "")
	h.eventually("it holds no more", func() bool { return hostOps(t, h.view("a"), "stat f")[0] == "ok" })
	require.NoError(t, exec.Command("cp", filepath.Join(h.base, "agents.d/a.md"), filepath.Join(h.base, "agents.d/b.md.tmp")).Run())
	assert.Equal(t, []string{"ok"}, hostOps(t, h.view("a"), "stat f"))

	// The directory of definitions is replaced: meanwhile the last good ones hold.
	dir := filepath.Join(h.base, "agents.d")
	require.NoError(t, os.Rename(dir, dir+".old"))
	_, errs, code := h.try("reload")
	assert.Equal(t, 1, code)
	assert.Contains(t, errs, "agents.d")
	list := h.ps() // what is wrong, and the agent
	require.Len(t, list, 2)
	assert.Equal(t, "mounted", list[1].State)
	require.NoError(t, os.Mkdir(dir, 0o755))
	h.define("a", "view: {paths: {f: hide}}")
	h.eventually("the new directory is watched", func() bool { return hostOps(t, h.view("a"), "stat f")[0] == "ENOENT" })
	h.define("a", "")
	h.eventually("and goes on to be", func() bool { return hostOps(t, h.view("a"), "stat f")[0] == "ok" })
}
