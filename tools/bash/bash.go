// Package bash is the tools that run commands in an agent's sandbox, and read
// from and stop those that go on in the background.
package bash

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/scopefs/scopefs/tools"
	"github.com/scopefs/scopefs/tools/sandbox"
)

const (
	maxRunning = 64 // commands of a Shell at a time
	maxEnded   = 64 // commands that have ended and can be read
)

// Place is where commands run.
type Place interface {
	Exec(ctx context.Context, c sandbox.Command) (*sandbox.Process, error)
}

// Shell is what the commands of one agent session have in common: the names of
// those that can be read and stopped, and the memory for what they write.
type Shell struct {
	place  Place
	budget budget
	work   sync.WaitGroup

	mu      sync.Mutex
	closed  bool
	running int    // jobs, with those that start
	jobs    []*job // oldest first
	named   int    // how many names were given
}

// NewShell returns a Shell without commands. Close it.
func NewShell(place Place) *Shell {
	s := &Shell{place: place}
	s.budget.free.Store(maxKept)
	return s
}

// Tools returns bash, process_read and process_stop.
func (s *Shell) Tools() ([]tools.Tool, error) {
	run, err := tools.New("bash", "Run a command with bash -c, in the sandbox whose /workspace is the view. "+
		"Each call is a shell of its own: cd and variables do not last. A command that fails is a result with its exit_code. "+
		"Of long output the middle is left out, for process_read to read.",
		tools.Hints{Title: "Run a command", Waits: true, Acts: true, Destructive: true}, s.run)
	if err != nil {
		return nil, err
	}
	read, err := tools.New("process_read", "Read what a command has written, by the process_id that bash gave; and whether it still runs.",
		tools.Hints{Title: "Read a command's output", Waits: true}, s.read)
	if err != nil {
		return nil, err
	}
	stop, err := tools.New("process_stop", "Stop a command that runs in the background: by a signal, and after two seconds by KILL.",
		tools.Hints{Title: "Stop a command", Waits: true, Acts: true, Destructive: true, Idempotent: true}, s.stop)
	return []tools.Tool{run, read, stop}, err
}

// Close kills the commands that run and waits until they have ended. What
// commands that have ended left in the background ends with the sandbox.
func (s *Shell) Close() error {
	s.mu.Lock()
	s.closed = true
	jobs := slices.Clone(s.jobs)
	s.mu.Unlock()
	for _, j := range jobs {
		j.kill()
	}
	for _, j := range jobs {
		<-j.ended
		s.forget(j)
	}
	s.work.Wait()
	return nil
}

// reserve makes room for one more command to run.
func (s *Shell) reserve() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return errEnded()
	}
	if s.running == maxRunning {
		return &tools.Error{Code: tools.RateLimited, Message: fmt.Sprintf("%d commands run already", maxRunning),
			Hint: "stop one with process_stop"}
	}
	s.running++
	s.work.Add(1)
	return nil
}

// release ends what reserve began.
func (s *Shell) release() {
	s.mu.Lock()
	s.running--
	s.mu.Unlock()
	s.work.Done()
}

// add makes a job one that Close finds. One that comes too late is killed.
func (s *Shell) add(j *job) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.jobs = append(s.jobs, j)
	if s.closed {
		j.kill()
	}
}

// late forgets a job that has ended after Close looked for it.
func (s *Shell) late(j *job) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		s.remove(j)
	}
}

// name returns the name by which a job can be found from now on.
func (s *Shell) name(j *job) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if j.id == "" {
		s.named++
		j.id = fmt.Sprintf("p%d", s.named)
	}
	return j.id
}

func (s *Shell) find(id string) (*job, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, j := range s.jobs {
		if j.id == id {
			return j, nil
		}
	}
	return nil, &tools.Error{Code: tools.NotFound, Message: "no such process",
		Hint: "process_id comes from bash; of commands that have ended only the last are kept"}
}

// forget gives up a job that has ended, with what it wrote.
func (s *Shell) forget(j *job) {
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

// evict forgets the oldest jobs that have ended while they are too many, or have
// all the memory. Those whose output is still held open by what they left in the
// background come last: it would get SIGPIPE.
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
	return &tools.Error{Code: tools.Internal, Message: "the sandbox has ended", Hint: "call again: a new sandbox is started"}
}
