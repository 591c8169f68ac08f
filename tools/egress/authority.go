package egress

import (
	"context"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/network"
	"github.com/scopefs/scopefs/tools/limit"
)

// An authority decides about the connections and requests of one tenant, records them, makes the connections and has the credentials.
// It sees no byte that passes: the proxy, which reads and writes them, may be in another process. See Monitor and NewRemote.
type authority interface {
	// admit decides about an access, and records the decision. It sets what the proxy needs of it.
	admit(ctx context.Context, a *access) *refusal

	// judge returns the refusal of an access that the rules deny. It records nothing.
	judge(ctx context.Context, a *access) *refusal

	// deny records a refusal and returns it, or that of a log that cannot be written.
	deny(ctx context.Context, a *access, r *refusal) *refusal

	// end records the end of an access that was admitted; r is nil for one that came to its end.
	end(ctx context.Context, a *access, r *refusal)

	// hold has stop called when an admitted access is not allowed any more, until its end.
	hold(a *access, stop func())

	// holds reports whether an admitted access is allowed still.
	holds(a *access) bool

	// dial connects to the host of an admitted access. ca signs the host's certificate; "": the proxy's roots do.
	dial(ctx context.Context, a *access) (c socket, ca string, err error)

	// dialUpstream connects to the upstream proxy, for the host of an admitted request, which checkUpward has passed.
	dialUpstream(ctx context.Context, a *access) (socket, error)

	// checkUpward returns why the upstream proxy must not connect to the host of an access.
	checkUpward(ctx context.Context, a *access) error

	// secrets returns the current credentials, by the names that rules have for them.
	secrets() map[string]Secret

	// limited reports whether the tenant has a limit of bytes. lease takes bytes from it: as many as the proxy may move until the next
	// lease, and at least so many.
	limited() bool
	lease(least int64) (n int64, r *refusal)
}

// tenancy is the authority of a tenant in this process.
type tenancy struct {
	dialer  Dialer
	approve time.Duration
	of      atomic.Pointer[Tenant]

	mu   sync.Mutex
	open map[*access]*standing
}

// standing is an access that was admitted.
type standing struct {
	stop   func() // nil: the proxy does not hold it yet
	over   bool   // it is not allowed any more
	cancel context.CancelFunc
}

func newTenancy(o Options, tenant Tenant) *tenancy {
	if tenant.Counts == nil {
		tenant.Counts = &limit.Rates{}
	}
	t := &tenancy{dialer: o.Dialer, approve: o.Limits.withDefaults().Approve, open: map[*access]*standing{}}
	t.of.Store(&tenant)
	return t
}

// rules returns the current rules.
func (t *tenancy) rules() Rules {
	if rules := t.of.Load().Rules(); rules != nil {
		return rules
	}
	return (*network.Rules)(nil)
}

// decide decides about an access by the current rules.
func (t *tenancy) decide(a *access) scope.Decision {
	if a.way != "" {
		a.decision = t.port(a)
		return a.decision
	}
	rules := t.rules()
	var route network.Route
	if a.op == "request" {
		a.decision, a.secret = a.judge(rules)
		if a.watched {
			_, a.divided = a.divides(rules, a.path)
		}
		if a.secret != "" || t.dialer.Upstream != nil {
			_, route = rules.Connect(a.host, a.port)
		}
	} else {
		a.decision, route = rules.Connect(a.host, a.port)
		a.route = route
	}
	a.upward = t.dialer.Upstream != nil && !route.Address.IsValid()
	a.local = route.Address.Addr().Unmap().IsLoopback()
	return a.decision
}

// port decides about a connection to a port.
func (t *tenancy) port(a *access) scope.Decision {
	if port := t.of.Load().Port; port != nil {
		return port(a.way, a.at, a.port)
	}
	return scope.Decision{Kind: scope.KindPort, Rule: "network"}
}

func (t *tenancy) judge(_ context.Context, a *access) *refusal {
	if d := t.decide(a); !d.Allow && !d.Ask {
		return denied(a.target(), d)
	}
	return nil
}

// know finds the call that a connection is of, once.
func (t *tenancy) know(a *access) {
	if a.in.known {
		return
	}
	a.in.known = true
	if call := t.of.Load().Call; call != nil && a.way != Published {
		a.in.call = call()
	}
}

func (t *tenancy) admit(ctx context.Context, a *access) *refusal {
	t.know(a)
	t.decide(a)
	switch {
	case a.decision.Allow:
	case a.decision.Ask:
		if r := t.ask(ctx, a); r != nil {
			return t.deny(ctx, a, r)
		}
	default:
		r := denied(a.target(), a.decision)
		if r.kind == scope.KindField {
			r.Hint, r.remedy = r.remedy, ""
		}
		return t.deny(ctx, a, r)
	}
	if a.op == "request" || !a.route.Intercept {
		if r := t.count(a); r != nil {
			return t.deny(ctx, a, r)
		}
	}
	e := t.event(a)
	e.Verdict, e.Outcome = audit.Allow, audit.OutcomeBegin
	if r := t.record(ctx, e); r != nil {
		return r
	}
	t.stand(a)
	return nil
}

// stand keeps an access that was admitted, until its end. One whose approval ends is over, as is one that the rules have ceased to
// allow since they were asked: a recheck between did not know of it.
func (t *tenancy) stand(a *access) {
	ctx, cancel := context.WithCancel(context.Background())
	t.mu.Lock()
	t.open[a] = &standing{cancel: cancel}
	t.mu.Unlock()
	if !t.holds(a) {
		t.stop(a)
	}
	if outlast := t.of.Load().Outlast; a.asked.Load() && outlast != nil {
		go func() {
			outlast(ctx, a.question)
			if a.asked.Store(false); ctx.Err() == nil && !t.holds(a) {
				t.stop(a)
			}
		}()
	}
}

// stop ends an access, now or as soon as the proxy holds it.
func (t *tenancy) stop(a *access) {
	t.mu.Lock()
	s := t.open[a]
	stop := func() {}
	if s != nil {
		if s.over = true; s.stop != nil {
			stop = s.stop
		}
	}
	t.mu.Unlock()
	stop()
}

func (t *tenancy) hold(a *access, stop func()) {
	t.mu.Lock()
	s := t.open[a]
	if s != nil {
		s.stop = stop
	}
	over := s != nil && s.over
	t.mu.Unlock()
	if over {
		stop()
	}
}

// drop forgets an access that has ended.
func (t *tenancy) drop(a *access) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.open[a]; s != nil {
		s.cancel()
		delete(t.open, a)
	}
}

// recheck ends what the current rules do not allow or send to another address.
func (t *tenancy) recheck() {
	t.mu.Lock()
	var all []*access
	for a := range t.open {
		all = append(all, a)
	}
	t.mu.Unlock()
	for _, a := range slices.DeleteFunc(all, t.holds) {
		t.stop(a)
	}
}

func (t *tenancy) holds(a *access) bool {
	if a.way != "" {
		return t.port(a).Allow
	}
	rules := t.rules()
	if a.op == "request" {
		d, secret := a.judge(rules)
		return secret == a.secret && (d.Allow || d.Ask && a.asked.Load())
	}
	d, route := rules.Connect(a.host, a.port)
	return route == a.route && (d.Allow || d.Ask && a.asked.Load())
}

// ask waits for the operator.
func (t *tenancy) ask(ctx context.Context, a *access) *refusal {
	refuse := denied(a.target(), a.decision)
	ctx, cancel := context.WithTimeout(ctx, t.approve)
	defer cancel()
	a.question = Question{a.host, a.port, a.method, a.path, a.decision.Rule}
	said, err := Answer{Nobody: true}, error(nil)
	if approve := t.of.Load().Approve; approve != nil {
		said, err = approve(ctx, a.question)
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
		if a.asked.Store(true); t.holds(a) { // the rules may have changed
			return nil
		}
	case said.Nobody:
		refuse.Hint, refuse.remedy = "nobody is here who could approve it: "+t.asks(a), "nobody is here who could approve it: add the host to network.allow"
	case said.ID != "":
		refuse.Message = a.target() + " waits for the operator"
		if ctx.Err() == context.DeadlineExceeded {
			refuse.Message = "timed out: nobody has decided about " + a.target() + " within " + t.approve.String()
		}
		refuse.Hint = "call again when your operator has decided about approval " + said.ID
		refuse.remedy = "approve it: scopefs approvals approve " + said.ID + ", or add the host to network.allow"
	}
	return refuse
}

func (t *tenancy) deny(ctx context.Context, a *access, r *refusal) *refusal {
	t.know(a)
	t.hint(a, r)
	e := t.event(a)
	e.Verdict, e.Detail = r.verdict, r.detail()
	e.Rule, e.RuleKind = r.Rule, string(r.kind)
	if failure := t.record(ctx, e); failure != nil {
		return failure
	}
	t.tellRefused(a, r)
	return r
}

func (t *tenancy) end(ctx context.Context, a *access, r *refusal) {
	t.drop(a)
	_ = t.conclude(ctx, a, r) // the connection is over: there is nothing left to refuse
}

// conclude records the end of an access.
func (t *tenancy) conclude(ctx context.Context, a *access, r *refusal) error {
	e := t.event(a)
	e.Verdict, e.Outcome, e.Status = audit.Allow, "end", a.status
	e.Bytes, e.Sent, e.DurationUS = a.got.Load(), a.sent.Load(), a.lasted().Microseconds()
	if a.remote != "" {
		e.Detail = "at " + a.remote
	}
	if r != nil {
		e.Outcome, e.Detail = "failed", r.detail()
		if r.verdict != "" {
			e.Verdict, e.Rule, e.RuleKind = r.verdict, r.Rule, string(r.kind)
		}
	}
	of := t.of.Load()
	if a.again && of.Recorded != nil && of.Recorded(e) {
		return nil
	}
	if err := of.Record(context.WithoutCancel(ctx), e); err != nil {
		return err
	}
	if r != nil && (r.verdict != "" || r.unmade || r.keyless) {
		t.tellRefused(a, r)
	}
	return nil
}

func (t *tenancy) event(a *access) audit.Event {
	of := t.of.Load()
	return audit.Event{
		Event: audit.KindNetwork, Agent: string(of.Agent), Session: of.Session, Call: a.in.call, Chain: of.Chain,
		Op: a.op, Target: a.target(), Rule: a.decision.Rule, RuleKind: string(a.decision.Kind), Unrecorded: a.unrecorded,
	}
}

func (t *tenancy) record(ctx context.Context, e audit.Event) *refusal {
	if err := t.of.Load().Record(ctx, e); err != nil {
		return &refusal{Message: "the connection cannot be recorded, so it is not made", status: http.StatusServiceUnavailable, verdict: audit.Deny, cause: err}
	}
	return nil
}

func (t *tenancy) secrets() map[string]Secret {
	if secrets := t.of.Load().Secrets; secrets != nil {
		return secrets()
	}
	return nil
}
