package approvals

import (
	"cmp"
	"slices"

	"github.com/scopefs/scopefs/scope"
)

// MaxInbox bounds the requests of an [Inbox] that wait. A diff of ten lines takes a browser 4 ms.
const MaxInbox = 20

// The other bounds of an Inbox.
const (
	maxInboxBytes = 256 << 10 // of the arguments and the diff of a request
	maxEnded      = 20
)

// Inbox is what an operator sees at once.
type Inbox struct {
	Waits   []Waiting  `json:"waits"`   // the oldest first
	More    int        `json:"more"`    // requests that wait, too: those of the agents that have the most
	Decided []Approval `json:"decided"` // that hold: Brief
	Ended   []Update   `json:"ended"`   // the last requests that were used, timed out or ended otherwise, for half an hour
}

// Waiting is a request that waits, with what it would do.
type Waiting struct {
	Approval
	Cut bool `json:"cut,omitempty"` // it is [Approval.Brief]: [Set.Get] has all
}

// Inbox returns what an operator sees at once.
func (s *Set) Inbox() Inbox {
	b := Inbox{Waits: []Waiting{}, Decided: []Approval{}, Ended: []Update{}}
	list := s.List()
	left := unseen(list)
	for _, p := range list {
		switch one := (Waiting{Approval: p}); {
		case p.State != Waits:
			b.Decided = append(b.Decided, p.Brief())
		case left[p.ID]:
			b.More++
		default:
			if one.Preview = p.preview; len(p.Arguments) > maxInboxBytes || p.Changes != nil && len(p.Changes.Diff) > maxInboxBytes {
				one = Waiting{p.Brief(), true}
			}
			b.Waits = append(b.Waits, one)
		}
	}
	defer s.lock()()
	for _, u := range s.past[max(0, len(s.past)-maxEnded):] {
		if s.now().Sub(u.Approval.Asked) < 2*lifetime {
			b.Ended = append(b.Ended, u)
		}
	}
	return b
}

// unseen returns the requests beyond MaxInbox: those of the agents that have the most. So no agent hides another one's.
func unseen(list []Approval) map[string]bool {
	of, turns := map[scope.ID]int{}, map[string]int{}
	var all []string
	for _, p := range list {
		if p.State == Waits {
			turns[p.ID] = of[p.Agent]
			of[p.Agent]++
			all = append(all, p.ID)
		}
	}
	slices.SortStableFunc(all, func(a, b string) int { return cmp.Compare(turns[a], turns[b]) })
	left := map[string]bool{}
	for _, id := range all[min(len(all), MaxInbox):] {
		left[id] = true
	}
	return left
}
