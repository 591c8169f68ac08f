package tools

import (
	"context"
	"fmt"
)

// Wait returns whether the operator approves something that is no call, such as a
// connection, and waits for the decision until ctx ends. What is granted or denied
// holds for everybody who waits for the same, until it expires. record is called
// before the first one waits; nothing waits after its error.
func (a *Approvals) Wait(ctx context.Context, p Approval, record func(Approval) error) (granted bool, err error) {
	p.Lasting = true
	for {
		decided := a.nextDecision()
		said, first, refused := a.ask(p, func() *Error { return nil })
		if refused != nil {
			return false, refused
		}
		if first {
			if err := record(said); err != nil {
				return false, err
			}
		}
		if said.State != ApprovalWaits {
			return said.State == ApprovalGranted, nil
		}
		select {
		case <-decided:
		case <-ctx.Done():
			return false, fmt.Errorf("approval %s waits for the operator", said.ID)
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
