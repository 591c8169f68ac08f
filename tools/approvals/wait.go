package approvals

import (
	"cmp"
	"context"
	"time"

	"github.com/scopefs/scopefs/scope"
)

// Wait returns the approval of a request that is no tool call, such as a connection. It
// waits for the operator's decision until ctx ends, and then returns the approval that
// still waits. A decision about a [Approval.Lasting] request holds for all callers with
// the same p until it expires; any other decision is used once. At most 16 other requests
// of an agent wait, its calls included. Wait calls record before the first caller waits
// and before it returns an approval that it uses. The error is record's, or an *[Error].
func (s *Set) Wait(ctx context.Context, p Approval, record func(Approval) error) (Approval, error) {
	room := p.Lasting
	if !room {
		var release func()
		release, room = s.Hold(p.Agent)
		defer release()
	}
	for {
		said, first, err := s.Ask(p, func() error { return nil })
		if err != nil {
			return Approval{}, err
		}
		if first || said.State == Stands || said.State == Granted && !p.Lasting {
			if err := record(said); err != nil {
				return Approval{}, err
			}
		}
		if said.State != Waits || !room {
			return said, nil
		}
		select {
		case <-said.changed:
		case <-s.closing:
			return said, nil
		case <-ctx.Done():
			return said, nil
		}
	}
}

// Outlast returns when no approval covers a connection any more, or when ctx ends. of
// returns the connection under the current rules; Outlast returns after its error. An
// approval ends when it expires, is revoked, or the rules change.
func (s *Set) Outlast(ctx context.Context, of func() (Approval, error)) {
	for {
		p, err := of()
		if err != nil {
			return
		}
		by := s.approves(&p)
		if by == nil {
			return
		}
		if now, err := of(); err != nil || now.key() != p.key() {
			continue // Recheck may have closed the channel before by had it
		}
		over := (<-chan time.Time)(nil)
		if !by.Expires.IsZero() {
			over = time.After(by.Expires.Sub(s.now()) + 1) // the approval still holds at Expires
		}
		select {
		case <-by.changed:
		case <-over:
		case <-ctx.Done():
			return
		}
	}
}

// approves returns a copy of the approval of a connection, or nil.
func (s *Set) approves(p *Approval) *Approval {
	defer s.lock()()
	s.sweep()
	by := cmp.Or(s.byKey[p.key()], s.standing(p))
	if by == nil || by.taken != nil || by.State != Granted && by.State != Stands {
		return nil
	}
	found := *by
	return &found
}

// Close ends all waits, with the ids of the approvals, because no operator can decide any
// more. The approvals stay. Close reports whether a request waited. Call it once.
func (s *Set) Close() (waited bool) {
	if s == nil {
		return false
	}
	defer s.lock()()
	close(s.closing)
	for _, p := range s.byKey {
		if p.timer != nil {
			p.timer.Stop()
		}
	}
	return len(s.held) > 0
}

// Closing returns a channel that Close closes.
func (s *Set) Closing() <-chan struct{} { return s.closing }

// maxHeld bounds the requests of one agent that wait for the operator. Further requests
// fail at once with the id of their approval. It is less than the calls that a session
// may have in flight, so that other calls of the session go on.
const maxHeld = 16

// Hold counts a request that waits for the operator until release is called. ok is false
// if 16 requests of the agent wait already; release then does nothing.
func (s *Set) Hold(agent scope.ID) (release func(), ok bool) {
	defer s.lock()()
	if s.held[agent] >= maxHeld {
		return func() {}, false
	}
	s.held[agent]++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.held[agent]--; s.held[agent] == 0 {
			delete(s.held, agent)
		}
	}, true
}
