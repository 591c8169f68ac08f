package sandbox

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/need"
	"github.com/scopefs/scopefs/internal/proc"
)

// start starts a command and does not wait until it has.
func start(t *testing.T, s *Session, tag string, argv ...string) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if p, err := s.Exec(ctx, Command{Argv: argv, Tag: tag}); err == nil {
			p.Close()
		}
	}()
	t.Cleanup(func() { cancel(); <-ended })
}

// startingAre waits until so many commands are being started.
func startingAre(t *testing.T, s *Session, n int) {
	t.Helper()
	require.Eventually(t, func() bool { _, _, starting := s.tagOf(lineage{}); return len(starting) == n }, 20*time.Second, time.Millisecond)
}

// TestTagOfStarting asks while commands are being started. The attacker has a
// session of its own and no parent but init, like a command that has not executed
// its program yet.
func TestTagOfStarting(t *testing.T) {
	s := newTestSession(t)
	sh(t, s, "setsid -f sleep "+seconds(7128)+" >&- 2>&-")
	attacker := pidOf(t, "sleep", seconds(7128))
	require.NoError(t, unix.Kill(s.PID(), unix.SIGSTOP))
	t.Cleanup(func() { unix.Kill(s.PID(), unix.SIGCONT) }) // before those of start
	t.Run("one", func(t *testing.T) {
		start(t, s, "starting", "true")
		startingAre(t, s, 1)
		tag, own, ours := s.TagOf(s.PID())
		assert.True(t, ours && !own)
		assert.Equal(t, "starting", tag, "init, which looks for the program")
		s.reportTimeout = time.Millisecond
		tag, _, ours = s.TagOf(attacker)
		assert.True(t, ours)
		assert.Equal(t, "", tag)

		start(t, s, "another", "true")
		startingAre(t, s, 2)
		tag, _, _ = s.TagOf(s.PID())
		assert.Equal(t, "", tag, "of one of two")
		require.NoError(t, unix.Kill(s.PID(), unix.SIGCONT))
		startingAre(t, s, 0)
	})
	tag, _, ours := s.TagOf(attacker)
	assert.True(t, ours)
	assert.Equal(t, "", tag)
}

// TestTagOfUnreported asks about an orphan of a command that runs and that init has not reported: on a busy host the
// command may be faster.
func TestTagOfUnreported(t *testing.T) {
	s := newTestSession(t, func(spec *Spec) { misbehave(t, spec, late) })
	s.reportTimeout = time.Minute
	start(t, s, "busy", "bash", "-c", "(sleep "+seconds(7136)+" &); sleep "+seconds(7137))
	orphan := pidOf(t, "sleep", seconds(7136))
	require.Eventually(t, func() bool { st, err := readStatus(orphan); return err == nil && st.parent == s.PID() }, 20*time.Second, time.Millisecond)
	found := make(chan string)
	go func() {
		tag, _, _ := s.TagOf(orphan)
		found <- tag
	}()
	select {
	case tag := <-found:
		require.Fail(t, "not reported yet", "%q", tag)
	case <-time.After(5 * settleTimeout):
	}
	require.NoError(t, os.WriteFile(filepath.Join(s.spec.View.Name(), "report"), nil, 0o644))
	assert.Equal(t, "busy", <-found)
}

// TestTagOfUnexecuted holds a command in its execve(2), as a view does that is
// asked for the program.
func TestTagOfUnexecuted(t *testing.T) {
	needRoot(t, "fanotify holds an execve for root only")
	s := newTestSession(t)
	dir, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", s.spec.View.Fd()))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "program"), []byte("#!/bin/true\n"), 0o755))
	fan, err := unix.FanotifyInit(unix.FAN_CLASS_CONTENT|unix.FAN_CLOEXEC, unix.O_RDONLY)
	if err == nil {
		defer unix.Close(fan)
		err = unix.FanotifyMark(fan, unix.FAN_MARK_ADD, unix.FAN_OPEN_EXEC_PERM, unix.AT_FDCWD, filepath.Join(dir, "program"))
	}
	if err != nil {
		need.Skip(t, "fanotify: ", err)
	}
	require.NoError(t, err)
	start(t, s, "held", Workspace+"/program")
	var event unix.FanotifyEventMetadata
	buf := make([]byte, 4096)
	n, err := unix.Read(fan, buf)
	require.NoError(t, err)
	require.GreaterOrEqual(t, n, int(unsafe.Sizeof(event)))
	event = *(*unix.FanotifyEventMetadata)(unsafe.Pointer(&buf[0]))
	tag, own, ours := s.TagOf(int(event.Pid))
	answer := binary.NativeEndian.AppendUint32(nil, uint32(event.Fd))
	_, err = unix.Write(fan, binary.NativeEndian.AppendUint32(answer, unix.FAN_ALLOW))
	unix.Close(int(event.Fd))
	require.NoError(t, err)
	assert.True(t, ours && !own)
	assert.Equal(t, "held", tag)
}

// TestTagOfReusedNumber: a process that gets the number of a command that has
// ended, and makes a session of it, is not that command's.
func TestTagOfReusedNumber(t *testing.T) {
	s := newTestSession(t)
	startTagged(t, s, "live", "bash", "-c", "setsid -w bash -c 'echo r; sleep "+seconds(7129)+"; true'; true")
	sh(t, s, "setsid -f bash -c 'sleep "+seconds(7130)+"; true' >&- 2>&-")
	inLive, orphan := pidOf(t, "sleep", seconds(7129)), pidOf(t, "sleep", seconds(7130))
	for _, pid := range []int{inLive, orphan} {
		st, err := readStatus(pid)
		require.NoError(t, err)
		stat, err := proc.ReadStat(pid)
		require.NoError(t, err)
		s.mu.Lock() // what there would be of a command that had the number
		s.tags.started(st.session, "innocent").ended = stat.Start - 100
		s.mu.Unlock()
	}
	for pid, want := range map[int]string{inLive: "live", orphan: ""} {
		tag, own, ours := s.TagOf(pid)
		assert.True(t, ours && !own)
		assert.Equal(t, want, tag)
	}
}
