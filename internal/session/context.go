package session

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/fs/callfs"
	"github.com/scopefs/scopefs/internal/account"
	"github.com/scopefs/scopefs/scope"
	scoped "github.com/scopefs/scopefs/scope/context"
	"github.com/scopefs/scopefs/tools"
	"github.com/scopefs/scopefs/tools/sandbox"
)

// contexts are what the calls of a client that run now see of its context. In the
// client's sandboxes /context shows each process that of its call.
type contexts struct {
	mu    sync.RWMutex
	calls map[string]*callfs.Files
}

// show makes the context of a call visible to its processes, until hide.
func (c *contexts) show(call string, s scoped.Scoped) (hide func(), err error) {
	files, err := contextFiles(s)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.calls == nil {
		c.calls = map[string]*callfs.Files{}
	}
	c.calls[call] = files
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.calls, call)
	}, nil
}

func (c *contexts) of(call string) *callfs.Files {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.calls[call]
}

// contextFiles returns a file for each scope.
func contextFiles(s scoped.Scoped) (*callfs.Files, error) {
	content := map[string][]byte{}
	for name, messages := range s.Files() {
		content[name+".json"] = messages
	}
	files, err := callfs.New(content)
	if err != nil {
		return nil, tools.Errorf(tools.Invalid, "the context cannot be shown: %v", err)
	}
	return files, nil
}

// contextMount is /context of one sandbox.
type contextMount struct {
	*callfs.Mount
	session atomic.Pointer[sandbox.Session] // nil until it has started
	refused refused
}

// refused records reads of the context of another call, or of one that has ended: the
// first of a minute, with the number of the others since the last.
type refused struct {
	event  func(tid uint32, others int64) audit.Event // tid 0: unknown
	record func(audit.Event)

	mu    sync.Mutex
	since time.Time // of the last that is recorded
	count int64     // of the others after it

	recording sync.WaitGroup
}

const refusedTime = time.Minute

// one counts a read, whose thread waits until one returns. It does not wait for the log.
func (r *refused) one(tid uint32) {
	r.mu.Lock()
	if time.Since(r.since) < refusedTime {
		r.count++
		r.mu.Unlock()
		return
	}
	others := r.count
	r.since, r.count = time.Now(), 0
	r.mu.Unlock()
	e := r.event(tid, others)
	r.recording.Go(func() { r.record(e) })
}

// rest records what was counted, when the mount has ended.
func (r *refused) rest() {
	r.recording.Wait()
	r.mu.Lock()
	others := r.count
	r.count = 0
	r.mu.Unlock()
	if others > 0 {
		r.record(r.event(0, others))
	}
}

// mountContext makes /context of a sandbox. A process sees the files of its command's
// tag, and none in another sandbox.
func (a *Agent) mountContext(owner account.User, of func(tag string) *callfs.Files) (*contextMount, error) {
	m := &contextMount{}
	m.refused.record = a.Event
	m.refused.event = func(tid uint32, others int64) audit.Event {
		e := audit.Event{Event: audit.KindSandbox, Agent: string(a.id), Op: "read", Path: sandbox.Context, Verdict: audit.Deny, PID: int(tid),
			Rule: "context: of another call, or of one that has ended", RuleKind: string(scope.KindContext), Errno: "ESTALE", Unrecorded: others}
		if tid == 0 {
			e.Outcome = "repeated"
		} else {
			from := a.originOf(int(tid))
			e.Session, e.Call, e.Program = from.session, from.call, from.program
		}
		return e
	}
	var err error
	m.Mount, err = callfs.Open(callfs.Options{UID: owner.UID, GID: owner.GID, Control: a.Control, Logger: a.Logger, Refused: m.refused.one, Owner: func(tid uint32) *callfs.Files {
		s := m.session.Load()
		if s == nil {
			return nil
		}
		tag, _, ours := s.TagOf(int(tid))
		if !ours {
			return nil
		}
		return of(tag)
	}})
	return m, err
}

// started makes the mount answer for a sandbox that has started on it.
func (m *contextMount) started(s *sandbox.Session) {
	if m != nil {
		m.Root.Close() // the sandbox holds the mount
		m.session.Store(s)
	}
}

// close ends the mount of a sandbox that has ended.
func (m *contextMount) close() {
	if m != nil {
		_ = m.Mount.Close() // without fusectl the server ends with the mount
		m.refused.rest()
	}
}
