package session

import (
	"context"
	"errors"
	"fmt"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/internal/account"
	"github.com/scopefs/scopefs/internal/agentproc"
	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/internal/ledger"
	"github.com/scopefs/scopefs/internal/mount"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/catalog"
	"github.com/scopefs/scopefs/scope/hosts"
	"github.com/scopefs/scopefs/tools/egress"
	"github.com/scopefs/scopefs/tools/sandbox"
)

// StoreTools returns the tools of stores as definitions may name them.
func StoreTools(known func(config.Stores) (catalog.Tools, error)) func(config.Stores) (catalog.Tools, error) {
	return func(s config.Stores) (catalog.Tools, error) {
		for store, p := range s.Programs {
			for _, name := range p.Tools {
				if err := notOfProfiles(name, "give the tool another name"); err != nil {
					return nil, fmt.Errorf("%s: tools: %w", store, err)
				}
			}
		}
		return known(s)
	}
}

// ExecStore starts the command of a store's program in a sandbox of its own, which ends with the command. The sandbox has no view, and
// its events have no agent. ExecStore calls over after it has recorded the end of a command that has started.
func (s *Shared) ExecStore(ctx context.Context, store string, p *config.StoreProgram, c sandbox.Command, over func()) (*sandbox.Process, error) {
	host, err := s.sandboxes.open(sandbox.Config{})
	if err != nil {
		return nil, err
	}
	mounted, err := s.Mounts.Read()
	if err != nil {
		return nil, err
	}
	memory, pids := p.Limits(s.Root)
	spec := sandbox.Spec{Agent: scope.ID(store), Limits: sandbox.Limits{Memory: memory, PIDs: pids}, Expose: p.Expose,
		Mounts: mount.WithoutViews(mounted, "")}
	owner, home, err := account.OfProgram(p.Dir, s.Root)
	if err != nil {
		return nil, err
	}
	spec.UID, spec.GID, spec.Home = owner.UID, owner.GID, home
	defer spec.Home.Close() // of nil is an error and no more
	n := &storeNetwork{Shared: s, store: store, hosts: p.Hosts()}
	if n.hosts.Kind() != hosts.HostNetwork && len(n.hosts.Credentials()) > 0 && n.authority() == nil {
		return nil, errors.New("the network's credentials need a CA, which the daemon could not open")
	}
	s.equipNetwork(&spec, n.hosts.Kind(), n.secrets)
	ended, err := ledger.RecordExec(ctx, s, audit.Event{Server: store, Target: ledger.CommandLine(c.Argv[:1])}) // arguments may hold secrets
	if err != nil {
		return nil, err
	}
	box, err := host.Start(ctx, spec)
	if err != nil {
		ended("not started: " + err.Error())
		return nil, err
	}
	n.serve(box)
	process, err := box.Exec(ctx, c)
	if err != nil {
		ended("not started: " + err.Error())
		n.end(box)
		return nil, err
	}
	go func() { // ends with the sandbox, at the latest by CloseSandboxes
		defer over()
		recordEnd(process, ended)
		n.end(box)
	}()
	return process, nil
}

// processOf names the process of a store's network. No agent has such a name.
func processOf(store string) string { return "store:" + store }

// storeNetwork is the network of the sandbox of a store's program.
type storeNetwork struct {
	*Shared
	store           string
	hosts           *hosts.Policy
	*agentproc.Door // nil: none
}

func (n *storeNetwork) secrets() map[string]egress.Secret {
	all := map[string]egress.Secret{}
	for name, c := range n.hosts.Credentials() {
		all[name] = secretOf(c, n.authority().Placeholder("store\x00"+n.store+"\x00"+name))
	}
	return all
}

// serve serves the proxy of the sandbox, until end.
func (n *storeNetwork) serve(box *sandbox.Session) {
	if box.Listener() == nil {
		return
	}
	name := fmt.Sprintf("store-%s-%d", n.store, box.PID())
	o := agentproc.Opening{Of: processOf(n.store), Box: name, Init: box.Init, Listener: box.Listener(), Tenant: egress.Tenant{
		Session: name,
		Rules:   func() egress.Rules { return n.hosts },
		Secrets: n.secrets, Limit: n.hosts.Limits,
		Record: func(ctx context.Context, e audit.Event) error {
			e.Server = n.store
			return n.Record(ctx, e)
		},
	}}
	n.outward(&o)
	n.Door = n.Networks.Open(o)
}

// end ends the sandbox and its proxy.
func (n *storeNetwork) end(box *sandbox.Session) {
	if err := box.Close(); err != nil {
		n.Logger.Warn("sandbox", "store", n.store, "err", err)
	}
	n.Close()
}
