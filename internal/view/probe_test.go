package view

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/fs/fusemount"
	"github.com/scopefs/scopefs/internal/account"
	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/internal/descriptors"
	"github.com/scopefs/scopefs/internal/heart"
	"github.com/scopefs/scopefs/internal/liveness"
	"github.com/scopefs/scopefs/internal/peer"
	"github.com/scopefs/scopefs/internal/view/wire"
	"github.com/scopefs/scopefs/scope/agents"
)

// process starts a program that stands for a view.
func process(t *testing.T, words ...string) *served {
	t.Helper()
	cmd := exec.Command(words[0], words[1:]...)
	require.NoError(t, cmd.Start())
	ended := make(chan struct{})
	p := &served{Process: Process{pid: cmd.Process.Pid, cmd: cmd, ended: ended}}
	go func() { defer close(ended); _ = cmd.Wait() }()
	t.Cleanup(func() { _ = cmd.Process.Kill(); <-p.ended })
	return p
}

// TestProbe: a view that does not answer is replaced when none of its threads can run, and
// not while one waits for a processor.
func TestProbe(t *testing.T) {
	t.Parallel()
	p := process(t, "sh", "-c", "while :; do :; done")
	ours, theirs, err := descriptors.Pair(unix.SOCK_STREAM)
	require.NoError(t, err)
	t.Cleanup(func() { ours.Close(); theirs.Close() }) // nobody answers
	stoppedAt := make(chan time.Time, 1)
	time.AfterFunc(2*time.Second, func() {
		stoppedAt <- time.Now()
		_ = p.cmd.Process.Signal(syscall.SIGSTOP)
	})
	err = (&View{host: &Host{}}).probe(t.Context(), p, heart.NewHeart(ours), fusemount.Connection{}, peer.NewRequests[wire.FromView](0))
	assert.ErrorContains(t, err, "does not answer: it slept or was stopped")
	select {
	case <-stoppedAt:
	default:
		t.Fatal("it was replaced while it ran")
	}
}

// TestProbeLate: the daemon reads the answer of a view late, after the view went to sleep or was stopped. The
// answer counts.
func TestProbeLate(t *testing.T) {
	p := process(t, "sleep", "1000")
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGSTOP))
	require.Eventually(t, func() bool {
		text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
		return strings.Contains(string(text), ") T ")
	}, 20*time.Second, time.Millisecond)
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	require.NoError(t, err)
	theirs := fds[1]
	defer unix.Close(theirs)
	ours := os.NewFile(uintptr(fds[0]), "heart")
	defer ours.Close()
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		answered, verdict := 0, make(chan error)
		p := &served{Process: Process{pid: p.cmd.Process.Pid, cmd: p.cmd, ended: make(chan struct{})}} // a channel of the bubble
		go func() {
			verdict <- (&View{host: &Host{}}).probe(t.Context(), p, heart.NewHeart(ours), fusemount.Connection{}, peer.NewRequests[wire.FromView](0))
		}()
		for answered < 10 { // the daemon's goroutine of the heart never runs
			time.Sleep(liveness.ProbeTime / 2)
			buf := make([]byte, 1)
			if n, _ := unix.Read(theirs, buf); n == 1 {
				_, err := unix.Write(theirs, []byte("p"))
				require.NoError(t, err)
				answered++
			}
			require.Less(t, time.Since(began), time.Minute)
		}
		silent := time.Now()
		assert.ErrorContains(t, <-verdict, "slept or was stopped")
		assert.LessOrEqual(t, time.Since(silent), 4*liveness.ProbeTime, "a client's wait")
	})
}

// TestWatchScope: a view ends when the path of its directory, or of its history, leads elsewhere, whatever on the way has changed.
func TestWatchScope(t *testing.T) {
	for name, test := range map[string]struct {
		change func(base string) error
		want   string // of the error; "": none
	}{
		"moved":             {func(base string) error { return os.Rename(base+"/agents/a", base+"/elsewhere") }, "the scope is gone"},
		"removed":           {func(base string) error { return os.Remove(base + "/agents/a") }, "the scope is gone"},
		"all agents moved":  {func(base string) error { return os.Rename(base+"/agents", base+"/elsewhere") }, "the scope is gone"},
		"the base moved":    {func(base string) error { return os.Rename(base, base+"-moved") }, "is gone"},
		"another directory": {func(base string) error { return unix.Rename(base+"/agents/b", base+"/agents/a") }, "the scope is another directory now"},
		"the history moved": {func(base string) error { return os.Rename(base+"/history/a", base+"/elsewhere") }, "the history is gone"},
		"exchanged twice": {func(base string) error {
			for range 2 {
				if err := unix.Renameat2(unix.AT_FDCWD, base+"/agents", unix.AT_FDCWD, base+"/history", unix.RENAME_EXCHANGE); err != nil {
					return err
				}
			}
			return nil
		}, ""},
		"what is in it": {func(base string) error { return os.Mkdir(base+"/agents/a/b", 0o755) }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			base := filepath.Join(t.TempDir(), "base")
			for _, dir := range []string{"/agents/a", "/agents/b", "/history/a"} {
				require.NoError(t, os.MkdirAll(base+dir, 0o755))
			}
			h := &Host{Host: account.Host{Paths: config.Paths{Base: base, State: base}, Logger: slog.New(slog.DiscardHandler)}}
			v := &View{host: h, def: &agents.Definition{Name: "a"}}
			root, err := v.def.OpenRoot(base)
			require.NoError(t, err)
			defer root.Close()
			of, err := h.FindHistory(v.def)
			require.NoError(t, err)
			defer of.Close()
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- v.watchScope(ctx, root, kept{Root: of}) }()
			time.Sleep(100 * time.Millisecond)
			began := time.Now()
			require.NoError(t, test.change(base))
			took := time.Since(began)
			if test.want != "" {
				select {
				case err := <-ended:
					assert.ErrorContains(t, err, test.want)
				case <-time.After(20 * time.Second):
					t.Error("it goes on")
				}
				cancel()
				return
			}
			select {
			case err := <-ended:
				assert.Greater(t, took, 50*time.Millisecond, "it has ended, and did not look between two changes: %v", err)
				cancel()
			case <-time.After(2 * time.Second):
				cancel()
				assert.NoError(t, <-ended)
			}
		})
	}
}
