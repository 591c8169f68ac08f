package oneshot

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestRun(t *testing.T) {
	got := filepath.Join(t.TempDir(), "got")
	require.NoError(t, Run(t.Context(), exec.Command("/bin/sh", "-c", `cat >"$0"`, got), []byte("text"), time.Minute))
	text, err := os.ReadFile(got)
	require.NoError(t, err)
	assert.Equal(t, "text", string(text))
	require.Error(t, Run(t.Context(), exec.Command("/bin/false"), nil, time.Minute))
	require.Error(t, Run(t.Context(), exec.Command("/no/such/program"), nil, time.Minute))
	require.NoError(t, Run(t.Context(), exec.Command("/bin/true"), make([]byte, 1<<20), time.Minute), "it reads nothing")

	// What the program has started ends with it.
	ctx, cancel := context.WithCancel(t.Context())
	children := filepath.Join(t.TempDir(), "children")
	done := make(chan error, 1)
	go func() {
		done <- Run(ctx, exec.Command("/bin/sh", "-c", `sleep 1000 & echo $! >"$0.tmp"; mv "$0.tmp" "$0"; wait`, children), nil, time.Hour)
	}()
	var child int
	require.Eventually(t, func() bool {
		text, err := os.ReadFile(children)
		child, _ = strconv.Atoi(strings.TrimSpace(string(text)))
		return err == nil && child > 0
	}, time.Minute, 10*time.Millisecond)
	cancel()
	require.ErrorContains(t, <-done, "did not end")
	require.Eventually(t, func() bool { return gone(child) }, time.Minute, 10*time.Millisecond)
	require.ErrorContains(t, Run(t.Context(), exec.Command("/bin/sleep", "1000"), nil, 10*time.Millisecond), "did not end within 10ms")
	err = Run(t.Context(), exec.Command("/bin/sleep", "1000"), nil, 0)
	require.ErrorContains(t, err, "did not end within 0s", "it starts when its time is over")
}

// gone reports whether a process has ended. Nobody may have waited for it.
func gone(pid int) bool {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	return err != nil && unix.Kill(pid, 0) != nil || strings.Contains(string(text), ") Z ")
}
