package audit

import (
	"bytes"
	"fmt"
	"time"
)

// budget bounds what the channels of one agent write: retention by size would let the holder of a channel push out older events.
// store.mu guards it.
type budget struct {
	left float64   // bytes
	at   time.Time // when left was right

	events, bytes int       // refused since told
	told          time.Time // when the log last recorded that it refuses
}

// OutcomeRefused says that the log refused events of an agent that would be more than its channels may write in a day.
const OutcomeRefused = "refused"

const tellEvery = time.Hour // the least between two events about one agent's budget

// admit takes the bytes of a group of an agent's events from its budget, or returns why the log refuses the group.
func (s *store) admit(agent string, bodies []byte, now time.Time) error {
	day := float64(s.opts.ChannelDay)
	if day <= 0 {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.budgets[agent]
	if b == nil {
		b = &budget{left: 2 * day, at: now}
		s.budgets[agent] = b
	}
	b.left, b.at = min(2*day, b.left+day*max(now.Sub(b.at), 0).Hours()/24), now
	if size := float64(len(bodies)); size <= b.left {
		b.left -= size
		return nil
	}
	b.events, b.bytes = b.events+bytes.Count(bodies, []byte{'\n'}), b.bytes+len(bodies)
	if now.Sub(b.told) >= tellEvery {
		s.tell(agent, b, now)
	}
	return fmt.Errorf("agent %s has written more than the %d bytes that it may in a day", agent, s.opts.ChannelDay)
}

// repay gives an agent back what a group took that is not in the log: while the log fails, clients try again and again.
func (s *store) repay(agent string, bodies []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if b := s.budgets[agent]; b != nil {
		b.left += float64(len(bodies))
	}
}

// tell records what the log has refused of an agent. The caller holds mu.
func (s *store) tell(agent string, b *budget, now time.Time) {
	s.remarks = append(s.remarks, clean(Event{Event: KindAudit, Agent: agent, Outcome: OutcomeRefused,
		Detail: fmt.Sprintf("%d events of %d bytes: more than the %d bytes that the agent's events may have in a day", b.events, b.bytes, s.opts.ChannelDay)}))
	b.events, b.bytes, b.told = 0, 0, now
}

// tellRest records what was refused since the last event about it, an hour ago or, at the end, ever. The caller holds mu.
func (s *store) tellRest(now time.Time, end bool) {
	for agent, b := range s.budgets {
		if b.events > 0 && (end || now.Sub(b.told) >= tellEvery) {
			s.tell(agent, b, now)
		}
		if b.events == 0 && now.Sub(b.at) >= 48*time.Hour { // it is whole again: agents come and go
			delete(s.budgets, agent)
		}
	}
}
