package harness

import (
	"bytes"
	"errors"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Outcome is how a command ended, with its output.
type Outcome struct {
	Stdout, Stderr string
	Code           int // -1 when a signal ended it
	signal         syscall.Signal
}

// Finish runs a command, which must end within 20 seconds.
func Finish(t testing.TB, cmd *exec.Cmd) Outcome {
	t.Helper()
	var out, errs bytes.Buffer
	if cmd.Stdout == nil {
		cmd.Stdout = &out
	}
	if cmd.Stderr == nil {
		cmd.Stderr = &errs
	}
	require.NoError(t, cmd.Start())
	return Await(t, cmd, &out, &errs)
}

// Await waits for a command that has started, for up to patience.
func Await(t testing.TB, cmd *exec.Cmd, out, errs *bytes.Buffer) Outcome {
	t.Helper()
	hangs := time.AfterFunc(patience, func() {
		t.Errorf("hangs: %v", cmd.Args)
		_ = cmd.Process.Kill()
	})
	err := cmd.Wait()
	hangs.Stop()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Errorf("%v: %v", cmd.Args, err)
	}
	o := Outcome{out.String(), errs.String(), cmd.ProcessState.ExitCode(), 0}
	if ws := cmd.ProcessState.Sys().(syscall.WaitStatus); ws.Signaled() {
		o.signal = ws.Signal()
	}
	return o
}
