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

func (p *Proxy) limits() (requests, bytes []scope.Rate) {
	if p.tenant.Limit == nil {
		return nil, nil
	}
	return p.tenant.Limit()
}

// count counts a request, and refuses it if no byte is left for it.
func (p *Proxy) count() *refusal {
	requests, _ := p.limits()
	if r := p.spend(0); r != nil {
		return r
	}
	return p.take(requests, 1)
}

// spend counts bytes that have moved.
func (p *Proxy) spend(n int64) *refusal {
	p.meter.mu.Lock()
	defer p.meter.mu.Unlock()
	_, bytes := p.limits()
	if len(bytes) == 0 {
		return nil
	}
	p.meter.credit -= n
	for p.meter.credit <= 0 {
		amount, r := p.charge(bytes, 1-p.meter.credit)
		if r != nil {
			return r
		}
		p.meter.credit += amount
	}
	return nil
}

// charge takes bytes from the limits, at least as many as the least limit has or least.
func (p *Proxy) charge(bytes []scope.Rate, least int64) (amount int64, _ *refusal) {
	amount = max(minCharge, min(maxCharge, int64(bytes[0].N)/1000), least)
	for _, l := range bytes {
		amount = min(amount, int64(l.N))
	}
	return amount, p.take(bytes, amount)
}

func (p *Proxy) take(limits []scope.Rate, n int64) *refusal {
	reached, wait, err := p.tenant.Counts.TakeN(limits, n)
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
