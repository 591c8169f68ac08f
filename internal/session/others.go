package session

import (
	"slices"

	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/hosts"
	"github.com/scopefs/scopefs/tools/egress"
)

// rules are the rules of a sandbox's network. A host that no rule of the agent's own names needs an approval, if the
// sandbox's operator attends and is asked about such hosts, or if a standing approval covers it.
type rules struct {
	*hosts.Policy
	network *network
	box     *Sandbox
	purpose Purpose
}

func (r rules) Connect(host string, port uint16) (scope.Decision, scope.Route) {
	d, route := r.Policy.Connect(host, port)
	return r.others(d, host, port), route
}

func (r rules) Request(host string, port uint16, method, path string) (scope.Decision, string) {
	d, secret := r.Policy.Request(host, port, method, path)
	return r.others(d, host, port), secret
}

func (r rules) others(d scope.Decision, host string, port uint16) scope.Decision {
	all := r.network.agent.Approvals
	if !d.Others || r.purpose.Chain != "" || !r.purpose.own() || all == nil {
		return d
	}
	d.Ask = r.purpose.Others
	if !d.Ask {
		p, err := r.network.approval(r.box, r.purpose, egress.Question{Host: host, Port: port, Rule: d.Rule})
		d.Ask = err == nil && all.Covered(&p)
	}
	if d.Ask {
		d.Rule += ", or approval"
	}
	return d
}

// Approvable returns the sessions whose calls, or whose connections, ask for approvals now: those that a standing approval
// can end with.
func (a *Agent) Approvable(connections bool) (names []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if connections {
		for _, box := range a.sessions {
			if box.kind == "" || box.kind == api.RunSession || box.kind == api.ClientSession {
				names = append(names, box.Name)
			}
		}
	} else {
		for c := range a.clients {
			names = append(names, c.name)
		}
	}
	slices.Sort(names)
	return names
}
