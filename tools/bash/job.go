package bash

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"path"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/tools"
	"github.com/scopefs/scopefs/tools/sandbox"
)

const (
	// quiet is the silence after which an exited command's output counts as
	// complete, although background processes still hold its streams open.
	quiet = 100 * time.Millisecond
	// maxSettle bounds the wait for that silence.
	maxSettle = time.Second
	// maxUnread bounds the wait for output that is in the pipes and that no
	// goroutine has read yet.
	maxUnread = 10 * time.Second
)

// job is a command, running or exited.
type job struct {
	id    string // process id, guarded by Shell.mu; "" until published
	log   *log
	proc  *sandbox.Process
	kill  context.CancelFunc // sends SIGKILL to the command's whole session
	began time.Time
	line  string // of the command, for lists

	expired atomic.Bool   // the timeout killed it
	ended   chan struct{} // closed when it has exited and its output is in the log
	exit    sandbox.Exit  // valid once ended is closed, as are err and took
	err     error
	took    time.Duration

	kept
}

// command is what a job runs.
type command struct {
	line       string // for lists
	stdin      string
	background bool
	timeout    time.Duration // 0: none
	exec       func(context.Context) (*sandbox.Process, error)
}

// start starts a command and kills it when ctx ends, unless detach is called first.
func (s *Shell) start(ctx context.Context, env tools.Env, in command) (j *job, detach func() bool, err error) {
	if err := s.reserve(); err != nil {
		return nil, nil, err
	}
	s.evict()
	life, kill := context.WithCancel(context.WithoutCancel(ctx))
	j = &job{kill: kill, began: time.Now(), line: in.line, ended: make(chan struct{})}
	j.begun, j.answered = env.Begun, in.background
	if in.timeout > 0 {
		j.until = j.began.Add(in.timeout)
	}
	detach = s.killAfter(ctx, j)
	if j.log, err = newLog(&s.budget); err == nil {
		j.proc, err = in.exec(life)
	}
	if err != nil {
		detach()
		kill()
		if j.log != nil {
			j.log.discard()
		}
		s.release()
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return nil, nil, err
	}
	s.add(j)
	s.work.Go(func() {
		_, _ = io.WriteString(j.proc.Stdin, in.stdin) // the command may exit without reading it
		j.proc.Stdin.Close()
		s.keepLater(j, env.Kept)
	})
	s.follow(j)
	return j, detach, nil
}

// follow collects the output of a command, and waits for its end.
func (s *Shell) follow(j *job) {
	s.work.Add(2)
	j.collecting.Go(func() { defer s.work.Done(); j.log.collect(stdout, j.proc.Stdout) })
	j.collecting.Go(func() { defer s.work.Done(); j.log.collect(stderr, j.proc.Stderr) })
	go func() {
		defer s.release()
		j.wait()
		s.update(j)
		s.dropLate(j)
	}()
}

// killAfter kills a command when ctx ends, unless the command is left to the next daemon, or detach is called first.
func (s *Shell) killAfter(ctx context.Context, j *job) (detach func() bool) {
	return context.AfterFunc(ctx, func() {
		if !s.leaves(j) {
			j.kill()
		}
	})
}

// exec runs bash, or sh where bash is not installed.
func (s *Shell) exec(ctx context.Context, env tools.Env, in runArgs) (p *sandbox.Process, err error) {
	for _, shell := range []string{"bash", "sh"} {
		p, err = s.sandbox.Exec(ctx, sandbox.Command{Argv: []string{shell, "-c", in.Command}, Dir: in.Cwd,
			Tag: env.Call, Env: tools.Trace(ctx).Environ()})
		if !errors.Is(err, fs.ErrNotExist) {
			break
		}
	}
	return p, execError(err, in.Cwd)
}

// execError converts an error of Exec to one for the agent. Every sandbox has a
// shell, so ENOENT with a directory given means that the directory is missing.
func execError(err error, cwd string) error {
	code, message := tools.Code(""), ""
	switch {
	case err == nil:
		return nil
	case errors.Is(err, sandbox.ErrEnded):
		return errEnded()
	case errors.Is(err, sandbox.ErrTooLarge), errors.Is(err, unix.E2BIG):
		return &tools.Error{Code: tools.TooLarge, Message: "the command is too long", Hint: "write a script, or use stdin"}
	case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.ENOMEM):
		e := tools.Refused(scope.Decision{Kind: scope.KindLimit, Rule: "processes of a sandbox"}, tools.RateLimited,
			"the sandbox cannot start more processes")
		e.Hint = "stop some with process_stop"
		return e
	case errors.Is(err, sandbox.ErrInvalid):
		return tools.Errorf(tools.Invalid, "command or cwd contains a NUL byte")
	case cwd == "":
		return err
	case errors.Is(err, fs.ErrNotExist):
		code, message = tools.NotFound, "no such directory"
	case errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ENAMETOOLONG), errors.Is(err, unix.ELOOP):
		code, message = tools.Invalid, "not a directory"
	case errors.Is(err, fs.ErrPermission):
		d := scope.Decision{Kind: scope.KindNeed, Rule: "the owner and mode of the directory"}
		e := tools.Refused(d, tools.Denied, "no permission to enter the directory")
		e.Path = relative(cwd)
		return e
	default:
		return err
	}
	return &tools.Error{Code: code, Message: message, Path: relative(cwd)}
}

// relative returns a sandbox path relative to the view. A path outside the view
// stays absolute.
func relative(name string) string {
	if !path.IsAbs(name) {
		return path.Clean(name)
	}
	name = path.Clean(name)
	if name == sandbox.Workspace {
		return "."
	}
	return strings.TrimPrefix(name, sandbox.Workspace+"/")
}

// wait waits for the command to exit and closes ended. It kills the command at the end of its time.
func (j *job) wait() {
	if !j.until.IsZero() {
		timer := time.AfterFunc(time.Until(j.until), func() {
			j.expired.Store(true)
			j.kill()
		})
		defer timer.Stop()
	}
	j.exit, j.err = j.proc.Wait()
	if j.took == 0 { // no earlier daemon has seen the end
		j.took = time.Since(j.began)
	}
	j.exit.TimedOut = j.exit.TimedOut || j.expired.Load() && j.exit.Signal == unix.SIGKILL
	j.proc.Stdin.Close()
	if !errors.Is(j.err, sandbox.ErrLeft) {
		j.settle()
	}
	j.kill() // the command has exited: this only releases the context
	close(j.ended)
}

// settle waits until the command's output is in the log: until its streams end,
// or stay quiet, for at most maxSettle, or maxUnread while the pipes hold data.
func (j *job) settle() {
	ended, grew := time.Now(), false
	timeout := time.NewTimer(maxSettle)
	defer timeout.Stop()
	silence := time.NewTimer(quiet)
	defer silence.Stop()
	for {
		change := j.log.change()
		if !j.log.isOpen() {
			return
		}
		select {
		case <-change:
			grew = true
			silence.Reset(quiet)
		case <-silence.C:
			if !j.proc.Unread() {
				return
			}
			silence.Reset(quiet) // on a busy machine collect has not run yet
		case <-timeout.C:
			if grew || !j.proc.Unread() || time.Since(ended) > maxUnread {
				return
			}
			timeout.Reset(maxSettle)
		}
	}
}

func (j *job) running() bool {
	select {
	case <-j.ended:
		return false
	default:
		return true
	}
}

// discard closes the process's files and frees its output. The caller holds Shell.mu.
func (j *job) discard() {
	j.proc.Close()
	j.log.discard()
	j.over = true
	if j.claim != nil {
		j.claim.Stop()
	}
	if j.answered {
		j.unkeep()
	}
}

// status is a job's state.
type status struct {
	Running  bool   `json:"running,omitempty"`
	ExitCode *int   `json:"exit_code,omitempty" jsonschema:"128 plus the signal's number if a signal killed the command; absent while it runs"`
	Signal   string `json:"signal,omitempty" jsonschema:"the signal that killed the command"`
	TimedOut bool   `json:"timed_out,omitempty" jsonschema:"the command was killed at its timeout"`

	OutOfMemory bool `json:"out_of_memory,omitempty" jsonschema:"the command or one of its processes was killed at the agent's memory limit"`
}

// Exit returns the exit status for the log: see tools.Exiter.
func (s status) Exit() *int { return s.ExitCode }

func (j *job) status() status {
	if j.running() {
		return status{Running: true}
	}
	st := status{ExitCode: &j.exit.Code, TimedOut: j.exit.TimedOut, OutOfMemory: j.exit.OutOfMemory}
	if j.exit.Signal != 0 {
		code := 128 + int(j.exit.Signal)
		st.ExitCode, st.Signal = &code, signalName(j.exit.Signal)
	}
	return st
}

func signalName(sig syscall.Signal) string {
	if name := unix.SignalName(sig); name != "" {
		return name
	}
	return sig.String()
}
