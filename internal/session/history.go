package session

import (
	"context"
	"encoding/json"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/fs/history/query"
	"github.com/scopefs/scopefs/internal/ledger"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/agents"
	"github.com/scopefs/scopefs/tools"
	"github.com/scopefs/scopefs/tools/changes"
)

// histories returns the histories of the directories of the client's agent. With held they are those of what is held.
func (c *client) histories(held bool) changes.Histories {
	return changes.Histories{Own: c.history, Dirs: c.dirs, Roots: func(context.Context) (roots []changes.Root) {
		ids, _ := c.agent.rootsOf(c.newPurpose())
		for _, id := range ids {
			of, err := c.agent.Member(id)
			if err != nil || of.View() == nil { // no sandbox of the client has it
				continue
			}
			def := of.View().Definition()
			if now := def.View.Changes == agents.ChangesHeld; now != held || !now && !of.View().Keeps() || def.View.Closed {
				continue // an approval of a root with ask is for its programs: a diff could show more, later
			}
			roots = append(roots, changes.Root{Dir: def.Dir, History: func(ctx context.Context, env tools.Env, r query.Request) (*query.Reply, error) {
				return c.historyOf(ctx, of, env, r)
			}})
		}
		return roots
	}}
}

// history answers a request about the history of the client's agent, for the changes of this client alone. It needs the view,
// whose rules decide.
func (c *client) history(ctx context.Context, env tools.Env, r query.Request) (*query.Reply, error) {
	return c.historyOf(ctx, c.agent, env, r)
}

// historyOf is history of an agent: the client's, or a root of it.
func (c *client) historyOf(ctx context.Context, of *Agent, env tools.Env, r query.Request) (*query.Reply, error) {
	if c.held != nil {
		d := scope.Decision{Kind: scope.KindNeed, Rule: "the caller commits what a task has changed"}
		return nil, tools.Refused(d, tools.Denied, "this task works on a copy of the files of %s, which commits its changes", c.by.agent.id)
	}
	if _, err := of.Mount(ctx, false); err != nil {
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
	answer, err := c.recorded(ctx, env, of, request, of.History)
	if err != nil {
		return nil, err
	}
	reply := &query.Reply{}
	return reply, json.Unmarshal(answer, reply) // the view may answer anything
}

// recorded has answer answer a request about a history of an agent for a call, and records what it changes.
func (c *client) recorded(ctx context.Context, env tools.Env, of *Agent, request json.RawMessage,
	answer func(context.Context, json.RawMessage) (json.RawMessage, error)) (json.RawMessage, error) {
	by := audit.Event{Agent: string(of.id), Session: c.name, Call: env.Call, Chain: c.chain()}
	return ledger.RecordHistory(ctx, of, request, by, answer)
}
