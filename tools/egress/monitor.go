package egress

import (
	"context"
	"crypto/ecdsa"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"errors"
	"maps"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/network"
	"github.com/scopefs/scopefs/tools/limit"
)

// A Monitor decides about the connections and requests of a proxy in another process, records them, connects, and has the
// credentials. That process is the agent's: it may ask anything. It gets what the tenant may have, and connections that were decided
// and recorded.
type Monitor struct {
	*tenancy
	ca   *CA
	stop func(id uint64)

	mu    sync.Mutex
	key   []byte // see Seal
	ports []Port
	cases map[uint64]*access        // that were admitted, or are about to be
	reads map[keptName]*limit.Slots // of credentials: one reads at a time
}

// NewMonitor returns a Monitor for a tenant. stop tells the proxy that a case is not allowed any more; it must not block. Of the ports,
// whose listeners are the proxy's, it has Check and Connect.
func NewMonitor(o Options, tenant Tenant, stop func(id uint64), ports ...Port) *Monitor {
	return &Monitor{tenancy: newTenancy(o, tenant), ca: o.CA, stop: stop, ports: ports, cases: map[uint64]*access{},
		reads: map[keptName]*limit.Slots{}, key: []byte(rand.Text())}
}

// Seal sets the key by which Continue knows what a Monitor with the same key has admitted. The proxy must not have it.
func (m *Monitor) Seal(key []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.key = key
}

// seal returns what only a Monitor can say of a case of the tenant.
func (m *Monitor) seal(c Case, s state) []byte {
	m.mu.Lock()
	sum := hmac.New(sha256.New, m.key)
	m.mu.Unlock()
	s.Seal = nil
	text, _ := json.Marshal(struct { // cannot fail
		Session string
		Case    Case
		State   state
	}{m.of.Load().Session, Case{ID: c.ID, Op: c.Op, Way: c.Way, At: c.At, Host: c.Host, Port: c.Port, Scheme: c.Scheme, Method: c.Method, Path: c.Path,
		Field: c.Field, Parameter: c.Parameter, Watched: c.Watched}, s})
	sum.Write(text)
	return sum.Sum(nil)
}

// maxCases bounds what a proxy has under way: Bounds has fewer.
const maxCases = 8192

// Serve makes the Monitor one for another tenant, whose rules hold for what is under way, too.
func (m *Monitor) Serve(tenant Tenant, ports ...Port) {
	if tenant.Counts == nil {
		tenant.Counts = m.of.Load().Counts
	}
	m.mu.Lock()
	m.ports = ports
	m.mu.Unlock()
	m.of.Store(&tenant)
	m.recheck()
}

// Recheck ends what the current rules do not allow or send to another address.
func (m *Monitor) Recheck() { m.recheck() }

// Limited reports whether the tenant has a limit of bytes.
func (m *Monitor) Limited() bool { return m.limited() }

// Credentials returns the tenant's current credentials, by name, without their values.
func (m *Monitor) Credentials() (all []Credential) {
	secrets := m.secrets()
	for _, name := range slices.Sorted(maps.Keys(secrets)) {
		s := secrets[name]
		all = append(all, Credential{Name: name, Placeholder: s.Placeholder, Header: s.Header, Format: s.Format, Without: s.Without, Source: s.source()})
	}
	return all
}

// source identifies Source in a Credential.
func (s Secret) source() string {
	sum := sha256.Sum256([]byte(s.Source))
	return hex.EncodeToString(sum[:8])
}

// Open returns how many cases are under way.
func (m *Monitor) Open() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.cases)
}

// Continue goes on with the cases of a proxy that an earlier daemon has left. Those that the current rules do not allow end.
func (m *Monitor) Continue(all []Item) error {
	for _, item := range all {
		var was state
		a := item.Case.access()
		if item.Case.check(false) != nil || json.Unmarshal(item.State, &was) != nil || len(item.Remote) > maxShort ||
			!hmac.Equal(was.Seal, m.seal(item.Case, was)) || !m.put(a) {
			return errNonsense
		}
		a.remote, a.route, a.secret, a.upward = item.Remote, was.Route, was.Secret, was.Upward
		a.decision.Rule, a.decision.Kind = was.Rule, was.Kind
		if was.Asked { // of an approval that has ended the wait for its end ends at once
			a.question = Question{a.host, a.port, a.method, a.path, was.Rule}
			a.asked.Store(true)
		}
		m.stand(a)
		m.hold(a, func() { m.stop(a.id) })
	}
	return nil
}

// Died records the ends of all cases of a process that has died, with the cause.
func (m *Monitor) Died(ctx context.Context, cause string) {
	m.mu.Lock()
	all := m.cases
	m.cases = map[uint64]*access{}
	maps.DeleteFunc(all, func(_ uint64, a *access) bool { return !m.standing(a) || !a.ends() })
	m.mu.Unlock()
	for _, a := range all {
		m.end(ctx, a, &refusal{Message: cause})
	}
}

// ends makes the caller the one who records the end of an access. The caller has Monitor.mu.
func (a *access) ends() bool {
	first := !a.ending
	a.ending = true
	return first
}

// lost reports whether Died has been called since put, and makes the caller the one who records the end if Died does not.
func (m *Monitor) lost(a *access) (lost, ends bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	lost = m.cases[a.id] != a
	return lost, lost && a.ends()
}

// standing reports whether an access was admitted and has not ended.
func (t *tenancy) standing(a *access) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.open[a] != nil
}

func (m *Monitor) put(a *access) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.cases[a.id] != nil || len(m.cases) >= maxCases {
		return false
	}
	m.cases[a.id] = a
	return true
}

func (m *Monitor) get(id uint64) *access {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.cases[id]
}

func (m *Monitor) remove(a *access) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.cases[a.id] == a {
		delete(m.cases, a.id)
	}
}

func (m *Monitor) portOf(c Case) (Port, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	i := slices.IndexFunc(m.ports, func(p Port) bool { return p.Way == c.Way && p.At == c.At && p.Number == c.Port })
	if i < 0 {
		return Port{}, false
	}
	return m.ports[i], true
}

// Answer answers a request until ctx ends. given is the connection of a request that has one. made is that of the reply; the caller
// closes both. An error says that no proxy of ours asks that.
func (m *Monitor) Answer(ctx context.Context, q Request, given net.Conn) (r Reply, made net.Conn, err error) {
	if err := q.Check(); err != nil {
		return r, nil, err
	}
	switch q.Op {
	case OpAdmit, OpJudge, OpDeny:
		if err := q.Case.check(q.Op == OpDeny); err != nil {
			return r, nil, err
		}
		return m.decideCase(ctx, q)
	case OpEnd:
		r.Refusal, err = m.endCase(ctx, q)
		return r, nil, err
	case OpDial, OpUpward, OpUpstream, OpLead:
		if a := m.get(q.Case.ID); a != nil && m.standing(a) {
			return m.connect(ctx, q.Op, a)
		}
		r.Refusal = changed().wire() // it has ended meanwhile
		return r, nil, nil
	case OpSecret:
		if s, ok := m.secrets()[q.Name]; ok && s.source() == q.Source { // else the rules have changed, and mean another host
			if r.Value, err = m.read(ctx, keptName{q.Name, q.Source}, s); err != nil {
				r.Refusal = &Refusal{Message: clip(err.Error())}
			}
			return r, nil, nil
		}
		r.Refusal = changed().wire()
		return r, nil, nil
	case OpLeaf:
		r, err = m.sign(q)
		return r, nil, err
	case OpLease:
		if q.Least < 0 {
			return r, nil, errNonsense
		}
		n, refused := m.lease(q.Least)
		r.Bytes, r.Refusal = n, refused.wire()
		return r, nil, nil
	case OpPeer:
		if given == nil {
			return r, nil, errNonsense
		}
		if port, ok := m.portOf(q.Case); !ok { // an earlier daemon's
			r.Refusal = changed().wire()
		} else if port.Check != nil {
			if err := port.Check(given); err != nil {
				r.Refusal = &Refusal{Message: clip(err.Error())}
			}
		}
		return r, nil, nil
	}
	return r, nil, errNonsense
}

// read reads a credential. Whoever asks while it is read waits: its source may be a program.
func (m *Monitor) read(ctx context.Context, name keptName, s Secret) (string, error) {
	m.mu.Lock()
	turns := m.reads[name]
	if turns == nil {
		turns = limit.NewSlots(1)
		m.reads[name] = turns
	}
	m.mu.Unlock()
	release, err := turns.Take(ctx)
	if err != nil {
		return "", err
	}
	defer release()
	value, err := s.Read(ctx)
	if err != nil {
		return "", err
	}
	return value.Reveal(), nil
}

func (m *Monitor) decideCase(ctx context.Context, q Request) (r Reply, _ net.Conn, err error) {
	a := q.Case.access()
	if a.began.IsZero() || a.began.After(time.Now()) {
		a.began = time.Now()
	}
	_, isOpen := m.portOf(q.Case)
	switch q.Op {
	case OpJudge:
		r.Refusal = m.judge(ctx, a).wire()
	case OpDeny:
		if q.Refusal == nil {
			return r, nil, errNonsense
		}
		r.Refusal = m.deny(ctx, a, q.Refusal.refusal()).wire()
		r.Admitted = &Admitted{Call: a.in.call}
	default:
		if a.way != "" && !isOpen { // an earlier daemon's
			r.Refusal = m.deny(ctx, a, denied(a.target(), scope.Decision{Kind: scope.KindPort, Rule: "network"})).wire()
			return r, nil, nil
		}
		if !m.put(a) {
			return r, nil, errNonsense
		}
		if refused := m.admit(ctx, a); refused != nil {
			m.remove(a)
			r.Refusal, r.Admitted = refused.wire(), &Admitted{Call: a.in.call}
			return r, nil, nil
		}
		if lost, ends := m.lost(a); lost {
			if ends {
				m.end(ctx, a, changed())
			}
			r.Refusal = changed().wire()
			return r, nil, nil
		}
		a.spent = nil
		m.hold(a, func() { m.stop(a.id) })
		kept := state{Rule: a.decision.Rule, Kind: a.decision.Kind, Route: a.route, Secret: a.secret, Upward: a.upward,
			Asked: a.asked.Load()}
		kept.Seal = m.seal(q.Case, kept)
		text, _ := json.Marshal(kept) // cannot fail
		r.Admitted = &Admitted{Rule: a.decision.Rule, Intercept: a.route.Intercept, Upward: a.upward, Local: a.local, Divided: a.divided,
			Secret: a.secret, Call: a.in.call, State: text}
	}
	return r, nil, nil
}

// endCase records the end of a case. A refusal says that it could not: the process is to ask again.
func (m *Monitor) endCase(ctx context.Context, q Request) (*Refusal, error) {
	if err := q.Ended.check(); err != nil {
		return nil, err
	}
	m.mu.Lock()
	a := m.cases[q.Case.ID]
	first := a != nil && m.standing(a) && a.ends()
	m.mu.Unlock()
	if !first { // it was not admitted, or its end is recorded
		return nil, nil
	}
	a.status, a.took, a.again = q.Ended.Status, q.Ended.Took, q.Again
	if q.Ended.Remote != "" {
		a.remote = q.Ended.Remote
	}
	a.sent.Store(q.Ended.Sent)
	a.got.Store(q.Ended.Got)
	if err := m.conclude(ctx, a, q.Refusal.refusal()); err != nil {
		m.mu.Lock()
		a.ending = false
		m.mu.Unlock()
		return &Refusal{Message: clip(err.Error())}, nil
	}
	m.remove(a)
	m.drop(a)
	return nil, nil
}

// maxDials bounds the connections of a case. A request has more than one if the host ends a connection that it might use.
const maxDials = 16

// connect connects for a case that was admitted.
func (m *Monitor) connect(ctx context.Context, op Op, a *access) (r Reply, made net.Conn, err error) {
	if op != OpUpward && a.dials.Add(1) > maxDials {
		r.Refusal = changed().wire()
		return r, nil, nil
	}
	switch {
	case op == OpLead && a.way == "", op != OpLead && a.way != "", op == OpUpstream && !a.upward, op == OpUpward && !a.upward:
		return r, nil, errNonsense
	case op == OpDial:
		made, r.CA, err = m.dial(ctx, a)
	case op == OpUpstream:
		made, err = m.dialUpstream(ctx, a)
	case op == OpUpward:
		err = m.checkUpward(ctx, a)
	default:
		if port, ok := m.portOf(Case{Way: a.way, At: a.at, Port: a.port}); ok && m.holds(a) {
			made, err = port.Connect(ctx)
		} else {
			err = changed()
		}
	}
	if err != nil {
		r.Refusal = failed(a.host, err).wire()
		if op == OpLead {
			r.Refusal = &Refusal{Message: clip(err.Error()), Address: errors.Is(err, ErrAddress)}
		}
		return r, nil, nil
	}
	if made != nil {
		r.Remote = made.RemoteAddr().String()
	}
	return r, made, nil
}

// sign signs the certificate of a host for the key of a proxy.
func (m *Monitor) sign(q Request) (r Reply, err error) {
	host, err := network.ParseHost(q.Name)
	if err != nil || host != q.Name || m.ca == nil || len(q.Key) > maxShort {
		return r, errNonsense
	}
	key, err := x509.ParsePKIXPublicKey(q.Key)
	if _, ok := key.(*ecdsa.PublicKey); err != nil || !ok {
		return r, errNonsense
	}
	if r.Chain, err = m.ca.signLeaf(host, key); err != nil {
		r.Refusal = (&refusal{Message: "no certificate can be signed", cause: err}).wire()
	}
	return r, nil
}
