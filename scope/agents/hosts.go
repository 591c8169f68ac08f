package agents

import "github.com/scopefs/scopefs/scope/hosts"

// Hosts returns what the agent's own sandbox may connect to.
func (g *Grants) Hosts() *hosts.Policy {
	if g.allowNothing() {
		return nil
	}
	if g.caller == nil {
		return g.hosts
	}
	return g.hosts.Within(g.caller.Hosts(), g.caller.id, g.id)
}

// HostsWith returns what a sandbox for a flag with presets may connect to. A definition that says network: none or host decides that
// alone.
func (g *Grants) HostsWith(presets []string) *hosts.Policy {
	if g.orZero().fixed {
		return g.Hosts()
	}
	return g.Hosts().With(g.orZero().known.presets, presets)
}

// HostsOf returns what a sandbox with a network may connect to, with the presets that
// the agent's definition may name.
func (g *Grants) HostsOf(n hosts.Network) *hosts.Policy {
	if g.allowNothing() {
		return nil
	}
	return hosts.Compile(n, g.known.presets)
}

// ServerHosts returns what the sandbox of a server may connect to. In a task that is
// within what the member may connect to.
func (g *Grants) ServerHosts(server string) *hosts.Policy {
	if g.allowNothing() || !g.Server(server).Allow {
		return nil
	}
	own := g.serverHosts[server]
	if own == nil || g.caller == nil {
		return own
	}
	return own.Within(g.Hosts(), g.id, "")
}
