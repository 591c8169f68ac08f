package session

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/audit/trace"
	"github.com/scopefs/scopefs/internal/account"
	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/internal/contextfs"
	"github.com/scopefs/scopefs/internal/ledger"
	"github.com/scopefs/scopefs/internal/runner"
	"github.com/scopefs/scopefs/scope"
	scoped "github.com/scopefs/scopefs/scope/context"
	"github.com/scopefs/scopefs/scope/hosts"
	"github.com/scopefs/scopefs/tools"
	"github.com/scopefs/scopefs/tools/delegate"
	"github.com/scopefs/scopefs/tools/sandbox"
)

// A task is what one agent has delegated to another. The operator's runner does
// it in a sandbox without a view. All that the runner does to files, commands,
// skills, servers and further members are calls of the member's tools, on a
// socket of this task alone. The socket identifies the member and its callers.

// Where a runner finds its tools.
const (
	taskSocket   = sandbox.Run + "/mcp.sock"
	taskPrograms = sandbox.Run + "/bin" // scopefs is there: scopefs mcp and scopefs call use the socket

	taskSocketName = "task." // begins the name of a task's socket, and of no agent
)

// RemoveTaskSockets removes the sockets of tasks that a killed daemon has left.
func RemoveTaskSockets(p config.Paths) {
	dir := filepath.Dir(p.ToolSocket(""))
	left, _ := os.ReadDir(dir)
	for _, e := range left {
		if strings.HasPrefix(e.Name(), taskSocketName) {
			os.Remove(filepath.Join(dir, e.Name()))
		}
	}
}

// callers returns the agents that the client works for, the first one first, and its own
// last.
func (c *client) callers() []scope.ID {
	if c.by == nil {
		return []scope.ID{c.agent.id}
	}
	return append(c.by.callers(), c.agent.id)
}

// within returns the agents whose allow-lists bound the client: its own, and those of
// the callers that it may do no more than.
func (c *client) within() []scope.ID {
	if c.by == nil || c.by.rules().Widens(c.agent.id) {
		return []scope.ID{c.agent.id}
	}
	return append(c.by.within(), c.agent.id)
}

// chain returns callers for the log; "" for a client that works for no other agent.
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

// newPurpose returns the purpose of a sandbox of the client: what its callers may not do
// to a view or a network, the sandbox may not do either.
func (c *client) newPurpose() Purpose {
	p := Purpose{Parent: c.name, Trace: c.trace, Once: c.once, Chain: c.chain(), Held: c.held, Kind: api.ClientSession, Context: c.contexts.Of, Hosts: func() *hosts.Policy { return c.rules().Hosts() }}
	if c.by != nil {
		p.ReadOnly = c.rules().ReadOnly()
	}
	return p
}

// reaches reports whether the client's callers let it use a server with a URL, which has
// a network of its own.
func (c *client) reaches(address string) bool {
	if c.by == nil || c.by.rules().Widens(c.agent.id) {
		return true
	}
	u, err := url.Parse(address)
	if err != nil {
		return false
	}
	d, _, err := c.by.rules().Hosts().URL(http.MethodPost, u)
	return err == nil && d.Allow
}

// work is a task that a client's clients do: they work for by.
type work struct {
	by      *client    // nil: they work for no other agent
	held    *changeSet // on whose view they work; nil: their agent's own
	context *scoped.Environment
	module  bool          // the member has no prompt of its own
	trace   trace.Context // the span of the call of by that waits for it
	earlier *Sandbox      // that the last daemon has left for the client; nil: none
	web     bool          // the client of HTTP requests
}

// hands returns what gives the client's tasks to members.
func (c *client) hands() delegate.Tools {
	return delegate.Tools{Run: c.delegate, Members: func() []scope.ID { return c.rules().Members() },
		Decide: func(name string) scope.Decision { return c.rules().Member(name) },
		ID:     func(name string) scope.ID { return c.rules().MemberID(name) }}
}

// delegate makes a member do a task, and returns the output of the runner and what waits for a commit.
func (c *client) delegate(ctx context.Context, id scope.ID, task delegate.Task) (delegate.Done, error) {
	if len(c.agent.Settings.Runner) == 0 {
		return delegate.Done{}, delegate.ErrNoRunner
	}
	var set *changeSet
	out, err := c.run(ctx, id, task, &set)
	if set == nil {
		return delegate.Done{Output: out}, err
	}
	changes, err := set.finish(ctx, out, err)
	return delegate.Done{Output: out, Changes: changes}, err
}

// run runs the operator's runner for a task. It sets the branch on which the member has worked, if it is on one, also beside
// an error. No process of the task is left when it returns.
func (c *client) run(ctx context.Context, id scope.ID, task delegate.Task, set **changeSet) (sandbox.Output, error) {
	settings, callers := c.agent.Settings, c.callers()
	switch {
	case slices.Contains(callers, id):
		d := scope.Decision{Kind: scope.KindLimit, Rule: "a member does no task of its own callers"}
		return sandbox.Output{}, tools.Refused(d, tools.Denied, "%q waits for this task already: it is for %v", id, callers)
	case len(callers) > settings.Tasks.Depth:
		d := scope.Decision{Kind: scope.KindLimit, Rule: fmt.Sprintf("tasks.depth in scopefs.yaml: %d", settings.Tasks.Depth)}
		return sandbox.Output{}, tools.Refused(d, tools.Denied, "tasks are %d deep already: do it without a member", settings.Tasks.Depth)
	}
	free, err := c.agent.tasks.Hold(ctx, len(callers), c.agent.id, settings.Tasks.Parallel)
	if err != nil {
		return sandbox.Output{}, err
	}
	defer free()
	member, err := c.agent.Registry.Member(id)
	if wrong, ok := errors.AsType[*api.NotLoadedError](err); ok {
		return sandbox.Output{}, tools.Errorf(tools.Unavailable, "%q does not load: %v", id, wrong.Err)
	}
	if err != nil {
		return sandbox.Output{}, err
	}
	// The clients of a task that ends do not wait for the log: the next task does.
	if err := member.paces.Settled(ctx); err != nil {
		return sandbox.Output{}, err
	}
	v, err := member.Mount(ctx, false)
	if errors.Is(err, ErrDown) {
		d := scope.Decision{Kind: scope.KindNeed, Rule: "the member is down: scopefs up " + string(id)}
		return sandbox.Output{}, tools.Refused(d, tools.Denied, "the operator has taken %q down", id)
	}
	if err != nil {
		return sandbox.Output{}, err
	}
	given, err := contextfs.New(contentOf(task.Context))
	if err != nil {
		return sandbox.Output{}, notShown(err)
	}
	if c.rules().HoldsTasks() {
		if *set, err = c.fork(ctx, member); err != nil {
			return sandbox.Output{}, err
		}
	}
	made := tools.Trace(ctx)
	made.State = "" // it is for the caller's own servers
	binds, end, err := c.openTask(member, v.User(), work{by: c, held: *set, context: task.Context.Environment(), module: task.Module, trace: made})
	if err != nil {
		return sandbox.Output{}, err
	}
	defer end()
	chain := chainOf(append(callers, id))
	box, err := member.Start(ctx, Purpose{Parent: c.name, Trace: made, Chain: chain, Kind: api.TaskSession, Command: ledger.CommandLine(settings.Runner), NoView: true, Hosts: member.runnerHosts, Binds: binds, Context: func(string) *contextfs.Files { return given }})
	if err != nil {
		return sandbox.Output{}, err
	}
	defer box.End()
	// The wait for a slot and the start took a while.
	def, err := member.Definition()
	if err == nil {
		err = c.stillMember(ctx, id)
	}
	if err != nil {
		return sandbox.Output{}, err
	}
	detail := "by " + string(c.agent.id)
	if *set != nil {
		detail += ", " + (*set).target()
	}
	c.agent.Event(audit.Event{Event: audit.KindAgent, Agent: string(id), Session: box.Name, Parent: c.name, Chain: chain, Outcome: "delegated to", Detail: detail, Trace: made.String()})
	ended, err := member.RecordExec(ctx, audit.Event{Session: box.Name, Parent: c.name, Chain: chain, Target: ledger.CommandLine(settings.Runner), Trace: made.String()})
	if err != nil {
		return sandbox.Output{}, err
	}
	env := runner.Env(taskPrograms, taskSocket, def.Model, settings.Env, settings.Tasks.Env)
	maps.Copy(env, made.Environ())
	input, err := runner.Input(settings.Tasks.Input, def, def.Grants.Delegated(c.rules()).Prompt(), task)
	if err != nil {
		return sandbox.Output{}, err
	}
	within, cancel := ctx, context.CancelFunc(func() {})
	if def.Model.Timeout > 0 {
		within, cancel = context.WithTimeout(ctx, def.Model.Timeout)
	}
	defer cancel()
	command := sandbox.Command{Argv: settings.Runner, Env: env}
	out, err := sandbox.Collect(within, box, command, input, delegate.MaxAnswer, 2*delegate.MaxErrors)
	if within.Err() != nil && ctx.Err() == nil {
		err = tools.Errorf(tools.Unavailable, "%s took longer than %v, its timeout", id, def.Model.Timeout)
	}
	if err != nil {
		ended(err.Error())
	} else {
		ended(fmt.Sprintf("exit %d", out.Exit.Code))
	}
	return out, err
}

// openTask opens a socket with the member's tools for one task of the client, for the
// member's user. A sandbox shows binds to the runner. end ends the task's clients, and
// with them the tasks that they have delegated.
func (c *client) openTask(member *Agent, owner account.User, task work) (binds []sandbox.Bind, end func(), err error) {
	s, err := member.listen(c.agent.Paths.ToolSocket(taskSocketName+rand.Text()), owner, task)
	if err != nil {
		return nil, nil, err
	}
	end = func() {
		s.close()
		for _, b := range binds {
			b.File.Close()
		}
	}
	for _, b := range []struct{ from, to string }{{s.name, taskSocket}, {"/proc/self/exe", taskPrograms + "/scopefs"}} {
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
