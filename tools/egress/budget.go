package egress

import (
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/scope"
)

// meter counts bytes against the limits of an agent. It takes them from the
// limits in larger amounts, because each may be a write to a disk. What is left
// when a proxy ends is lost to the agent.
type meter struct {
	mu     sync.Mutex
	credit int64 // bytes taken and not used
}

// The amounts that a meter takes: a thousandth of the limit, within these bounds.
const (
	minCharge = 64 << 10
	maxCharge = 8 << 20
)

// spend counts bytes that have moved.
func (p *Proxy) spend(n int64) *refusal {
	p.meter.mu.Lock()
	defer p.meter.mu.Unlock()
	if !p.authority.limited() {
		return nil
	}
	p.meter.credit -= n
	for p.meter.credit <= 0 {
		amount, r := p.authority.lease(1 - p.meter.credit)
		if r != nil {
			return r
		}
		p.meter.credit += amount
	}
	return nil
}

// fill gives the tunnels bytes: what the meter has, or else as much as it would take.
func (p *Proxy) fill() {
	n, r := p.advance()
	if r != nil {
		p.purse.Refuse(r)
	} else {
		p.purse.Give(n)
	}
}

func (p *Proxy) advance() (n int64, r *refusal) {
	p.meter.mu.Lock()
	defer p.meter.mu.Unlock()
	if p.meter.credit > 0 && p.authority.limited() {
		n, p.meter.credit = p.meter.credit, 0
		return n, nil
	}
	return p.authority.lease(0)
}

func (t *tenancy) limits() (requests, bytes []scope.Rate) {
	if limit := t.of.Load().Limit; limit != nil {
		return limit()
	}
	return nil, nil
}

func (t *tenancy) limited() bool {
	_, bytes := t.limits()
	return len(bytes) > 0
}

// count counts a request or a tunnel, and refuses it if no byte is left for it.
func (t *tenancy) count(a *access) *refusal {
	requests, bytes := t.limits()
	if a.spent != nil && len(bytes) > 0 {
		return a.spent
	}
	return t.take(requests, 1)
}

// lease takes bytes from the limits, at least as many as the least limit has or least.
func (t *tenancy) lease(least int64) (amount int64, _ *refusal) {
	_, bytes := t.limits()
	if len(bytes) == 0 { // the rules have changed: a recheck follows
		return max(maxCharge, least), nil
	}
	amount = max(minCharge, min(maxCharge, int64(bytes[0].N)/1000), least)
	for _, l := range bytes {
		amount = min(amount, int64(l.N))
	}
	return amount, t.take(bytes, amount)
}

func (t *tenancy) take(limits []scope.Rate, n int64) *refusal {
	reached, wait, err := t.of.Load().Counts.TakeN(limits, n)
	switch {
	case err != nil:
		return &refusal{Message: "the connection cannot be counted, so it is not made", status: http.StatusServiceUnavailable, verdict: audit.Deny, kind: scope.KindRate, cause: err}
	case reached != nil:
		return &refusal{Message: "the agent has used its network limit", Rule: "network.limit: " + reached.String(),
			Hint:   fmt.Sprintf("wait %v", max(wait.Round(time.Second), time.Second)),
			remedy: fmt.Sprintf("wait %v, or raise network.limit", max(wait.Round(time.Second), time.Second)),
			status: http.StatusTooManyRequests, verdict: audit.Deny, kind: scope.KindRate}
	}
	return nil
}
