package tools

// ApprovalChange is a change of an approval.
type ApprovalChange struct {
	Outcome  string   `json:"outcome"`  // a state, "used", "revoked" or "ended"
	Approval Approval `json:"approval"` // [Approval.Brief]
}

// maxUnread bounds the changes that wait for one watcher. Beyond it the watcher is cut off.
const maxUnread = 256

// Watch returns what there is, as changes, and then each change, until stop is called or
// the watcher reads too slowly: then the channel is closed.
func (a *Approvals) Watch() (changes <-chan ApprovalChange, stop func()) {
	list := a.List() // sweeps
	a.mu.Lock()
	defer a.mu.Unlock()
	c := make(chan ApprovalChange, maxUnread+len(list))
	for _, p := range list {
		if now := a.byKey[p.key()]; now != nil && now.ID == p.ID { // else it has gone meanwhile
			c <- ApprovalChange{now.State, now.Brief()}
		}
	}
	a.watchers[c] = struct{}{}
	return c, func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.cut(c)
	}
}

func (a *Approvals) cut(c chan ApprovalChange) {
	if _, ok := a.watchers[c]; ok {
		delete(a.watchers, c)
		close(c)
	}
}

// tell passes a change on to all watchers. The caller holds the lock.
func (a *Approvals) tell(outcome string, p Approval) {
	for c := range a.watchers {
		select {
		case c <- ApprovalChange{outcome, p.Brief()}:
		default:
			a.cut(c)
		}
	}
}
