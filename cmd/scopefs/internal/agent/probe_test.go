package agent

import (
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/cmd/scopefs/internal/viewer"
	"github.com/scopefs/scopefs/fs/fusedev"
)

// TestProbeRunsNoMore: a view whose threads wait for a processor gets time to answer. When
// none of them runs any more, its clients wait no longer. A process that was killed is like
// that if its main thread waits for one of these clients.
func TestProbeRunsNoMore(t *testing.T) {
	t.Parallel()
	cmd := exec.Command("sh", "-c", "while :; do :; done")
	require.NoError(t, cmd.Start())
	p := &served{cmd: cmd, ended: make(chan struct{})}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	ours, theirs, err := socketPair("heart")
	require.NoError(t, err)
	t.Cleanup(func() { ours.Close(); theirs.Close() }) // nobody answers

	began := time.Now()
	time.AfterFunc(2*time.Second, func() { _ = cmd.Process.Signal(syscall.SIGSTOP) })
	err = (&view{}).probe(t.Context(), p, viewer.NewHeart(ours), fusedev.Connection{})
	assert.ErrorContains(t, err, "does not answer")
	assert.Greater(t, time.Since(began), 2*time.Second, "while it runs")
	assert.Less(t, time.Since(began), starveTime)
}
