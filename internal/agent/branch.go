package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/internal/session"
	"github.com/scopefs/scopefs/internal/view"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/agents"
)

// branch is a branch of an agent's directory for a task of a member: see session.Branch.
type branch struct {
	session.Task
	caller, member *Agent
	place          string
	lock           *os.File // of place

	mu   sync.Mutex
	view *view.View // while the member works
}

var _ session.Branch = (*branch)(nil)

func (r requests) Branch(t session.Task) (session.Branch, error) {
	if _, err := r.Member(t.Member); err != nil {
		return nil, err
	}
	member, err := r.shared.Registry.Agent(t.Member)
	if err != nil {
		return nil, err
	}
	b := &branch{Task: t, caller: r.Agent, member: member}
	def, err := b.definition()
	if err != nil {
		return nil, err
	}
	b.place = r.Paths.History(def.Name, def.History.Dir)
	return b, nil
}

// branches are those whose views are mounted.
type branches struct {
	mu  sync.Mutex
	all map[*branch]*view.View
}

func (all *branches) put(b *branch, v *view.View) {
	all.mu.Lock()
	defer all.mu.Unlock()
	if all.all == nil {
		all.all = map[*branch]*view.View{}
	}
	if all.all[b] = v; v == nil {
		delete(all.all, b)
	}
}

func (all *branches) views() map[*branch]*view.View {
	all.mu.Lock()
	defer all.mu.Unlock()
	return maps.Clone(all.all)
}

// RuleTasks makes the views of tasks decide by the current rules.
func (s *Shared) RuleTasks() {
	var ruling sync.WaitGroup
	for b, v := range s.branches.views() { // side by side: a view that is stuck delays no other
		ruling.Go(func() { b.rule(v) })
	}
	ruling.Wait()
}

// UpdateTaskLogs sends the views of tasks whether the log can be written.
func (s *Shared) UpdateTaskLogs() {
	var telling sync.WaitGroup
	for _, v := range s.branches.views() { // side by side: a view that is stuck takes a while
		telling.Go(v.UpdateLog)
	}
	telling.Wait()
}

// rule makes the task's view decide by the current rules. After an error the next process of the view does.
func (b *branch) rule(v *view.View) {
	if def, err := b.definition(); err == nil {
		if _, err := v.SetRules(def.View.PolicySpec()); err != nil {
			b.caller.Logger.Warn("the view of a task is restarted", "agent", b.Member, "task", b.ID, "err", err)
		}
	}
}

// definition returns that of the task's view.
func (b *branch) definition() (*agents.Definition, error) {
	caller, err1 := b.caller.Definition()
	member, err2 := b.member.Definition()
	if err := errors.Join(err1, err2); err != nil {
		return nil, err
	}
	return agents.Task(b.ID, caller.Definition, member.Definition), nil
}

// make makes the directory of the branch, and locks it: another daemon must not remove it as left over.
func (b *branch) make(def *agents.Definition) error {
	host := &b.caller.shared.Views
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
	if b.lock, err = view.LockBranch(b.place); err != nil {
		return err
	}
	return view.Parties{Caller: b.caller.ID(), Member: b.Member}.Write(dir)
}

// Mount makes the branch and mounts its view.
func (b *branch) Mount(ctx context.Context) error {
	def, err := b.definition()
	if err == nil {
		err = b.make(def)
	}
	if err != nil {
		return err
	}
	shared := b.caller.shared
	at := filepath.Join(shared.Paths.Views(), string(b.ID))
	hidden, err := shared.PrepareMountPoint(b.ID, at)
	if err != nil {
		return err
	}
	v := view.Start(ctx, &shared.Views, &taskAgent{b.member, b}, def, at, hidden)
	b.set(v)
	b.rule(v) // a reload did not know it yet
	return v.Wait(ctx)
}

func (b *branch) set(v *view.View) {
	b.mu.Lock()
	b.view = v
	b.mu.Unlock()
	b.caller.shared.branches.put(b, v)
}

func (b *branch) current() *view.View {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.view
}

// View returns the view of the task.
func (b *branch) View() session.View { return viewOf(b.current()) }

// Unmount ends the task's view.
func (b *branch) Unmount() {
	if v := b.current(); v != nil {
		v.Down()
		b.set(nil)
	}
}

// Open starts a process that has the branch open, by the caller's current rules.
func (b *branch) Open() (session.BranchProcess, error) {
	def, err := b.caller.Definition()
	if err != nil {
		return nil, err
	}
	task := agents.TaskOf(b.ID, def.Definition)
	o, err := view.StartOffline(&b.caller.shared.Views, &taskAgent{b.caller, b}, task, task.View.PolicySpec())
	if err != nil {
		return nil, err
	}
	return o, nil
}

// Remove removes the branch.
func (b *branch) Remove() error {
	err := view.RemoveBranch(b.place)
	if b.lock != nil {
		b.lock.Close()
	}
	return err
}

// taskAgent is whose view the branch of a task has, or the process that answers about it: the member's, or the caller's.
type taskAgent struct {
	*Agent
	of *branch
}

var _ view.Agent = (*taskAgent)(nil)

// Spools implements view.Agent: the view's name is not the agent's.
func (t *taskAgent) Spools() bool { return false }

// Event implements view.Agent.
func (t *taskAgent) Event(e audit.Event) { t.Agent.Event(t.own(e)) }

// RecordFile implements view.Agent.
func (t *taskAgent) RecordFile(alive context.Context, hurry <-chan struct{}, e audit.Event, before func() error) error {
	return t.Agent.RecordFile(alive, hurry, t.own(e), before)
}

func (t *taskAgent) own(e audit.Event) audit.Event {
	e.Agent, e.Chain = string(t.Agent.ID()), t.of.Chain
	if e.Event == audit.KindView {
		e.Detail = strings.TrimSuffix("task "+string(t.of.ID)+": "+e.Detail, ": ")
	}
	return e
}

// EndSandboxes implements view.Agent: the member's other sandboxes are on other views.
func (t *taskAgent) EndSandboxes() (wait func()) { return t.EndOfTask(t.of.ID) }

// DropGroup implements view.Agent: the agent's own view has the group.
func (t *taskAgent) DropGroup() {}

// RemoveLeftTasks removes the branches of tasks that a killed daemon has left, and the names of sockets. It finishes commits that were
// interrupted.
func (s *Shared) RemoveLeftTasks(ctx context.Context) {
	session.RemoveRunnerSockets(s.Paths)
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
				s.removeLeft(id, filepath.Join(dir, e.Name()))
			}
		}
	}
}

// taskOf returns the id of the task whose branch a directory of a name is.
func taskOf(name string) (scope.ID, bool) {
	text, ok := strings.CutPrefix(name, session.TaskPrefix)
	other := func(r rune) bool { return (r < 'a' || r > 'z') && (r < '2' || r > '7') }
	return scope.ID(name), ok && len(text) == 26 && !strings.ContainsFunc(text, other)
}

func (s *Shared) removeLeft(id scope.ID, place string) {
	lock, err := view.LockBranch(place)
	if err != nil { // another daemon's, which is for one command
		return
	}
	defer lock.Close()
	parties, err := view.ReadParties(place)
	chain := fmt.Sprintf("%s>%s", parties.Caller, parties.Member)
	if err == nil {
		err = s.finishLeft(id, parties.Caller, chain)
	}
	if removed := view.RemoveBranch(place); removed != nil {
		s.Logger.Error("the branch of a task is left", "at", place, "err", cmp.Or(err, removed))
		return
	}
	s.Event(audit.Event{Event: audit.KindHistory, Agent: string(parties.Caller), Chain: chain, Op: "discard",
		Target: "task " + string(id), Outcome: "done", Detail: "the daemon that had it was killed"})
}

// finishLeft finishes a commit of a branch that a killed daemon has left.
func (s *Shared) finishLeft(id, caller scope.ID, chain string) error {
	a, err := s.Registry.Agent(caller)
	if err != nil {
		return err
	}
	def, err := a.Definition()
	if err != nil {
		return err
	}
	of := &taskAgent{a, &branch{Task: session.Task{ID: id, Chain: chain}}}
	return view.FinishCommit(&s.Views, of, agents.TaskOf(id, def.Definition))
}
