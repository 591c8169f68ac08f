package changes

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/fs/history"
	"github.com/scopefs/scopefs/fs/history/query"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/tools"
	"github.com/scopefs/scopefs/tools/approvals"
	"github.com/scopefs/scopefs/tools/file"
	filemessage "github.com/scopefs/scopefs/tools/file/message"
	"github.com/scopefs/scopefs/tools/sandbox"
)

// Tasks are those whose members have worked on a branch of the agent's files.
type Tasks struct {
	// Ask answers a request about the changes of a task of the session.
	Ask func(ctx context.Context, env tools.Env, task string, r query.Request) (*query.Reply, error)
	// Discard drops them.
	Discard func(task string) error
}

// held are the changes that a session may commit: its own, and those of tasks.
type held struct {
	own   History
	tasks Tasks
}

// Held returns the tools diff and commit, for agents whose changes are held, and with discard for those that hold the
// changes of tasks.
func Held(h History, tasks Tasks, turns Turns) ([]tools.Tool, error) {
	all := held{h, tasks}
	look, err1 := tools.New("diff", "List what differs between your files and the directory that they came from, with diffs of text; "+
		"or what a member has changed in a copy of your files. Such changes reach the directory by a commit.",
		tools.Hints{Title: "Held changes", Idempotent: true, Turns: turns.Undos}, all.diff)
	commit, err2 := tools.New("commit", "Take your changes over into the directory that your files came from, or a task's into your files: "+
		"all of them, or those of paths. All are taken, or none.",
		tools.Hints{Title: "Commit", Writes: true, Acts: true, Destructive: true, Turns: turns.Undos}, all.commit)
	commit, err2 = tools.Bound(commit, err2, all.preview)
	discard, err3 := tools.New("discard", "Drop the changes of a task. It cannot be taken back.",
		tools.Hints{Title: "Discard", Acts: true, Destructive: true, Turns: turns.Undos}, all.discard)
	return []tools.Tool{look, commit, discard}, errors.Join(err1, err2, err3)
}

// of returns the history that a call is about.
func (h held) of(p part) History {
	if p.Task == "" {
		return h.own
	}
	return func(ctx context.Context, env tools.Env, r query.Request) (*query.Reply, error) {
		return h.tasks.Ask(ctx, env, p.Task, r)
	}
}

// discardArgs are the arguments of discard.
type discardArgs struct {
	Task string `json:"task" limit:"len=63" jsonschema:"as delegate returned it"`
}

// Subject returns the task.
func (a discardArgs) Subject() (rel, target string) { return "", "task " + a.Task }

type discarded struct {
	Task string `json:"task" limit:"len=63"`
}

// Content returns a line.
func (o discarded) Content() []tools.Content {
	return []tools.Content{{Text: "The changes of " + o.Task + " were dropped."}}
}

func (h held) discard(_ context.Context, _ tools.Env, in discardArgs) (discarded, error) {
	return discarded(in), h.tasks.Discard(in.Task)
}

// part says which held changes are meant.
type part struct {
	Task  string   `json:"task,omitempty" limit:"len=63" jsonschema:"the changes of a task, as delegate returned it; without it your own"`
	Paths []string `json:"paths,omitempty" jsonschema:"only what these globs cover, such as src/** or a directory, and what that needs"`
}

// About implements tools.Scoped. It names no path: a call is about a set of them.
func (p part) About() tools.About {
	about := which{Paths: p.Paths}.about(tools.OutsideScope, "outside of the view")
	if p.Task != "" {
		about.Target = strings.TrimSpace("task " + p.Task + " " + about.Target)
	}
	return about
}

// patterns returns the form of scope.PathRule. Paths that lead outside were refused: see tools.Scoped.
func (p part) patterns() (list []string, err error) {
	for _, at := range p.Paths {
		rel, _ := filemessage.Within(sandbox.Workspace, at)
		if rel == "." {
			rel = "**"
		}
		if err := (scope.PathRule{Pattern: rel, Access: scope.Hide}).Check(); err != nil {
			return nil, tools.Errorf(tools.Invalid, "paths: %.200q: %v", at, err)
		}
		list = append(list, rel)
	}
	return list, nil
}

// differs returns what differs. It goes on if the client has disconnected: else each call could leave one behind.
func (h History) differs(ctx context.Context, env tools.Env, p part, whole bool) (*query.Reply, error) {
	paths, err := p.patterns()
	if err != nil {
		return nil, err
	}
	reply, err := h.ask(context.WithoutCancel(ctx), env, query.Request{Diff: &query.Branch{Paths: paths, Whole: whole}})
	switch {
	case err != nil:
		return nil, err
	case reply.Stale:
		return nil, tools.Errorf(tools.Conflict, "the files are being written").Suggest("call again")
	case reply.Nothing != "":
		return nil, tools.Errorf(tools.TooLarge, "%s", tools.Clean(reply.Nothing))
	case reply.Shown == nil:
		return nil, errors.New("the view's answer shows nothing")
	}
	return reply, nil
}

// differences is the result of diff.
type differences struct {
	Total     int    `json:"total" jsonschema:"how many changes there are"`
	Conflicts int    `json:"conflicts,omitempty" jsonschema:"how many of them the directory has changed, too"`
	Summary   string `json:"summary"`
	Diff      string `json:"diff" limit:"len=100000" jsonschema:"a line for each change, then diffs of text, up to 80 KiB in all"`
}

// Content returns the text.
func (o differences) Content() []tools.Content {
	return []tools.Content{{Text: o.Summary + "\n" + o.Diff}}
}

func (h held) diff(ctx context.Context, env tools.Env, in part) (differences, error) {
	reply, err := h.of(in).differs(ctx, env, in, false)
	if err != nil {
		return differences{}, err
	}
	return differences{reply.Total, reply.Shown.Conflicts, tools.Clean(reply.Shown.Note), reply.Shown.Text}, nil
}

// commitArgs are the arguments of commit.
type commitArgs struct {
	part
	Message string `json:"message,omitempty" limit:"len=1000" jsonschema:"what the changes are, for the operator who approves them"`
}

// preview returns what the operator approves.
func (h held) preview(ctx context.Context, env tools.Env, in commitArgs) (approvals.Changes, error) {
	reply, err := h.of(in.part).differs(ctx, env, in.part, true)
	switch {
	case err != nil:
		return approvals.Changes{}, err
	case reply.Total == 0:
		return approvals.Changes{}, nothing()
	case reply.Shown.Conflicts > 0:
		return approvals.Changes{}, conflicting(in.part, reply.Shown.Conflicts, "")
	}
	return approvals.Changes{Diff: reply.Shown.Text, Note: reply.Shown.Note, Content: reply.Hash}, nil
}

func nothing() error { return tools.Errorf(tools.NotFound, "nothing differs there") }

func conflicting(p part, count int, names string) error {
	remedy := "the operator decides conflicts: scopefs commit"
	if p.Task != "" {
		remedy = "or discard the task"
	}
	return tools.Errorf(tools.Conflict, "nothing was taken: %d changes conflict%s", count, names).
		Suggest("give paths without them; " + remedy)
}

// taken is the result of commit.
type taken struct {
	Done    int      `json:"done" jsonschema:"how many changes were taken"`
	Changes []change `json:"changes" limit:"items=200" jsonschema:"the first of them"`
}

// Content returns a line for each change.
func (o taken) Content() []tools.Content {
	text := listing{Changes: o.Changes, Total: o.Done}.Content()[0].Text
	return []tools.Content{{Text: fmt.Sprintf("%d changes were taken over:\n%s", o.Done, text)}}
}

func (h held) commit(ctx context.Context, env tools.Env, in commitArgs) (taken, error) {
	out := taken{Changes: []change{}}
	paths, err := in.patterns()
	if err != nil {
		return out, err
	}
	approved := tools.ApprovedChanges(ctx)
	reply, err := h.of(in.part).ask(ctx, env, query.Request{Commit: &query.Branch{Paths: paths, Hash: approved.Hash, Only: approved.Paths}})
	switch {
	case err != nil:
		return out, err
	case reply.Stale:
		return out, tools.Errorf(tools.Conflict, "the changes are not those that were approved").Suggest("call again for a new approval")
	case reply.Result == nil:
		return out, errors.New("the view's answer has no result")
	case reply.Conflicts > 0:
		return out, conflicting(in.part, reply.Conflicts, namesOf(reply.Entries))
	case reply.Result.Done == 0:
		return out, nothing()
	}
	out.Done = reply.Result.Done
	for _, e := range reply.Entries {
		if e.Change == nil || len(out.Changes) == maxListed {
			continue
		}
		c, err := changeOf(e.Change)
		if err != nil {
			return out, err
		}
		out.Changes = append(out.Changes, c)
	}
	return out, nil
}

// namesOf returns the first paths with a conflict.
func namesOf(entries []query.Entry) string {
	var b strings.Builder
	for i, e := range entries {
		if i == 5 {
			b.WriteString(" ...")
			break
		}
		if e.Change != nil && e.Change.Conflict != "" {
			b.WriteString(" " + tools.Quote(e.Change.Path) + ": " + tools.Clean(e.Change.Conflict) + ";")
		}
	}
	if b.Len() == 0 {
		return ""
	}
	return ":" + strings.TrimSuffix(b.String(), ";")
}

// AddTaking adds a change of a commit to what is taken over.
func AddTaking(t *file.Taking, c *history.Change) error {
	if c == nil {
		return errors.New("an entry of a commit is no change")
	}
	path, err1 := audit.Unescape(c.Path)
	from, err2 := audit.Unescape(c.From)
	switch {
	case c.Type == "other" && c.Kind != history.Deleted:
		return tools.Errorf(tools.Conflict, "nothing was taken: %s is no file, directory or link", tools.Quote(c.Path)).
			Suggest("give paths without it")
	case c.Kind == history.Deleted:
		t.Gone = append(t.Gone, path)
	case c.Kind == history.Renamed && c.Type == "directory":
		t.Moved = append(t.Moved, file.Move{From: from, To: path})
		if c.Mode {
			t.There = append(t.There, path)
		}
	default:
		if c.Kind == history.Renamed {
			t.Gone = append(t.Gone, from)
		}
		t.There = append(t.There, path)
	}
	return errors.Join(err1, err2)
}
