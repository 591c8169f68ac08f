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
	e := audit.Event{Agent: string(p.c.id), Session: p.c.name, Chain: p.c.chain(), Target: commandLine(command.Argv[:1])} // arguments may hold secrets
	ended, err := p.c.d.recordExec(ctx, e)
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
		case exit.OutOfMemory:
			ended(outcomeMemory)
		case exit.Signal != 0:
			ended(fmt.Sprintf("signal %d", exit.Signal))
		default:
			ended(fmt.Sprintf("exit %d", exit.Code))
		}
	})
	return process, nil
}
