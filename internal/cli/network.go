package cli

import (
	"errors"
	"net"
	"net/url"
	"strconv"
	"strings"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/agents"
)

// trick explains a connection or request that tried to get around the rules.
func (r *reason) trick(kind scope.Kind) {
	switch kind {
	case scope.KindAddress:
		r.Note = "the host has an address that is not public"
		r.Remedy = "give the host's rule in network.allow its address"
	case scope.KindSecret:
		r.Note = "nothing allows it: the placeholder of a credential goes to its host alone"
	default:
		r.Note = "nothing allows it: another server could read the request differently"
	}
}

// network decides a connection or a request with the current rules of the agent's own
// sandbox.
func (r *reason) network(agent *agents.Agent, e audit.Event) error {
	target, err := audit.Unescape(e.Target)
	if err != nil {
		return err
	}
	if scope.Kind(e.RuleKind) == scope.KindRate {
		r.Remedy, r.Note = "raise network.limit", "the rules of hosts allow it"
		return nil
	}
	var d scope.Decision
	if method, address, ok := strings.Cut(target, " "); ok {
		u, err := url.Parse(address)
		if err != nil {
			return err
		}
		d, _, err = agent.Grants.Hosts().URL(method, u)
		if err != nil {
			return err
		}
	} else {
		host, text, err := net.SplitHostPort(target)
		port, portErr := strconv.ParseUint(text, 10, 16)
		if err := errors.Join(err, portErr); err != nil {
			return err
		}
		d, _ = agent.Grants.Hosts().Connect(host, uint16(port))
	}
	r.Now, r.NowRule, r.Remedy = verdictOf(d), d.Rule, d.Remedy
	if d.Allow && scope.Kind(e.RuleKind) == scope.KindField { // the log does not have the request's fields
		r.undecided("the rules allow the method and the path; a field made some servers read others", "leave out the field, or allow every method and path of the host")
		return nil
	}
	if e.Chain != "" {
		r.Note = "the callers of " + e.Chain + " must allow it, too"
	}
	return nil
}

// checkNetwork decides about a request of an agent's sandbox. It connects to nothing.
func (a *app) checkNetwork(address, agent, method string) (*verdict, error) {
	p, project, err := a.existing()
	if err != nil {
		return nil, err
	}
	id, err := a.agentIn(project, agent)
	if err != nil {
		return nil, err
	}
	def, err := agentOf(p, id)
	if err != nil {
		return nil, err
	}
	if !strings.Contains(address, "://") {
		address = "https://" + address
	}
	u, err := url.Parse(address)
	if err != nil {
		return nil, err
	}
	d, route, err := def.Grants.Hosts().URL(strings.ToUpper(method), u)
	if err != nil {
		return nil, err
	}
	v := &verdict{Agent: id, Path: u.Redacted(), Op: strings.ToUpper(method), Verdict: verdictOf(d), Rule: d.Rule, Remedy: d.Remedy}
	if at := route.Address; d.Allow && at.IsValid() {
		v.Target = at.Addr().String()
		if at.Port() != 0 {
			v.Target = at.String()
		}
	}
	return v, nil
}
