package audit

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/audit/proof"
	"github.com/scopefs/scopefs/audit/segment"
	"github.com/scopefs/scopefs/internal/need"
)

func TestProcessesShareALog(t *testing.T) {
	dir := t.TempDir()
	const processes = 4
	var cmds [processes]*exec.Cmd
	for i := range cmds {
		cmds[i] = child(t, "append", dir)
		require.NoError(t, cmds[i].Start())
	}
	for _, cmd := range cmds {
		assert.NoError(t, cmd.Wait())
	}
	perPID := map[int]int{}
	for _, e := range all(t, dir) {
		perPID[e.PID]++
	}
	assert.Len(t, perPID, processes)
	for _, n := range perPID {
		assert.Equal(t, perChild*perRoutine, n)
	}
	v, err := proof.Verify(noCtx, dir, proof.VerifyOptions{})
	require.NoError(t, err)
	assert.Zero(t, v.After)
}

func TestKillLosesNothingAcknowledged(t *testing.T) {
	dir, heads := t.TempDir(), map[string]string{}
	for range 5 {
		cmd := child(t, "forever", dir)
		out, err := cmd.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		for range 1000 {
			_, err := fmt.Fscanln(out, new(uint64))
			require.NoError(t, err)
		}
		require.NoError(t, cmd.Process.Kill())
		acknowledged := numbers(t, out)
		_ = cmd.Wait() // the error says that the child was killed

		l := open(t, dir, Options{}) // moves the torn end to another file
		if head, err := os.ReadFile(filepath.Join(dir, segment.Head)); err == nil {
			heads[fmt.Sprint(len(heads))] = string(head)
		}
		events := all(t, dir)
		for _, seq := range acknowledged {
			require.LessOrEqual(t, seq, uint64(len(events)))
			assert.Equal(t, KindFile, events[seq-1].Event)
		}
		require.NoError(t, l.Close())
		kept := map[string]io.Reader{}
		for name, head := range heads {
			kept[name] = strings.NewReader(head)
		}
		v, err := proof.Verify(noCtx, dir, proof.VerifyOptions{Heads: kept})
		require.NoError(t, err)
		assert.Equal(t, len(heads), v.Matched)
	}
}

// TestFullDisk runs in its own mount namespace, so that its tmpfs ends with the process.
func TestFullDisk(t *testing.T) {
	if os.Getenv("AUDIT_TEST_FULL") == "" {
		need.Root(t, "it mounts")
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestFullDisk$", "-test.v")
		cmd.Env = append(os.Environ(), "AUDIT_TEST_FULL=1")
		cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, string(out))
		require.Contains(t, string(out), "--- PASS: TestFullDisk")
		return
	}
	dir := t.TempDir()
	require.NoError(t, unix.Mount("tmpfs", dir, "tmpfs", 0, "size=256k"))
	defer func() { assert.NoError(t, unix.Unmount(dir, unix.MNT_DETACH)) }()
	ballast := filepath.Join(dir, "ballast")
	require.NoError(t, os.WriteFile(ballast, make([]byte, 128<<10), 0o600))

	l, err := Open(filepath.Join(dir, "log"), Options{Retry: 20 * time.Millisecond})
	require.NoError(t, err)
	states := make(chan error, 1000)
	l.OnChange(func(err error) { states <- err })

	told, refused := fill(t, l)
	require.ErrorContains(t, <-states, "no space left on device")
	require.NoError(t, os.Remove(ballast))
	require.Eventually(t, func() bool { return l.Err() == nil && !l.broken() }, 10*time.Second, time.Millisecond)
	seq, err := l.Append(t.Context(), Event{Event: KindDaemon, Detail: "after"})
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		select {
		case err := <-states:
			return err == nil
		default:
			return false
		}
	}, 10*time.Second, time.Millisecond)
	require.NoError(t, l.Close())

	told[seq] = "after"
	assertAccounted(t, all(t, filepath.Join(dir, "log")), told, refused)
}

// assertAccounted checks that the log holds exactly the acknowledged events, and that OutcomeRecovered counts the
// refused ones.
func assertAccounted(t *testing.T, events []Event, told map[uint64]string, refused int) {
	counted := 0
	for _, e := range events {
		if e.Outcome == OutcomeLow {
			continue
		}
		if e.Outcome == OutcomeRecovered {
			var n int
			_, err := fmt.Sscanf(e.Detail, "%d events refused: ", &n)
			require.NoError(t, err)
			assert.Contains(t, e.Detail, "no space left on device")
			counted += n
			continue
		}
		assert.Equal(t, told[e.Seq], e.Detail, "what was told is what is there")
		delete(told, e.Seq)
	}
	assert.Empty(t, told, "everything told is there")
	assert.Equal(t, refused, counted, "everything refused is counted")
}

// fill appends lines of many lengths until most are refused. It returns the numbers of the acknowledged events.
func fill(t *testing.T, l *Log) (told map[uint64]string, refused int) {
	told = map[uint64]string{}
	var mu sync.Mutex
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 400 {
				detail := strings.Repeat("x", (g*31+i*17)%250)
				seq, err := l.Append(t.Context(), Event{Event: KindDaemon, Detail: detail})
				mu.Lock()
				if err == nil {
					told[seq] = detail
				} else {
					refused++
					assert.ErrorIs(t, err, unix.ENOSPC)
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	require.NotEmpty(t, told)
	require.NotZero(t, refused)
	return told, refused
}
