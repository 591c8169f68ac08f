package tools

import (
	"fmt"
	"runtime"
	"time"

	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/tools/limit"
)

// Rates bounds the calls in flight of an agent and counts its calls, over all its
// sessions. The zero value is ready to use and counts in memory. A nil Rates has no
// limits.
type Rates struct {
	held    limit.Budget // bytes of arguments
	unread  limit.Budget // bytes of answers
	running limit.Budget // calls

	calls limit.Rates
}

// NewRates returns rates with counts in a store.
func NewRates(store limit.Store) *Rates { return &Rates{calls: limit.Rates{Store: store}} }

// NewQueue returns the queue of a host's calls. A call holds a turn while it is
// decided, recorded and run; the turn ends early when the tool starts to wait
// (Hints.Waits). While agents call side by side, the turns of one of them leave
// a processor to the others.
func NewQueue() *limit.Queue {
	const maxTurn = 50 * time.Millisecond
	n := runtime.GOMAXPROCS(0)
	q := limit.NewQueue(4*n, 2*n, maxTurn)
	q.Beside = max(1, n-1)
	return q
}

// NewTurns returns turns for [Hints].Turns: all of them, and each for one agent. An agent
// without a turn gets one at once, even if all are taken.
func NewTurns(all, each int) *limit.Queue { return limit.NewQueue(all, each, time.Hour) }

// maxHeld bounds the arguments of an agent's calls in flight, and its unread answers, in
// bytes. Without it each session could have 32 of 8 MiB.
const maxHeld = 64 << 20

// maxAgentRunning bounds an agent's concurrent calls, over all its sessions.
const maxAgentRunning = 128

// hold reserves room for a call and its arguments, if there is room.
func (r *Rates) hold(size int) (release func(), full string) {
	if r == nil {
		return func() {}, ""
	}
	arguments, ok := r.held.Hold(size, maxHeld)
	if !ok {
		return nil, fmt.Sprintf("the arguments of calls under way have %d bytes already", maxHeld)
	}
	running, ok := r.running.Hold(1, maxAgentRunning)
	if !ok {
		arguments()
		return nil, fmt.Sprintf("%d calls are running already", maxAgentRunning)
	}
	return func() { arguments(); running() }, ""
}

// HoldAnswer reserves room for an answer of size bytes until its client has read it. ok
// is false if the agent's clients have too many unread answers.
func (s *Set) HoldAnswer(size int) (release func(), ok bool) {
	if s.gate.Rates == nil {
		return func() {}, true
	}
	return s.gate.Rates.unread.Hold(size, maxHeld)
}

// take counts a call against every limit. If a limit is reached, take counts nothing and
// returns the rule and the time until there is room.
func (r *Rates) take(limits []scope.Rate) (rule string, wait time.Duration, err error) {
	if r == nil {
		return "", 0, nil
	}
	reached, wait, err := r.calls.Take(limits)
	if reached != nil {
		rule = fmt.Sprintf("rate_limits: %s: %d per %v", reached.Pattern, reached.N, reached.Per)
	}
	return rule, wait, err
}
