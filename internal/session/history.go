package session

import (
	"context"
	"encoding/json"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/fs/history/query"
	"github.com/scopefs/scopefs/internal/ledger"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/tools"
)

// history answers a request about the history of the client's agent, for the changes of this client alone. It needs the view,
// whose rules decide.
func (c *client) history(ctx context.Context, env tools.Env, r query.Request) (*query.Reply, error) {
	if c.held != nil {
		d := scope.Decision{Kind: scope.KindNeed, Rule: "the caller commits what a task has changed"}
		return nil, tools.Refused(d, tools.Denied, "this task works on a copy of the files of %s, which commits its changes", c.by.agent.id)
	}
	if _, err := c.agent.Mount(ctx, false); err != nil {
		return nil, err
	}
	if (r.Diff != nil || r.Commit != nil) && c.rules().HoldsTasks() {
		return nil, tools.Errorf(tools.Invalid, "which changes are meant: give the task that delegate has named")
	}
	r.Client = c.name
	request, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	if r.Checkpoint != nil || r.Undo != nil || r.Commit != nil {
		c.agent.Spend(make([]audit.Event, 2)) // of its beginning and its end
	}
	answer, err := c.recorded(ctx, env, request, c.agent.History)
	if err != nil {
		return nil, err
	}
	reply := &query.Reply{}
	return reply, json.Unmarshal(answer, reply) // the view may answer anything
}

// recorded has answer answer a request about a history for a call, and records what it changes.
func (c *client) recorded(ctx context.Context, env tools.Env, request json.RawMessage,
	answer func(context.Context, json.RawMessage) (json.RawMessage, error)) (json.RawMessage, error) {
	by := audit.Event{Agent: string(c.agent.id), Session: c.name, Call: env.Call, Chain: c.chain()}
	return ledger.RecordHistory(ctx, c.agent, request, by, answer)
}
