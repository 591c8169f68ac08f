package session

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/internal/agentproc"
	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/login"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/hosts"
	"github.com/scopefs/scopefs/tools/approvals"
	"github.com/scopefs/scopefs/tools/egress"
	"github.com/scopefs/scopefs/tools/file/worker"
	"github.com/scopefs/scopefs/tools/sandbox"
)

// network is the network of a sandbox.
type network struct {
	agent           *Agent
	hosts           func() *hosts.Policy // the current ones
	kind            hosts.Kind           // of the sandbox, since it started
	keys            map[string]string    // variables for credentials that the daemon has not
	login           *login.Login         // of the run's program; nil: none is used
	*agentproc.Door                      // nil: there is none

	portLock  sync.Mutex     // guards what follows
	ports     *sandbox.Ports // nil: none is needed
	published []publication
	inside    []uint16     // ports in the sandbox that lead to the host
	led       atomic.Int64 // connections to them

	mu           sync.Mutex
	placeholders map[string]string // of credentials, by variable
}

// newNetwork returns the network of a sandbox that starts.
func (a *Agent) newNetwork(p Purpose) *network {
	n := &network{agent: a, hosts: p.Hosts, keys: p.Keys, login: p.Login, placeholders: map[string]string{}}
	switch own := func() *hosts.Policy { return a.hosts(p.Presets) }; {
	case n.login != nil:
		n.hosts = func() *hosts.Policy {
			policy, _ := own().For(p.Login.Program)
			return policy
		}
	case n.hosts == nil:
		n.hosts = own
	}
	n.kind = n.hosts().Kind()
	return n
}

// authority returns the CA; nil after an error, and then no request can be decided about that only a CA makes visible.
func (s *Shared) authority() *egress.CA {
	ca, err := s.ca.get(func() (*egress.CA, error) { return egress.OpenCA(s.Paths.State) })
	if err != nil {
		s.Logger.Error("hosts with methods, paths or a credential are refused", "err", err)
		return nil
	}
	return ca
}

// outward adds the daemon's CA and the way to the outside.
func (s *Shared) outward(o *agentproc.Opening) {
	o.Options.CA, o.Roots = s.authority(), s.Settings.Network.CA
	if way := s.Settings.Network.Upstream; way != "" {
		o.Options.Dialer.Upstream = &egress.Upstream{Address: way}
	}
}

// trust returns the Spec.Trust of a sandbox: Settings.Network.CA and, for a proxy, the certificate of the CA; nil without both.
func (s *Shared) trust(proxy bool) (all []byte) {
	if company := s.Settings.Network.CA; company != "" {
		all = []byte(company)
	}
	if !proxy {
		return all
	}
	if ca := s.authority(); ca != nil {
		all = slices.Concat(bytes.TrimSpace(all), []byte("\n"), ca.PEM())
	}
	return all
}

// equipNetwork adds to a sandbox what programs need to use the network. Without a network it
// has a proxy, too, which refuses all: a program that finds no proxy waits for its own
// timeouts, and does not show which rule is missing.
func (s *Shared) equipNetwork(spec *sandbox.Spec, kind hosts.Kind, secrets func() map[string]egress.Secret) {
	spec.Network = kind == hosts.HostNetwork
	spec.Proxy = !spec.Network
	spec.Trust = s.trust(spec.Proxy)
	if !spec.Proxy {
		return
	}
	env := map[string]string{}
	maps.Copy(env, spec.Env)
	for name, secret := range secrets() {
		if !secret.File {
			env[name] = secret.Placeholder
		}
	}
	spec.Env = env
}

// secretOf returns a credential as a proxy uses it.
func secretOf(c hosts.Credential, placeholder string) egress.Secret {
	return egress.Secret{Placeholder: placeholder, Header: c.Header, Format: c.Format, Read: c.From.Read, Source: fmt.Sprintf("%+v", c.From)}
}

// secrets returns the current credentials, by the variable that has the placeholder. All
// sandboxes of an agent have the same placeholder: programs keep settings by it.
func (n *network) secrets() map[string]egress.Secret {
	all := map[string]egress.Secret{}
	for name, c := range n.hosts().Credentials() {
		secret := secretOf(c, n.placeholder(name))
		secret.Read = c.From.With(n.keys)
		all[name] = secret
	}
	if n.login != nil {
		name := hosts.LoginSecret(n.login.Program)
		all[name] = n.login.Secret(n.placeholder(name), func(e audit.Event) { e.Agent = string(n.agent.id); n.agent.Event(e) })
	}
	return all
}

// placeholder returns the placeholder of a credential.
func (n *network) placeholder(name string) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.placeholders[name] == "" {
		n.placeholders[name] = n.agent.authority().Placeholder(string(n.agent.id) + "\x00" + name)
	}
	return n.placeholders[name]
}

// hosts returns what a sandbox of the agent may connect to now, with further presets.
func (a *Agent) hosts(presets []string) *hosts.Policy {
	def, err := a.Definition()
	if err != nil {
		return nil
	}
	return def.Grants.HostsWith(presets)
}

// runnerHosts returns what a runner of the agent's tasks may connect to now.
func (a *Agent) runnerHosts() *hosts.Policy {
	def, err := a.Definition()
	if err != nil {
		return nil
	}
	return def.Grants.HostsOf(a.Settings.Tasks.Network)
}

// approveTime bounds how long a connection waits for the operator. Programs give up
// after a minute or less.
const approveTime = 45 * time.Second

// refusedConnections limits what a sandbox without a network has open at a time.
const refusedConnections = 64

// serve serves the network of a sandbox that has one, until close or the sandbox's end.
func (n *network) serve(box *Sandbox, p Purpose) {
	if box.Listener() == nil {
		return
	}
	o := n.opening(box, p, n.openPorts(box, p)...)
	if n.Door != nil { // an earlier daemon's
		n.Door.Serve(o)
		return
	}
	n.Door = n.agent.Networks.Open(o)
	go n.until(box)
}

// adopt continues with what the last daemon has left of a sandbox's network.
func (n *network) adopt(box *Sandbox, p Purpose) {
	if n.Door = n.agent.Networks.Adopt(n.opening(box, p)); n.Door != nil {
		go n.until(box)
	}
}

// SettleNetworks ends what the last daemon has left of the networks of sandboxes that are gone.
func (s *Shared) SettleNetworks() {
	s.Networks.Settle(egress.Tenant{Record: s.Record, Recorded: s.recordedEnd})
}

// recordedEnd reports whether an earlier daemon has recorded the end of a connection or a request. It reads the log once.
func (s *Shared) recordedEnd(end audit.Event) bool {
	s.ends.once.Do(func() {
		s.ends.all = map[endKey]bool{}
		filter := audit.Filter{Since: time.Now().Add(-recentTime)}
		for e, err := range audit.Read(context.Background(), s.Paths.Audit(), filter, false) {
			if err == nil && e.Event == audit.KindNetwork && e.Outcome != audit.OutcomeBegin {
				s.ends.all[endOf(e)] = true
			}
		}
	})
	return s.ends.all[endOf(end)]
}

// endKey tells the ends of connections apart.
type endKey struct {
	agent, session, op, target, outcome string
	bytes, sent, took                   int64
}

func endOf(e audit.Event) endKey {
	return endKey{e.Agent, e.Session, e.Op, e.Target, e.Outcome, e.Bytes, e.Sent, e.DurationUS}
}

// recordedEnds are those of earlier daemons. The zero value has not read them.
type recordedEnds struct {
	once sync.Once
	all  map[endKey]bool
}

// recentTime is longer than the grace time and the start of a daemon.
const recentTime = 15 * time.Minute

// until ends the network with its sandbox.
func (n *network) until(box *Sandbox) {
	<-box.Done()
	n.Close()
	n.agent.Approvals().EndSession(box.Name)
}

// opening says what the network of a sandbox is.
func (n *network) opening(box *Sandbox, p Purpose, ports ...egress.Port) agentproc.Opening {
	tenant := egress.Tenant{
		Agent: n.agent.id, Session: box.Name, Chain: p.Chain,
		Rules:   func() egress.Rules { return n.rules(box, p) },
		Refused: p.Refused, Operator: p.By == nil,
		Call:    func() string { return box.OnlyTag(worker.Tag) }, // the process of the file tools connects to nothing
		Port:    n.decidePort(p),
		Secrets: n.secrets, Counts: n.agent.traffic, Limit: func() (requests, bytes []scope.Rate) { return n.hosts().Limits() },
		Recorded: n.agent.recordedEnd,
		Record: func(ctx context.Context, e audit.Event) error {
			e.Parent, e.Server, e.Trace = p.Parent, p.server(), p.Trace.String()
			if err := n.agent.paces.Wait(ctx, box.Done(), e); err != nil {
				return fmt.Errorf("wait for the log: %w", err)
			}
			return n.agent.Record(ctx, e)
		},
	}
	if p.own() { // a server and a runner have a network of their own, which allow does not change
		tenant.Allow = n.allow
	}
	if n.agent.Approvals() != nil {
		tenant.Approve = func(ctx context.Context, q egress.Question) (egress.Answer, error) { return n.approve(ctx, box, p, q) }
		tenant.Outlast = func(ctx context.Context, q egress.Question) {
			n.agent.Approvals().Outlast(ctx, func() (approvals.Approval, error) { return n.approval(box, p, q) })
		}
	}
	o := agentproc.Opening{Of: string(n.agent.id), Box: box.Name, Init: box.Init, Listener: box.Listener(), Ports: ports, Tenant: tenant,
		Share: n.agent.share, Started: n.agent.limitProcess}
	n.agent.outward(&o)
	o.Options.Limits.Approve, o.Options.Dialer.Local = approveTime, n.reach
	if n.kind == hosts.None {
		o.Connections = refusedConnections
	}
	return o
}

// allow returns the command that allows the agent a host: its preset, which is narrower, or the host.
func (n *network) allow(host string, port uint16) string {
	def, err := n.agent.Definition()
	name := ""
	if err == nil {
		name = def.Grants.Preset(host, port)
	}
	if name == "" && port != 443 && port != 80 {
		name = net.JoinHostPort(host, strconv.Itoa(int(port)))
	}
	return "scopefs allow " + cmp.Or(name, host)
}

// approve asks the operator about a host and port. A decision holds for all sandboxes of
// the agent that run the agent's commands, or for those of one of its MCP servers, or for
// its runner; in this chain and under these rules, until it expires.
func (n *network) approve(ctx context.Context, box *Sandbox, p Purpose, q egress.Question) (egress.Answer, error) {
	approval, err := n.approval(box, p, q)
	if err != nil {
		return egress.Answer{}, err
	}
	said, err := n.agent.Approvals().Wait(ctx, approval, func(a approvals.Approval) error {
		outcome := audit.OutcomeAsked
		if a.State == approvals.Stands {
			outcome = audit.OutcomeUsed
		}
		return n.agent.Record(context.WithoutCancel(ctx), audit.Event{Event: audit.KindApproval, Agent: string(a.Agent),
			Session: box.Name, Chain: a.Chain, Parent: p.Parent, Server: p.server(), Trace: p.Trace.String(),
			Op: a.Tool, Target: string(approval.Arguments), Rule: a.Rule, Outcome: outcome, Detail: a.ID})
	})
	if errors.Is(err, approvals.ErrNobody) {
		return egress.Answer{Nobody: true}, nil
	}
	return egress.Answer{ID: said.ID, Granted: said.State == approvals.Granted || said.State == approvals.Stands,
		Denied: said.State == approvals.Denied, Reason: said.Reason}, err
}

// approval returns what the operator approves of a question, under the current rules.
func (n *network) approval(box *Sandbox, p Purpose, q egress.Question) (approvals.Approval, error) {
	def, err := n.agent.Definition()
	if err != nil {
		return approvals.Approval{}, err
	}
	host, err := json.Marshal(map[string]any{"host": q.Host, "port": q.Port})
	if err != nil {
		return approvals.Approval{}, err
	}
	return approvals.Approval{Agent: n.agent.id, Chain: p.Chain, Session: box.Name, Tool: p.network(), Arguments: host,
		Policy: def.Grants.Version(), Rule: q.Rule,
		Lasting: true, Kind: approvals.KindHost, Subject: net.JoinHostPort(q.Host, strconv.Itoa(int(q.Port)))}, nil
}

// NetworkOfCommands names the connections of an agent's commands in an approval.
const NetworkOfCommands = "network"

// network names the connections of a sandbox in an approval, in place of a tool. Sandboxes
// with rules of their own have another name.
func (p Purpose) network() string {
	switch p.Kind {
	case api.ServerSession:
		return "network:" + p.Command
	case api.TaskSession:
		return "network/task"
	}
	return NetworkOfCommands
}

// recheck applies the current rules to the networks of the agent's sandboxes. It ends a
// sandbox that has the host's network and may no longer have it: no proxy decides about
// the sandbox's connections. Each new connection is decided by the current rules; recheck
// closes the open connections that they no longer allow.
func (a *Agent) recheck() {
	networks := map[*Sandbox]*network{}
	a.mu.Lock()
	for _, box := range a.sessions {
		networks[box] = box.network
	}
	a.mu.Unlock()
	var wait sync.WaitGroup
	for box, n := range networks {
		switch {
		case n.hosts().Kind().Less(n.kind) && n.kind == hosts.HostNetwork:
			go box.Close() // whoever has started it waits for its end
		default:
			wait.Go(n.Recheck) // side by side: each may wait for the agent's process
		}
	}
	wait.Wait()
}
