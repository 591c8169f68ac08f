package tools

import (
	"bytes"
	"errors"
	"fmt"
	"time"

	"github.com/scopefs/scopefs/scope"
)

// maxStanding bounds the standing approvals of one agent.
const maxStanding = 64

// Terms are the terms of a standing approval.
type Terms struct {
	Pattern string        `json:"pattern,omitempty"` // see [Kind]; "": calls with the same arguments
	For     time.Duration `json:"for,omitempty"`     // of wall-clock time, in nanoseconds; 0: until it is revoked
	Session bool          `json:"session,omitempty"` // until the agent's session ends, and not beyond the daemon
}

// Stand makes a standing approval from a call that waits. It covers later calls of the
// same agent, callers, tool and rules, and it approves the waiting calls that it covers,
// id's among them. It does not bind the content of files, and covers no call that sees a
// context. record is called before each approval holds. Meanwhile another decision about
// these calls fails.
func (a *Approvals) Stand(id string, terms Terms, record func(Approval) error) (Approval, error) {
	made, decided, err := a.stand(id, terms)
	if err != nil {
		return made, err
	}
	err = record(made)
	for _, granted := range decided {
		if err == nil {
			err = record(granted)
		}
	}
	defer a.lock()()
	for p := range decided {
		p.taken = false
	}
	if err != nil {
		return made, err
	}
	if made.Ends == "" {
		if err := a.put(made); err != nil {
			return made, fmt.Errorf("store the approval: %w", err)
		}
	}
	a.add(made.key(), &made)
	a.tell(ApprovalStands, made)
	for key, p := range a.byKey {
		if p.State != ApprovalWaits || p.taken || !made.covers(p) {
			continue
		}
		granted, recorded := decided[p]
		if recorded {
			err = a.settle(key, p, granted)
		} else { // a call that waits for p gets the standing approval
			a.tell("ended", *p)
			err = a.remove(key)
		}
		if err != nil {
			return made, err
		}
	}
	return made, nil
}

// stand marks the waiting calls that the standing approval covers as taken, and returns their next states.
func (a *Approvals) stand(id string, terms Terms) (made Approval, decided map[*Approval]Approval, err error) {
	defer a.lock()()
	a.sweep()
	if made, err = a.make(id, terms); err != nil {
		return made, nil, err
	}
	decided = map[*Approval]Approval{}
	for _, p := range a.byKey {
		if p.State != ApprovalWaits || p.taken || p.Lasting || !made.covers(p) {
			continue
		}
		granted := *p
		granted.State, granted.Expires = ApprovalGranted, a.now().Add(approvalTime)
		decided[p] = granted
		p.taken = true
	}
	return made, decided, nil
}

// make returns a standing approval for calls like id's. The caller holds the lock.
func (a *Approvals) make(id string, terms Terms) (Approval, error) {
	of, err := a.find(id, ApprovalWaits)
	if err != nil {
		return Approval{}, err
	}
	standing := 0
	for _, p := range a.byKey {
		if p.Agent == of.Agent && p.State == ApprovalStands {
			standing++
		}
	}
	made := Approval{
		ID: newID(), State: ApprovalStands, Agent: of.Agent, Chain: of.Chain, Session: of.Session, Tool: of.Tool, Version: of.Version,
		Policy: of.Policy, Rule: of.Rule, Kind: of.Kind, Pattern: terms.Pattern, Asked: a.now(),
	}
	switch {
	case of.Context != nil || of.Envelope != nil:
		return made, errors.New("the call sees scopes of its client's context, which only an approval of this one call covers: approve it without terms")
	case standing >= maxStanding:
		return made, fmt.Errorf("%s has %d standing approvals already: revoke one", of.Agent, standing)
	case terms.For < 0 || terms.For > 0 && terms.Session:
		return made, errors.New("wants a time above zero, or the session, or neither")
	case terms.Session:
		made.Ends = of.Session
	case terms.For > 0:
		made.Expires = made.Asked.Add(terms.For)
	}
	if made.Pattern == "" {
		made.Arguments, made.Subject, made.Path, made.Object, made.ReplacedObject = of.Arguments, of.Subject, of.Path, of.Object, of.ReplacedObject
	} else if err := checkPattern(of.Kind, made.Pattern); err != nil {
		return made, err
	}
	if !made.covers(of) {
		return made, fmt.Errorf("the pattern %q does not cover this call: see docs/approvals.md, or approve it without a pattern", made.Pattern)
	}
	return made, nil
}

// covers reports whether a standing approval covers a call.
func (a *Approval) covers(p *Approval) bool {
	if a.State != ApprovalStands || a.Agent != p.Agent || a.Chain != p.Chain || a.Tool != p.Tool || a.Version != p.Version || a.Policy != p.Policy ||
		a.Ends != "" && a.Ends != p.Session || a.Kind != p.Kind || p.Context != nil || p.Envelope != nil {
		return false
	}
	if a.Pattern == "" {
		return bytes.Equal(a.Arguments, p.Arguments) && a.Object.Path == p.Object.Path && a.ReplacedObject.Path == p.ReplacedObject.Path
	}
	return matches(a.Pattern, p)
}

// standing returns a standing approval that covers a call, or nil. The caller holds the
// lock.
func (a *Approvals) standing(p *Approval) *Approval {
	for _, s := range a.byKey {
		if s.covers(p) && !s.taken {
			return s
		}
	}
	return nil
}

// Revoke ends a standing approval, or an unused grant. No call uses it from then on.
// record is called before the end is final: after its error the approval holds again.
func (a *Approvals) Revoke(id string, record func(Approval) error) (Approval, error) {
	p, err := a.revoke(id)
	if err != nil {
		return Approval{}, err
	}
	revoked := *p
	err = record(revoked)
	defer a.lock()()
	p.taken = false
	key := p.key()
	switch {
	case err != nil:
		a.wake(key)
		return revoked, err
	case a.byKey[key] != p: // it has ended meanwhile
		return revoked, nil
	}
	a.tell("revoked", revoked)
	if err := a.remove(key); err != nil && p.Ends == "" {
		return revoked, fmt.Errorf("remove the approval: %w", err)
	}
	return revoked, nil
}

// revoke marks an approval that will end as taken.
func (a *Approvals) revoke(id string) (*Approval, error) {
	defer a.lock()()
	a.sweep()
	p, err := a.find(id, ApprovalStands, ApprovalGranted)
	if err == nil {
		p.taken = true
	}
	return p, err
}

// EndSession ends the standing approvals of a session that has ended.
func (a *Approvals) EndSession(session string) {
	if a == nil {
		return
	}
	defer a.lock()()
	for key, p := range a.byKey {
		if p.Ends == session {
			_ = a.remove(key) // it is not stored
			a.ended(p, "its session has ended")
		}
	}
}

// Recheck wakes the waiting calls of agents whose rules changed, and calls in their
// chains, so that they are decided again. It ends the agents' standing approvals that
// were made under other rules. version returns the version of an agent's rules.
func (a *Approvals) Recheck(changed []scope.ID, version func(scope.ID) string) {
	if a == nil {
		return
	}
	defer a.lock()()
	for key, p := range a.byKey {
		switch {
		case !p.concerns(changed):
		case p.State != ApprovalStands, p.Chain != "": // in a chain the rules of all its agents count
			a.wake(key)
		case version(p.Agent) != p.Policy:
			_ = a.remove(key) // it covers nothing, even if the store keeps it
			a.ended(p, "the rules have changed")
		}
	}
}

// ended notes that an approval has ended. The caller holds the lock.
func (a *Approvals) ended(p *Approval, why string) {
	a.tell("ended", *p)
	if p.State == ApprovalStands {
		a.over = append(a.over, ending{*p, why})
	}
}
