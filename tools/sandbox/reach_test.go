package sandbox

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/need"
)

// signals sends each signal to process 1, and queues it (sigqueue(3)).
const signals = `exec python3 -c '
import ctypes, os, platform, struct
nr = {"x86_64": 129, "aarch64": 138}[platform.machine()] # rt_sigqueueinfo
call = ctypes.CDLL(None).syscall
SI_QUEUE = -1
for sig in range(1, 65):
	os.kill(1, sig)
	info = ctypes.create_string_buffer(struct.pack("iii", sig, 0, SI_QUEUE), 128)
	if call(nr, 1, sig, info) != 0:
		print("signal", sig, "is not queued")
print("done")
'`

// TestInitUnreachable: what a command does to process 1 by its number changes
// nothing: the next command runs.
func TestInitUnreachable(t *testing.T) {
	users(t, func(t *testing.T, s *Session) {
		for _, script := range []string{
			"prlimit --pid 1 --nofile=0:0", "prlimit --pid 1 --nproc=0:0", "prlimit --pid 1 --as=1:1", "prlimit --pid 1 --fsize=0:0",
			"renice -n 19 -p 1", "renice -n 19 -u $(id -u)", "chrt -i -p 0 1", "taskset -p 1 1", "ionice -c 3 -p 1",
		} {
			out, exit := run(t, s, "bash", "-c", script)
			assert.NotZero(t, exit.Code, "%s: %s", script, out)
			assert.Equal(t, "ok\n", sh(t, s, "echo ok"), "after %s", script)
		}
		assert.Equal(t, "done\n", sh(t, s, signals))
		// Linux 6.1 does not always discard those of its default action: see pid1.
		assert.Equal(t, "SigIgn:\t0000000000000000\n", sh(t, s, "grep SigIgn /proc/self/status"))
		handled := uint64(0)
		for word := range strings.FieldsSeq(sh(t, s, "grep -E 'Sig(Ign|Cgt)' /proc/1/status | cut -f 2")) {
			mask, err := strconv.ParseUint(word, 16, 64)
			require.NoError(t, err)
			handled |= mask
		}
		for sig := unix.Signal(1); sig <= 64; sig++ {
			if !slices.Contains([]unix.Signal{unix.SIGKILL, unix.SIGSTOP, unix.SIGCONT, unix.SIGTSTP, unix.SIGTTIN, unix.SIGTTOU}, sig) {
				assert.NotZero(t, handled&(1<<(sig-1)), "signal %d", sig)
			}
		}
		assert.Equal(t, "ok\n", sh(t, s, "ulimit -n 64; ulimit -c 0; prlimit --nofile=32:32 echo ok"), "its own it may")
		assert.Equal(t, "ok\n", sh(t, s, "prlimit --pid 1 >/dev/null && nice -n 5 taskset 1 echo ok"))
	})
}

// TestStopStorm: a command that stops every process as soon as it is there costs
// its session. The caller has an error, and does not wait for init.
func TestStopStorm(t *testing.T) {
	need.Long(t, "waits for a time limit")
	s := newTestSession(t)
	s.answerTime = 2 * time.Second
	storm, err := s.Exec(context.Background(), Command{Argv: []string{"bash", "-c", "exec >/dev/null 2>&1 </dev/null; while :; do kill -STOP -1; done"}})
	require.NoError(t, err)
	defer storm.Close()
	deadline := time.After(time.Minute)
	for {
		ended := make(chan error, 1)
		go func() {
			p, err := s.Exec(context.Background(), Command{Argv: []string{"true"}})
			if err == nil {
				p.Close()
			}
			ended <- err
		}()
		select {
		case err := <-ended:
			if err == nil { // it was faster
				continue
			}
			assert.ErrorIs(t, err, ErrEnded)
			<-s.Done()
			assert.ErrorContains(t, s.Err(), "init did not answer")
			return
		case <-deadline:
			s.kill()
			t.Fatal("Exec hangs")
		}
	}
}
