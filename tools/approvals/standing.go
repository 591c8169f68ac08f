package approvals

import (
	"bytes"
	"errors"
	"fmt"
	"time"

	"github.com/scopefs/scopefs/scope"
)

// Terms are the terms of a standing approval.
type Terms struct {
	Pattern string        `json:"pattern,omitempty"` // see [Kind]; "": requests with the same arguments
	For     time.Duration `json:"for,omitempty"`     // of wall-clock time, in nanoseconds; 0: until it is revoked
	Session bool          `json:"session,omitempty"` // until the agent's session ends, and not beyond the daemon
}

// Stand makes a standing approval from a request that waits. It covers later requests of
// the same agent, callers, tool and rules, and it approves the waiting requests that it
// covers, id's among them. It does not bind the content of files, and covers no call that
// sees a context. record is called before each approval holds. Another decision about these
// requests waits for it. The errors are those of Decide.
func (s *Set) Stand(id string, terms Terms, said Answer, record func(Approval) error) (Approval, error) {
	if err := s.current(id, said, record); err != nil {
		return Approval{}, err
	}
	var made Approval
	var decided map[*Approval]Approval
	err := s.untaken(func() (err error) {
		made, decided, err = s.stand(id, terms, said)
		return err
	})
	if err != nil {
		return made, err
	}
	err = record(made)
	for _, granted := range decided {
		if err == nil {
			err = record(granted)
		}
	}
	defer s.lock()()
	for p := range decided {
		p.release()
	}
	if err != nil {
		return made, err
	}
	if made.Ends == "" {
		if err := s.store.Put(made); err != nil {
			return made, fmt.Errorf("store the approval: %w", err)
		}
	}
	s.add(made.key(), &made)
	s.tell(Stands, made)
	for key, p := range s.byKey {
		if p.State != Waits || p.taken != nil || !made.covers(p) {
			continue
		}
		if granted, recorded := decided[p]; recorded {
			err = s.settle(p, granted)
		} else { // a request that waits for p gets the standing approval
			p.By, p.Decided = made.By, made.Decided
			s.tell("ended", *p)
			err = s.remove(key)
		}
		if err != nil {
			return made, err
		}
	}
	return made, nil
}

// stand marks the waiting requests that the standing approval covers as taken, and returns their next states.
func (s *Set) stand(id string, terms Terms, said Answer) (made Approval, decided map[*Approval]Approval, err error) {
	defer s.lock()()
	s.sweep()
	if made, err = s.make(id, terms, said.Shown); err != nil {
		return made, nil, err
	}
	made.By, made.Decided = said.By, s.now()
	decided = map[*Approval]Approval{}
	for _, p := range s.byKey {
		if p.State != Waits || p.taken != nil || p.Lasting || !made.covers(p) {
			continue
		}
		granted := *p
		granted.State, granted.Expires = Granted, s.now().Add(lifetime)
		granted.By, granted.Decided = made.By, made.Decided
		decided[p] = granted
		p.taken = make(chan struct{})
	}
	return made, decided, nil
}

// make returns a standing approval for requests like id's. The caller holds the lock.
func (s *Set) make(id string, terms Terms, shown string) (Approval, error) {
	of, err := s.find(id, shown, Waits)
	if err != nil {
		return Approval{}, err
	}
	switch {
	case of.Context != nil || of.Envelope != nil:
		return *of,
			errors.New("the call sees scopes of its client's context, which only an approval of this one call covers: approve it without terms")
	case of.bound():
		return *of, errors.New("the call is approved for the changes that it shows: approve it without terms")
	}
	made, err := s.standFor(of, terms)
	if err != nil {
		return made, err
	}
	if made.Pattern == "" {
		made.Arguments, made.Subject, made.Path, made.Object, made.ReplacedObject = of.Arguments, of.Subject, of.Path,
			of.Object, of.ReplacedObject
	} else if err := checkPattern(of.Kind, made.Pattern); err != nil {
		return made, err
	}
	if !made.covers(of) {
		return made, fmt.Errorf("the pattern %q does not cover this call: see docs/approvals.md, or approve it without a pattern", made.Pattern)
	}
	return made, nil
}

// standFor returns a standing approval on terms, for the agent, session and tool of a request. The caller holds the lock.
func (s *Set) standFor(of *Approval, terms Terms) (Approval, error) {
	standing := 0
	for _, p := range s.byKey {
		if p.Agent == of.Agent && p.State == Stands {
			standing++
		}
	}
	made := Approval{
		ID: newID(), State: Stands, Agent: of.Agent, Chain: of.Chain, Session: of.Session, Tool: of.Tool, Version: of.Version,
		Policy: of.Policy, Rule: of.Rule, Kind: of.Kind, Pattern: terms.Pattern, Asked: s.now(),
	}
	switch {
	case standing >= maxStanding:
		return made, fmt.Errorf("%s has %d standing approvals already: revoke one", of.Agent, standing)
	case terms.For < 0 || terms.For > 0 && terms.Session:
		return made, errors.New("wants a time above zero, or the session, or neither")
	case terms.Session:
		made.Ends = of.Session
	case terms.For > 0:
		made.Expires = made.Asked.Add(terms.For)
	}
	return made, nil
}

// Grant makes a standing approval without a request: of has the agent, the session, the tool, the rules and the kind. Of
// [KindTool] it covers all calls of the tool that no context and no set of changes binds, whatever the tool's version. Like
// Stand it approves the requests that wait and that it covers; record is called before it holds.
func (s *Set) Grant(of Approval, terms Terms, record func(Approval) error) (made Approval, err error) {
	made, err = s.offer(of, terms)
	if err == nil && made.Kind != KindTool {
		err = checkPattern(made.Kind, made.Pattern)
	}
	if err == nil {
		err = record(made)
	}
	if err != nil {
		return made, err
	}
	defer s.lock()()
	if made.Ends == "" {
		if err := s.store.Put(made); err != nil {
			return made, fmt.Errorf("store the approval: %w", err)
		}
	}
	s.add(made.key(), &made)
	s.tell(Stands, made)
	for key, p := range s.byKey {
		if p.State == Waits && p.taken == nil && made.covers(p) { // the request gets the standing approval when it is looked up again
			s.tell("ended", *p)
			if err := s.remove(key); err != nil {
				return made, err
			}
		}
	}
	return made, nil
}

// offer is standFor for a caller without the lock.
func (s *Set) offer(of Approval, terms Terms) (Approval, error) {
	defer s.lock()()
	s.sweep()
	return s.standFor(&of, terms)
}

// Covered reports whether a standing approval covers a request. It records nothing: callers may hold locks.
func (s *Set) Covered(p *Approval) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.standing(p) != nil
}

// covers reports whether a standing approval covers a request.
func (a *Approval) covers(p *Approval) bool {
	if a.State != Stands || a.Agent != p.Agent || a.Chain != p.Chain || a.Tool != p.Tool || a.Policy != p.Policy ||
		a.Ends != "" && a.Ends != p.Session || p.Context != nil || p.Envelope != nil {
		return false
	}
	if a.Kind == KindTool {
		return !p.bound()
	}
	if a.Version != p.Version || a.Kind != p.Kind {
		return false
	}
	if a.Pattern == "" {
		return bytes.Equal(a.Arguments, p.Arguments) && a.Object.Path == p.Object.Path && a.ReplacedObject.Path == p.ReplacedObject.Path
	}
	return matches(a.Pattern, p)
}

// standing returns a standing approval that covers a request, or nil. The caller holds
// the lock.
func (s *Set) standing(p *Approval) *Approval {
	for _, made := range s.byKey {
		if made.covers(p) && made.taken == nil && !made.over(s.now()) {
			return made
		}
	}
	return nil
}

// Revoke ends a standing approval, or an unused grant. No request uses it from then on.
// record is called before the end is final: after its error the approval holds again.
func (s *Set) Revoke(id string, said Answer, record func(Approval) error) (Approval, error) {
	p, revoked, err := s.take(id, said.Shown, Stands, Granted)
	if err != nil {
		return Approval{}, err
	}
	revoked.By, revoked.Decided = said.By, s.now()
	err = record(revoked)
	defer s.lock()()
	p.release()
	key := p.key()
	if s.byKey[key] != p { // it has ended meanwhile
		return revoked, err
	}
	if err != nil {
		p.wake()
		return revoked, err
	}
	s.tell("revoked", revoked)
	if err := s.remove(key); err != nil && p.Ends == "" {
		return revoked, fmt.Errorf("remove the approval: %w", err)
	}
	return revoked, nil
}

// EndSession ends the standing approvals of a session that has ended.
func (s *Set) EndSession(session string) {
	if s == nil {
		return
	}
	defer s.lock()()
	for key, p := range s.byKey {
		if p.Ends == session {
			_ = s.remove(key) // it is not stored
			s.ended(p, "its session has ended")
		}
	}
}

// Recheck wakes the waiting requests of agents whose rules changed, and those in their
// chains, so that they are decided again. It ends the agents' standing approvals that
// were made under other rules. version returns the version of an agent's rules.
func (s *Set) Recheck(changed []scope.ID, version func(scope.ID) string) {
	if s == nil {
		return
	}
	defer s.lock()()
	for key, p := range s.byKey {
		switch {
		case !p.concerns(changed):
		case p.State != Stands, p.Chain != "": // in a chain the rules of all its agents count
			p.wake()
		case version(p.Agent) != p.Policy:
			_ = s.remove(key) // it covers nothing, even if the store keeps it
			s.ended(p, "the rules have changed")
		}
	}
}

// ended notes that an approval has ended. The caller holds the lock.
func (s *Set) ended(p *Approval, why string) {
	outcome := "ended"
	if p.State == Waits && p.over(s.now()) {
		outcome, why = TimedOut, "nobody decided in time"
	}
	s.tell(outcome, *p)
	if of := *p; (of.State == Stands || outcome == TimedOut) && s.Ended != nil {
		s.over = append(s.over, func() { s.Ended(of, why) })
	}
}
