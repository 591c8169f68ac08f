package changes

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/fs/history"
	"github.com/scopefs/scopefs/fs/history/query"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/tools"
	"github.com/scopefs/scopefs/tools/approvals"
	"github.com/scopefs/scopefs/tools/file"
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
	own   Histories // of those whose changes are held
	tasks Tasks
}

// Held returns the tools diff and commit, for agents whose changes are held, and with discard for those that hold the
// changes of tasks.
func Held(h Histories, tasks Tasks, turns Turns) ([]tools.Tool, error) {
	all := held{h, tasks}
	look, err1 := tools.New("diff", "List what differs between your files and the directory that they came from, with diffs of text; "+
		"or what a member has changed in a copy of your files. Such changes reach the directory by a commit.",
		tools.Hints{Title: "Held changes", Idempotent: true, Turns: turns.Undos}, all.diff)
	look, err1 = tools.Placed(look, err1, all.about)
	commit, err2 := tools.New("commit", "Take your changes over into the directory that your files came from, or a task's into your files: "+
		"all of them, or those of paths. All are taken, or none.",
		tools.Hints{Title: "Commit", Writes: true, Acts: true, Destructive: true, Turns: turns.Undos}, all.commit)
	commit, err2 = tools.Bound(commit, err2, all.preview)
	commit, err2 = tools.Placed(commit, err2, func(in commitArgs) tools.About { return all.about(in.part) })
	discard, err3 := tools.New("discard", "Drop the changes of a task. It cannot be taken back.",
		tools.Hints{Title: "Discard", Acts: true, Destructive: true, Turns: turns.Undos}, all.discard)
	return []tools.Tool{look, commit, discard}, errors.Join(err1, err2, err3)
}

// of returns the directories that a call is about, with its patterns in each: those of the agent, or that of a task.
func (h held) of(ctx context.Context, p part) (all []place, err error) {
	if p.Task == "" {
		all = h.own.places(ctx, p.Paths)
	} else {
		of := func(ctx context.Context, env tools.Env, r query.Request) (*query.Reply, error) {
			return h.tasks.Ask(ctx, env, p.Task, r)
		}
		all = Histories{Own: of}.places(ctx, p.Paths)
	}
	for _, at := range all {
		for i, rel := range at.paths {
			if rel == "" {
				rel, at.paths[i] = "*", "*"
			}
			if err := (scope.PathRule{Pattern: rel, Access: scope.Hide}).Check(); err != nil {
				return nil, tools.Errorf(tools.Invalid, "paths: %.200q: %v", rel, err)
			}
		}
	}
	return all, nil
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

// about says what a call is about. It names no path: a call is about a set of them.
func (h held) about(p part) tools.About {
	dirs := h.own.dirs()
	if p.Task != "" {
		dirs = file.Own()
	}
	about := which{Paths: p.Paths}.about(dirs, tools.OutsideScope, "outside of the view")
	if p.Task != "" {
		about.Target = strings.TrimSpace("task " + p.Task + " " + about.Target)
	}
	return about
}

// differs returns what differs. It goes on if the client has disconnected: else each call could leave one behind.
func (p place) differs(ctx context.Context, env tools.Env, whole bool) (*query.Reply, error) {
	reply, err := p.ask.ask(context.WithoutCancel(ctx), env, query.Request{Diff: &query.Branch{Paths: p.paths, Whole: whole}})
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

// maxShown bounds the text of all directories, in bytes. That of one has 80 KiB at most.
const maxShown = 96 << 10

// difference is what differs in the directories of a call.
type difference struct {
	differences
	hash   string            // of all together; of one directory its own
	hashes map[string]string // by their roots, of those that differ
}

// differs returns what differs in all directories that a call is about. The text has a heading for each root.
func (h held) differs(ctx context.Context, env tools.Env, p part, whole bool) (all difference, err error) {
	places, err := h.of(ctx, p)
	if err != nil {
		return all, err
	}
	all.hashes = map[string]string{}
	var notes []string
	for _, at := range places {
		reply, err := at.differs(ctx, env, whole)
		if err != nil {
			return all, err
		}
		text, note := reply.Shown.Text, tools.Clean(reply.Shown.Note)
		if reply.Total == 0 && len(places) > 1 {
			continue
		}
		if all.Total, all.Conflicts = all.Total+reply.Total, all.Conflicts+reply.Shown.Conflicts; at.root != "" {
			text, note = "In "+tools.Quote(at.root)+":\n"+text, tools.Quote(at.root)+": "+note
		}
		if len(all.Diff)+len(text) > maxShown {
			text, note = "", note+", not shown here: give paths"
		}
		all.Diff, notes = all.Diff+text, append(notes, note)
		all.hashes[at.root] = reply.Hash
	}
	all.hash = query.Together(all.hashes)
	if all.Summary = strings.Join(notes, "; "); len(notes) == 0 {
		all.Summary = "nothing differs"
	}
	return all, nil
}

func (h held) diff(ctx context.Context, env tools.Env, in part) (differences, error) {
	all, err := h.differs(ctx, env, in, false)
	return all.differences, err
}

// commitArgs are the arguments of commit.
type commitArgs struct {
	part
	Message string `json:"message,omitempty" limit:"len=1000" jsonschema:"what the changes are, for the operator who approves them"`
}

// preview returns what the operator approves.
func (h held) preview(ctx context.Context, env tools.Env, in commitArgs) (approvals.Changes, error) {
	all, err := h.differs(ctx, env, in.part, true)
	switch {
	case err != nil:
		return approvals.Changes{}, err
	case all.Total == 0:
		return approvals.Changes{}, nothing()
	case all.Conflicts > 0:
		return approvals.Changes{}, conflicting(in.part, all.Conflicts, "")
	}
	return approvals.Changes{Diff: all.Diff, Note: all.Summary, Content: all.hash}, nil
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

	Failed []problem `json:"failed,omitempty" limit:"items=200" jsonschema:"directories in which nothing was taken: call commit again"`
}

// Content returns a line for each change.
func (o taken) Content() []tools.Content {
	text := listing{Changes: o.Changes, Total: o.Done}.Content()[0].Text
	for _, p := range o.Failed {
		text += fmt.Sprintf("nothing taken in %s: %s: call commit again\n", tools.Quote(p.Path), p.Why)
	}
	return []tools.Content{{Text: fmt.Sprintf("%d changes were taken over:\n%s", o.Done, text)}}
}

// commit takes changes over in one directory after another: in each of them all, or none. A conflict in one has nothing taken in any.
func (h held) commit(ctx context.Context, env tools.Env, in commitArgs) (taken, error) {
	out := taken{Changes: []change{}}
	places, err := h.of(ctx, in.part)
	if err != nil {
		return out, err
	}
	approved := tools.ApprovedChanges(ctx)
	hashes := map[string]string{}
	if len(places) == 1 && (places[0].root == "" || approved.Hash == "") {
		hashes[places[0].root] = approved.Hash
	} else {
		all, err := h.differs(ctx, env, in.part, approved.Hash != "")
		switch {
		case err != nil:
			return out, err
		case approved.Hash != "" && all.hash != approved.Hash:
			return out, stale()
		case all.Conflicts > 0:
			return out, conflicting(in.part, all.Conflicts, "")
		}
		if hashes = all.hashes; approved.Hash == "" {
			clear(hashes)
		}
		places = slices.DeleteFunc(places, func(p place) bool { return approved.Hash != "" && hashes[p.root] == "" })
	}
	for _, at := range places {
		branch := &query.Branch{Paths: at.paths, Hash: hashes[at.root], Only: at.only(approved.Paths)}
		if len(approved.Paths) > 0 && len(branch.Only) == 0 {
			continue
		}
		err := at.take(ctx, env, in.part, branch, &out)
		if err != nil && out.Done == 0 {
			return out, err
		}
		if err != nil { // what was taken before stays, and is told
			out.Failed = append(out.Failed, problem{at.root, tools.Clean(err.Error())})
		}
	}
	if out.Done == 0 {
		return out, nothing()
	}
	return out, nil
}

func stale() error {
	return tools.Errorf(tools.Conflict, "the changes are not those that were approved").Suggest("call again for a new approval")
}

// only returns those of the approved paths that are in the directory.
func (p place) only(approved []string) (rels []string) {
	for _, at := range approved {
		rel, ok := at, !path.IsAbs(at)
		if p.root != "" {
			rel, ok = strings.CutPrefix(at, p.root+"/")
		}
		if ok {
			rels = append(rels, rel)
		}
	}
	return rels
}

// take takes the changes of one directory over, and adds them to out.
func (p place) take(ctx context.Context, env tools.Env, of part, branch *query.Branch, out *taken) error {
	reply, err := p.ask.ask(ctx, env, query.Request{Commit: branch})
	switch {
	case err != nil:
		return err
	case reply.Stale:
		return stale()
	case reply.Result == nil:
		return errors.New("the view's answer has no result")
	case reply.Conflicts > 0:
		return conflicting(of, reply.Conflicts, namesOf(reply.Entries))
	}
	out.Done += reply.Result.Done
	for _, e := range reply.Entries {
		if e.Change == nil || len(out.Changes) == maxListed {
			continue
		}
		c, err := p.changeOf(e.Change)
		if err != nil {
			return err
		}
		out.Changes = append(out.Changes, c)
	}
	return nil
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
