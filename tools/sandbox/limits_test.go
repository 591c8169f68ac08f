package sandbox

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/moby/sys/mountinfo"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/need"
)

// noGroups is why an ordinary user cannot set limits, unless systemd delegates groups to him.
const noGroups = "an ordinary user can make no control groups"

func limited(l Limits) func(*Spec) { return func(spec *Spec) { spec.Limits = l } }

func TestMemoryLimit(t *testing.T) {
	need.Long(t, "fills memory")
	needRoot(t, noGroups)
	s := newTestSession(t, limited(Limits{Memory: 128 << 20}))
	assert.Contains(t, s.Limiter(), "cgroup v")
	out, exit := run(t, s, FileWorker, "eat", "32")
	assert.Equal(t, "ate 32\n", out)
	assert.Zero(t, exit.Code)
	_, exit = run(t, s, FileWorker, "eat", "512")
	assert.Equal(t, unix.SIGKILL, exit.Signal)
	assert.False(t, exit.TimedOut)
	assert.Equal(t, "alive\n", sh(t, s, "echo alive"), "the session outlives it")
	_, exit = run(t, s, "head", "-c", "256M", "/dev/zero") // not memory
	assert.Zero(t, exit.Code)
	out, _ = run(t, s, "bash", "-c", "head -c 256M /dev/zero >/tmp/big; echo $?")
	assert.Contains(t, out, "No space left", "/tmp is smaller than the memory")
	assert.Equal(t, "alive\n", sh(t, s, "echo alive"))
}

func TestPIDLimit(t *testing.T) {
	needRoot(t, noGroups)
	s := newTestSession(t, limited(Limits{PIDs: 50}))
	p, err := s.Exec(context.Background(), Command{Argv: []string{FileWorker, "fork"}})
	require.NoError(t, err)
	defer p.Close()
	buf := make([]byte, 100)
	n, err := p.Stdout.Read(buf)
	require.NoError(t, err)
	assert.Equal(t, unix.EAGAIN.Error()+"\n", string(buf[:n]))
	for range 50 {
		_, err = s.Exec(context.Background(), Command{Argv: []string{"true"}})
		require.ErrorIs(t, err, unix.EAGAIN)
	}
	require.NoError(t, p.Close())
	assert.Eventually(t, func() bool {
		p, err := s.Exec(context.Background(), Command{Argv: []string{"true"}})
		if err == nil {
			_ = p.Close()
		}
		return err == nil
	}, 20*time.Second, 10*time.Millisecond, "the session lives")
}

// TestForkBomb sees that a bomb at its limit can be ended and is.
func TestForkBomb(t *testing.T) {
	need.Long(t, "forks to a limit")
	needRoot(t, noGroups)
	s := newTestSession(t, limited(Limits{PIDs: 100, Timeout: time.Second}))
	p, err := s.Exec(context.Background(), Command{Argv: []string{"bash", "-c", "b() { b | b & }; b; sleep " + seconds(7114)}})
	require.NoError(t, err)
	defer p.Close()
	exit, err := p.Wait()
	if err == nil {
		assert.True(t, exit.TimedOut)
	}
	require.NoError(t, s.Close())
}

func TestCPULimit(t *testing.T) {
	need.Long(t, "waits for a limit")
	needRoot(t, noGroups)
	s := newTestSession(t, limited(Limits{CPU: 0.25, Timeout: 10 * time.Second}))
	p, err := s.Exec(context.Background(), Command{Argv: []string{"bash", "-c", "trap 'times; exit' TERM; echo; while :; do :; done"}})
	require.NoError(t, err)
	defer p.Close()
	buf := make([]byte, 200)
	_, err = p.Stdout.Read(buf) // the trap is set
	require.NoError(t, err)
	begin := time.Now()
	time.Sleep(time.Second) // the measure itself
	require.NoError(t, p.Signal(unix.SIGTERM))
	n, err := p.Stdout.Read(buf)
	require.NoError(t, err)
	user, err := time.ParseDuration(strings.Fields(string(buf[:n]))[0])
	require.NoError(t, err)
	share := user.Seconds() / time.Since(begin).Seconds()
	assert.Less(t, share, 0.4) // a loaded machine gives less
	t.Logf("share %.2f", share)
}

// TestLimitsRefused asks for a limit where no group can be made.
func TestLimitsRefused(t *testing.T) {
	h := newHost(t)
	if !ordinary() {
		h.cgroups.v1, h.cgroups.v2 = nil, nil
	}
	for name, l := range map[string]Limits{"memory": {Memory: 1 << 30}, "pids": {PIDs: 10}, "cpu": {CPU: 1}} {
		spec := newSpec(t)
		spec.Limits = l
		_, err := h.Start(context.Background(), spec)
		var missing *MissingError
		require.ErrorAs(t, err, &missing, name)
		assert.Contains(t, missing.Error(), "limits: no control group for "+name)
	}
}

// TestMissingGroup: the error of a limit has no path of the host's control groups.
func TestMissingGroup(t *testing.T) {
	err := missingGroup("memory", &os.PathError{Op: "mkdir", Path: "/sys/fs/cgroup/x", Err: os.ErrPermission})
	assert.ErrorContains(t, err, "limits: no control group for memory (permission denied): remove the limit, or ")
}

func TestFindCgroups(t *testing.T) {
	mounts, err := mountinfo.GetMountsFromReader(strings.NewReader(`25 20 0:22 / /sys/fs/cgroup ro,nosuid shared:9 - tmpfs tmpfs ro,mode=755
26 25 0:23 / /sys/fs/cgroup/unified rw,nosuid shared:10 - cgroup2 cgroup2 rw,nsdelegate
27 25 0:24 /docker/abc /sys/fs/cgroup/memory rw shared:11 - cgroup cgroup rw,memory
28 25 0:25 / /sys/fs/cgroup/cpu,cpuacct rw shared:12 - cgroup cgroup rw,cpu,cpuacct
`), nil)
	require.NoError(t, err)
	c := parseCgroups("4:memory:/docker/abc/x\n3:cpu,cpuacct:/y\n2:pids:/z\n0::/system.slice/scopefs.service/daemon\n", mounts)
	assert.Equal(t, map[string]string{"memory": "/sys/fs/cgroup/memory/x", "cpu": "/sys/fs/cgroup/cpu,cpuacct/y",
		"cpuacct": "/sys/fs/cgroup/cpu,cpuacct/y"}, c.v1)
	assert.Equal(t, []string{"/sys/fs/cgroup/unified/system.slice/scopefs.service", "/sys/fs/cgroup/unified/scopefs"}, c.v2)
}

// TestCgroupV2 writes the limits to files that look like the kernel's: this
// host may have its controllers in v1.
func TestCgroupV2(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"cgroup.controllers": "cpu memory pids\n", "cgroup.subtree_control": ""} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	all := Limits{Memory: 1 << 30, PIDs: 10, CPU: 1.5}
	c := cgroups{v2: []string{"/nowhere", dir}}
	assert.Equal(t, dir, c.findV2(all.v2()))
	for name, text := range map[string]string{"cgroup.procs": "1\n", "cgroup.type": "domain\n"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	assert.Empty(t, c.findV2(Limits{PIDs: 10}.v2()), "a group with processes is left as it is")
	got := map[string]string{}
	for _, s := range all.v2() {
		got[s.file] = s.value
	}
	assert.Equal(t, map[string]string{"memory.max": "1073741824", "memory.swap.max": "0", "pids.max": "26", "cpu.max": "150000 100000"}, got)
}
