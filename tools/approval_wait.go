package tools

import "context"

// Wait returns the approval of something that is no call, such as a connection. It
// waits for the operator's decision until ctx ends, and then returns the approval that
// still waits. A decision holds for all callers with the same p, until it expires.
// Wait calls record before the first caller waits, and returns its error.
func (a *Approvals) Wait(ctx context.Context, p Approval, record func(Approval) error) (Approval, error) {
	p.Lasting = true
	for {
		decided := a.nextDecision()
		said, first, refused := a.ask(p, func() *Error { return nil })
		if refused != nil {
			return Approval{}, refused
		}
		if first {
			if err := record(said); err != nil {
				return Approval{}, err
			}
		}
		if said.State != ApprovalWaits {
			return said, nil
		}
		select {
		case <-decided:
		case <-ctx.Done():
			return said, nil
		}
	}
}

// nextDecision returns a channel that the next decision closes.
func (a *Approvals) nextDecision() <-chan struct{} {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.decided == nil {
		a.decided = make(chan struct{})
	}
	return a.decided
}
