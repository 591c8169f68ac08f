package sandbox

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/internal/need"
)

// TestEntry: bwrap begins in the group of its agent where nothing else runs, and is moved to another's, whose processes could keep
// the processor from a fork that all other starts wait for. Either way the sandbox is in the group before it executes anything, and
// sees no names of the host's groups.
func TestEntry(t *testing.T) {
	needRoot(t, noGroups)
	groups, err := OpenGroups()
	require.NoError(t, err)
	host := newHost(t)
	own := threadGroups(t)
	start := func(g *Group, l Limits) *Session {
		spec := newSpec(t)
		spec.Group, spec.Limits = g, l
		s, err := host.Start(context.Background(), spec)
		require.NoError(t, err)
		t.Cleanup(func() { _ = s.Close() })
		assert.True(t, s.group.has(s.bwrap.Process.Pid), "bwrap is in the group")
		assert.True(t, s.group.has(s.PID()), "and init")
		assert.NotContains(t, sh(t, s, "cat /proc/self/cgroup"), "scopefs-", "the host's names of groups")
		require.NoError(t, host.starter.thread.Do(func() error {
			assert.Equal(t, own, threadGroups(t), "the fork thread has come back")
			return nil
		}))
		return s
	}
	g, err := groups.Agent("quiet", Limits{})
	require.NoError(t, err)
	require.NotNil(t, g, "root can make groups")
	defer func() { assert.NoError(t, g.Remove()) }()
	assert.True(t, g.Quiet())
	first := start(g, Limits{})
	assert.True(t, first.bwrap.inside)
	assert.False(t, g.Quiet())
	second := start(g, Limits{})
	assert.False(t, second.bwrap.inside, "the first one's commands may use all processors")
	require.NoError(t, second.Close())
	require.NoError(t, first.Close())
	assert.True(t, g.Quiet())
	third := start(g, Limits{Memory: 64 << 20})
	assert.True(t, third.bwrap.inside)
	assert.False(t, start(g, Limits{}).bwrap.inside, "a group beside")
	assert.True(t, start(nil, Limits{Memory: 64 << 20}).bwrap.inside, "a group of its own")

	slow, err := groups.Agent("slow", Limits{CPU: 0.5})
	require.NoError(t, err)
	defer func() { assert.NoError(t, slow.Remove()) }()
	assert.False(t, start(slow, Limits{CPU: 0.5}).bwrap.inside, "a limit could stop the fork")
	assert.False(t, start(nil, Limits{CPU: 0.5}).bwrap.inside)
	require.NoError(t, host.CloseBut(nil)) // before their groups
}

// threadGroups returns the groups of this thread.
func threadGroups(t *testing.T) string {
	text, err := os.ReadFile("/proc/thread-self/cgroup")
	require.NoError(t, err)
	return string(text)
}

// TestEntryV2: a group of v2 has what is forked into it; where the kernel refuses that, it starts outside.
func TestEntryV2(t *testing.T) {
	needRoot(t, noGroups)
	c, err := findCgroups()
	require.NoError(t, err)
	if len(c.v2) == 0 {
		need.Skip(t, "no hierarchy of v2 here")
	}
	dir := filepath.Join(c.v2[0], fmt.Sprintf("scopefs-entry-%d", os.Getpid()))
	require.NoError(t, os.Mkdir(dir, 0o755))
	defer func() { assert.NoError(t, removeGroups(&group{dirs: []string{dir}})) }()
	host := newHost(t)
	for name, c := range map[string]struct {
		dir    string
		inside bool
	}{"a group": {dir, true}, "no group": {"/", false}} {
		t.Run(name, func(t *testing.T) {
			e := host.starter.enter(order{group: &group{version: "v2", dirs: []string{c.dir}}})
			require.NotNil(t, e)
			defer e.close()
			cmd, inside, err := e.start(func() *exec.Cmd {
				cmd := exec.Command("cat", "/proc/self/cgroup")
				cmd.Stdout, cmd.SysProcAttr = &strings.Builder{}, &syscall.SysProcAttr{}
				return cmd
			})
			require.NoError(t, err)
			assert.Equal(t, c.inside, inside)
			assert.NoError(t, cmd.Wait())
			assert.Equal(t, c.inside, strings.Contains(fmt.Sprint(cmd.Stdout), filepath.Base(dir)))
		})
	}
}
