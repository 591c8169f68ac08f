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

	"github.com/scopefs/scopefs/tools"
	"github.com/scopefs/scopefs/tools/sandbox"
)

const (
	// quiet is how long a command that has ended must have written nothing, when
	// processes that it left hold its output open.
	quiet = 100 * time.Millisecond
	// maxSettle bounds the wait for that, and maxUnread for what was written and
	// not read yet.
	maxSettle = time.Second
	maxUnread = 10 * time.Second
)

// job is a command that runs or ran.
type job struct {
	id    string // guarded by Shell.mu; "": nobody can ask for it
	log   log
	proc  *sandbox.Process
	kill  context.CancelFunc // by SIGKILL, with all of its session
	began time.Time

	expired atomic.Bool   // its time was over
	ended   chan struct{} // closed when it has ended, and what it wrote is in the log
	exit    sandbox.Exit  // final then, as what follows
	err     error
	took    time.Duration

	read [3]atomic.Int64 // by stream: how far process_read is
}

// start starts a command. It is killed when ctx ends before detach is called.
func (s *Shell) start(ctx context.Context, env tools.Env, in runArgs) (j *job, detach func() bool, err error) {
	if err := s.reserve(); err != nil {
		return nil, nil, err
	}
	s.evict()
	life, kill := context.WithCancel(context.WithoutCancel(ctx))
	detach = context.AfterFunc(ctx, kill)
	j = &job{kill: kill, began: time.Now(), ended: make(chan struct{})}
	j.log.open = len(j.log.streams)
	for i := range j.log.streams {
		j.log.streams[i].budget = &s.budget
	}
	if j.proc, err = s.exec(life, env, in); err != nil {
		detach()
		kill()
		s.release()
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return nil, nil, err
	}
	s.add(j)
	s.work.Add(3)
	go func() { defer s.work.Done(); j.log.collect(stdout, j.proc.Stdout) }()
	go func() { defer s.work.Done(); j.log.collect(stderr, j.proc.Stderr) }()
	go func() {
		defer s.work.Done()
		defer j.proc.Stdin.Close()
		io.WriteString(j.proc.Stdin, in.Stdin) // it need not read it
	}()
	go func() {
		defer s.release()
		j.wait(in.timeout())
		s.late(j)
	}()
	return j, detach, nil
}

// exec runs bash, or sh where there is none.
func (s *Shell) exec(ctx context.Context, env tools.Env, in runArgs) (p *sandbox.Process, err error) {
	for _, shell := range []string{"bash", "sh"} {
		p, err = s.place.Exec(ctx, sandbox.Command{Argv: []string{shell, "-c", in.Command}, Dir: in.Cwd, Tag: env.Call})
		if !errors.Is(err, fs.ErrNotExist) {
			break
		}
	}
	return p, execError(err, in.Cwd)
}

// execError is what an agent is told of a command that did not start. There is a
// shell: what is not found is the directory.
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
		return &tools.Error{Code: tools.RateLimited, Message: "the sandbox can start no more processes", Hint: "stop some first"}
	case errors.Is(err, sandbox.ErrInvalid):
		return tools.Errorf(tools.Invalid, "a NUL byte in the command or directory")
	case cwd == "":
		return err
	case errors.Is(err, fs.ErrNotExist):
		code, message = tools.NotFound, "no such directory"
	case errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ENAMETOOLONG), errors.Is(err, unix.ELOOP):
		code, message = tools.Invalid, "not a directory"
	case errors.Is(err, fs.ErrPermission):
		code, message = tools.Denied, "the directory may not be entered"
	default:
		return err
	}
	return &tools.Error{Code: code, Message: message, Path: relative(cwd)}
}

// relative returns a path in the sandbox relative to the view, if it is there.
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

// wait sees a job to its end. A timeout of 0 is none.
func (j *job) wait(timeout time.Duration) {
	if timeout > 0 {
		timer := time.AfterFunc(timeout, func() {
			j.expired.Store(true)
			j.kill()
		})
		defer timer.Stop()
	}
	j.exit, j.err = j.proc.Wait()
	j.took = time.Since(j.began)
	j.exit.TimedOut = j.exit.TimedOut || j.expired.Load() && j.exit.Signal == unix.SIGKILL
	j.proc.Stdin.Close()
	j.settle()
	j.kill() // only ends its context
	close(j.ended)
}

// settle waits until all that the command wrote is in the log: until its streams
// end, or are quiet.
func (j *job) settle() {
	ended, heard := time.Now(), false
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
			heard = true
			silence.Reset(quiet)
		case <-silence.C:
			if !j.proc.Unread() {
				return
			}
			silence.Reset(quiet) // it is there, and nobody had a processor to read it
		case <-timeout.C:
			if heard || !j.proc.Unread() || time.Since(ended) > maxUnread {
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

// discard closes what the job has and forgets what it wrote.
func (j *job) discard() {
	j.proc.Close()
	j.log.discard()
}

// status is how a job is.
type status struct {
	Running  bool   `json:"running,omitempty"`
	ExitCode *int   `json:"exit_code,omitempty" jsonschema:"128 and the signal's number when a signal ended it; absent while it runs"`
	Signal   string `json:"signal,omitempty" jsonschema:"the signal that ended it"`
	TimedOut bool   `json:"timed_out,omitempty" jsonschema:"it was killed because its time was over"`

	OutOfMemory bool `json:"out_of_memory,omitempty" jsonschema:"it, or a process that it started, was killed because the memory of the agent was used up"`
}

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
