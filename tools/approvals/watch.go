package approvals

// Update is a change of an approval.
type Update struct {
	Outcome  string   `json:"outcome"`  // a state, "used", "revoked", TimedOut or "ended"
	Approval Approval `json:"approval"` // [Approval.Brief]
}

// maxUnread bounds the changes that wait for one watcher. Beyond it the watcher is cut off.
const maxUnread = 256

// Watch returns the present approvals, as changes, and then each change, until stop is called or
// the watcher reads too slowly: then the channel is closed.
func (s *Set) Watch() (changes <-chan Update, stop func()) {
	list := s.List() // sweeps
	s.mu.Lock()
	defer s.mu.Unlock()
	c := make(chan Update, maxUnread+len(list))
	for _, p := range list {
		if now := s.byKey[p.key()]; now != nil && now.ID == p.ID { // else it has gone meanwhile
			c <- Update{now.State, now.Brief()}
		}
	}
	s.watchers[c] = struct{}{}
	return c, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.cut(c)
	}
}

func (s *Set) cut(c chan Update) {
	if _, ok := s.watchers[c]; ok {
		delete(s.watchers, c)
		close(c)
	}
}

// tell passes a change on to all watchers. The caller holds the lock.
func (s *Set) tell(outcome string, p Approval) {
	if outcome != p.State && p.State != Stands { // it is over
		if len(s.past) >= maxPast {
			s.past = s.past[1:]
		}
		s.past = append(s.past, Update{outcome, p.Brief()})
	}
	for c := range s.watchers {
		select {
		case c <- Update{outcome, p.Brief()}:
		default:
			s.cut(c)
		}
	}
}
