package agent

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/scope/agents"
	"github.com/scopefs/scopefs/tools/egress"
)

// network is the network of a sandbox.
type network struct {
	agent *Agent
	hosts func() *agents.Hosts // of now
	kind  agents.NetworkKind   // of the sandbox, since it started
	proxy *egress.Proxy        // nil: the sandbox has no proxy
	ended chan struct{}        // closed when the proxy has ended
	stop  context.CancelFunc
}

// newNetwork returns the network of a sandbox that starts.
func (a *Agent) newNetwork(p Purpose) *network {
	n := &network{agent: a, hosts: p.Hosts}
	if n.hosts == nil {
		n.hosts = a.hosts
	}
	n.kind = n.hosts().Kind()
	return n
}

// hosts returns what the agent may connect to now.
func (a *Agent) hosts() *agents.Hosts {
	def, err := a.definition()
	if err != nil {
		return nil
	}
	return def.Grants.Hosts()
}

// runnerHosts returns what a runner of the agent's tasks may connect to now.
func (a *Agent) runnerHosts() *agents.Hosts {
	def, err := a.definition()
	if err != nil {
		return nil
	}
	return def.Grants.HostsOf(a.Settings.Tasks.Network)
}

// approveTime bounds how long a connection waits for the operator. Programs give up
// after a minute or less.
const approveTime = 45 * time.Second

// serve serves the proxy of a sandbox that has one, until close or the sandbox's end.
func (n *network) serve(box *Sandbox, p Purpose) {
	listener := box.Listener()
	if listener == nil {
		return
	}
	n.proxy = egress.New(egress.Options{Limits: egress.Limits{Approve: approveTime}}, egress.Client{
		Agent: n.agent.id, Session: box.Name, Chain: p.Chain,
		Rules: func() egress.Rules { return n.hosts() },
		Record: func(ctx context.Context, e audit.Event) error {
			e.Parent = p.Parent
			if err := n.agent.paces.wait(ctx, box.Done(), e); err != nil {
				return fmt.Errorf("wait for the log: %w", err)
			}
			return n.agent.Record(ctx, e)
		},
	})
	ctx, stop := context.WithCancel(context.Background())
	n.stop, n.ended = stop, make(chan struct{})
	go func() {
		<-box.Done()
		stop()
	}()
	go func() {
		defer close(n.ended)
		if err := n.proxy.Serve(ctx, listener); err != nil {
			n.agent.Logger.Error("network", "agent", n.agent.id, "session", box.Name, "err", err)
		}
	}()
}

// close ends the proxy, and returns when its connections are closed.
func (n *network) close() {
	if n.proxy == nil {
		return
	}
	n.stop()
	<-n.ended
}

// recheck makes the networks of the agent's sandboxes follow the rules of now. A sandbox
// with the host's network that may not have it any more ends, for no proxy decides about
// its connections. Rules are asked at each connection; those that are open and not
// allowed any more are closed.
func (a *Agent) recheck() {
	a.mu.Lock()
	boxes := slices.Collect(maps.Values(a.sessions))
	a.mu.Unlock()
	for _, box := range boxes {
		n := box.network
		switch {
		case n.hosts().Kind().Less(n.kind) && n.kind == agents.NetworkHost:
			go box.Close() // whoever has started it waits for its end
		case n.proxy != nil:
			n.proxy.Recheck()
		}
	}
}
