package proc

import (
	"os"
	"os/exec"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

const line = `7 (a) (b c) S 1 2 3 0 -1 4194304 10 11 12 13 100 50 30 20 20 0 2 0 12345 1000000 77 18446744073709551615 1 1 0 0 0 256 0 0 0` + "\n"

func TestParseStat(t *testing.T) {
	s, err := parseStat([]byte(line))
	require.NoError(t, err)
	assert.Equal(t, Stat{Name: "a) (b c", State: 'S', Parent: 1, Session: 3, Foreground: -1, Flags: 4194304,
		User: 100, System: 50, ChildUser: 30, ChildSystem: 20, Start: 12345, Memory: 77, Pending: 256}, s)
	assert.True(t, s.Dying(), "SIGKILL is pending")
	for _, bad := range []string{"", "1 (a", "1 )a(", "1 (a) S 1"} {
		_, err := parseStat([]byte(bad))
		assert.Error(t, err, bad)
	}
}

func TestSelf(t *testing.T) {
	child := exec.Command("sleep", "60")
	require.NoError(t, child.Start())
	defer child.Wait()
	defer child.Process.Kill()
	pid := os.Getpid()
	s, err := ReadStat(child.Process.Pid)
	require.NoError(t, err)
	assert.Equal(t, pid, s.Parent)
	assert.False(t, s.Dying())
	assert.Contains(t, Processes(), pid)
	threads := Threads(pid)
	assert.Contains(t, threads, pid)
	assert.True(t, slices.ContainsFunc(threads, func(tid int) bool { return slices.Contains(Children(pid, tid), child.Process.Pid) }))
	thread, err := ReadThread(pid, pid)
	require.NoError(t, err)
	assert.Equal(t, Name(pid), thread.Name)
	status, err := ReadTable(pid, "status")
	require.NoError(t, err)
	assert.Len(t, status.Words("Uid"), 4)
	assert.NotNil(t, status.Words("Groups"))
	assert.Nil(t, status.Words("uid"))
	require.NoError(t, child.Process.Signal(unix.SIGKILL))
	_, _ = child.Process.Wait()
	_, err = ReadStat(child.Process.Pid)
	assert.Error(t, err)
}
