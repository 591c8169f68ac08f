package session

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/fs/history"
	"github.com/scopefs/scopefs/fs/history/query"
	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/ledger"
	"github.com/scopefs/scopefs/scope/hosts"
	"github.com/scopefs/scopefs/tools"
	"github.com/scopefs/scopefs/tools/changes"
	"github.com/scopefs/scopefs/tools/file"
	"github.com/scopefs/scopefs/tools/file/worker"
	"github.com/scopefs/scopefs/tools/sandbox"
)

// taskFiles is where the sandbox of a commit shows what the branch has changed.
const taskFiles = sandbox.Run + "/task"

// maxTaking bounds the changes that one commit takes over through a view: the daemon has a list of them.
const maxTaking = 100_000

// commit takes a part of the branch over, or all of it, by the caller's current rules. A branch without further changes is dropped.
func (s *changeSet) commit(ctx context.Context, env tools.Env, r query.Request) (reply *query.Reply, err error) {
	c := s.by
	text, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	c.agent.Spend(make([]audit.Event, 2)) // of its beginning and its end
	empty := false
	by := audit.Event{Agent: string(c.agent.id), Session: c.name, Call: env.Call, Chain: s.chain, Target: s.target()}
	_, err = ledger.RecordHistory(ctx, c.agent, text, by, func(ctx context.Context, _ json.RawMessage) (answer json.RawMessage, err error) {
		err = s.with(ctx, func(o BranchProcess) error {
			if v := c.agent.View(); v != nil && v.Keeps() {
				reply, empty, err = s.takeKept(ctx, env, o, r)
			} else {
				reply, empty, err = s.takeDirect(ctx, o, r)
			}
			return err
		})
		if err != nil {
			return nil, err
		}
		return json.Marshal(reply)
	})
	if empty {
		s.drop("it is committed")
	}
	return reply, err
}

// takeDirect takes changes over into the caller's directory. It reports whether nothing differs any more.
func (s *changeSet) takeDirect(ctx context.Context, o BranchProcess, r query.Request) (*query.Reply, bool, error) {
	reply, err := request(ctx, o, r)
	if err != nil || reply.Result == nil || reply.Result.Done == 0 {
		return reply, false, err
	}
	if reply.Same {
		return reply, true, nil
	}
	left, err := request(ctx, o, query.Request{Diff: &query.Branch{}})
	return reply, err == nil && left.Total == 0, nil
}

// takeKept takes changes over through the caller's view, as the caller's call: the view keeps what they destroy. What is done
// when an error ends it is undone.
func (s *changeSet) takeKept(ctx context.Context, env tools.Env, o BranchProcess, r query.Request) (*query.Reply, bool, error) {
	check := *r.Commit
	check.Check = true
	r.Commit = &check
	reply, err := request(ctx, o, r)
	if err != nil || reply.Conflicts > 0 || reply.Result == nil || reply.Result.Done == 0 {
		return reply, false, err
	}
	taking, count, err := takingOf(ctx, o, &check)
	if err != nil {
		return nil, false, err
	}
	all, err := request(ctx, o, query.Request{Diff: &query.Branch{}})
	if err != nil {
		return nil, false, err
	}
	whole := count == all.Total
	if len(taking.Moved) > 0 && !whole {
		return nil, false, tools.Errorf(tools.Conflict, "nothing was taken: directories were moved, which are committed with everything else").
			Suggest("leave paths out")
	}
	if err := s.takeThrough(ctx, env, o, taking); err != nil {
		return nil, false, s.takeBack(ctx, env, err)
	}
	return reply, whole, nil
}

// takingOf returns what a commit that was checked would do, and how many changes that is.
func takingOf(ctx context.Context, o BranchProcess, check *query.Branch) (t file.Taking, count int, err error) {
	for total := 1; count < total; {
		page, err := request(ctx, o, query.Request{Commit: check, Offset: int64(count)})
		switch {
		case err != nil:
			return t, 0, err
		case page.Conflicts > 0 || page.Stale || len(page.Entries) == 0:
			return t, 0, tools.Errorf(tools.Conflict, "nothing was taken: the files change meanwhile").Suggest("call again")
		}
		if page.Total > maxTaking {
			return t, 0, tools.Errorf(tools.TooLarge, "nothing was taken: there are %d changes, and %d at most are taken at once",
				page.Total, maxTaking).Suggest("give paths")
		}
		for _, e := range page.Entries {
			if err := changes.AddTaking(&t, e.Change); err != nil {
				return t, 0, err
			}
		}
		count, total = count+len(page.Entries), page.Total
	}
	return t, count, nil
}

// takeThrough changes the caller's view in a sandbox that runs nothing else.
func (s *changeSet) takeThrough(ctx context.Context, env tools.Env, o BranchProcess, taking file.Taking) error {
	c := s.by
	upper, err := o.Upper()
	if err != nil {
		return err
	}
	defer upper.Close()
	p := c.newPurpose()
	p.Kind, p.Command, p.Context = api.TaskSession, "commit of a task", nil
	p.Hosts = func() *hosts.Policy { return nil }
	p.Binds = []sandbox.Bind{{File: upper, At: taskFiles}}
	box, err := c.agent.Start(ctx, p)
	if err != nil {
		return err
	}
	defer box.End()
	files := file.New(worker.New(worker.In(box, file.Own)))
	defer files.Close()
	files.Quick = c.quick
	return files.Take(ctx, env.Call, taskFiles, taking)
}

// takeBack undoes what a commit has done when cause ended it.
func (s *changeSet) takeBack(ctx context.Context, env tools.Env, cause error) error {
	c := s.by
	e := tools.Errorf(tools.Conflict, "nothing was taken: the files could not be changed")
	if by, ok := errors.AsType[*tools.Error](cause); ok {
		e = tools.Errorf(by.Code, "nothing was taken: %s", by.Message)
		e.Path, e.Hint = by.Path, by.Hint
	}
	request, err := json.Marshal(query.Request{Client: c.name, Undo: &history.Selection{Calls: []string{env.Call}}})
	var answer json.RawMessage
	if err == nil {
		answer, err = c.recorded(context.WithoutCancel(ctx), env, c.agent, request, c.agent.History)
	}
	var reply query.Reply
	if err == nil {
		err = json.Unmarshal(answer, &reply)
	}
	if err != nil || reply.Conflicts > 0 || reply.Unkept > 0 {
		e.Message = "a part was taken, which undo of this call takes back" + e.Message[len("nothing was taken"):]
	}
	return e.Because(errors.Join(cause, err))
}
