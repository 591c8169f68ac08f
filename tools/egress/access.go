package egress

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/internal/mask"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/network"
)

// access is one connection or request, from the decision to the end.
type access struct {
	in           *incoming
	op           string // connect or request, or a Way
	way          Way    // of a Port; "": of no port
	at           uint16 // of a Port: At
	host         string
	port         uint16
	method, path string // of a request
	field        string // see misread
	parameter    bool   // the query has one that some servers take for the method
	scheme       string
	upgrade      bool // of a request to another protocol
	proto        int  // major version of HTTP
	began        time.Time
	decision     scope.Decision
	route        network.Route // of a connection
	secret       string        // of a request
	question     Question      // that the operator has approved, if asked
	asked        atomic.Bool   // the rules want an approval, and the operator's holds
	many         bool          // it stands for requests that differ; see folds
	unrecorded   int64         // of them
	status       int
	sent, got    atomic.Int64 // bytes to the host and from it
	remote       string
	upward       bool                    // a request that the upstream proxy gets
	failure      *refusal                // of an exchange
	stopped      atomic.Pointer[refusal] // of a request whose body may not pass further
	mask         *mask.Mask              // of the response
	moving       Moving                  // of a tunnel that a Carrier has; nil: none
	took         time.Duration           // of its tunnel, when that has ended
	seen         bool                    // an earlier daemon may have recorded its end
}

func (p *Proxy) newAccess(in *incoming, op string) *access {
	return &access{in: in, op: op, began: time.Now()}
}

// decide decides about an access by the current rules.
func (p *Proxy) decide(a *access) scope.Decision {
	if a.way != "" {
		a.decision = p.port(a)
		return a.decision
	}
	rules := p.tenant.Rules()
	if rules == nil {
		rules = (*network.Rules)(nil)
	}
	if a.op == "request" {
		a.decision, a.secret = a.judge(rules)
	} else {
		a.decision, a.route = rules.Connect(a.host, a.port)
	}
	return a.decision
}

// judge decides about a request. One whose method or path servers read differently is allowed where the rules
// allow every method, or every method and path.
func (a *access) judge(rules Rules) (scope.Decision, string) {
	d, secret := rules.Request(a.host, a.port, a.method, a.path)
	what, path := "the field "+a.field, ""
	if a.field == "" {
		what, path = "the parameter _method", a.path
	}
	if a.field == "" && !a.parameter || !d.Allow && !d.Ask {
		return d, secret
	}
	if _, divided := a.divides(rules, path); divided {
		d = renamed(d.Rule, what)
	}
	return d, secret
}

// divides reports whether rules that allow a request do not allow it with every method, at a path or, for "", at every path.
func (a *access) divides(rules Rules, path string) (d scope.Decision, divided bool) {
	d, secret := rules.Request(a.host, a.port, a.method, a.path)
	every, other := rules.Request(a.host, a.port, "", path)
	return d, !every.Allow && !every.Ask || other != secret
}

// renamed is the decision about a request with what some servers take for its method or its path.
func renamed(rule, what string) scope.Decision {
	what = fmt.Sprintf("%.120s", what)
	return scope.Decision{
		Kind: scope.KindField, Rule: fmt.Sprintf("%s, without %s", rule, what),
		Remedy: fmt.Sprintf("leave out %s: some servers read another method or path there", what),
	}
}

// admit decides about an access, and records the decision.
func (p *Proxy) admit(ctx context.Context, a *access) *refusal {
	p.decide(a)
	switch {
	case a.decision.Allow:
	case a.decision.Ask:
		if r := p.approve(ctx, a); r != nil {
			return p.deny(ctx, a, r)
		}
	default:
		r := denied(a.target(), a.decision)
		if r.kind == scope.KindField {
			r.Hint, r.remedy = r.remedy, ""
		}
		return p.deny(ctx, a, r)
	}
	if a.op == "request" || !a.route.Intercept {
		if r := p.count(); r != nil {
			return p.deny(ctx, a, r)
		}
	}
	e := p.event(a)
	e.Verdict, e.Outcome = audit.Allow, audit.OutcomeBegin
	return p.record(ctx, e)
}

// approve waits for the operator.
func (p *Proxy) approve(ctx context.Context, a *access) *refusal {
	refuse := denied(a.target(), a.decision)
	ctx, cancel := context.WithTimeout(ctx, p.Limits.Approve)
	defer cancel()
	a.question = Question{a.host, a.port, a.method, a.path, a.decision.Rule}
	said, err := Answer{Nobody: true}, error(nil)
	if p.tenant.Approve != nil {
		said, err = p.tenant.Approve(ctx, a.question)
	}
	refuse.ApprovalID, refuse.cause = said.ID, err
	switch {
	case err != nil:
	case said.Denied:
		refuse.Hint = "your operator has decided: do without this host"
		refuse.Message = "the operator has denied " + a.target()
		if said.Reason != "" {
			refuse.Message += ": " + said.Reason
		}
	case said.Granted:
		if a.asked.Store(true); p.stillAllowed(a) { // the rules may have changed
			return nil
		}
	case said.Nobody:
		refuse.Hint, refuse.remedy = "nobody is here who could approve it: "+p.asks(a), "nobody is here who could approve it: add the host to network.allow"
	case said.ID != "":
		refuse.Message = a.target() + " waits for the operator"
		if ctx.Err() == context.DeadlineExceeded {
			refuse.Message = fmt.Sprintf("timed out: nobody has decided about %s within %v", a.target(), p.Limits.Approve)
		}
		refuse.Hint = "call again when your operator has decided about approval " + said.ID
		refuse.remedy = "approve it: scopefs approvals approve " + said.ID + ", or add the host to network.allow"
	}
	return refuse
}

// stillAllowed reports whether the current rules allow an access as it was made.
func (p *Proxy) stillAllowed(a *access) bool {
	if a.way != "" {
		return p.port(a).Allow
	}
	rules := p.tenant.Rules()
	if rules == nil {
		return false
	}
	if a.op == "request" {
		d, secret := a.judge(rules)
		return secret == a.secret && (d.Allow || d.Ask && a.asked.Load())
	}
	d, route := rules.Connect(a.host, a.port)
	return route == a.route && (d.Allow || d.Ask && a.asked.Load())
}

// deny records a refusal and returns it, or that of a log that cannot be written.
func (p *Proxy) deny(ctx context.Context, a *access, r *refusal) *refusal {
	p.hint(a, r)
	e := p.event(a)
	e.Verdict, e.Detail = r.verdict, r.detail()
	e.Rule, e.RuleKind = r.Rule, string(r.kind)
	if failure := p.record(ctx, e); failure != nil {
		return failure
	}
	p.tellRefused(a, r)
	return r
}

func (p *Proxy) tellRefused(a *access, r *refusal) {
	if p.tenant.Refused != nil {
		host := a.host
		if a.way != "" || r.unmade { // no rule of hosts allows it
			host = ""
		}
		if host != "" && a.port != 443 && a.port != 80 {
			host = net.JoinHostPort(host, strconv.Itoa(int(a.port)))
		}
		text, remedy := r.Message, r.remedy
		if r.keyless && p.tenant.Operator {
			text, remedy = r.detail(), ""
		}
		p.tenant.Refused(host, oneLine(text), oneLine(remedy))
	}
}

func (r *refusal) detail() string {
	if r.cause != nil {
		return r.Message + ": " + r.cause.Error()
	}
	return r.Message
}

// end records the end of an access that was admitted; r is nil for one that came
// to its end.
func (p *Proxy) end(ctx context.Context, a *access, r *refusal) {
	if r == left {
		return
	}
	e := p.event(a)
	e.Verdict, e.Outcome, e.Status = audit.Allow, "end", a.status
	e.Bytes, e.Sent, e.DurationUS = a.got.Load(), a.sent.Load(), cmp.Or(a.took, time.Since(a.began)).Microseconds()
	if a.remote != "" {
		e.Detail = "at " + a.remote
	}
	if r != nil {
		e.Outcome, e.Detail = "failed", r.detail()
		if r.verdict != "" {
			e.Verdict, e.Rule, e.RuleKind = r.verdict, r.Rule, string(r.kind)
		}
	}
	if a.seen && p.tenant.Recorded != nil && p.tenant.Recorded(e) {
		a.moving.Recorded()
		return
	}
	// The connection is over: there is nothing left to refuse.
	if p.tenant.Record(context.WithoutCancel(ctx), e) == nil && a.moving != nil {
		a.moving.Recorded()
	}
	if r != nil && (r.verdict != "" || r.unmade || r.keyless) {
		p.tellRefused(a, r)
	}
}

func (p *Proxy) event(a *access) audit.Event {
	return audit.Event{
		Event: audit.KindNetwork, Agent: string(p.tenant.Agent), Session: p.tenant.Session, Call: a.in.call, Chain: p.tenant.Chain,
		Op: a.op, Target: a.target(), Rule: a.decision.Rule, RuleKind: string(a.decision.Kind), Unrecorded: a.unrecorded,
	}
}

func (p *Proxy) record(ctx context.Context, e audit.Event) *refusal {
	if err := p.tenant.Record(ctx, e); err != nil {
		return &refusal{Message: "the connection cannot be recorded, so it is not made", status: http.StatusServiceUnavailable, verdict: audit.Deny, cause: err}
	}
	return nil
}

// target names the access, without the query of a request.
func (a *access) target() string {
	switch {
	case a.host == "":
		return ""
	case a.op == "request" && !a.many:
		return a.method + " " + a.scheme + "://" + authority(a.host, a.port, a.scheme) + a.path
	}
	return authority(a.host, a.port, "")
}

// authority is HOST:PORT as a URL has it; the default port of the scheme is left out.
func authority(host string, port uint16, scheme string) string {
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	if port == map[string]uint16{"http": 80, "https": 443}[scheme] {
		return host
	}
	return fmt.Sprintf("%s:%d", host, port)
}
