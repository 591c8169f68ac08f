package sandbox

import (
	"encoding/json"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/descriptors"
	"github.com/scopefs/scopefs/tools/sandbox/pid1"
)

// TestAdoptHostile: a process 1 that answers the next daemon can end its own session, and nothing else.
func TestAdoptHostile(t *testing.T) {
	say := func(r pid1.Reply) string { text, _ := json.Marshal(r); return string(text) }
	state, exited := say(pid1.Reply{Op: pid1.OpState, ID: 9}), say(pid1.Reply{Op: pid1.OpExited, ID: 7, Code: 3})
	before := say(pid1.Reply{Op: pid1.OpState, ID: 9, Turn: 2})
	for name, test := range map[string]struct {
		says []string
		ends bool
		code int
	}{
		"an exit before its state":       {[]string{exited, state}, false, 0},
		"an exit":                        {[]string{state, exited}, false, 3},
		"an exit twice":                  {[]string{state, exited, exited}, false, 3},
		"an ended command's exit":        {[]string{state, say(pid1.Reply{Op: pid1.OpExited, ID: 9})}, false, 0},
		"another command's exit":         {[]string{state, say(pid1.Reply{Op: pid1.OpExited, ID: 10})}, true, 0},
		"too few commands":               {[]string{say(pid1.Reply{Op: pid1.OpState, ID: 6})}, true, 0},
		"a start":                        {[]string{state, say(pid1.Reply{Op: pid1.OpStarted, ID: 7, PID: 2})}, true, 0},
		"an answer to the daemon before": {[]string{before, say(pid1.Reply{Op: pid1.OpStarted, ID: 10, PID: 3}), state, exited}, false, 3},
		"its state twice":                {[]string{state, state}, true, 0},
		"ready":                          {[]string{state, say(pid1.Reply{Op: pid1.OpReady})}, true, 0},
		"nonsense":                       {[]string{"nonsense"}, true, 0},
		"silence, and much of that":      {nil, true, 0},
	} {
		t.Run(name, func(t *testing.T) {
			h, err := Open(Config{Init: "/bin/true"})
			require.NoError(t, err)
			defer h.Close()
			cmd := exec.Command("sleep", "100")
			require.NoError(t, cmd.Start())
			gone := make(chan struct{})
			go func() { _ = cmd.Wait(); close(gone) }()
			fd, err := unix.PidfdOpen(cmd.Process.Pid, unix.PIDFD_NONBLOCK)
			require.NoError(t, err)
			pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
			require.NoError(t, err)
			files := []*os.File{os.NewFile(uintptr(fd), "init"), os.NewFile(uintptr(pair[0]), "control")}
			defer descriptors.Close(files)
			defer unix.Close(pair[1])
			o := Outliving{PID: cmd.Process.Pid, Last: 7, Command: &Outlived{ID: 7, Process: 2, Began: time.Now()}}
			if test.says == nil {
				o.Limits.Timeout = time.Millisecond // its kill is not answered either
			}
			_, _, err = h.Adopt("a", o, files[:1], nil, nil)
			require.ErrorIs(t, err, ErrInvalid)
			s, all, err := h.Adopt("a", o, files, nil, nil)
			require.NoError(t, err)
			p := all[0]
			for _, text := range test.says {
				require.NoError(t, unix.Send(pair[1], []byte(text), 0))
			}
			switch {
			case test.ends:
				<-s.Done()
			case test.code != 0:
				exit, err := p.Wait()
				require.NoError(t, err)
				assert.Equal(t, test.code, exit.Code)
			default:
				<-s.ready
				select {
				case <-p.exited:
					t.Error("the exit of the daemon before counts")
				default:
				}
			}
			require.NoError(t, s.Close())
			<-gone
		})
	}
}
