package tools

import (
	"fmt"
	"runtime"
	"time"

	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/tools/limit"
)

// Rates bounds what an agent has in flight and counts its calls, in all its
// sessions. The zero value is ready and counts in memory. A nil Rates has no
// limits.
type Rates struct {
	held    limit.Budget // bytes of arguments
	unread  limit.Budget // bytes of answers
	running limit.Budget // calls

	calls limit.Rates
}

// NewRates returns rates whose counts a store keeps.
func NewRates(store limit.Store) *Rates { return &Rates{calls: limit.Rates{Store: store}} }

// NewQueue returns the queue of a host's calls. A call holds a turn while it is
// decided, recorded and run; the turn ends early when the tool starts to wait
// (Hints.Waits).
func NewQueue() *limit.Queue {
	const maxTurn = 50 * time.Millisecond
	n := runtime.GOMAXPROCS(0)
	return limit.NewQueue(4*n, 2*n, maxTurn)
}

// NewTurns returns turns for [Hints].Turns: all at a time, and each of one agent. An agent
// that has none gets one at once, though all are taken.
func NewTurns(all, each int) *limit.Queue { return limit.NewQueue(all, each, time.Hour) }

// maxHeld bounds the arguments of all calls of an agent that are under way, and
// the answers that wait to be read, in bytes: each session alone may have 32 of
// 8 MiB.
const maxHeld = 64 << 20

// maxAgentRunning bounds the calls of an agent that run at the same time, in all
// its sessions.
const maxAgentRunning = 128

// hold makes room for a call with its arguments, if there is any.
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

// HoldAnswer makes room for an answer of so many bytes, from when it is there
// until its client has read it. It is not ok when the agent's clients have read
// too little of what they got.
func (s *Set) HoldAnswer(size int) (release func(), ok bool) {
	if s.gate.Rates == nil {
		return func() {}, true
	}
	return s.gate.Rates.unread.Hold(size, maxHeld)
}

// take counts a call against every limit. If one is reached, it counts nothing and
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
