package approvals

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"
)

// Answer is what an operator says with a decision. The zero Answer grants all of a request.
type Answer struct {
	Scopes []string // that the request gets of its context; nil: all
	Paths  []string // patterns of the requested changes; none: all
	Reason string   // of a denial, for the agent: at most MaxReason characters

	// Shown is the Hash of the request that the operator saw: another one is a conflict. "" is any.
	Shown string
	By    string // the operator
}

// MaxReason bounds the reason of a denial, in characters.
const MaxReason = 500

// Reason returns the text of an operator as one line without control characters and characters that change how others
// read. It fails for more than MaxReason characters.
func Reason(text string) (string, error) {
	text = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(text, " "))
	text = strings.Join(strings.Fields(text), " ")
	if n := len([]rune(text)); n > MaxReason {
		return "", fmt.Errorf("the reason has %d characters: write at most %d", n, MaxReason)
	}
	return text, nil
}

// The bounds of a decision.
const (
	maxPast    = 256              // requests that have ended and are remembered
	recordTime = 10 * time.Second // for another decision to be recorded
	againTime  = 5 * time.Second  // for a request to be looked up again
)

// ErrRules is the error of a request that the agent's rules no longer make.
var ErrRules = errors.New("the agent's rules have changed")

// ConflictError reports that a request is not, or no longer, what the operator decided about.
type ConflictError struct {
	Outcome string   // what it is now: see Update; Changed: Now waits in its place, and is to be shown
	Now     Approval // [Approval.Brief] if it no longer waits
	Cause   error    // why it has ended, if known
}

func (e *ConflictError) Error() string {
	text := fmt.Sprintf("approval %s: ", e.Now.ID)
	switch {
	case e.Outcome == Changed:
		return text + "the request is not the one that was shown: look at it again"
	case e.Outcome == TimedOut:
		return text + "timed out: the agent has to call again"
	case e.Cause != nil:
		return text + e.Cause.Error() + ": the agent has to call again"
	case e.Outcome == Waits:
		return text + "it waits: approve or deny it"
	case e.Now.By == "":
		return text + "it has ended: the agent has to call again"
	}
	how := e.Now.State
	switch {
	case how == Waits: // a standing approval has taken its place
		how = Granted
	case e.Outcome != how:
		how += ", and " + e.Outcome
	}
	return fmt.Sprintf("%s%s already by %s, at %s", text, how, e.Now.By, e.Now.Decided.Local().Format(time.TimeOnly))
}

// Is reports that no approval with the id waits, unless it waits in another form.
func (e *ConflictError) Is(target error) bool { return target == ErrNotFound && e.Outcome != Changed }

// Decide makes the operator's decision about a request that waits. record is called before the decision holds; after its
// error, or the store's, nothing is decided. Of several decisions the first holds: the error of the others is a
// *[ConflictError], as that of a request that has ended or changed. An approval with [Answer.Shown] looks the request up
// again, and record is also called for the request that then waits in its place.
func (s *Set) Decide(id string, grant bool, said Answer, record func(Approval) error) (Approval, error) {
	reason, err := Reason(said.Reason)
	if err != nil {
		return Approval{}, err
	}
	if grant {
		if err := s.current(id, said, record); err != nil {
			return Approval{}, err
		}
	}
	p, decided, err := s.take(id, said.Shown, Waits)
	if err != nil {
		return Approval{}, err
	}
	decided.State, decided.Expires = Denied, s.now().Add(lifetime)
	decided.By, decided.Decided, decided.Reason = said.By, s.now(), reason
	if grant {
		decided.State, decided.Reason = Granted, ""
	}
	if err = decided.narrow(said.Scopes); err == nil {
		err = decided.part(said.Paths)
	}
	if err == nil {
		err = record(decided)
	}
	defer s.lock()()
	p.release()
	switch {
	case err != nil:
		return decided, err
	case s.byKey[p.key()] != p: // the approval ended meanwhile
		return decided, s.gone(id)
	}
	return decided, s.settle(p, decided)
}

// take marks the approval with an id as taken, and returns it and a copy. It waits while another decision is recorded. See
// find.
func (s *Set) take(id, shown string, states ...string) (p *Approval, was Approval, err error) {
	err = s.untaken(func() error {
		defer s.lock()()
		s.sweep()
		if p, err = s.find(id, shown, states...); err == nil {
			was, p.taken = *p, make(chan struct{})
			was.taken = nil
		}
		return err
	})
	return p, was, err
}

// release marks an approval as not taken. The caller holds the lock.
func (a *Approval) release() {
	if a.taken != nil {
		close(a.taken)
		a.taken = nil
	}
}

// takenError is the error of an approval while a decision about it is being recorded.
type takenError struct {
	id   string
	over <-chan struct{}
}

func (e *takenError) Error() string {
	return fmt.Sprintf("approval %s: another decision is being recorded: try again", e.id)
}

// untaken calls f until it returns no *takenError, at most for recordTime.
func (s *Set) untaken(f func() error) error {
	limit := time.NewTimer(recordTime)
	defer limit.Stop()
	for {
		err := f()
		taken, ok := errors.AsType[*takenError](err)
		if !ok {
			return err
		}
		select {
		case <-taken.over:
		case <-limit.C:
			return err
		}
	}
}

// find returns the approval with an id in one of the states. With shown it must have that hash. It returns an error while a
// decision about the approval is being recorded. The caller holds the lock.
func (s *Set) find(id, shown string, states ...string) (*Approval, error) {
	for _, p := range s.byKey {
		switch {
		case p.ID != id:
		case p.taken != nil:
			return nil, &takenError{id, p.taken}
		case !slices.Contains(states, p.State):
			return nil, &ConflictError{Outcome: p.State, Now: p.Brief()}
		case shown != "" && p.Hash != "" && shown != p.Hash:
			return nil, &ConflictError{Outcome: Changed, Now: *p}
		default:
			return p, nil
		}
	}
	return nil, s.gone(id)
}

// gone returns the error of an id that no waiting request has. The caller holds the lock.
func (s *Set) gone(id string) error {
	for _, u := range slices.Backward(s.past) {
		if u.Approval.ID == id {
			return &ConflictError{Outcome: u.Outcome, Now: u.Approval}
		}
	}
	return ErrNotFound
}

// current looks a request up again that the operator has seen. If it is another one now, that one waits in its place.
func (s *Set) current(id string, said Answer, record func(Approval) error) error {
	if said.Shown == "" {
		return nil
	}
	unlock := s.lock()
	p, err := s.find(id, said.Shown, Waits)
	var was Approval
	if err == nil {
		was = *p
	}
	unlock()
	if err != nil || was.again == nil {
		return nil // take returns the error
	}
	ctx, cancel := context.WithTimeout(context.Background(), againTime)
	defer cancel()
	now, err := was.again(ctx)
	switch {
	case errors.Is(err, ErrRules):
		return s.replace(p, nil, err)
	case err != nil || now.key() == was.key():
		return nil
	}
	now.ID, now.State, now.Asked, now.again = newID(), Waits, s.now(), was.again
	now.Expires = now.Asked.Add(lifetime)
	if err := record(now); err != nil {
		return err
	}
	return s.replace(p, &now, nil)
}

// replace ends a request that waits. now waits in its place, unless it waits already. The error is a *ConflictError, the
// store's, or nil if the request no longer waits.
func (s *Set) replace(p, now *Approval, why error) error {
	defer s.lock()()
	if s.byKey[p.key()] != p || p.State != Waits || p.taken != nil {
		return nil
	}
	was := *p
	if now == nil {
		s.tell("ended", was)
		_ = s.remove(p.key())
		return &ConflictError{Outcome: "ended", Now: was.Brief(), Cause: why}
	}
	if known := s.byKey[now.key()]; known != nil {
		now = known
	} else {
		if err := s.store.Put(*now); err != nil {
			return fmt.Errorf("store the request: %w", err)
		}
		s.add(now.key(), now)
		s.tell(Waits, *now)
	}
	s.tell("ended", was)
	_ = s.remove(p.key()) // its file is expired for the next daemon, too
	return &ConflictError{Outcome: Changed, Now: *now}
}

// settle stores a decision after it was recorded. The caller holds the lock.
func (s *Set) settle(p *Approval, decided Approval) error {
	if err := s.store.Put(decided); err != nil {
		return fmt.Errorf("store the decision: %w", err)
	}
	decided.changed, decided.timer = p.changed, p.timer // Recheck may have replaced it
	*p = decided
	s.setTimer(p)
	p.wake()
	s.tell(decided.State, decided)
	return nil
}
