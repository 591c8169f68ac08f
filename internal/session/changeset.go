package session

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/fs/history/query"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/agents"
	"github.com/scopefs/scopefs/tools"
	"github.com/scopefs/scopefs/tools/delegate"
	"github.com/scopefs/scopefs/tools/sandbox"
)

// A changeSet is a branch of an agent's directory on which a member does one task, in a view of its own. When the task has
// ended, the view is unmounted, and no process can change the branch: the client that gave the task commits or discards it.
type changeSet struct {
	id     scope.ID // the task's, and the name of its view and its branch
	by     *client  // the caller's
	member *Agent
	chain  string
	branch Branch
	from   string // see rootOf

	turn chan struct{} // holds a value while a request is answered, or the branch is removed

	mu    sync.Mutex
	gone  bool // the branch is removed
	timer *time.Timer
}

// The bounds of the change sets that wait for a client. The oldest one is dropped for another.
const (
	maxSets = 8
	setAge  = 24 * time.Hour
)

// TaskPrefix begins the ids of tasks. 26 random characters follow.
const TaskPrefix = "task-"

// rootOf returns what of a caller's definition a branch cannot follow.
func rootOf(def *agents.Definition) string {
	return fmt.Sprintf("%q %q %q", def.Dir, def.User, def.History.Dir)
}

// fork makes a branch of the client's directory for a task of a member, and mounts it.
func (c *client) fork(ctx context.Context, member *Agent) (*changeSet, error) {
	if c.held != nil {
		d := scope.Decision{Kind: scope.KindLimit, Rule: "a branch has no branches"}
		return nil, tools.Refused(d, tools.Denied, "this task works on a branch already, and delegate: {changes: held} needs another one: "+
			"do it without a member")
	}
	if _, err := c.agent.Mount(ctx, false); err != nil {
		return nil, err
	}
	caller, err := c.agent.Definition()
	if err != nil {
		return nil, err
	}
	id := scope.ID(TaskPrefix + strings.ToLower(rand.Text()))
	s := &changeSet{id: id, by: c, member: member, from: rootOf(caller.Definition), turn: make(chan struct{}, 1)}
	s.chain = chainOf(append(c.callers(), member.id))
	if s.branch, err = c.agent.Branch(Task{id, member.id, s.chain}); err != nil {
		return nil, err
	}
	if err := s.branch.Mount(ctx); err != nil {
		s.drop("it could not be mounted")
		return nil, tools.Errorf(tools.Unavailable, "no branch of the files can be made").
			Suggest("ask the operator: the daemon's log has the reason").Because(err)
	}
	if err := s.record(ctx, "fork", "done", ""); err != nil {
		s.drop("it could not be recorded")
		return nil, err
	}
	return s, nil
}

// finish ends the work on a branch, and returns its changes for the client. A task that has failed, and one that changed
// nothing, leaves none.
func (s *changeSet) finish(ctx context.Context, out sandbox.Output, err error) (*delegate.Changes, error) {
	s.branch.Unmount()
	if err != nil || out.Exit.Code != 0 || out.Exit.Signal != 0 {
		s.drop("the task has failed")
		return nil, err
	}
	reply, err := s.ask(ctx, query.Request{Client: s.by.name, Diff: &query.Branch{}})
	switch {
	case err != nil:
		s.drop("its changes could not be listed: " + err.Error())
		return nil, tools.Errorf(tools.Unavailable, "the task has ended, and its changes cannot be listed: they are dropped").Because(err)
	case reply.Nothing == "" && reply.Total == 0 && s.empty(ctx):
		s.drop("it has no changes")
		return nil, nil
	}
	all := &delegate.Changes{Task: string(s.id), Total: reply.Total, Summary: summaryOf(reply.Nothing)}
	if reply.Shown != nil {
		lines, _, _ := strings.Cut("\n"+reply.Shown.Text, "\n--- ")
		all.Summary, all.List = summaryOf(reply.Shown.Note), tools.Clip(strings.TrimPrefix(lines, "\n"), delegate.MaxList)
	}
	if err := s.record(ctx, "waits", "done", all.Summary); err != nil {
		s.drop("it could not be recorded")
		return nil, err
	}
	if oldest, ok := s.by.keep(s); !ok {
		s.drop("the session has ended")
		return nil, sandbox.ErrEnded
	} else if oldest != nil {
		oldest.drop(fmt.Sprintf("the session has more than %d", maxSets))
	}
	return all, nil
}

// summaryOf returns what a process says of a branch. The log gets it, too, and the process may say anything.
func summaryOf(text string) string { return tools.Clean(tools.Clip(text, maxSummary)) }

// maxSummary bounds Changes.Summary, in bytes.
const maxSummary = 1000

// empty reports whether nothing differs, also of what the rules hide.
func (s *changeSet) empty(ctx context.Context) bool {
	reply, err := s.ask(ctx, query.Request{Diff: &query.Branch{}})
	return err == nil && reply.Total == 0
}

// keep adds a change set to those that wait. If there are too many, it returns the oldest one, which does not wait any more and
// which the caller drops; and false for a client that has ended.
func (c *client) keep(s *changeSet) (oldest *changeSet, ok bool) {
	s.mu.Lock()
	s.timer = time.AfterFunc(setAge, func() { s.drop(fmt.Sprintf("it has waited %v", setAge)) })
	s.mu.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, false
	}
	if c.sets = append(c.sets, s); len(c.sets) > maxSets {
		oldest, c.sets = c.sets[0], slices.Clone(c.sets[1:])
	}
	return oldest, true
}

// changeSet returns that of a task.
func (c *client) changeSet(task string) (*changeSet, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	ids := []string{}
	for _, s := range c.sets {
		if string(s.id) == task {
			return s, nil
		}
		ids = append(ids, string(s.id))
	}
	e := tools.Errorf(tools.NotFound, "no task %s has changes for this session", tools.Quote(tools.Clip(task, 100)))
	e.Hint = "none has"
	if len(ids) > 0 {
		e.Hint = "these have: " + strings.Join(ids, ", ")
	}
	return nil, e
}

// dropSets drops what the client has not committed.
func (c *client) dropSets() {
	c.mu.Lock()
	all := slices.Clone(c.sets)
	c.mu.Unlock()
	var dropping sync.WaitGroup
	for _, s := range all { // side by side: each waits for a process that has the branch open
		dropping.Go(func() { s.drop("the session has ended") })
	}
	dropping.Wait()
}

// drop removes the branch. It waits for a request that is under way. Later calls do nothing.
func (s *changeSet) drop(why string) {
	s.turn <- struct{}{}
	defer func() { <-s.turn }()
	s.branch.Unmount()
	c := s.by
	c.mu.Lock()
	c.sets = slices.DeleteFunc(c.sets, func(o *changeSet) bool { return o == s })
	c.mu.Unlock()
	s.mu.Lock()
	first := !s.gone
	s.gone = true
	if s.timer != nil {
		s.timer.Stop()
	}
	s.mu.Unlock()
	if !first {
		return
	}
	outcome := "done"
	if err := s.branch.Remove(); err != nil {
		c.agent.Logger.Error("the branch of a task is left: the next daemon removes it", "agent", c.agent.id, "task", s.id, "err", err)
		outcome, why = "failed", why+": "+err.Error()
	}
	c.agent.Event(s.event("discard", outcome, why))
}

func (s *changeSet) event(op, outcome, detail string) audit.Event {
	return audit.Event{Event: audit.KindHistory, Agent: string(s.by.agent.id), Session: s.by.name, Chain: s.chain, Op: op, Target: s.target(),
		Outcome: outcome, Detail: detail}
}

func (s *changeSet) record(ctx context.Context, op, outcome, detail string) error {
	return s.by.agent.Record(ctx, s.event(op, outcome, detail))
}

func (s *changeSet) target() string { return "task " + string(s.id) }

// ask answers a request about the branch by the caller's current rules. It changes nothing: see commit.
func (s *changeSet) ask(ctx context.Context, r query.Request) (reply *query.Reply, err error) {
	err = s.with(ctx, func(o BranchProcess) error {
		reply, err = request(ctx, o, r)
		return err
	})
	return reply, err
}

// with calls f with a process that has the branch open. One does at a time.
func (s *changeSet) with(ctx context.Context, f func(BranchProcess) error) error {
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-ctx.Done():
		return ctx.Err()
	}
	s.mu.Lock()
	gone := s.gone
	s.mu.Unlock()
	if gone {
		return tools.Errorf(tools.NotFound, "the changes of this task were dropped, or committed")
	}
	a := s.by.agent
	if _, err := a.Mount(ctx, false); err != nil { // the process is in the agent's control group, beside its view
		return err
	}
	def, err := a.Definition()
	if err != nil {
		return err
	}
	if rootOf(def.Definition) != s.from {
		return tools.Errorf(tools.Conflict, "the operator has given this agent another directory or user since the task was given").
			Suggest("discard the changes of the task")
	}
	o, err := s.branch.Open()
	if err != nil {
		return err
	}
	defer o.Close()
	return f(o)
}

// request sends a request to a process that has a branch open.
func request(ctx context.Context, o BranchProcess, r query.Request) (*query.Reply, error) {
	text, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	answer, err := o.History(ctx, text)
	if err != nil {
		return nil, err
	}
	reply := &query.Reply{}
	return reply, json.Unmarshal(answer, reply) // the process may answer anything
}

// askTask answers a request about the changes of a task that a member did for the client: see changes.Tasks.
func (c *client) askTask(ctx context.Context, env tools.Env, task string, r query.Request) (*query.Reply, error) {
	s, err := c.changeSet(task)
	if err != nil {
		return nil, err
	}
	r.Client = c.name
	if r.Commit != nil {
		return s.commit(ctx, env, r)
	}
	return s.ask(ctx, r)
}

// discardTask drops the changes of a task.
func (c *client) discardTask(task string) error {
	s, err := c.changeSet(task)
	if err == nil {
		s.drop("by the agent")
	}
	return err
}
