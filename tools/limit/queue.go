package limit

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/scopefs/scopefs/scope"
)

// Queue admits calls agent by agent, so that an agent with hundreds of calls in
// flight delays one with a single call no more than a second agent with a single
// call would. An agent that holds no turn gets one at once, whatever others hold.
// A turn ends when the caller ends it, or after the time that the Queue gives it.
//
// A nil Queue admits every call.
type Queue struct {
	Beside int // turns of one agent while another one takes turns, too; 0: as without

	all, each int           // turns at a time, and of one agent
	turnTime  time.Duration // how long a turn lasts at most

	mu     sync.Mutex
	taken  int
	last   scope.ID           // the agent that called Take last
	shared time.Time          // when an agent called Take after another one
	agents map[scope.ID]*lane // that have a turn or wait for one
	ring   []*lane            // that wait, the next to be served first
}

// lane is an agent in a queue.
type lane struct {
	id      scope.ID
	taken   int
	waiting []chan struct{} // closed when the call has its turn
}

// NewQueue returns a queue with all turns at a time. While others wait, one agent
// has at most each of them. A turn ends after turn.
func NewQueue(all, each int, turn time.Duration) *Queue {
	return &Queue{all: all, each: each, turnTime: turn, agents: map[scope.ID]*lane{}}
}

// Take waits for a turn of an agent. done ends it, once, and may be called again. Calls of
// one agent have their turns in the order in which they came. The error is ctx's.
func (q *Queue) Take(ctx context.Context, id scope.ID) (done func(), err error) {
	if q == nil {
		return func() {}, nil
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	q.mu.Lock()
	if q.last != id {
		if q.last != "" {
			q.shared = time.Now()
		}
		q.last = id
	}
	l := q.agents[id]
	if l == nil {
		l = &lane{id: id}
		q.agents[id] = l
	}
	if len(l.waiting) == 0 && q.mayTake(l) {
		q.give(l)
		q.mu.Unlock()
		return q.turn(l), nil
	}
	turn := make(chan struct{})
	if l.waiting = append(l.waiting, turn); len(l.waiting) == 1 {
		q.ring = append(q.ring, l)
	}
	q.mu.Unlock()
	select {
	case <-turn:
		return q.turn(l), nil
	case <-ctx.Done():
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	select {
	case <-turn: // meanwhile
		q.end(l)
	default:
		q.leave(l, turn)
	}
	return nil, ctx.Err()
}

// turn returns what ends a turn that begins now.
func (q *Queue) turn(l *lane) (done func()) {
	end := sync.OnceFunc(func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.end(l)
	})
	timer := time.AfterFunc(q.turnTime, end)
	return func() {
		timer.Stop()
		end()
	}
}

// besideTime is how long an agent counts as one that takes turns after it called Take.
const besideTime = time.Second

func (q *Queue) mayTake(l *lane) bool {
	each := q.each
	if q.Beside > 0 && time.Since(q.shared) < besideTime {
		each = q.Beside
	}
	return l.taken == 0 || l.taken < each && q.taken < q.all
}

func (q *Queue) give(l *lane) {
	l.taken++
	q.taken++
}

// end releases a turn and grants free turns to waiting agents in round-robin order.
func (q *Queue) end(l *lane) {
	l.taken--
	q.taken--
	for skipped := 0; skipped < len(q.ring); {
		next := q.ring[0]
		q.ring = q.ring[1:]
		if q.mayTake(next) {
			q.give(next)
			close(next.waiting[0])
			next.waiting = next.waiting[1:]
			skipped = 0
		} else {
			skipped++
		}
		if len(next.waiting) > 0 {
			q.ring = append(q.ring, next)
		}
	}
	q.forget(l)
}

// leave takes a call out that waits no longer.
func (q *Queue) leave(l *lane, turn chan struct{}) {
	l.waiting = slices.DeleteFunc(l.waiting, func(other chan struct{}) bool { return other == turn })
	if len(l.waiting) > 0 {
		return
	}
	q.ring = slices.DeleteFunc(q.ring, func(other *lane) bool { return other == l })
	q.forget(l)
}

func (q *Queue) forget(l *lane) {
	if l.taken == 0 && len(l.waiting) == 0 {
		delete(q.agents, l.id)
	}
}
