package daemon

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/cmd/scopefs/internal/control"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/agents"
	"github.com/scopefs/scopefs/tools"
	"github.com/scopefs/scopefs/tools/delegate"
	"github.com/scopefs/scopefs/tools/sandbox"
)

// A task is what one agent has delegated to another. The operator's runner does
// it in a sandbox without a view. All that the runner does to files, commands,
// skills, servers and further members are calls of the member's tools, on a
// socket of this task alone: the socket says which agent calls, and for whom.

// Where a runner finds its tools.
const (
	taskSocket   = sandbox.Run + "/mcp.sock"
	taskPrograms = sandbox.Run + "/bin" // scopefs is there: scopefs mcp and scopefs call use the socket

	taskDoor = "task." // begins the name of a task's socket, and of no agent
)

// removeTaskDoors removes what a daemon has left that was killed.
func (d *Daemon) removeTaskDoors() {
	left, _ := filepath.Glob(d.paths.Door(taskDoor + "*"))
	for _, name := range left {
		os.Remove(name)
	}
}

// queues bound the tasks that run at the same time. Each depth has its own
// places: a task that waits for one below it holds none that it needs.
type queues struct {
	mu     sync.Mutex
	places map[queue]chan struct{}
}

// queue is that of a depth, and of one agent at it; "" is all of them.
type queue struct {
	depth int
	agent scope.ID
}

// hold waits for a place for a task of an agent's. An agent has half of all.
func (q *queues) hold(ctx context.Context, depth int, id scope.ID, parallel int) (free func(), err error) {
	own, all := q.of(queue{depth, id}, max(1, parallel/2)), q.of(queue{depth, ""}, parallel)
	for _, places := range []chan struct{}{own, all} {
		select {
		case places <- struct{}{}:
		case <-ctx.Done():
			if places == all {
				<-own
			}
			return nil, ctx.Err()
		}
	}
	return func() { <-all; <-own }, nil
}

func (q *queues) of(which queue, size int) chan struct{} {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.places == nil {
		q.places = map[queue]chan struct{}{}
	}
	if q.places[which] == nil {
		q.places[which] = make(chan struct{}, size)
	}
	return q.places[which]
}

// callers are the agents for which the client works, from the first on, and its own.
func (c *client) callers() []scope.ID {
	if c.by == nil {
		return []scope.ID{c.id}
	}
	return append(c.by.callers(), c.id)
}

// chain is callers for the log; "" for a client that works for nobody.
func (c *client) chain() string {
	if c.by == nil {
		return ""
	}
	return chainOf(c.callers())
}

func chainOf(ids []scope.ID) string {
	names := make([]string, len(ids))
	for i, id := range ids {
		names[i] = string(id)
	}
	return strings.Join(names, ">")
}

// purpose is what a sandbox of the client's is for: what its callers may not do
// to a view or a network is not done there either.
func (c *client) purpose() purpose {
	p := purpose{parent: c.name, chain: c.chain()}
	if c.by != nil {
		p.readOnly, p.noNetwork = c.rules().ReadOnly(), !c.network()
	}
	return p
}

// network reports whether the client's commands have the host's network.
func (c *client) network() bool {
	def, err := c.d.defined(c.id)
	if err != nil || def.Network != agents.NetworkHost {
		return false
	}
	return c.reaches()
}

// reaches reports whether the client's callers leave it what has a network of
// its own: servers with a URL.
func (c *client) reaches() bool {
	return c.by == nil || c.by.rules().Widens(c.id) || c.by.network()
}

// delegate has a member do a task, and returns what the runner wrote.
func (c *client) delegate(ctx context.Context, member scope.ID, task string) (delegate.Output, error) {
	host := c.d.host
	if len(host.Runner) == 0 {
		return delegate.Output{}, delegate.ErrNoRunner
	}
	callers := c.callers()
	switch {
	case slices.Contains(callers, member):
		return delegate.Output{}, tools.Errorf(tools.Denied, "%q waits for this task already: it is for %v", member, callers)
	case len(callers) > host.Tasks.Depth:
		return delegate.Output{}, tools.Errorf(tools.Denied, "tasks are %d deep already: do it without a member", host.Tasks.Depth)
	}
	free, err := c.d.tasks.hold(ctx, len(callers), c.id, host.Tasks.Parallel)
	if err != nil {
		return delegate.Output{}, err
	}
	defer free()
	// The clients of a task that ends do not wait for the log: the next task does.
	if err := c.d.pacesOf(member).settled(ctx); err != nil {
		return delegate.Output{}, err
	}
	v, err := c.d.bring(ctx, member, "", false)
	if errors.Is(err, errDown) {
		return delegate.Output{}, tools.Errorf(tools.Denied, "the operator has taken %q down", member)
	}
	if err != nil {
		return delegate.Output{}, err
	}
	binds, end, err := c.taskDoor(member, v.user())
	if err != nil {
		return delegate.Output{}, err
	}
	defer end()
	chain := chainOf(append(callers, member))
	session, name, err := c.d.startSession(ctx, member, purpose{parent: c.name, chain: chain, noView: true, network: host.Tasks.Network, binds: binds})
	if err != nil {
		return delegate.Output{}, err
	}
	defer c.d.endSession(member, session, name)
	// To wait and to start took a while.
	agent, err := c.d.defined(member)
	if err == nil {
		err = c.stillMember(ctx, member)
	}
	if err != nil {
		return delegate.Output{}, err
	}
	c.d.event(audit.Event{Event: audit.KindAgent, Agent: string(member), Session: name, Parent: c.name, Chain: chain, Outcome: "delegated to", Detail: "by " + string(c.id)})
	ended, err := c.d.recordExec(ctx, audit.Event{Agent: string(member), Session: name, Chain: chain, Target: commandLine(host.Runner)})
	if err != nil {
		return delegate.Output{}, err
	}
	command := sandbox.Command{Argv: host.Runner, Env: runnerEnv(host.Env, host.Tasks.Env)}
	out, err := delegate.Run(ctx, session, command, agent.Grants.Prompt()+"\n\n"+task)
	if err != nil {
		ended(err.Error())
	} else {
		ended(fmt.Sprintf("exit %d", out.Exit.Code))
	}
	return out, err
}

// runnerEnv returns the environment of a runner: that of all sandboxes, what the
// operator sets for runners, and where the task's tools are.
func runnerEnv(all, runners map[string]string) map[string]string {
	env := map[string]string{"PATH": sandbox.DefaultPath}
	maps.Copy(env, all)
	maps.Copy(env, runners)
	env["PATH"] = taskPrograms + ":" + env["PATH"]
	env[control.TaskEnv] = taskSocket
	return env
}

// taskDoor offers a member's tools for one task of the client's, to the member's
// user. It returns what a sandbox has to show for that; end ends the task's
// clients, and with them what they have delegated on.
func (c *client) taskDoor(member scope.ID, owner user) (binds []sandbox.Bind, end func(), err error) {
	name := c.d.paths.Door(taskDoor + rand.Text())
	at, err := c.d.newDoor(name, owner)
	if err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	at.cancel = cancel
	at.conns.Go(func() { c.d.receive(ctx, at, member, owner, c) })
	end = func() {
		at.cancel()
		at.listener.Close()
		at.conns.Wait()
		os.Remove(name)
		for _, b := range binds {
			b.File.Close()
		}
	}
	for _, b := range []struct{ from, to string }{{name, taskSocket}, {"/proc/self/exe", taskPrograms + "/scopefs"}} {
		fd, err := unix.Open(b.from, unix.O_PATH|unix.O_CLOEXEC, 0)
		if err != nil {
			end()
			return nil, nil, fmt.Errorf("show %s to a runner: %w", filepath.Base(b.to), err)
		}
		binds = append(binds, sandbox.Bind{File: os.NewFile(uintptr(fd), b.from), At: b.to})
	}
	return binds, end, nil
}

// stillMember decides again about a delegation.
func (c *client) stillMember(ctx context.Context, member scope.ID) error {
	if err := tools.Still(ctx); err != nil {
		return err
	}
	if d := c.rules().Member(string(member)); !d.Allow {
		return tools.Refused(d, tools.NotFound, "no member %q", member)
	}
	return nil
}
