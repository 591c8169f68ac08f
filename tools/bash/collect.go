package bash

import (
	"context"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/tools"
	"github.com/scopefs/scopefs/tools/sandbox"
)

// Collect is [sandbox.Collect] of a command that lives on when the daemon ends, as one of the tool bash does. It kills the command
// after limit, if that is not 0, and returns context.DeadlineExceeded. With env.Resumed it continues with the command of the
// call, and needs no more than the bounds.
func (s *Shell) Collect(ctx context.Context, env tools.Env, in Sandbox, c sandbox.Command, stdin string, limit time.Duration,
	stdoutMax, stderrMax int) (out sandbox.Output, err error) {
	exec := func(ctx context.Context) (*sandbox.Process, error) { return in.Exec(ctx, c) }
	begin := func() (*job, func() bool, error) {
		return s.start(ctx, env, command{stdin: stdin, timeout: limit, exec: exec})
	}
	if env.Resumed {
		begin = func() (*job, func() bool, error) { return s.resume(ctx, env) }
	}
	j, detach, err := begin()
	if err == nil {
		err = s.await(ctx, j, detach)
	}
	if err != nil {
		return out, err
	}
	defer s.drop(j)
	if j.expired.Load() && j.exit.Signal == unix.SIGKILL {
		return out, context.DeadlineExceeded
	}
	out.Exit = j.exit
	out.Stdout, out.Cut, _ = j.log.clip(stdout, stdoutMax)
	out.Stderr, _, _ = j.log.clip(stderr, stderrMax)
	return out, nil
}
