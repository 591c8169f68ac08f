package client

import (
	"context"
	"net"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/internal/paths"

	"github.com/scopefs/scopefs/internal/need"
)

// A daemon that does not answer, and is not stopped, is slow: only after a while
// it is given up.
func TestPulseOfTheSlow(t *testing.T) {
	need.Long(t, "waits for pulses")
	socket := filepath.Join(t.TempDir(), strings.Repeat("long/", 30), "s")
	require.NoError(t, exec.Command("mkdir", "-p", filepath.Dir(socket)).Run())
	p := NewPulse(socket)
	assert.NoError(t, p.Check(context.Background()), "that nobody is there is for the client's connection to see")
	name, release, err := paths.SocketName(socket)
	require.NoError(t, err)
	defer release()
	l, err := net.Listen("unix", name)
	require.NoError(t, err)
	defer l.Close()
	assert.NoError(t, p.Check(context.Background()))
	assert.False(t, p.silent.IsZero())
	p.silent = p.silent.Add(-alivePatient)
	assert.ErrorContains(t, p.Check(context.Background()), "does not answer")
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = c.Read(make([]byte, 1))
			c.Close()
		}
	}()
	assert.NoError(t, p.Check(context.Background()))
	assert.True(t, p.silent.IsZero(), "it answers again")
}

func TestStopped(t *testing.T) {
	cmd := exec.Command("sleep", "100")
	require.NoError(t, cmd.Start())
	defer cmd.Wait()
	defer cmd.Process.Kill()
	pid := cmd.Process.Pid
	assert.False(t, stopped(pid))
	require.NoError(t, cmd.Process.Signal(syscall.SIGSTOP))
	assert.Eventually(t, func() bool { return stopped(pid) }, 10*time.Second, time.Millisecond)
	assert.False(t, stopped(0))
	assert.False(t, stopped(-1))
}
