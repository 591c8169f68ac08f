// Package oneshot runs a program with a text on its standard input, and bounds it.
package oneshot

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// killTime is how long a killed program may take to end.
const killTime = time.Second

// StuckError reports a program that does not end although it was killed: it waits for a file system that does not answer.
type StuckError struct {
	PID   int             // 0: it has not started
	Ended <-chan struct{} // closed when it has ended
}

func (e *StuckError) Error() string {
	return fmt.Sprintf("process %d does not end: a file system does not answer", e.PID)
}

// Run runs cmd, which has no standard input yet, in a process group of its own. When ctx or limit ends it kills the group, and
// returns within a second: a [StuckError] if the program is still there.
func Run(ctx context.Context, cmd *exec.Cmd, text []byte, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	cmd.Stdin, cmd.WaitDelay = bytes.NewReader(text), killTime // a child of it may hold the pipe
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setpgid = true
	var pid atomic.Int64
	failed, ended := make(chan error, 1), make(chan struct{})
	go func() { // also Start waits for a file system
		defer close(ended)
		err := cmd.Start()
		if err == nil {
			pid.Store(int64(cmd.Process.Pid))
			stop := context.AfterFunc(ctx, func() { _ = unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }) // also if it has started late
			err = cmd.Wait()
			stop()
		}
		failed <- err
	}()
	select {
	case <-ended:
		return <-failed
	case <-ctx.Done():
	}
	select {
	case <-ended:
		return fmt.Errorf("it did not end within %v", limit)
	case <-time.After(killTime + killTime/2):
		return &StuckError{int(pid.Load()), ended}
	}
}
