package session

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"os"
	"slices"
	"time"

	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/contextfs"
	"github.com/scopefs/scopefs/internal/holder"
	"github.com/scopefs/scopefs/internal/outlive"
	"github.com/scopefs/scopefs/scope/agents"
	"github.com/scopefs/scopefs/scope/hosts"
	"github.com/scopefs/scopefs/tools/bash"
	"github.com/scopefs/scopefs/tools/sandbox"
)

// A sandbox of scopefs run, or of a client of scopefs mcp, lives on when its daemon ends, if its view does. Its processes use
// what they have: the view, the system, HOME, the pipes or the terminal of the command of a run, whose other ends are its
// client's. New connections to the network wait for the next daemon, and then for the client, whose keys they may need; tunnels
// go on, and other connections end with the daemon. Of the commands of a client's calls see bash.Kept.

// Outlive makes the sandbox of a command live on when this daemon ends, and returns how its client returns to the next one,
// and a pidfd of the sandbox; nil if it ends with this daemon.
func (b *Sandbox) Outlive(p *sandbox.Process, purpose Purpose) (*api.Resume, *os.File) {
	kept := outlive.Sandbox{Name: b.Name, Token: rand.Text(), By: purpose.By, Command: b.command,
		Expose: purpose.Expose, Lent: purpose.Lent, Presets: purpose.Presets, Login: purpose.Login != nil,
		Publish: purpose.Publish, HostPorts: purpose.HostPorts}
	files := b.keep(p, kept, nil)
	if files == nil {
		return nil, nil
	}
	return &api.Resume{Session: kept.Name, Token: kept.Token, Grace: b.agent.Grace}, files[0]
}

// keep makes the sandbox live on, and its command p, if it is not nil. last is the file of kept.Context or kept.Task, or nil. It
// returns nil if the sandbox ends with this daemon.
func (b *Sandbox) keep(p *sandbox.Process, kept outlive.Sandbox, last *os.File) (files []*os.File) {
	if !b.view.Holdable() {
		last.Close() // of nil is an error and no more
		return nil
	}
	kept.Agent, kept.Started, kept.Print = b.agent.id, b.began, b.print
	kept.View, _ = b.view.Served()
	var err error
	var place *holder.Place
	if kept.Home, err = b.agent.homeServed(b.view.Definition(), b.homed); err == nil {
		kept.Roots, err = b.agent.rootsServed(b.roots)
	}
	if err == nil {
		kept.Outliving, files, err = b.Session.Outlive(p)
	}
	if last != nil {
		files = append(files, last)
	}
	if err == nil {
		place, err = outlive.Keep(b.agent.Holder, kept, files)
	}
	if err == nil {
		b.context.Keep(b.Session.PID())
	}
	if err != nil {
		last.Close()
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
	if item.Outliving.Limits != limitsOf(def.Definition) {
		return nil, nil, errChanged
	}
	a.PrepareLimit(def.Definition, item.Outliving.Agent)
	host, err := a.sandboxes.open(sandbox.Config{})
	if err != nil {
		return nil, nil, err
	}
	p := Purpose{Parent: item.Parent, Command: item.Command, Expose: item.Expose, Lent: item.Lent, Presets: item.Presets, Task: item.Task,
		Publish: item.Publish, HostPorts: item.HostPorts}
	if p.Task != nil {
		p.Kind, p.Hosts, p.Chain = api.TaskSession, a.runnerHosts, p.Task.Chain
	}
	box := &Sandbox{Name: item.Name, parent: item.Parent, agent: a, place: item.Place, Earlier: &item,
		network: a.newNetwork(p), kind: api.RunSession, began: item.Started, command: item.Command, homed: item.Home != 0}
	box.roots, _ = a.rootsOf(p)
	switch {
	case p.Task != nil:
		box.kind = api.TaskSession
	case box.parent != "":
		box.kind = api.ClientSession
	}
	var process *sandbox.Process
	if box.Session, process, err = item.Adopt(host, a.noMemory(p)); err != nil {
		return nil, nil, err
	}
	if box.network.kind == hosts.HostNetwork {
		a.borders.enter(box)
	}
	box.network.adopt(box, p)
	box.context = a.adoptContext(&item)
	a.mu.Lock()
	a.sessions[box.Session] = box
	a.mu.Unlock()
	if p.Task != nil {
		a.left.Store(box, nil)
	}
	return box, process, nil
}

// homeServed returns the process of the view that serves the HOME of a sandbox; 0: none does. homed says that it has a lasting HOME.
func (a *Agent) homeServed(def *agents.Definition, homed bool) (pid int, err error) {
	if bytes, files := def.Limits.Quota(); bytes+files == 0 || !homed {
		return 0, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), homeTime)
	defer cancel()
	v, err := a.HomeView(ctx, def)
	if err == nil && !v.Holdable() {
		err = errors.New("the view of its HOME ends with the daemon")
	}
	if err == nil {
		pid, _ = v.Served()
	}
	return pid, err
}

// homeTime bounds the wait for the view of a HOME, which is mounted or taken over.
const homeTime = 10 * time.Second

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
	ctx, cancel := context.WithTimeout(context.Background(), homeTime)
	defer cancel()
	spec, err := a.specOn(ctx, v, owner, Purpose{Kind: b.kind, Expose: was.Expose, Lent: was.Lent})
	if err != nil {
		return err
	}
	defer spec.Home.Close()
	if pid, err := a.homeServed(v.Definition(), spec.Home != nil); err != nil || pid != was.Home {
		return cmp.Or(err, errors.New("the view of its HOME is another one"))
	}
	if pids, err := a.rootsServed(b.roots); err != nil || !slices.Equal(pids, was.Roots) {
		return cmp.Or(err, errors.New("the view of a root is another one"))
	}
	if outlive.Print(spec, b.network.kind == hosts.HostNetwork, a.runner(was.Task)) != was.Print {
		return errChanged
	}
	return nil
}

// Connect serves the network of a sandbox of Adopt, for its client.
func (b *Sandbox) Connect(p Purpose) {
	p.Command, p.Expose, p.Presets = b.command, b.Earlier.Expose, b.Earlier.Presets
	p.Publish, p.HostPorts = b.Earlier.Publish, b.Earlier.HostPorts
	if !b.Earlier.Login {
		p.Login = nil
	}
	n := b.agent.newNetwork(p)
	n.Door = b.network.Door
	if err := n.publish(p); err != nil {
		n.note(p, "--publish", err)
	}
	n.serve(b, p)
	b.agent.mu.Lock()
	b.network = n
	b.agent.mu.Unlock()
	b.agent.recheck()
}

// resume makes a sandbox of Adopt what it is for: its client has returned.
func (b *Sandbox) resume(ctx context.Context, p Purpose) error {
	v := b.agent.View()
	if v == nil {
		return errViewEnded
	}
	dir, mounted, err := b.agent.openMount(v)
	if err != nil {
		return err
	}
	defer dir.Close()
	_, owner := v.Served()
	spec, err := b.equip(ctx, v, dir, mounted, owner, p)
	if err != nil {
		return err
	}
	defer spec.Home.Close() // of nil is an error and no more
	if err := b.Continue(spec); err != nil {
		return err
	}
	b.context.Keep(b.Session.PID()) // it may be another one
	b.context.Show(b.Session, p.Context)
	b.Connect(p)
	return nil
}

// resume continues with the sandbox that the last daemon has left for the client, the commands of its shell, and its tasks.
func (c *client) resume(box *Sandbox, shell *bash.Shell) error {
	c.purpose = c.newPurpose()
	if box.context != nil {
		for _, call := range box.Earlier.Seeing() {
			c.contexts.Expect(box.context, call)
		}
	}
	err := box.resume(c.life, c.purpose)
	if err == nil {
		err = box.Earlier.Continue(shell, &box.commands, &c.messages)
	}
	if err == nil {
		c.resumeTasks(shell)
	}
	return err
}

// kept returns the commands of a sandbox that the client has, for a command or a task, if it outlives the daemon; nil: it does not.
func (c *client) kept(s *sandbox.Session) *outlive.Commands {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, box := range append(slices.Clone(c.tasks), c.box) {
		if box != nil && box.Session == s && box.place != nil {
			return &box.commands
		}
	}
	return nil
}

// leaves reports whether the client's sandboxes are left to the next daemon now.
func (c *client) leaves() bool {
	box := c.current()
	return box != nil && box.leaves()
}

// outlive makes a sandbox of the client live on when this daemon ends, if the client can return.
func (c *client) outlive(box *Sandbox) {
	switch {
	case c.token != "":
		set, err := c.messages.File()
		_ = box.keep(nil, outlive.Sandbox{Name: box.Name, Parent: c.name, Token: c.token, By: &c.user, Context: err == nil}, set)
	case c.web && c.agent.Web != nil:
		_ = box.keep(nil, outlive.Sandbox{Name: box.Name, Parent: c.name, Web: c.agent.Web.Claim}, nil)
	}
}

// leaves reports whether the sandbox is left to the next daemon when its client ends.
func (b *Sandbox) leaves() bool {
	b.agent.mu.Lock()
	defer b.agent.mu.Unlock()
	return b.agent.HandOver.Load() && b.place != nil
}

// Outliving returns the agent's sandboxes that live on when this daemon ends. It leaves their tunnels and /context to the next one.
func (a *Agent) Outliving() (all []*sandbox.Session) {
	var networks []*network
	var contexts []*contextfs.Mount
	a.mu.Lock()
	for s, box := range a.sessions {
		if box.place != nil {
			all, networks, contexts = append(all, s), append(networks, box.network), append(contexts, box.context)
		}
	}
	a.mu.Unlock()
	for i, n := range networks {
		n.Leave()
		contexts[i].Leave()
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
