// Package bash provides the tools that run commands in an agent's sandbox, read
// their output and stop them.
package bash

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"

	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/tools"
	"github.com/scopefs/scopefs/tools/sandbox"
)

const (
	maxRunning = 64 // running commands per Shell
	maxEnded   = 64 // exited commands whose output process_read can still return
)

// Sandbox starts commands; a *sandbox.Session implements it.
type Sandbox interface {
	Exec(ctx context.Context, c sandbox.Command) (*sandbox.Process, error)
}

// Shell runs the commands of one client session. It holds their process ids and
// the memory budget of their output. Its methods are safe for concurrent use.
type Shell struct {
	Dir string // the cwd of commands without one; "": the view's root. Set it before Tools

	// Keep makes a command live on when the daemon ends: see Kept. Leaves reports whether the daemon leaves its commands to the
	// next one now. Unclaimed is called with a call of an earlier daemon whose client has not asked for its result; its command
	// has ended. Nil: every command ends with the daemon. Set them before the first call.
	Keep      func(p *sandbox.Process, k Kept, tapes []*os.File) (Place, error)
	Leaves    func() bool
	Unclaimed func(tools.Begun)

	sandbox Sandbox
	budget  budget
	work    sync.WaitGroup

	mu      sync.Mutex
	closed  bool
	running int    // jobs running or starting
	jobs    []*job // oldest first
	lastID  int    // number of the last process id
}

// NewShell returns a Shell that runs its commands in sandbox. The caller must
// close it.
func NewShell(sandbox Sandbox) *Shell {
	s := &Shell{sandbox: sandbox}
	s.budget.free.Store(maxKept)
	return s
}

// Tools returns the tools bash, process_read and process_stop.
func (s *Shell) Tools() ([]tools.Tool, error) {
	run, err := tools.New("bash", "Run a command with bash -c, in the sandbox whose /workspace is the view. "+
		"Each call starts a new shell: cd and variables do not persist. A command that fails is a result with its exit_code. "+
		"The middle of long output is left out; process_read returns it.",
		tools.Hints{Title: "Run a command", Changes: true, Waits: true, Context: true, Acts: true, Destructive: true}, s.run)
	if s.Dir != "" {
		run.About += " It starts in " + s.Dir + ", unless cwd names another directory."
		run.Defaults = map[string]string{"cwd": s.Dir}
	}
	run.Aliases = []string{"shell", "run_shell_command"} // Gemini CLI's
	read, readErr := tools.New("process_read",
		"Read a command's output and status, by the process_id that bash returned, or list the session's processes.",
		tools.Hints{Title: "Read a command's output", Changes: true, Waits: true}, s.read)
	stop, stopErr := tools.New("process_stop", "Stop a background command: send a signal, and KILL two seconds later if it still runs.",
		tools.Hints{Title: "Stop a command", Changes: true, Waits: true, Acts: true, Destructive: true, Idempotent: true}, s.stop)
	return []tools.Tool{run, read, stop}, errors.Join(err, readErr, stopErr)
}

// Close kills the running commands and waits until they have exited. Background
// processes of commands that exited earlier live until the sandbox ends. Later
// calls of the tools fail. It always returns nil.
//
// What it leaves to the next daemon it only stops reading.
func (s *Shell) Close() error {
	s.mu.Lock()
	s.closed = true
	jobs := slices.Clone(s.jobs)
	s.mu.Unlock()
	var left, others []*job
	for _, j := range jobs {
		if s.leaves(j) {
			left = append(left, j)
		} else {
			others = append(others, j)
			j.kill()
		}
	}
	for _, j := range left {
		s.leave(j)
	}
	for _, j := range others {
		<-j.ended
		s.drop(j)
		if s.neverClaimed(j) {
			s.work.Add(1)
			go func() { defer s.work.Done(); s.Unclaimed(j.begun) }()
		}
	}
	if len(left) == 0 { // their ends are waited for until the sandbox is left
		s.work.Wait()
	}
	return nil
}

// reserve counts one more running command, or fails at maxRunning.
func (s *Shell) reserve() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return errEnded()
	}
	if s.running == maxRunning {
		d := scope.Decision{Kind: scope.KindLimit, Rule: fmt.Sprintf("commands that run: %d", maxRunning)}
		e := tools.Refused(d, tools.RateLimited, "%d commands are running already", maxRunning)
		e.Hint = "stop one with process_stop"
		return e
	}
	s.running++
	s.work.Add(1)
	return nil
}

// release undoes reserve.
func (s *Shell) release() {
	s.mu.Lock()
	s.running--
	s.mu.Unlock()
	s.work.Done()
}

// add registers a job for find and Close. After Close it kills the job instead of
// leaving it running.
func (s *Shell) add(j *job) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.jobs = append(s.jobs, j)
	if s.closed {
		j.kill()
	}
}

// dropLate drops a job that Close did not see.
func (s *Shell) dropLate(j *job) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		s.remove(j)
	}
}

// publish gives a job its process id, if it has none, and returns the id.
func (s *Shell) publish(j *job) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if j.id == "" {
		s.lastID++
		j.id = fmt.Sprintf("p%d", s.lastID)
		s.set(j)
	}
	return j.id
}

func (s *Shell) find(id string) (*job, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, j := range s.jobs {
		if id != "" && j.id == id {
			return j, nil
		}
	}
	return nil, &tools.Error{Code: tools.NotFound, Message: "no such process",
		Hint: "use the process_id that bash returned; only the latest exited commands are kept"}
}

// drop removes an exited job and frees its output.
func (s *Shell) drop(j *job) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.remove(j)
}

func (s *Shell) remove(j *job) {
	if i := slices.Index(s.jobs, j); i >= 0 {
		s.jobs = slices.Delete(s.jobs, i, i+1)
		j.discard()
	}
}

// evict drops the oldest exited jobs while more than maxEnded are kept or the
// budget is nearly spent. Jobs with open streams go last: dropping one closes the
// pipes, and its background processes would get SIGPIPE.
func (s *Shell) evict() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		var ended []*job
		var victim *job
		for _, j := range s.jobs {
			if !j.running() && j.id != "" {
				ended = append(ended, j)
				if victim == nil && !j.log.isOpen() {
					victim = j
				}
			}
		}
		if len(ended) == 0 || len(ended) <= maxEnded && s.budget.free.Load() >= 2*maxStream {
			return
		}
		if victim == nil {
			victim = ended[0]
		}
		s.remove(victim)
	}
}

func errEnded() error {
	return &tools.Error{Code: tools.Unavailable, Message: "the sandbox has ended", Hint: "call again: a new sandbox is started"}
}
