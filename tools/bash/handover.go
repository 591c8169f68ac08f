package bash

import (
	"context"
	"os"
	"sync"
	"time"

	"github.com/scopefs/scopefs/tools"
	"github.com/scopefs/scopefs/tools/sandbox"
)

// Kept is what the next daemon needs of a command, beside its process and its tapes. Its fields are for JSON.
type Kept struct {
	Begun tools.Begun   `json:"begun"`          // the call that has started the command
	ID    string        `json:"id,omitempty"`   // the process id; "": it has none
	Last  int           `json:"last,omitempty"` // the number of the Shell's last process id
	Line  string        `json:"line"`
	Began time.Time     `json:"began"`
	Until time.Time     `json:"until,omitzero"` // the end of its time
	Exit  *sandbox.Exit `json:"exit,omitempty"` // nil: it runs
	Took  time.Duration `json:"took,omitempty"`

	// Answered reports whether the client has the result of the call.
	Answered bool `json:"answered,omitempty"`
}

// Place is where a command is kept for the next daemon.
type Place interface {
	Set(k Kept)
	Remove()
}

const (
	// keepAfter is how long a command runs until it is kept: most end sooner.
	keepAfter = 20 * time.Millisecond
	// claimTime is how long the client of a call may take to ask for its result, after its return.
	claimTime = 15 * time.Second
)

// kept is the state of a job for the next daemon, guarded by Shell.mu but for begun, until and collecting.
type kept struct {
	begun      tools.Begun
	until      time.Time // the end of its time; zero: none
	collecting sync.WaitGroup

	place    Place // nil: it ends with the daemon
	left     bool  // to the next daemon
	claim    *time.Timer
	answered bool // the client has the call's result
	over     bool // it is dropped
	claimed  bool // of an earlier daemon: its call goes on
}

// keepLater keeps a command that lasts. told is Env.Kept.
func (s *Shell) keepLater(j *job, told func(answered func())) {
	background := j.answered // nobody changes it before told
	if s.Keep == nil || !background && told == nil {
		return
	}
	if background {
		s.keep(j)
		return
	}
	soon := time.NewTimer(keepAfter)
	defer soon.Stop()
	select {
	case <-j.ended:
	case <-soon.C:
		told(func() { s.answer(j) }) // first: a client that waits in vain gets an error, and one that does not gets no result
		s.keep(j)
	}
}

// keep makes a command live on when the daemon ends.
func (s *Shell) keep(j *job) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if j.over || s.closed {
		return
	}
	var tapes []*os.File
	for _, t := range j.log.tapes() {
		f, err := t.File()
		if err != nil {
			closeAll(tapes)
			return
		}
		tapes = append(tapes, f)
	}
	if place, err := s.Keep(j.proc, s.state(j), tapes); err == nil {
		j.place = place
	}
}

func closeAll(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}

// state returns the Kept of a job. The caller holds s.mu.
func (s *Shell) state(j *job) Kept {
	k := Kept{Begun: j.begun, ID: j.id, Last: s.lastID, Line: j.line, Began: j.began, Until: j.until, Answered: j.answered}
	if !j.running() && j.err == nil {
		k.Exit, k.Took = &j.exit, j.took
	}
	return k
}

// set updates the place of a job. The caller holds s.mu.
func (s *Shell) set(j *job) {
	if j.place != nil {
		j.place.Set(s.state(j))
	}
}

// update updates the place of a command that has exited and has a process id.
func (s *Shell) update(j *job) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if j.id != "" && j.err == nil {
		s.set(j)
	}
}

// answer notes that the client has the result of the call.
func (s *Shell) answer(j *job) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if j.answered = true; j.over {
		j.unkeep()
	} else {
		s.set(j)
	}
}

// unkeep removes the place. The caller holds Shell.mu.
func (j *job) unkeep() {
	if j.place != nil && !j.left {
		j.place.Remove()
	}
}

// leaves reports whether a job is left to the next daemon.
func (s *Shell) leaves(j *job) bool {
	if s.Leaves == nil || !s.Leaves() {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return j.place != nil
}

// leave stops the reading of the output: the next daemon goes on with it.
func (s *Shell) leave(j *job) {
	s.mu.Lock()
	j.left = true
	s.mu.Unlock()
	j.proc.Stdout.Close()
	j.proc.Stderr.Close()
	j.collecting.Wait()
}

// Adopt continues with a command that an earlier daemon has kept. It owns the tapes. The client has claimTime for the call.
func (s *Shell) Adopt(k Kept, p *sandbox.Process, tapes []*os.File, place Place) error {
	l, err := load(&s.budget, tapes)
	if err != nil {
		return err
	}
	if err := s.reserve(); err != nil {
		l.discard()
		return err
	}
	life, kill := context.WithCancel(context.Background())
	p.Bind(life)
	j := &job{id: k.ID, log: l, proc: p, kill: kill, began: k.Began, line: k.Line, ended: make(chan struct{}), took: k.Took}
	j.begun, j.until, j.place, j.answered = k.Begun, k.Until, place, k.Answered
	s.mu.Lock()
	s.lastID = max(s.lastID, k.Last)
	if !k.Answered {
		j.claim = time.AfterFunc(claimTime, func() { s.expire(j) })
	}
	s.mu.Unlock()
	s.add(j)
	s.follow(j)
	return nil
}

// expire ends the command of a call whose client does not ask for the result.
func (s *Shell) expire(j *job) {
	s.mu.Lock()
	over := j.claimed || j.over || s.closed
	if j.claimed = true; !over {
		s.work.Add(1)
	}
	s.mu.Unlock()
	if over {
		return
	}
	defer s.work.Done()
	s.abandon(j)
	s.Unclaimed(j.begun)
}

// neverClaimed reports whether a job is of a call of an earlier daemon that the client has not asked for.
func (s *Shell) neverClaimed(j *job) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return j.claim != nil && !j.claimed
}

// abandon kills a command, and drops it.
func (s *Shell) abandon(j *job) {
	j.kill()
	<-j.ended
	s.mu.Lock()
	j.answered = true
	s.mu.Unlock()
	s.drop(j)
}

// Resume returns a call that an earlier daemon has begun, once; nil: there is none.
func (s *Shell) Resume(call string) *tools.Resumed {
	s.mu.Lock()
	defer s.mu.Unlock()
	j := s.begun(call)
	if j == nil || j.claimed {
		return nil
	}
	j.claimed = true
	j.claim.Stop()
	return &tools.Resumed{Begun: j.begun, End: func() { s.abandon(j) }}
}

// begun returns the job of a call of an earlier daemon that the client has no result of. The caller holds s.mu.
func (s *Shell) begun(call string) *job {
	for _, j := range s.jobs {
		if j.claim != nil && j.begun.Call == call {
			return j
		}
	}
	return nil
}

// resume continues with the command of a call of Resume.
func (s *Shell) resume(ctx context.Context, env tools.Env) (j *job, detach func() bool, err error) {
	s.mu.Lock()
	j = s.begun(env.Call)
	s.mu.Unlock()
	if j == nil {
		return nil, nil, errEnded()
	}
	if env.Kept != nil {
		env.Kept(func() { s.answer(j) })
	}
	return j, s.killAfter(ctx, j), nil
}
