package session

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/fs/history/query"
	"github.com/scopefs/scopefs/internal/view"
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
	place  string   // of the branch
	from   string   // see rootOf
	lock   *os.File // of place

	turn chan struct{} // holds a value while a request is answered, or the branch is removed

	mu    sync.Mutex
	view  *view.View // while the member works
	gone  bool       // the branch is removed
	timer *time.Timer
}

// The bounds of the change sets that wait for a client. The oldest one is dropped for another.
const (
	maxSets = 8
	setAge  = 24 * time.Hour
)

// taskPrefix begins the ids of tasks. 26 random characters follow.
const taskPrefix = "task-"

// heldTasks are all change sets of a daemon.
type heldTasks struct {
	mu  sync.Mutex
	all map[*changeSet]struct{}
}

func (h *heldTasks) add(s *changeSet) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.all == nil {
		h.all = map[*changeSet]struct{}{}
	}
	h.all[s] = struct{}{}
}

func (h *heldTasks) remove(s *changeSet) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.all, s)
}

// views returns the views of tasks that are under way, with their change sets.
func (h *heldTasks) views() map[*changeSet]*view.View {
	h.mu.Lock()
	all := slices.Collect(maps.Keys(h.all))
	h.mu.Unlock()
	views := map[*changeSet]*view.View{}
	for _, s := range all {
		if v := s.current(); v != nil {
			views[s] = v
		}
	}
	return views
}

// RuleTasks makes the views of tasks decide by the current rules.
func (s *Shared) RuleTasks() {
	var ruling sync.WaitGroup
	for set, v := range s.held.views() { // side by side: a view that is stuck delays no other
		ruling.Go(func() { set.rule(v) })
	}
	ruling.Wait()
}

// UpdateTaskLogs sends the views of tasks whether the log can be written.
func (s *Shared) UpdateTaskLogs() {
	var telling sync.WaitGroup
	for _, v := range s.held.views() { // side by side: a view that is stuck takes a while
		telling.Go(v.UpdateLog)
	}
	telling.Wait()
}

// rule makes the task's view decide by the current rules. After an error the next process of the view does.
func (s *changeSet) rule(v *view.View) {
	if def, err := s.definition(); err == nil {
		if _, err := v.SetRules(def.View.PolicySpec()); err != nil {
			s.by.agent.Logger.Warn("the view of a task is restarted", "agent", s.member.id, "task", s.id, "err", err)
		}
	}
}

// definition returns that of the task's view.
func (s *changeSet) definition() (*agents.Definition, error) {
	caller, err1 := s.by.agent.Definition()
	member, err2 := s.member.Definition()
	if err := errors.Join(err1, err2); err != nil {
		return nil, err
	}
	return agents.Task(s.id, caller.Definition, member.Definition), nil
}

// rootOf returns what of a caller's definition a branch cannot follow.
func rootOf(def *agents.Definition) string {
	return fmt.Sprintf("%q %q %q", def.Dir, def.User, def.History.Dir)
}

func (s *changeSet) current() *view.View {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.view
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
	id := scope.ID(taskPrefix + strings.ToLower(rand.Text()))
	s := &changeSet{id: id, by: c, member: member, from: rootOf(caller.Definition), turn: make(chan struct{}, 1)}
	s.chain = chainOf(append(c.callers(), member.id))
	def, err := s.definition()
	if err != nil {
		return nil, err
	}
	s.place = c.agent.Paths.History(def.Name, def.History.Dir)
	if err := s.mount(ctx, def); err != nil {
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

// make makes the directory of the branch, and locks it: another daemon must not remove it as left over.
func (s *changeSet) make(def *agents.Definition) error {
	host := &s.by.agent.Host
	root, owner, err := host.OpenScope(def)
	if err != nil {
		return err
	}
	defer root.Close()
	dir, err := host.OpenHistory(def, root, owner)
	if err != nil {
		return err
	}
	defer dir.Close()
	if s.lock, err = view.LockBranch(s.place); err != nil {
		return err
	}
	return view.Parties{Caller: s.by.agent.id, Member: s.member.id}.Write(dir)
}

// mount mounts the task's view.
func (s *changeSet) mount(ctx context.Context, def *agents.Definition) error {
	if err := s.make(def); err != nil {
		return err
	}
	host := &s.by.agent.Host
	at := filepath.Join(host.Paths.Views(), string(s.id))
	hidden, err := host.PrepareMountPoint(s.id, at)
	if err != nil {
		return err
	}
	v := view.Start(ctx, host, &taskAgent{s.member, s}, def, at, hidden)
	s.mu.Lock()
	s.view = v
	s.mu.Unlock()
	s.by.agent.held.add(s)
	s.rule(v) // a reload did not know it yet
	return v.Wait(ctx)
}

// unmount ends the task's view, and with it each process that could change the branch.
func (s *changeSet) unmount() {
	v := s.current()
	if v == nil {
		return
	}
	v.Down()
	s.mu.Lock()
	s.view = nil
	s.mu.Unlock()
}

// finish ends the work on a branch, and returns its changes for the client. A task that has failed, and one that changed
// nothing, leaves none.
func (s *changeSet) finish(ctx context.Context, out sandbox.Output, err error) (*delegate.Changes, error) {
	s.unmount()
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
	s.unmount()
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
	c.agent.held.remove(s)
	outcome := "done"
	if err := view.RemoveBranch(s.place); err != nil {
		c.agent.Logger.Error("the branch of a task is left: the next daemon removes it", "agent", c.agent.id, "task", s.id, "err", err)
		outcome, why = "failed", why+": "+err.Error()
	}
	if s.lock != nil {
		s.lock.Close()
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
	err = s.with(ctx, func(o *view.Offline) error {
		reply, err = request(ctx, o, r)
		return err
	})
	return reply, err
}

// with calls f with a process that has the branch open. One does at a time.
func (s *changeSet) with(ctx context.Context, f func(*view.Offline) error) error {
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
	task := agents.TaskOf(s.id, def.Definition)
	o, err := view.StartOffline(&a.Host, &taskAgent{a, s}, task, task.View.PolicySpec())
	if err != nil {
		return err
	}
	defer o.Close()
	return f(o)
}

// request sends a request to a process that has a branch open.
func request(ctx context.Context, o *view.Offline, r query.Request) (*query.Reply, error) {
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

// taskAgent is whose view the branch of a task has, or the process that answers about it: the member's, or the caller's.
type taskAgent struct {
	*Agent
	set *changeSet
}

var _ view.Agent = (*taskAgent)(nil)

// Spools implements view.Agent: the view's name is not the agent's.
func (t *taskAgent) Spools() bool { return false }

// Event implements view.Agent.
func (t *taskAgent) Event(e audit.Event) {
	t.drainView()
	t.Shared.Event(t.own(e))
}

// RecordFile implements view.Agent.
func (t *taskAgent) RecordFile(alive context.Context, hurry <-chan struct{}, e audit.Event, before func() error) error {
	return t.Agent.RecordFile(alive, hurry, t.own(e), before)
}

func (t *taskAgent) own(e audit.Event) audit.Event {
	e.Agent, e.Chain = string(t.id), t.set.chain
	if e.Event == audit.KindView {
		e.Detail = strings.TrimSuffix(t.set.target()+": "+e.Detail, ": ")
	}
	return e
}

// EndSandboxes implements view.Agent: the member's other sandboxes are on other views.
func (t *taskAgent) EndSandboxes() (wait func()) {
	return t.endSandboxes(func(b *Sandbox) bool { return b.held == t.set })
}

// DropGroup implements view.Agent: the agent's own view has the group.
func (t *taskAgent) DropGroup() {}

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

// RemoveLeftTasks removes the branches of tasks that a killed daemon has left, and the names of sockets. It finishes commits that were
// interrupted.
func (s *Shared) RemoveLeftTasks(ctx context.Context, member func(scope.ID) (*Agent, error)) {
	removeRunnerSockets(s.Paths)
	dirs := []string{s.Paths.Histories()}
	for _, def := range s.Definitions() {
		if dir := def.History.Dir; dir != "" && !slices.Contains(dirs, dir) {
			dirs = append(dirs, dir)
		}
	}
	for _, dir := range dirs {
		left, _ := os.ReadDir(dir)
		for _, e := range left {
			if id, ok := taskOf(e.Name()); ok && s.Definitions()[id] == nil && ctx.Err() == nil {
				s.removeLeft(member, id, filepath.Join(dir, e.Name()))
			}
		}
	}
}

// taskOf returns the id of the task whose branch a directory of a name is.
func taskOf(name string) (scope.ID, bool) {
	text, ok := strings.CutPrefix(name, taskPrefix)
	other := func(r rune) bool { return (r < 'a' || r > 'z') && (r < '2' || r > '7') }
	return scope.ID(name), ok && len(text) == 26 && !strings.ContainsFunc(text, other)
}

func (s *Shared) removeLeft(member func(scope.ID) (*Agent, error), id scope.ID, place string) {
	lock, err := view.LockBranch(place)
	if err != nil { // another daemon's, which is for one command
		return
	}
	defer lock.Close()
	parties, err := view.ReadParties(place)
	if err == nil {
		err = s.finishLeft(member, id, parties)
	}
	if removed := view.RemoveBranch(place); removed != nil {
		s.Logger.Error("the branch of a task is left", "at", place, "err", cmp.Or(err, removed))
		return
	}
	chain := chainOf([]scope.ID{parties.Caller, parties.Member})
	s.Event(audit.Event{Event: audit.KindHistory, Agent: string(parties.Caller), Chain: chain, Op: "discard",
		Target: "task " + string(id), Outcome: "done", Detail: "the daemon that had it was killed"})
}

// finishLeft finishes a commit of a branch that a killed daemon has left.
func (s *Shared) finishLeft(member func(scope.ID) (*Agent, error), id scope.ID, parties view.Parties) error {
	a, err := member(parties.Caller)
	if err != nil {
		return err
	}
	def, err := a.Definition()
	if err != nil {
		return err
	}
	of := &taskAgent{a, &changeSet{id: id, chain: chainOf([]scope.ID{parties.Caller, parties.Member})}}
	return view.FinishCommit(&s.Host, of, agents.TaskOf(id, def.Definition))
}
