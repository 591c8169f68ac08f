package report

import (
	"errors"
	"net"
	"net/url"
	"strconv"
	"strings"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/internal/amend"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/agents"
	"github.com/scopefs/scopefs/scope/hosts"
	"github.com/scopefs/scopefs/scope/network"
	"github.com/scopefs/scopefs/tools/egress"
)

// trick explains a connection or request that tried to get around the rules.
func (r *Reason) trick(kind scope.Kind) {
	switch kind {
	case scope.KindAddress:
		r.Note = "the host has an address that is not public"
		r.Remedy = "write address: IP into the host's rule in network.allow"
	case scope.KindSecret:
		r.Note = "nothing allows it: the placeholder of a credential goes to its host alone"
	default:
		r.Note = "nothing allows it: another server could read the request differently"
	}
}

// network decides a connection or a request with the current rules of the agent's own
// sandbox.
func (r *Reason) network(agent *agents.Agent, e audit.Event) error {
	target, err := audit.Unescape(e.Target)
	if err != nil {
		return err
	}
	if scope.Kind(e.RuleKind) == scope.KindRate {
		r.Remedy, r.Note = "raise network.limit", "the rules of hosts allow it"
		return nil
	}
	if way := egress.Way(e.Op); way == egress.Published || way == egress.HostPort {
		return r.port(agent, way, target)
	}
	if method, address, ok := strings.Cut(target, " "); ok {
		u, err := url.Parse(address)
		if err != nil {
			return err
		}
		r.grant = grant{agent.Name, amend.Host, u.Host}
		if _, _, err = agent.Grants.Hosts().URL(method, u); err != nil {
			return err
		}
		r.decide = func(a *agents.Agent) scope.Decision {
			d, _, _ := a.Grants.Hosts().URL(method, u) // its error is that of u
			return d
		}
	} else {
		host, text, err := net.SplitHostPort(target)
		port, portErr := strconv.ParseUint(text, 10, 16)
		if err := errors.Join(err, portErr); err != nil {
			return err
		}
		if host, err = network.ParseHost(host); err != nil {
			return err
		}
		r.decide = func(a *agents.Agent) scope.Decision {
			d, _ := a.Grants.Hosts().Connect(host, uint16(port))
			return d
		}
		r.grant = grant{agent.Name, amend.Host, target}
		if port == 443 || port == 80 {
			r.grant.name = host
		}
	}
	d := r.decide(agent)
	r.Now, r.NowRule, r.Remedy = verdictOf(d), d.Rule, d.Remedy
	if d.Allow && scope.Kind(e.RuleKind) == scope.KindField { // the log does not have the request's fields
		r.undecided("the rules allow the method and the path; a field made some servers read others",
			"leave out the field, or allow every method and path of the host")
		return nil
	}
	if e.Chain != "" {
		r.Note = "the callers of " + e.Chain + " must allow it, too"
	}
	return nil
}

// port decides a connection to a port with the current rules. The flags of a run are not among them.
func (r *Reason) port(agent *agents.Agent, way egress.Way, target string) error {
	_, text, err := net.SplitHostPort(target)
	if err != nil {
		return err
	}
	number, err := hosts.ParsePort(text)
	if err != nil {
		return err
	}
	r.decide = func(a *agents.Agent) scope.Decision {
		if way == egress.Published {
			return a.Grants.Hosts().Publish(0, number)
		}
		return a.Grants.Hosts().HostPort(number)
	}
	d := r.decide(agent)
	r.Now, r.NowRule, r.Remedy = verdictOf(d), d.Rule, d.Remedy
	if d.Allow && r.Verdict == string(audit.Deny) {
		r.Note = "the rules open the port; the log says who may not use it"
	}
	return nil
}
