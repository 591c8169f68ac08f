// Package approvals holds the requests of agents that wait for the operator's decision,
// the decisions, and the operator's standing approvals. [Set.Ask] does not wait: the door for
// tool calls does. [Set.Wait] waits, for all other requests, such as connections.
package approvals

import (
	"cmp"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/scopefs/scopefs/scope"
)

// The bounds of the approvals of one agent.
const (
	maxWaiting      = 64
	maxWaitingBytes = 16 << 20 // of their arguments
	maxStanding     = 64
)

// ErrNotFound reports that no approval with the id is waiting.
var ErrNotFound = errors.New("no such approval waits, it was decided, used, or its time is over: see scopefs approvals list")

// ErrNobody is the error of a request in a set that is Alone, while nobody attends.
var ErrNobody = errors.New("nobody is here who could approve it")

// Error is the error of a request that neither waits nor was decided.
type Error struct {
	Message string // for the agent
	Cause   error  // of the store, for the operator; nil: too many requests of the agent wait
}

func (e *Error) Error() string { return e.Message }

// Store stores approvals for the next daemon. When a method returns nil, the
// change is on the disk.
type Store interface {
	Put(Approval) error    // replaces the approval with the same ID
	Remove(Approval) error // fs.ErrNotExist: it was removed before
}

// noStore stores nothing: approvals end with the process.
type noStore struct{}

func (noStore) Put(Approval) error    { return nil }
func (noStore) Remove(Approval) error { return nil }

// Set holds the approvals of one daemon. Its methods are safe for concurrent use. A nil
// *Set has none: List, Get and the methods that end approvals do nothing.
type Set struct {
	now   func() time.Time
	store Store

	// Alone says that no operator finds what waits: a request that no standing approval covers fails with ErrNobody,
	// unless somebody attends. See Attend.
	Alone bool

	// Ended records that a standing approval ended without the operator, or that a request
	// timed out, and why. Nil records nothing.
	Ended func(p Approval, why string)

	// mu guards the fields below. Requests of all agents wait for it: nothing is recorded under it. Use lock.
	mu      sync.Mutex
	over    []func() // of standing approvals that have ended: unlock records the ends
	byKey   map[string]*Approval
	held    map[scope.ID]int // requests that wait, see Hold
	attend  map[scope.ID]int // who attends, see Attend
	closing chan struct{}    // closed by Close
	past    []Update         // of requests that have ended, the oldest first; maxPast of them

	watchers map[chan Update]struct{}
}

// lock locks mu. unlock unlocks it, then records the approvals that ended.
func (s *Set) lock() (unlock func()) {
	s.mu.Lock()
	return func() {
		over := s.over
		s.over = nil
		s.mu.Unlock()
		for _, record := range over {
			record()
		}
	}
}

// NewSet returns an empty set of approvals. Without a store they are in memory only.
func NewSet(store Store) *Set {
	if store == nil {
		store = noStore{}
	}
	return &Set{now: time.Now, store: store, byKey: map[string]*Approval{}, held: map[scope.ID]int{}, attend: map[scope.ID]int{},
		closing: make(chan struct{}), watchers: map[chan Update]struct{}{}}
}

// Resume adds the approvals that the store has kept. Those that have expired meanwhile end at once: Ended is set by then.
func (s *Set) Resume(kept ...Approval) {
	defer s.lock()()
	for _, p := range kept {
		s.add(p.key(), &p)
	}
}

// newID returns the id of an approval: 13 random characters.
func newID() string { return strings.ToLower(rand.Text()[:13]) }

// add adds an approval that is stored. The caller holds the lock.
func (s *Set) add(key string, p *Approval) {
	p.changed, p.taken = make(chan struct{}), nil
	if p.Hash = ""; p.State != Stands {
		p.Hash = p.Digest()
	}
	s.byKey[key] = p
	s.setTimer(p)
}

// setTimer has an approval end when it expires. The caller holds the lock.
func (s *Set) setTimer(p *Approval) {
	if p.timer != nil {
		p.timer.Stop()
	}
	if p.timer = nil; !p.Expires.IsZero() {
		p.timer = time.AfterFunc(p.Expires.Sub(s.now())+time.Millisecond, s.expire)
	}
}

// expire removes expired approvals.
func (s *Set) expire() {
	defer s.lock()()
	select {
	case <-s.closing:
	default:
		s.sweep()
	}
}

// remove deletes an approval. The caller holds the lock.
func (s *Set) remove(key string) error {
	p := s.byKey[key]
	delete(s.byKey, key)
	close(p.changed)
	if p.timer != nil {
		p.timer.Stop()
	}
	return s.store.Remove(*p)
}

// sweep removes expired approvals. It ignores errors: a file that stays is expired for
// the next daemon, too. The caller holds the lock.
func (s *Set) sweep() {
	for key, p := range s.byKey {
		if p.over(s.now()) {
			_ = s.remove(key)
			s.ended(p, "expired")
		}
	}
}

// Ask returns the operator's decision about a request, and uses a grant up. A new request
// becomes an approval that waits, and first is true, unless count returns an error. count
// counts the request against the agent's rates; Ask does not call it again for a request
// that is granted. The error is that of count, ErrNobody, or an *[Error].
func (s *Set) Ask(p Approval, count func() error) (said Approval, first bool, err error) {
	defer s.lock()()
	s.sweep()
	key := p.key()
	if known := s.byKey[key]; known != nil {
		said = *known
		if known.taken != nil { // a decision is being recorded: the request waits for it
			said.State, said.Granted, said.Paths = Waits, nil, nil
			return said, false, nil
		}
		if known.State == Granted && !known.Lasting {
			if err := s.remove(key); err != nil { // after a crash it could be used again
				return p, false, &Error{"the use of the approval cannot be stored", err}
			}
			s.tell("used", said)
		}
		return said, false, nil
	}
	if standing := s.standing(&p); standing != nil {
		if err := count(); err != nil {
			return p, false, err
		}
		s.tell("used", *standing)
		return *standing, false, nil
	}
	if s.Alone && s.attend[p.Agent] == 0 {
		return p, false, ErrNobody
	}
	waiting, size := 0, len(p.Arguments)
	for _, other := range s.byKey {
		if other.Agent == p.Agent && other.State != Stands {
			waiting++
			size += len(other.Arguments)
		}
	}
	if waiting >= maxWaiting || size > maxWaitingBytes {
		return p, false, &Error{Message: fmt.Sprintf("%d calls wait for the operator already", waiting)}
	}
	if err := count(); err != nil {
		return p, false, err
	}
	p.ID, p.State, p.Asked = newID(), Waits, s.now()
	p.Expires = p.Asked.Add(lifetime)
	if err := s.store.Put(p); err != nil {
		return p, false, &Error{"what the operator is to approve cannot be stored", err}
	}
	s.add(key, &p)
	s.tell(Waits, p)
	return p, true, nil
}

// Attend says that somebody decides about an agent's requests, until leave is called.
func (s *Set) Attend(agent scope.ID) (leave func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.attend[agent]++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.attend[agent]--
	}
}

// Knows reports whether the set has an approval of a request.
func (s *Set) Knows(p *Approval) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.byKey[p.key()] != nil
}

// Forget removes an agent's approvals except standing ones, when the agent is taken down.
// They are gone even after an error, but the next daemon may find some of them.
func (s *Set) Forget(agent scope.ID) error {
	return s.forget(func(p *Approval) bool { return p.Agent == agent && p.State != Stands })
}

// ForgetAll is Forget for standing approvals, too.
func (s *Set) ForgetAll(agent scope.ID) error {
	return s.forget(func(p *Approval) bool { return p.Agent == agent })
}

// ForgetSession is Forget for the requests of one session.
func (s *Set) ForgetSession(agent scope.ID, session string) error {
	return s.forget(func(p *Approval) bool { return p.Agent == agent && p.Session == session && p.State != Stands })
}

func (s *Set) forget(of func(*Approval) bool) error {
	if s == nil {
		return nil
	}
	defer s.lock()()
	var errs []error
	for key, p := range s.byKey {
		if of(p) {
			s.tell("ended", *p)
			if err := s.remove(key); !errors.Is(err, fs.ErrNotExist) {
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(errs...)
}

// List returns all approvals, the oldest first.
func (s *Set) List() []Approval {
	list := []Approval{}
	if s == nil {
		return list
	}
	defer s.lock()()
	s.sweep()
	for _, p := range s.byKey {
		list = append(list, *p)
	}
	slices.SortFunc(list, func(x, y Approval) int { return cmp.Or(x.Asked.Compare(y.Asked), strings.Compare(x.ID, y.ID)) })
	return list
}

// Get returns the approval with an id, with a preview of the context. For one that has ended a short time ago the error is
// a *[ConflictError].
func (s *Set) Get(id string) (Approval, error) {
	for _, p := range s.List() {
		if p.ID == id {
			p.Preview = p.preview
			return p, nil
		}
	}
	if s == nil {
		return Approval{}, ErrNotFound
	}
	defer s.lock()()
	return Approval{}, s.gone(id)
}
