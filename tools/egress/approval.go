package egress

import (
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/network"
)

// Others are Rules under which hosts that no rule names need an approval, where May says so of the host and the port.
type Others struct {
	Rules
	May func(Question) bool
}

// Connect implements Rules.
func (o Others) Connect(host string, port uint16) (scope.Decision, network.Route) {
	d, route := o.Rules.Connect(host, port)
	return o.ask(d, host, port), route
}

// Request implements Rules.
func (o Others) Request(host string, port uint16, method, path string) (scope.Decision, string) {
	d, secret := o.Rules.Request(host, port, method, path)
	return o.ask(d, host, port), secret
}

func (o Others) ask(d scope.Decision, host string, port uint16) scope.Decision {
	if d.Others && o.May(Question{Host: host, Port: port, Rule: d.Rule}) {
		d.Ask = true
		d.Rule += ", or approval"
	}
	return d
}
