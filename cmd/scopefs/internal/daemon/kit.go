package daemon

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/tools"
	"github.com/scopefs/scopefs/tools/ask"
	"github.com/scopefs/scopefs/tools/bash"
	"github.com/scopefs/scopefs/tools/delegate"
	"github.com/scopefs/scopefs/tools/file"
	"github.com/scopefs/scopefs/tools/memory"
	"github.com/scopefs/scopefs/tools/sandbox"
	"github.com/scopefs/scopefs/tools/skill"
	"github.com/scopefs/scopefs/tools/upstream"
)

// tools are all of a client's, before anybody has decided about them; those of
// its MCP servers come later.
func (c *client) tools(worker *file.Worker, shell *bash.Shell, profile string) ([]tools.Tool, error) {
	var all []tools.Tool
	var errs []error
	add := func(list []tools.Tool, err error) {
		all = append(all, list...)
		errs = append(errs, err)
	}
	add(worker.Tools())
	add(shell.Tools())
	add(c.info())
	user, err := ask.User()
	add([]tools.Tool{user}, err)
	add(skill.New(filepath.Join(c.d.paths.Base, "skills"), func() []string { return c.rules().Skills() },
		func(name string) scope.Decision { return c.rules().Skill(name) }))
	if c.d.host.Memory {
		add(memory.New(worker))
	}
	hand, err := delegate.New(c.delegate, func() []scope.ID { return c.rules().Members() },
		func(name string) scope.Decision { return c.rules().Member(name) },
		func(name string) scope.Decision { return c.rules().Context(name) })
	add([]tools.Tool{hand}, err)
	if profile != "" {
		add(file.Profile(profile))
		add(bash.Profile(profile))
	}
	return all, errors.Join(errs...)
}

// serverWait is how long a client waits for its MCP servers before it is told
// what tools there are; those of slower ones are told later.
const serverWait = 5 * time.Second

// servers starts the agent's MCP servers, in the client's sandbox, and keeps
// their tools in the set.
func (c *client) servers() {
	c.upstream = upstream.New(serverPlace{c}, func() map[string]upstream.Spec {
		all := map[string]upstream.Spec{}
		for name, s := range c.rules().Servers() {
			all[name] = upstream.Spec{Command: s.Command, Args: s.Args, Env: s.Env, Cwd: s.Cwd, Timeout: s.Timeout}
		}
		return all
	})
	c.upstream.OnChange = c.refresh
	c.own = append(c.own, c.upstream.Close)
}

// refresh lists what the agent may call by the rules of now. Its calls need it
// not: each is decided when it comes.
func (c *client) refresh() {
	ctx, cancel := context.WithTimeout(c.life, serverWait)
	defer cancel()
	list, errs := c.upstream.Tools(ctx)
	if c.life.Err() != nil {
		return
	}
	c.d.tellServers(c.id, errs)
	if err := c.set.Extend(list); err != nil {
		c.d.logger.Warn("MCP servers", "agent", c.id, "err", err)
	}
	c.face.Refresh()
}

// tellServers logs what is wrong with an agent's MCP servers, once though each of
// its clients meets it. As an error: without it nobody knows why tools are missing.
func (d *Daemon) tellServers(id scope.ID, errs []error) {
	var now []string
	d.mu.Lock()
	told := d.sick[id]
	d.mu.Unlock()
	for _, err := range errs {
		if errors.Is(err, context.DeadlineExceeded) { // nothing is wrong yet
			d.logger.Warn("MCP server", "agent", id, "err", err)
			continue
		}
		text, _, _ := strings.Cut(err.Error(), "; it may be started again in ")
		if now = append(now, text); !slices.Contains(told, text) {
			d.logger.Error("MCP server", "agent", id, "err", text)
		}
	}
	d.mu.Lock()
	d.sick[id] = now
	d.mu.Unlock()
}

// serverPlace records what is started in a sandbox for its MCP servers.
type serverPlace struct{ c *client }

// Exec starts a server.
func (p serverPlace) Exec(ctx context.Context, command sandbox.Command) (*sandbox.Process, error) {
	command.Lasting = true
	ended, err := p.c.d.recordExec(ctx, p.c.id, p.c.name, command.Argv[:1]) // arguments may hold secrets
	if err != nil {
		return nil, err
	}
	session, err := p.c.sandbox(ctx)
	if err != nil { // what an agent is told names nothing of the host
		ended("not started: " + err.Error())
		return nil, errors.New("there is no sandbox for it")
	}
	process, err := session.Exec(ctx, command)
	if err != nil {
		ended("not started: " + err.Error())
		return nil, err
	}
	p.c.beside(func() {
		exit, err := process.Wait()
		switch {
		case err != nil:
			ended("ended with its sandbox")
		case exit.Signal != 0:
			ended(fmt.Sprintf("signal %d", exit.Signal))
		default:
			ended(fmt.Sprintf("exit %d", exit.Code))
		}
	})
	return process, nil
}

// The bounds of tasks that are with members at the same time: of all agents, and
// of one.
const (
	maxTasks = 8
	maxOwn   = 2
)

// hold takes a place for a task of an agent's, if there is one.
func (d *Daemon) hold(id scope.ID) (free func(), err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	all := 0
	for _, n := range d.tasks {
		all += n
	}
	if d.tasks[id] >= maxOwn || all >= maxTasks {
		return nil, tools.Errorf(tools.RateLimited, "enough tasks are with members already: at most %d of an agent, %d of all", maxOwn, maxTasks)
	}
	d.tasks[id]++
	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.tasks[id]--
	}, nil
}

// delegate has a member do a task: the operator's runner does, in a sandbox of
// the member's. It has no way back to us, so that no task goes round in circles.
func (c *client) delegate(ctx context.Context, member scope.ID, task string) (delegate.Output, error) {
	runner := c.d.host.Runner
	if len(runner) == 0 {
		return delegate.Output{}, delegate.ErrNoRunner
	}
	free, err := c.d.hold(c.id)
	if err != nil {
		return delegate.Output{}, err
	}
	defer free()
	session, name, err := c.d.startSession(ctx, member, c.name)
	if errors.Is(err, errDown) {
		return delegate.Output{}, tools.Errorf(tools.Denied, "the operator has taken %q down", member)
	}
	if err != nil {
		return delegate.Output{}, err
	}
	defer c.d.endSession(member, session, name)
	// To start it took a while.
	agent, err := c.d.defined(member)
	if err == nil {
		err = c.stillMember(ctx, member)
	}
	if err != nil {
		return delegate.Output{}, err
	}
	c.d.event(audit.Event{Event: audit.KindAgent, Agent: string(member), Session: name, Parent: c.name, Outcome: "delegated to", Detail: "by " + string(c.id)})
	ended, err := c.d.recordExec(ctx, member, name, runner)
	if err != nil {
		return delegate.Output{}, err
	}
	out, err := delegate.Run(ctx, session, sandbox.Command{Argv: runner}, agent.Grants.Prompt()+"\n\n"+task)
	if err != nil {
		ended(err.Error())
	} else {
		ended(fmt.Sprintf("exit %d", out.Exit.Code))
	}
	return out, err
}

// stillMember decides again about a delegation.
func (c *client) stillMember(ctx context.Context, member scope.ID) error {
	if err := tools.Still(ctx); err != nil {
		return err
	}
	def, err := c.d.defined(c.id)
	if err != nil {
		return err
	}
	if d := def.Grants.Member(string(member)); !d.Allow {
		return tools.Refused(d, tools.NotFound, "no member %q", member)
	}
	return nil
}
