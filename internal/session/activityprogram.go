package session

import (
	"context"
	"encoding/json"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/contextfs"
	"github.com/scopefs/scopefs/internal/ledger"
	"github.com/scopefs/scopefs/scope/activities"
	"github.com/scopefs/scopefs/scope/agents"
	"github.com/scopefs/scopefs/tools"
	"github.com/scopefs/scopefs/tools/activity"
	"github.com/scopefs/scopefs/tools/sandbox"
)

// programs is where a sandbox shows the program of its call.
const programs = sandbox.Run + "/activities/"

// explicit has a program do a declared call, with the call's whole context, in a sandbox of the agent's. The sandbox is for this call
// alone: no process of another call can look into it, and none outlives it.
func (c *client) explicit(ctx context.Context, env tools.Env, call, by activities.Activity, params json.RawMessage) (tools.Result, error) {
	program, err := by.Open(c.agent.Paths.Base)
	if err != nil {
		return tools.Result{}, tools.Errorf(tools.Unavailable, "the program of %s cannot be run", by.Name).Because(err)
	}
	defer program.Close()
	p := c.newPurpose()
	p.Kind, p.Command = api.TaskSession, by.Name
	for _, shows := range []agents.Workspace{call.Workspace, by.Workspace} {
		p.NoView = p.NoView || shows == agents.WorkspaceNone
		p.ReadOnly = p.ReadOnly || shows == agents.WorkspaceRead
	}
	p.Binds = []sandbox.Bind{{File: program, At: programs + by.Name, Copy: true}}
	p.Context = func(string) *contextfs.Files { return c.contexts.Of(env.Call) }
	box, err := c.agent.Start(ctx, p)
	if err != nil {
		return tools.Result{}, err
	}
	defer box.End()
	if err := tools.Still(ctx); err != nil { // a start takes a while
		return tools.Result{}, err
	}
	command := sandbox.Command{Argv: []string{programs + by.Name}, Tag: env.Call}
	ended, err := c.agent.RecordExec(ctx,
		audit.Event{Session: box.Name, Chain: c.chain(), Call: env.Call, Target: ledger.CommandLine(command.Argv)})
	if err != nil {
		return tools.Result{}, err
	}
	r, err := activity.Run(ctx, box, command, call.Name, params, env.Context)
	if err != nil {
		ended(err.Error())
	} else {
		ended("exit 0")
	}
	return r, err
}
