// Package placement gives an agent one writer host, by leases in the NATS server of the fleet. It is the daemon's part: a process
// of its own reads and writes at the server, and a view checks the end of its lease before each change.
//
// # Safety
//
// At most one host changes an agent's files at a time, for these reasons:
//
//   - A value at the server changes by compare-and-set of its revision alone.
//   - A holder's lease ends Held after the daemon handed out the write that succeeded: before the server had the write.
//   - A host writes its value over one that it has seen unchanged for Full, or for Own. A holder that renews changes the revision. One that
//     does not has lost the lease Own - Held before, by the clock of either host.
//   - A value that was given back may be replaced at once, as may the host's own after the end of its lease.
//   - A server that has started may have lost its last writes. Therefore what was seen of an earlier one does not count: a lease is
//     granted only if the server is the same at the hand-out and after the write, the waiting starts anew, and a value may be
//     replaced at once only if this server has written it, or while the host's own lease lasts.
//   - The clock is CLOCK_BOOTTIME, which nobody sets and which counts while the host sleeps (clock_gettime(2)). Clocks of two hosts
//     are never compared. Their rates may differ by a third.
//   - The view's process compares the end with its own clock before each change, whatever its daemon does.
//
// Not fenced is a change that the view has begun and that takes longer than Own - Held, perhaps because the view is stopped: the
// file system below does not know the lease. Nor is a virtual machine that is paused and whose clock does not count that. The data
// of a write is at the server of the file system when the client has its answer (O_DSYNC).
package placement

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"sync"
	"time"

	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/boottime"
	"github.com/scopefs/scopefs/internal/bounded"
	"github.com/scopefs/scopefs/internal/driver"
	"github.com/scopefs/scopefs/internal/durable"
	"github.com/scopefs/scopefs/internal/placement/wire"
	"github.com/scopefs/scopefs/scope"
)

// The times of a lease.
const (
	Held = 12 * time.Second // from the hand-out of a write to the end of the lease
	Full = 24 * time.Second // without a change of the value, until another host may write
	Own  = 20 * time.Second // likewise, for the host whose value it is: after a start of the server the lease does not move
	Each = 2 * time.Second  // from one work to the next
)

// waitTime bounds Acquire: the time to find that a holder does not renew, and a start of the process that speaks to the server.
const waitTime = Full + 10*time.Second

// Set is the leases of one daemon. A nil Set is of a daemon without a fleet.
type Set struct {
	node, holder string
	now          func() time.Duration

	mu      sync.Mutex
	leases  map[scope.ID]*lease
	server  string // its id
	number  uint64 // of the work that was handed out last
	handed  time.Duration
	hurry   bool          // a lease waits for work
	changed chan struct{} // closed and replaced when a lease or hurry changes
}

// lease is the lease of one agent, as far as the daemon knows. Set.mu guards it.
type lease struct {
	wanted bool // else it is given back, and forgotten then
	known  bool // the server was heard about it
	moved  bool // the value has changed since it was known
	record wire.Record
	since  time.Duration // when the record was heard first
	until  time.Duration // the end; 0: it was never held
}

// New returns the leases of a node, whose state directory names it.
func New(node, state string) (*Set, error) {
	holder, err := holderOf(filepath.Join(state, "fleet"))
	if err != nil {
		return nil, err
	}
	return &Set{node: node, holder: holder, now: boottime.Now, leases: map[scope.ID]*lease{}, changed: make(chan struct{})}, nil
}

const holderName = "holder"

var holderText = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Z2-7]{26}$`) })

// holderOf returns what tells this daemon and the next ones of its state from others. They have one name at the server, so that the
// next one goes on with the leases of the last one, whose views may live on.
func holderOf(dir string) (string, error) {
	name := filepath.Join(dir, holderName)
	text, err := bounded.File(name, 64)
	if errors.Is(err, fs.ErrNotExist) {
		if err = os.MkdirAll(dir, 0o700); err != nil {
			return "", err
		}
		root, err := os.OpenRoot(dir)
		if err != nil {
			return "", err
		}
		defer root.Close()
		holder := rand.Text()
		return holder, durable.Replace(root, holderName, []byte(holder), durable.Options{})
	}
	if err == nil && !holderText().Match(text) {
		err = errors.New("it is damaged: remove it")
	}
	if err != nil {
		return "", fmt.Errorf("%s: %w", name, err)
	}
	return string(text), nil
}

// Handle adds the method of the process that speaks to the server. A nil Set adds none.
func (s *Set) Handle(to driver.Handlers) {
	if s != nil {
		wire.Turn.Handle(to, s.turn)
	}
}

// turn takes a report and returns the next work.
func (s *Set) turn(ctx context.Context, r wire.Report) (wire.Work, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.take(r)
	due := time.NewTimer(max(s.handed+Each-s.now(), 0))
	defer due.Stop()
	for late := false; !late && !s.hurry; {
		changed := s.changed
		s.mu.Unlock()
		select {
		case <-changed:
		case <-due.C:
			late = true
		case <-ctx.Done():
		}
		s.mu.Lock()
		if ctx.Err() != nil {
			return wire.Work{}, ctx.Err()
		}
	}
	return s.work(), nil
}

// take notes a report. The caller holds mu.
func (s *Set) take(r wire.Report) {
	now, same := s.now(), s.server == r.Server
	if s.server = r.Server; !same {
		for _, l := range s.leases {
			l.since = now
		}
	}
	if r.Number == 0 || r.Number != s.number { // of an earlier process
		return
	}
	for _, got := range r.Records {
		l := s.leases[got.Agent]
		if l == nil {
			continue
		}
		if !l.known || l.record.Revision != got.Revision || l.record.Value != got.Value {
			l.moved, l.since = l.known, now
		}
		l.known, l.record = true, got
		switch {
		case !s.has(l):
			l.until = 0 // it ends early
			if !l.wanted {
				delete(s.leases, got.Agent)
			}
		case got.Wrote && l.wanted && same:
			l.until = s.handed + Held
		}
	}
	s.wake()
}

// has reports whether the value at the server is this daemon's. The caller holds mu.
func (s *Set) has(l *lease) bool {
	return l.known && l.record.Revision > 0 && l.record.Value.Holder == s.holder && !l.record.Value.Free
}

// wake has all that wait look again. The caller holds mu.
func (s *Set) wake() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// work returns what is to be done at the server. The caller holds mu.
func (s *Set) work() wire.Work {
	s.number++
	s.handed, s.hurry = s.now(), false
	w := wire.Work{Number: s.number}
	for id, l := range s.leases {
		op := wire.Op{Agent: id, Revision: l.record.Revision}
		value := l.record.Value
		fresh := value.Server == s.server && (value.Free || s.has(l))
		full := Full
		if s.has(l) {
			full = Own
		}
		switch {
		case s.has(l) && !l.wanted:
			op.Write = &wire.Value{Node: s.node, Holder: s.holder, Free: true, Server: value.Server}
		case l.wanted && l.known && (l.until > s.handed || fresh || s.handed-l.since >= full):
			op.Write = &wire.Value{Node: s.node, Holder: s.holder, Server: s.server}
		case !l.wanted && l.known:
			delete(s.leases, id)
			continue
		}
		w.Ops = append(w.Ops, op)
	}
	return w
}

// ErrNoFleet is the error of an agent with placement: one whose daemon is no node.
var ErrNoFleet = errors.New("placement: one: this daemon is in no fleet: write fleet into scopefs.yaml, and use scopefs daemon")

// ElsewhereError reports that this host may not change an agent's files.
type ElsewhereError struct {
	Agent scope.ID
	Node  string // that has the lease, or had it last; "": the server was not heard
	Here  bool   // it is this node's name: another one has it, too
}

func (e *ElsewhereError) Error() string {
	switch {
	case e.Here:
		return fmt.Sprintf("placement: one: another node with the name %s has it: rename one of them", e.Node)
	case e.Node == "":
		return "placement: one: the server of the fleet has not answered: see scopefs ps, and scopefs fleet init"
	}
	return fmt.Sprintf(
		"placement: one: node %s has it: scopefs down %s there, or wait until that node has not renewed it for %v", e.Node, e.Agent, Full)
}

// Acquire waits until this host has the lease of an agent. It returns an *ElsewhereError when another host renews it, or after
// waitTime. It goes on to want the lease: the host gets it when the other one ends.
func (s *Set) Acquire(ctx context.Context, id scope.ID) error {
	end := time.NewTimer(waitTime)
	defer end.Stop()
	for {
		err, changed := s.Check(id), s.Changed()
		if err == nil {
			return nil
		}
		if errors.Is(err, ErrNoFleet) || s.renewed(id) {
			return err
		}
		if err = s.Check(id); err == nil { // since Changed
			return nil
		}
		select {
		case <-changed:
		case <-end.C:
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Check wants the lease of an agent, and returns nil if this host has it.
func (s *Set) Check(id scope.ID) error {
	if s == nil {
		return ErrNoFleet
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.leases[id]
	if l == nil {
		l = &lease{}
		s.leases[id] = l
	}
	if !l.wanted {
		l.wanted, l.moved, s.hurry = true, false, true
		s.wake()
	}
	if l.until > s.now() {
		return nil
	}
	e := &ElsewhereError{Agent: id}
	if l.known {
		e.Node = l.record.Value.Node
		e.Here = e.Node == s.node && l.record.Value.Holder != s.holder
		if e.Node == s.node && !e.Here {
			e.Node = "" // it is renewed, if the server answers
		}
	}
	return e
}

// renewed reports whether another host has renewed the lease since this one wants it.
func (s *Set) renewed(id scope.ID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.leases[id]
	return l != nil && l.moved && !s.has(l) && !l.record.Value.Free
}

// Release gives the lease of an agent back. The agent has no view any more. dead says that no process of its views is left: else
// one may go on with a change, and the lease runs out.
func (s *Set) Release(id scope.ID, dead bool) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.leases[id]
	switch {
	case l == nil || !l.wanted:
		return
	case dead:
		l.wanted, l.until, s.hurry = false, 0, true
	default:
		delete(s.leases, id)
	}
	s.wake()
}

// Flush waits until the server has what Release gave back, or ctx has ended.
func (s *Set) Flush(ctx context.Context) {
	if s == nil {
		return
	}
	for {
		s.mu.Lock()
		left, changed := 0, s.changed
		for _, l := range s.leases {
			if !l.wanted && s.has(l) {
				left++
			}
		}
		s.mu.Unlock()
		if left == 0 {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// Wanted reports whether this host has the lease of an agent or waits for it.
func (s *Set) Wanted(id scope.ID) bool {
	if s == nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.leases[id]
	return l != nil && l.wanted
}

// Until returns the end of the lease by [boottime.Now], and whether another host has it. Both are zero while the server was not heard.
func (s *Set) Until(id scope.ID) (until time.Duration, lost bool) {
	if s == nil {
		return 0, false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.leases[id]
	if l == nil || !l.wanted {
		return 0, false
	}
	return l.until, l.known && !s.has(l)
}

// Changed returns a channel that is closed when the state of a lease may have changed. Of a nil Set it never is.
func (s *Set) Changed() <-chan struct{} {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changed
}

// State returns the lease of an agent for the operator; nil: this host does not want it.
func (s *Set) State(id scope.ID) *api.Lease {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.leases[id]
	if l == nil || !l.wanted {
		return nil
	}
	state := &api.Lease{Node: l.record.Value.Node}
	if left := l.until - s.now(); left > 0 {
		state.Left = left.Seconds()
	}
	return state
}
