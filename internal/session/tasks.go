package session

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/scopefs/scopefs/audit/trace"
	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/contextfs"
	"github.com/scopefs/scopefs/internal/ledger"
	"github.com/scopefs/scopefs/internal/outlive"
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
func (c *client) within() []scope.Principal {
	own := c.rules().Principal()
	if c.by == nil || c.by.rules().Widens(c.agent.id) {
		return []scope.Principal{own}
	}
	return append(c.by.within(), own)
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
	p := Purpose{Parent: c.name, Trace: c.trace, Once: c.once, Chain: c.chain(), Held: c.held, Kind: api.ClientSession,
		Context: c.contexts.Of, Hosts: func() *hosts.Policy { return c.rules().Hosts() }}
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
	full    bool          // the client reads whole schemas
}

// hands returns what gives the client's tasks to members.
func (c *client) hands() delegate.Tools {
	return delegate.Tools{Run: c.delegate, Members: func() []scope.ID { return c.rules().Members() },
		Decide: func(name string) scope.Decision { return c.rules().Member(name) },
		ID:     func(name string) scope.ID { return c.rules().MemberID(name) }}
}

// delegate makes a member do a task, and returns the output of the runner and what waits for a commit.
func (c *client) delegate(ctx context.Context, env tools.Env, id scope.ID, task delegate.Task) (delegate.Done, error) {
	if len(c.agent.Settings.Runner) == 0 {
		return delegate.Done{}, delegate.ErrNoRunner
	}
	var set *changeSet
	out, err := c.run(ctx, env, id, task, &set)
	if set == nil {
		return delegate.Done{Output: out}, err
	}
	changes, err := set.finish(ctx, out, err)
	return delegate.Done{Output: out, Changes: changes}, err
}

// run runs the operator's runner for a task, or continues with that of an earlier daemon. It sets the branch on which the member
// has worked, if it is on one, also beside an error. No process of the task is left when it returns, unless that is left to the next
// daemon.
func (c *client) run(ctx context.Context, env tools.Env, id scope.ID, task delegate.Task, set **changeSet) (out sandbox.Output, err error) {
	left := func(err error) error {
		if err != nil && env.Resumed && ctx.Err() != nil && c.leaves() { // before Collect could say so
			return tools.ErrLeft
		}
		return err
	}
	defer func() { err = left(err) }()
	settings, callers := c.agent.Settings, c.callers()
	switch {
	case slices.Contains(callers, id):
		d := scope.Decision{Kind: scope.KindLimit, Rule: "a member does no task of its own callers"}
		return out, tools.Refused(d, tools.Denied, "%q waits for this task already: it is for %v", id, callers)
	case len(callers) > settings.Tasks.Depth:
		d := scope.Decision{Kind: scope.KindLimit, Rule: fmt.Sprintf("tasks.depth in scopefs.yaml: %d", settings.Tasks.Depth)}
		return out, tools.Refused(d, tools.Denied, "tasks are %d deep already: do it without a member", settings.Tasks.Depth)
	}
	free, err := c.agent.tasks.hold(ctx, len(callers), c.agent.id, settings.Tasks.Parallel, env.Resumed)
	if err != nil {
		return out, err
	}
	defer free()
	member, err := c.agent.Member(id)
	if wrong, ok := errors.AsType[*api.NotLoadedError](err); ok {
		return out, tools.Errorf(tools.Unavailable, "%q cannot take tasks now", id).Because(wrong)
	}
	if err == nil && !env.Resumed { // the clients of a task that ends do not wait for the log: the next task does
		err = member.paces.Settled(ctx)
	}
	if err != nil {
		return out, err
	}
	v, err := member.Mount(ctx, false)
	if errors.Is(err, ErrDown) {
		d := scope.Decision{Kind: scope.KindNeed, Rule: "the member is down: scopefs up " + string(id)}
		return out, tools.Refused(d, tools.Denied, "the operator has taken %q down", id)
	}
	if err != nil {
		return out, err
	}
	given, err := contextfs.New(env.Call, contextfs.ContentOf(task.Context))
	if err != nil {
		return out, notShown(err)
	}
	switch held := c.rules().HoldsTasks(); {
	case held && env.Resumed:
		return out, tools.Errorf(tools.Conflict, "the member's changes are to be held now, and this task was begun without")
	case held:
		if *set, err = c.fork(ctx, member); err != nil {
			return out, err
		}
	}
	made := tools.Trace(ctx)
	made.State = "" // it is for the caller's own servers
	chain := chainOf(append(callers, id))
	t := runnersTask{
		client: c, env: env, member: member, owner: v.User(),
		work: work{by: c, held: *set, context: task.Context.Environment(), module: task.Module, trace: made},
		purpose: Purpose{
			Parent: c.name, Trace: made, Chain: chain, Kind: api.TaskSession, Command: ledger.CommandLine(settings.Runner), NoView: true,
			Hosts: member.runnerHosts, Task: &outlive.Task{Caller: c.agent.id, Call: env.Call, Chain: chain},
			Context: func(string) *contextfs.Files { return given },
		},
	}
	begin := t.start
	if env.Resumed {
		begin = t.resume
	}
	err = begin(ctx)
	defer func() { t.close(left(err)) }()
	if err != nil {
		return out, err
	}
	// The wait for a slot and the start took a while.
	def, err := member.Definition()
	if err == nil {
		err = c.stillMember(ctx, id)
	}
	if err != nil {
		return out, err
	}
	ended, err := t.record(ctx)
	if err != nil {
		return out, err
	}
	variables := runnerEnv(taskPrograms, taskSocket, def.Model, settings.Env, settings.Tasks.Env)
	maps.Copy(variables, made.Environ())
	input, err := runnerInput(settings.Tasks.Input, def, def.Grants.Delegated(c.rules()).Prompt(), task)
	if err != nil {
		return out, err
	}
	command := sandbox.Command{Argv: settings.Runner, Env: variables}
	out, err = c.shell.Collect(ctx, env, t.box, command, input, def.Model.Timeout, delegate.MaxAnswer, 2*delegate.MaxErrors)
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		err = tools.Errorf(tools.Unavailable, "%s took longer than %v, its timeout", id, def.Model.Timeout)
	}
	switch {
	case errors.Is(err, tools.ErrLeft): // the next daemon records it
	case err != nil:
		ended(err.Error())
	default:
		ended(fmt.Sprintf("exit %d", out.Exit.Code))
	}
	return out, err
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
