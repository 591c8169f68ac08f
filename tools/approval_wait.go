package tools

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/scopefs/scopefs/scope"
)

// Wait returns the approval of a request that is no tool call, such as a connection. It
// waits for the operator's decision until ctx ends, and then returns the approval that
// still waits. A decision about a [Approval.Lasting] request holds for all callers with
// the same p until it expires; any other decision is used once. At most 16 other requests
// of an agent wait, its calls included. Wait calls record before the first caller waits
// and before it returns an approval that it uses, and returns record's error.
func (a *Approvals) Wait(ctx context.Context, p Approval, record func(Approval) error) (Approval, error) {
	closing := a.closing
	if !p.Lasting {
		release, ok := a.hold(p.Agent)
		if !ok { // it does not wait
			full := make(chan struct{})
			close(full)
			closing, release = full, func() {}
		}
		defer release()
	}
	for {
		said, first, refused := a.ask(p, func() *Error { return nil })
		if refused != nil {
			return Approval{}, refused
		}
		if first || said.State == ApprovalStands || said.State == ApprovalGranted && !p.Lasting {
			if err := record(said); err != nil {
				return Approval{}, err
			}
		}
		if said.State != ApprovalWaits {
			return said, nil
		}
		select {
		case <-said.changed:
		case <-closing:
			return said, nil
		case <-ctx.Done():
			return said, nil
		}
	}
}

// Outlast returns when no approval covers a connection any more, or when ctx ends. of
// returns the connection under the current rules; Outlast returns after its error. An
// approval ends when it expires, is revoked, or the rules change.
func (a *Approvals) Outlast(ctx context.Context, of func() (Approval, error)) {
	for {
		p, err := of()
		if err != nil {
			return
		}
		by := a.approves(&p)
		if by == nil {
			return
		}
		if now, err := of(); err != nil || now.key() != p.key() {
			continue // Recheck may have closed the channel before by had it
		}
		over := (<-chan time.Time)(nil)
		if !by.Expires.IsZero() {
			over = time.After(by.Expires.Sub(a.now()) + 1) // the approval still holds at Expires
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
func (a *Approvals) approves(p *Approval) *Approval {
	defer a.lock()()
	a.sweep()
	by := a.byKey[p.key()]
	if by == nil {
		by = a.standing(p)
	}
	if by == nil || by.taken || by.State != ApprovalGranted && by.State != ApprovalStands {
		return nil
	}
	found := *by
	return &found
}

// concerns reports whether one of ids is the approval's agent, or in its chain.
func (a *Approval) concerns(ids []scope.ID) bool {
	return slices.ContainsFunc(strings.Split(a.Whose(), ">"), func(id string) bool { return slices.Contains(ids, scope.ID(id)) })
}

// Close ends all waits, with the ids of the approvals, because nobody can decide any
// more. The approvals stay. Close reports whether a call waited. Call it once.
func (a *Approvals) Close() (waited bool) {
	if a == nil {
		return false
	}
	defer a.lock()()
	close(a.closing)
	return len(a.held) > 0
}

// maxHeldCalls bounds the calls of one agent that wait for the operator. Further calls
// fail at once with the id of their approval. It is less than the calls that a session
// may have in flight, so that other calls of the session go on.
const maxHeldCalls = 16

// hold counts a waiting call, if there is room.
func (a *Approvals) hold(agent scope.ID) (release func(), ok bool) {
	defer a.lock()()
	if a.held[agent] >= maxHeldCalls {
		return nil, false
	}
	a.held[agent]++
	return func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.held[agent]--; a.held[agent] == 0 {
			delete(a.held, agent)
		}
	}, true
}

// permit returns nil when a call may run. A call under ask waits for the operator's
// decision, at most Gate.Wait; after each change it is looked up and decided again. The
// error has been recorded.
func (s *Set) permit(ctx context.Context, c *Call, r *request) error {
	limit := context.Background() // of the wait, from its beginning
	for waits := false; ; waits = true {
		if err := s.find(ctx, r); err != nil {
			return err
		}
		refused := s.decide(ctx, *c, r)
		if refused == nil {
			return nil
		}
		if refused.changed == nil || s.gate.Wait <= 0 {
			return s.refuse(ctx, r, refused)
		}
		if !waits {
			release, ok := s.gate.Approvals.hold(s.gate.Agent)
			if !ok {
				return s.refuse(ctx, r, refused)
			}
			defer release()
			var cancel func()
			limit, cancel = context.WithTimeout(limit, s.gate.Wait)
			defer cancel()
			if c.Holds != nil {
				defer c.Holds("")
			}
		}
		if c.Holds != nil {
			c.Holds(refused.ApprovalID)
		}
		c.done()
		select {
		case <-refused.changed:
		case <-ctx.Done():
			return s.refuse(ctx, r, cancelled(ctx))
		case <-limit.Done():
			return s.refuse(ctx, r, refused)
		case <-s.gate.Approvals.closing:
			return s.refuse(ctx, r, refused)
		}
		var err error
		if c.done, err = s.gate.Queue.Take(ctx, s.gate.Agent); err != nil {
			c.done = func() {}
			return s.refuse(ctx, r, cancelled(ctx))
		}
		var bad *Error
		if r.args, bad = parse(r.args.canonical); bad != nil { // decide has dropped the values
			return s.refuse(ctx, r, bad)
		}
	}
}
