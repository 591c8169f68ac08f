package session

import (
	"context"
	"crypto/rand"
	"errors"
	"os"

	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/holder"
	"github.com/scopefs/scopefs/internal/outlive"
	"github.com/scopefs/scopefs/scope/agents"
	"github.com/scopefs/scopefs/scope/hosts"
	"github.com/scopefs/scopefs/tools/sandbox"
)

// A sandbox of scopefs run, or of a client of scopefs mcp, lives on when its daemon ends, if its view does. Its processes use
// what they have: the view, the system, HOME, the pipes or the terminal of the command of a run, whose other ends are its
// client's. New connections to the network wait for the next daemon, and then for the client, whose keys they may need; open
// ones end with the daemon. So do /context, and the commands that a client's calls have under way: their files are the daemon's.

// Outlive makes the sandbox of a command live on when this daemon ends, and returns how its client returns to the next one,
// and a pidfd of the sandbox; nil if it ends with this daemon.
func (b *Sandbox) Outlive(p *sandbox.Process, purpose Purpose) (*api.Resume, *os.File) {
	kept := outlive.Sandbox{Name: b.Name, Token: rand.Text(), By: purpose.By, Command: b.command, Expose: purpose.Expose, Login: purpose.Login != nil}
	files := b.keep(p, kept)
	if files == nil {
		return nil, nil
	}
	return &api.Resume{Session: kept.Name, Token: kept.Token, Grace: b.agent.Grace}, files[0]
}

// keep makes the sandbox live on, and its command p, if it is not nil. It returns nil if the sandbox ends with this daemon.
func (b *Sandbox) keep(p *sandbox.Process, kept outlive.Sandbox) (files []*os.File) {
	if !b.view.Holdable() || quota(b.view.Definition()) {
		return nil
	}
	kept.Agent, kept.Started, kept.Print = b.agent.id, b.began, b.print
	kept.View, _ = b.view.Served()
	var err error
	var place *holder.Place
	if kept.Outliving, files, err = b.Session.Outlive(p); err == nil {
		place, err = outlive.Keep(b.agent.Holder, kept, files)
	}
	if err != nil {
		b.agent.Logger.Warn("a sandbox will end with the daemon", "agent", b.agent.id, "session", b.Name, "err", err)
		return nil
	}
	b.agent.mu.Lock()
	b.place = place
	b.agent.mu.Unlock()
	return files
}

// Adopt continues with a sandbox that the last daemon has left of the agent, and with the command of a run. Its processes have
// their session in the log from now on. The caller ends it if the agent may not have it any more: see Same.
func (a *Agent) Adopt(item outlive.Item) (*Sandbox, *sandbox.Process, error) {
	def, err := a.Definition()
	if err != nil {
		return nil, nil, err
	}
	limits := limitsOf(def.Definition)
	if item.Outliving.Limits != limits || quota(def.Definition) {
		return nil, nil, errChanged
	}
	if group := item.Outliving.Agent; group != nil {
		_, _ = a.group.Get(func() (*sandbox.Group, error) { return group.Adopt(limits), nil })
	}
	host, err := a.sandboxes.open(sandbox.Config{})
	if err != nil {
		return nil, nil, err
	}
	p := Purpose{Parent: item.Parent, Command: item.Command, Expose: item.Expose}
	box := &Sandbox{Name: item.Name, parent: item.Parent, agent: a, place: item.Place, Earlier: &item, network: a.newNetwork(p), kind: api.RunSession, began: item.Started, command: item.Command}
	if box.parent != "" {
		box.kind = api.ClientSession
	}
	var process *sandbox.Process
	if box.Session, process, err = host.Adopt(a.id, item.Outliving, item.Place.Files, a.noMemory(p)); err != nil {
		return nil, nil, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.sessions[box.Session] = box
	return box, process, nil
}

// quota reports whether a view of its own serves HOME: the sandbox ends with the daemon.
func quota(def *agents.Definition) bool {
	bytes, files := def.Limits.Quota()
	return bytes+files > 0
}

var errChanged = errors.New("what the definition or scopefs.yaml gives a sandbox has changed")

// Same returns why the agent may not have a sandbox of Adopt. Its view was taken over.
func (b *Sandbox) Same() error {
	a, was := b.agent, &b.Earlier.Sandbox
	v := a.View()
	if v == nil {
		return errors.New("its view has ended")
	}
	pid, owner := v.Served()
	if pid != was.View {
		return errors.New("its view is another one")
	}
	spec, err := a.specOf(context.Background(), v.Definition(), owner, Purpose{Expose: was.Expose})
	if err != nil {
		return err
	}
	defer spec.Home.Close()
	if outlive.Print(spec, b.network.kind == hosts.HostNetwork) != was.Print {
		return errChanged
	}
	return nil
}

// Connect serves the network of a sandbox of Adopt, for its client.
func (b *Sandbox) Connect(p Purpose) {
	p.Command, p.Expose = b.command, b.Earlier.Expose
	if !b.Earlier.Login {
		p.Login = nil
	}
	n := b.agent.newNetwork(p)
	n.serve(b, p)
	b.agent.mu.Lock()
	b.network = n
	b.agent.mu.Unlock()
	b.agent.recheck()
}

// resume continues with the sandbox that the last daemon has left for the client.
func (c *client) resume(box *Sandbox) error {
	v := box.agent.View()
	if v == nil {
		return errViewEnded
	}
	dir, mounted, err := box.agent.openMount(v)
	if err != nil {
		return err
	}
	defer dir.Close()
	_, owner := v.Served()
	c.purpose = c.newPurpose()
	spec, err := box.equip(c.life, v, dir, mounted, owner, c.purpose)
	if err != nil {
		return err
	}
	defer spec.Home.Close() // of nil is an error and no more
	if err := box.Continue(spec); err != nil {
		return err
	}
	box.context.started(box.Session)
	box.Connect(c.purpose)
	return nil
}

// outlive makes a sandbox of the client live on when this daemon ends, if the client can return.
func (c *client) outlive(box *Sandbox) {
	if c.token != "" {
		_ = box.keep(nil, outlive.Sandbox{Name: box.Name, Parent: c.name, Token: c.token, By: &c.user})
	}
}

// leaves reports whether the sandbox is left to the next daemon when its client ends.
func (b *Sandbox) leaves() bool {
	b.agent.mu.Lock()
	defer b.agent.mu.Unlock()
	return b.agent.HandOver.Load() && b.place != nil
}

// Outliving returns the agent's sandboxes that live on when this daemon ends.
func (a *Agent) Outliving() (all []*sandbox.Session) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for s, box := range a.sessions {
		if box.place != nil {
			all = append(all, s)
		}
	}
	return all
}

// CloseOthers ends all sandboxes but these, and starts no more.
func (s *Shared) CloseOthers(outliving []*sandbox.Session) error {
	if host := s.noSandboxes(); host != nil {
		return host.CloseBut(outliving)
	}
	return nil
}
