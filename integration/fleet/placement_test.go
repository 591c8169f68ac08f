package fleet

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/internal/need"
	"github.com/scopefs/scopefs/internal/placement/wire"
)

func init() { harness.Roles["stubborn"] = stubborn }

// stubborn is a client that writes its name to the file f as often as it can, by a descriptor that stays open and by its name, and
// renames other files there, as soon as another file exists. It goes on after errors.
func stubborn(args []string) error {
	name := []byte(args[0])
	for {
		if _, err := os.Stat(args[1]); err == nil {
			break
		}
		time.Sleep(5 * time.Millisecond)
	}
	var open *os.File
	for {
		if open == nil {
			open, _ = os.OpenFile("f", os.O_WRONLY|os.O_CREATE, 0o644)
		}
		_, _ = open.WriteAt(name, 0) // also of nil
		_ = os.WriteFile("f", name, 0o644)
		if os.WriteFile("temp."+args[0], name, 0o644) == nil {
			_ = os.Rename("temp."+args[0], "f")
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// stubbornOn starts such a client in the view of a host, until the test ends. It writes from the call of begin on.
func stubbornOn(t *testing.T, h *harness.Host, name string) (begin func()) {
	t.Helper()
	file := filepath.Join(h.Base, "begin."+name)
	cmd := h.RoleAs(1000, h.View("p"), "stubborn", name, file)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return func() { require.NoError(t, os.WriteFile(file, nil, 0o644)) }
}

// newPlaces returns two nodes that have one agent with placement: one, in a directory of a shared file system.
// one runs, and has the lease. The tests look at the files in dir.
func newPlaces(t *testing.T, n *natsd) (one, two *harness.Host, dir string) {
	t.Helper()
	vol := harness.NewVolume(t)
	one, two = vol.NewHosts(t, map[string]string{"p": "placement: one"})
	join(one, n, "one")
	join(two, n, "two")
	one.Must("fleet", "init")
	one.Start()
	one.Eventually("one has the lease", func() bool { return has(one) })
	if vol.Kind == harness.NFS { // its client may show a part of what the other one has replaced, for a moment
		return one, two, filepath.Join(vol.Served(), "p")
	}
	return one, two, filepath.Join(vol.B, "p")
}

func has(h *harness.Host) bool {
	return h.Agent("p").State == "mounted" && strings.Contains(h.Must("ps"), "lease of this node")
}

// keeps requires that nothing changes a file for a time in which a client of another host tries all the time.
func keeps(t *testing.T, name, text string) {
	t.Helper()
	for end := time.Now().Add(3 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		got, err := os.ReadFile(name)
		require.NoError(t, err)
		require.Equal(t, text, string(got), "the host without the lease has written")
	}
}

func signal(t *testing.T, sig syscall.Signal, pids ...int) {
	t.Helper()
	for _, pid := range pids {
		require.NoError(t, syscall.Kill(pid, sig))
	}
}

// write writes to f as the agent's user on a host.
func write(h *harness.Host, text string) error {
	out, err := h.RoleAs(1000, h.View("p"), "put", text).Output()
	if len(out) > 0 {
		err = errors.New(string(out))
	}
	return err
}

func init() {
	harness.Roles["put"] = func(args []string) error {
		if err := os.WriteFile("f", []byte(args[0]), 0o644); err != nil {
			fmt.Print(harness.ErrnoOf(err))
		}
		return nil
	}
}

// TestPlacementStopped: a host whose daemon or whose view is stopped past its lease changes nothing after another host has the
// lease, also when it goes on. Meanwhile the other host names the holder.
func TestPlacementStopped(t *testing.T) {
	need.Once(t)
	n := newServer(t)
	one, two, dir := newPlaces(t, n)
	one.Eventually("one writes", func() bool { return write(one, "one") == nil })
	two.Start()
	_, said, code := two.Try("up", "p")
	require.Equal(t, 1, code)
	require.Contains(t, said, "agents.d/p.md: placement: one: node one has it: scopefs down p there, or wait until that node has not renewed it for 24s")
	require.Contains(t, two.Must("ps"), "node one has it")

	stubbornOn(t, one, "one")()
	daemon := one.Cmd.Process.Pid
	signal(t, syscall.SIGSTOP, daemon)
	goOn := func() { _ = syscall.Kill(daemon, syscall.SIGCONT) }
	defer func() { goOn() }()
	two.Eventually("two has the lease", func() bool { return has(two) })
	two.Eventually("two writes", func() bool { return write(two, "two") == nil })
	keeps(t, filepath.Join(dir, "f"), "two")
	goOn()
	keeps(t, filepath.Join(dir, "f"), "two")
	one.Eventually("the view of one has ended", func() bool { return one.Agent("p").State == "failed" })
	require.Contains(t, one.Agent("p").Error, "node two has it")
	keeps(t, filepath.Join(dir, "f"), "two")

	begin := stubbornOn(t, two, "two")
	daemon, view := two.Cmd.Process.Pid, two.ViewPID("p")
	signal(t, syscall.SIGSTOP, daemon, view)
	begin() // its first request waits for the view: what a view has begun when it is stopped is not fenced
	goOn = func() { _ = syscall.Kill(view, syscall.SIGCONT); _ = syscall.Kill(daemon, syscall.SIGCONT) }
	one.Eventually("one has the lease again", func() bool { return has(one) })
	one.Eventually("one writes", func() bool { return write(one, "again") == nil })
	goOn()
	keeps(t, filepath.Join(dir, "f"), "again")
	two.Eventually("the view of two has ended", func() bool { return two.Agent("p").State == "failed" })
	keeps(t, filepath.Join(dir, "f"), "again")
}

// TestPlacementCut: without the server the host that has the lease changes nothing after its end, and no other host gets it. With the
// server it goes on. scopefs down gives the lease back, and a daemon that follows goes on with that of the last one.
func TestPlacementCut(t *testing.T) {
	need.Once(t)
	n := newServer(t)
	one, two, dir := newPlaces(t, n)
	two.Start()
	one.Eventually("one writes", func() bool { return write(one, "one") == nil })
	view := one.ViewPID("p")
	n.kill()
	one.Eventually("the lease has ended", func() bool { return write(one, "late") != nil })
	text, err := os.ReadFile(filepath.Join(one.View("p"), "f"))
	if err == nil { // root may not enter the view
		assert.NotEmpty(t, text)
	}
	require.NotContains(t, one.Must("ps"), "lease of this node")
	require.NotEqual(t, "mounted", two.Agent("p").State)
	two.Stop()
	n.start()
	one.Eventually("one goes on", func() bool { return write(one, "on") == nil })
	require.Equal(t, view, one.ViewPID("p"), "the view has waited")
	two.Start()

	one.Kill()
	one.Start()
	one.Eventually("the next daemon has the lease of the last one", func() bool { return has(one) && write(one, "next") == nil })
	began := time.Now()
	one.Must("down", "p")
	two.Eventually("two has the lease", func() bool { return has(two) && write(two, "two") == nil })
	t.Logf("given back and taken after %v", time.Since(began))
	keeps(t, filepath.Join(dir, "f"), "two")
	one.Must("fleet", "ps")
	_, said, code := one.Try("up", "p")
	require.Equal(t, 1, code)
	require.Contains(t, said, "node two has it")
	one.Must("down", "p") // waits for it no more
	require.Equal(t, "down", one.Agent("p").State)
}

// leaseOf returns the value at the server of the agent's lease.
func leaseOf(t *testing.T, n *natsd) (v wire.Value) {
	t.Helper()
	kv, err := n.client().KeyValue(t.Context(), wire.Bucket)
	require.NoError(t, err)
	entry, err := kv.Get(t.Context(), "p")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(entry.Value(), &v))
	return v
}

// TestPlacementGivenBack: a daemon that stops gives its leases back after the end of its views, also of one that is stopped. One
// that leaves them to the next daemon keeps them.
func TestPlacementGivenBack(t *testing.T) {
	need.Once(t)
	n := newServer(t)
	one, two, dir := newPlaces(t, n)
	one.Eventually("one writes", func() bool { return write(one, "one") == nil })
	one.Terminate()
	require.False(t, leaseOf(t, n).Free, "the view lives on")
	one.Start()
	one.Eventually("one has the lease", func() bool { return has(one) })

	begin := stubbornOn(t, one, "one")
	begin()
	signal(t, syscall.SIGSTOP, one.ViewPID("p"))
	one.Stop()
	require.True(t, leaseOf(t, n).Free)
	two.Start()
	two.Eventually("two has the lease", func() bool { return has(two) })
	two.Eventually("two writes", func() bool { return write(two, "two") == nil })
	keeps(t, filepath.Join(dir, "f"), "two")
}

// TestPlacementWithoutFleet: a daemon in no fleet mounts no such view.
func TestPlacementWithoutFleet(t *testing.T) {
	h := harness.LayOut(t, map[string]string{"p": "placement: one"})
	h.Start()
	_, said, code := h.Try("up", "p")
	require.Equal(t, 1, code)
	require.Contains(t, said, "agents.d/p.md: placement: one: this daemon is in no fleet: write fleet into scopefs.yaml, and use scopefs daemon")
	_, said, code = h.Try("changes", "p")
	require.NotZero(t, code, said)
}
