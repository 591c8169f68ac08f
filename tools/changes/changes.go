// Package changes provides the tools checkpoint, changes and undo: a session lists and takes back what its own calls changed.
// The agent's view decides which changes are the session's, and what the agent's rules let it read and change now.
package changes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/fs/history"
	"github.com/scopefs/scopefs/fs/history/query"
	"github.com/scopefs/scopefs/tools"
	"github.com/scopefs/scopefs/tools/file"
	filemessage "github.com/scopefs/scopefs/tools/file/message"
	"github.com/scopefs/scopefs/tools/limit"
)

// History answers a request about the history of the session's agent, as the session. The error is for the operator.
type History func(ctx context.Context, env tools.Env, r query.Request) (*query.Reply, error)

// Root is a further directory of the agent, with a history of its own.
type Root struct {
	Dir     string
	History History
}

// Histories are those of an agent's directories.
type Histories struct {
	Own   History
	Dirs  func() filemessage.Dirs          // where the directories are; nil: the agent has its own alone
	Roots func(ctx context.Context) []Root // that calls may have changed; nil: there are none
}

func (h Histories) dirs() filemessage.Dirs {
	if h.Dirs == nil {
		return file.Own()
	}
	return h.Dirs()
}

// place is a directory that a call is about.
type place struct {
	root  string // of a root its path: those of results begin with it
	ask   History
	paths []string // of the call, in the directory
}

// full returns the path of a result.
func (p place) full(rel string) string {
	if p.root == "" || rel == "" {
		return p.root + rel
	}
	return p.root + "/" + rel
}

// places returns the directories that some paths of a call are in, the agent's own first. Without paths these are all. Paths that lead
// outside were refused: see tools.Placed.
func (h Histories) places(ctx context.Context, paths []string) (all []place) {
	dirs := h.dirs()
	all = []place{{ask: h.Own}}
	if h.Roots != nil && len(dirs.Roots) > 0 {
		for _, r := range h.Roots(ctx) {
			all = append(all, place{root: r.Dir, ask: r.History})
		}
	}
	if len(paths) == 0 {
		return all
	}
	for _, asked := range paths {
		rel, _ := dirs.Resolve(asked)
		for i := range all {
			at := &all[i]
			within, ok := filemessage.Within(at.root, rel)
			if at.root == "" {
				within, ok = rel, !path.IsAbs(rel)
			}
			if within == "." {
				within = ""
			}
			if ok {
				at.paths = append(at.paths, within)
			}
		}
	}
	return slices.DeleteFunc(all, func(p place) bool { return p.paths == nil })
}

// Turns bounds the concurrent calls of all sessions of one agent: the operator's requests need turns of the view as well. Nil
// queues bound nothing.
type Turns struct{ Looks, Undos *limit.Queue }

// NewTurns returns the Turns of one agent.
func NewTurns() Turns { return Turns{tools.NewTurns(2, 2), tools.NewTurns(1, 1)} }

// The bounds of results.
const (
	maxListed = 200       // entries
	maxText   = 256 << 10 // bytes of a content with a diff
	maxDiffs  = 64 << 10  // bytes of all diffs
)

// New returns the tools checkpoint, changes and undo.
func New(h Histories, turns Turns) ([]tools.Tool, error) {
	point, err1 := tools.New("checkpoint",
		"Name the present state of your files, for changes and undo. It takes no space: use it before a large change.",
		tools.Hints{Title: "Checkpoint", Acts: true, Turns: turns.Looks}, h.checkpoint)
	list, err2 := tools.New("changes", "List what your calls of this session changed, by file: "+
		"all of them, those of one call, or those since a checkpoint, at most 200. To take them back use undo.",
		tools.Hints{Title: "Own changes", Idempotent: true, Turns: turns.Looks}, h.changes)
	list, err2 = tools.Placed(list, err2, func(in changesArgs) tools.About {
		return in.about(h.dirs(), tools.NotFound, "no such file or directory")
	})
	undo, err3 := tools.New("undo", "Take back what your calls of this session changed: one call, or everything since a checkpoint of yours. "+
		"What others changed since stays as it is, and is listed as a conflict. Use changes to see it first.",
		tools.Hints{Title: "Undo", Writes: true, Acts: true, Destructive: true, Waits: true, Turns: turns.Undos}, h.undo)
	undo, err3 = tools.Placed(undo, err3, func(in undoArgs) tools.About {
		return in.about(h.dirs(), tools.OutsideScope, "outside of the view")
	})
	return []tools.Tool{point, list, undo}, errors.Join(err1, err2, err3)
}

// ask sends a request. A reply without what the request names is an error.
func (h History) ask(ctx context.Context, env tools.Env, r query.Request) (*query.Reply, error) {
	reply, err := h(ctx, env, r)
	if e, ok := errors.AsType[*tools.Error](err); ok {
		return nil, e
	}
	switch {
	case err != nil:
		return nil, tools.Errorf(tools.Unavailable, "the history cannot be used now").
			Suggest("call again, or ask the operator: scopefs audit and the daemon's log have the reason").Because(err)
	case reply.Unknown:
		return nil, tools.Errorf(tools.NotFound, "%s", tools.Clean(reply.Nothing))
	}
	return reply, nil
}

// checkpointArgs are the arguments of checkpoint.
type checkpointArgs struct {
	Name string `json:"name,omitempty" limit:"len=100" jsonschema:"of several with one name the last counts"`
}

// Subject returns the name.
func (in checkpointArgs) Subject() (rel, target string) { return "", in.Name }

// point is the result of checkpoint.
type point struct {
	Checkpoint string `json:"checkpoint" jsonschema:"its id"`
	Name       string `json:"name,omitempty"`
}

// checkpoint begins one in each directory. In a root it has the id of the first one as its name, if it has none.
func (h Histories) checkpoint(ctx context.Context, env tools.Env, in checkpointArgs) (out point, err error) {
	if err := history.CheckName(in.Name); err != nil {
		return out, tools.Errorf(tools.Invalid, "%v", err)
	}
	out.Name = in.Name
	for _, at := range h.places(ctx, nil) {
		name := cmp.Or(in.Name, out.Checkpoint)
		reply, err := at.ask.ask(ctx, env, query.Request{Checkpoint: &name})
		if err != nil {
			return out, err
		}
		out.Checkpoint = cmp.Or(out.Checkpoint, tools.Clean(reply.Checkpoint))
	}
	return out, nil
}

// which says which changes of the session are meant.
type which struct {
	Call       string   `json:"call,omitempty" limit:"len=100" jsonschema:"only those of this call, by its id in changes"`
	Checkpoint string   `json:"checkpoint,omitempty" limit:"len=100" jsonschema:"only those since this checkpoint: a name or id"`
	Paths      []string `json:"paths,omitempty" jsonschema:"only those of these files and directories"`
}

// about says what a call is about. It names no path: a standing approval of one would cover the others.
func (w which) about(dirs filemessage.Dirs, code tools.Code, message string) (a tools.About) {
	words := append([]string{}, w.Paths...)
	if w.Checkpoint != "" {
		words = append([]string{"since checkpoint " + w.Checkpoint}, words...)
	}
	if w.Call != "" {
		words = append([]string{"call " + w.Call}, words...)
	}
	a.Target = strings.Join(words, " ")
	for _, p := range w.Paths {
		if _, inside := dirs.Resolve(p); !inside && a.Outside == nil {
			a.Outside = &tools.Error{Code: code, Message: message, Path: tools.Clip(p, 8<<10)}
		}
	}
	return a
}

// selections returns the places that are meant, and the history's form for each. A checkpoint is the time of the last one of its name in any
// of them.
func (w which) selections(ctx context.Context, env tools.Env, h Histories) ([]place, []*history.Selection, error) {
	if w.Call != "" && w.Checkpoint != "" {
		return nil, nil, tools.Errorf(tools.Invalid, "call and checkpoint exclude each other")
	}
	places := h.places(ctx, w.Paths)
	sel := history.Selection{Checkpoint: w.Checkpoint}
	if w.Call != "" {
		sel.Calls = []string{w.Call}
	}
	if w.Checkpoint != "" && (len(places) != 1 || places[0].root != "") {
		missing := error(nil)
		for _, at := range h.places(ctx, nil) {
			reply, err := at.ask.ask(ctx, env, query.Request{Newest: &history.Selection{Checkpoint: w.Checkpoint}})
			if err != nil {
				missing = cmp.Or(missing, err)
				continue
			}
			for _, e := range reply.Entries {
				if e.Generation != nil && e.Generation.Began.After(sel.Since) {
					sel.Since = e.Generation.Began
				}
			}
		}
		if sel.Since.IsZero() {
			return nil, nil, missing
		}
		sel.Checkpoint = ""
	}
	var all []*history.Selection
	for _, at := range places {
		one := sel
		for _, rel := range at.paths {
			one.Paths = append(one.Paths, audit.Escape(rel))
		}
		all = append(all, &one)
	}
	return places, all, nil
}

// changesArgs are the arguments of changes.
type changesArgs struct {
	which
	Diff bool `json:"diff,omitempty" jsonschema:"add diffs of text, up to 64 KiB"`
}

// change describes the change of one file or directory.
type change struct {
	Kind    string   `json:"kind" jsonschema:"added, changed, removed, moved or mode"`
	Path    string   `json:"path" limit:"len=8192"`
	From    string   `json:"from,omitempty" limit:"len=8192" jsonschema:"its name before it was moved"`
	Type    string   `json:"type" jsonschema:"file, directory, link or other"`
	Calls   []string `json:"calls,omitempty"`
	NotKept string   `json:"not_kept,omitempty" jsonschema:"why undo cannot bring it back"`
	Diff    string   `json:"diff,omitempty" limit:"len=70000"`
	NoDiff  string   `json:"no_diff,omitempty" jsonschema:"why there is no diff"`
}

// listing is the result of changes, sorted by path.
type listing struct {
	Changes []change `json:"changes" limit:"items=200"`
	Total   int      `json:"total" jsonschema:"how many there are; give paths or a call to see others"`
}

// Content returns a line for each change, and the diffs.
func (o listing) Content() []tools.Content {
	if o.Total == 0 {
		return []tools.Content{{Text: "Nothing was changed."}}
	}
	var b strings.Builder
	for _, c := range o.Changes {
		b.WriteString(c.Kind + " " + tools.Quote(c.Path))
		if c.Type != "file" {
			b.WriteString(" (" + c.Type + ")")
		}
		if c.From != "" {
			b.WriteString(" (was " + tools.Quote(c.From) + ")")
		}
		if len(c.Calls) > 0 {
			b.WriteString(" by call " + strings.Join(c.Calls, ", "))
		}
		if c.NotKept != "" {
			b.WriteString(" (not kept: " + c.NotKept + ")")
		}
		if c.NoDiff != "" {
			b.WriteString(" (no diff: " + c.NoDiff + ")")
		}
		b.WriteString("\n" + c.Diff)
	}
	if more := o.Total - len(o.Changes); more > 0 {
		fmt.Fprintf(&b, "and %d more\n", more)
	}
	return []tools.Content{{Text: b.String()}}
}

func (h Histories) changes(ctx context.Context, env tools.Env, in changesArgs) (listing, error) {
	out := listing{Changes: []change{}}
	places, selections, err := in.selections(ctx, env, h)
	if err != nil {
		return out, err
	}
	room := maxDiffs
	for i, at := range places {
		reply, err := at.ask.ask(ctx, env, query.Request{Changes: selections[i]})
		if err != nil {
			return out, err
		}
		listed := 0
		for _, e := range reply.Entries {
			if e.Change == nil || len(out.Changes) == maxListed {
				continue
			}
			c, err := at.changeOf(e.Change)
			if err != nil {
				return out, err
			}
			if in.Diff && (c.Type == "file" || c.Type == "link") && e.Change.Old != e.Change.New {
				if c.Diff, c.NoDiff = at.ask.diff(ctx, env, e.Change, c.Path, room); c.Diff != "" {
					room -= len(c.Diff)
				}
			}
			out.Changes, listed = append(out.Changes, c), listed+1
		}
		out.Total += max(reply.Total, listed)
	}
	return out, nil
}

// changeOf returns a change as agents get it.
func (p place) changeOf(c *history.Change) (out change, err error) {
	out = change{Kind: string(c.Kind), Type: c.Type, Calls: c.Calls[:min(len(c.Calls), 100)], NotKept: c.Why}
	path, err1 := audit.Unescape(c.Path)
	from, err2 := audit.Unescape(c.From)
	if out.Path = p.full(path); from != "" {
		out.From = p.full(from)
	}
	return out, errors.Join(err1, err2)
}

// diff returns the diff of a file whose content changed, of at most so many bytes, or why there is none.
func (h History) diff(ctx context.Context, env tools.Env, c *history.Change, name string, room int) (text, why string) {
	before, why := h.content(ctx, env, c.Old, c.Why)
	if c.Kind == history.Added {
		before, why = nil, ""
	}
	if why != "" {
		return "", why
	}
	after, why := h.content(ctx, env, c.New, "")
	if c.Kind == history.Deleted {
		after, why = nil, ""
	}
	switch {
	case why != "":
		return "", why
	case !history.IsText(before) || !history.IsText(after):
		return "", "no text"
	}
	if text = filemessage.Diff(name, string(before), string(after)); len(text) > room {
		return "", "the diffs are too long: give paths"
	}
	return text, ""
}

// content returns a content, or why it cannot be compared.
func (h History) content(ctx context.Context, env tools.Env, v history.Version, unkept string) (text []byte, why string) {
	if v == (history.Version{}) {
		return nil, cmp.Or(unkept, "it was not kept")
	}
	for {
		reply, err := h(ctx, env, query.Request{Read: &v, Offset: int64(len(text))})
		switch {
		case err != nil:
			return nil, "it cannot be read"
		case reply.Nothing != "":
			return nil, reply.Nothing
		case reply.Size > maxText || len(text)+len(reply.Data) > maxText:
			return nil, "larger than 256 KiB"
		}
		text = append(text, reply.Data...)
		if int64(len(text)) >= reply.Size {
			return text, ""
		}
		if len(reply.Data) == 0 {
			return nil, "it changes"
		}
	}
}

// undoArgs are the arguments of undo.
type undoArgs struct{ which }

// undone is the result of undo.
type undone struct {
	Steps     []step    `json:"steps" limit:"items=200"`
	Conflicts []problem `json:"conflicts" limit:"items=200" jsonschema:"others changed it since, or the rules forbid a change"`
	NotKept   []problem `json:"not_kept" limit:"items=200" jsonschema:"what cannot come back"`
	Failed    []problem `json:"failed,omitempty" limit:"items=200" jsonschema:"directories in which nothing was taken back: call undo again"`
	Done      int       `json:"done" jsonschema:"steps that were done"`
	Truncated bool      `json:"truncated,omitempty" jsonschema:"the lists are not complete"`
}

type step struct {
	Action string `json:"action"`
	Path   string `json:"path" limit:"len=8192"`
	To     string `json:"to,omitempty" limit:"len=8192"`
}

type problem struct {
	Path string `json:"path" limit:"len=8192"`
	Why  string `json:"why"`
}

// Content returns a line for each step and problem.
func (o undone) Content() []tools.Content {
	var b strings.Builder
	fmt.Fprintf(&b, "%d steps done, %d conflicts, %d not kept\n", o.Done, len(o.Conflicts), len(o.NotKept))
	for _, s := range o.Steps {
		b.WriteString(s.Action + " " + tools.Quote(s.Path))
		if s.To != "" {
			b.WriteString(" -> " + tools.Quote(s.To))
		}
		b.WriteByte('\n')
	}
	for _, p := range o.Conflicts {
		fmt.Fprintf(&b, "conflict: %s: %s\n", tools.Quote(p.Path), p.Why)
	}
	for _, p := range o.NotKept {
		fmt.Fprintf(&b, "not kept: %s: %s\n", tools.Quote(p.Path), p.Why)
	}
	for _, p := range o.Failed {
		fmt.Fprintf(&b, "nothing taken back in %s: %s: call undo again\n", tools.Quote(p.Path), p.Why)
	}
	if o.Truncated {
		b.WriteString("and more\n")
	}
	return []tools.Content{{Text: b.String()}}
}

// undo takes changes back in one directory after another: each of them as a whole, or not at all.
func (h Histories) undo(ctx context.Context, env tools.Env, in undoArgs) (undone, error) {
	out := undone{Steps: []step{}, Conflicts: []problem{}, NotKept: []problem{}}
	if in.Call == "" && in.Checkpoint == "" {
		return out, tools.Errorf(tools.Invalid, "which changes: give call or checkpoint").Suggest("changes lists your calls")
	}
	places, selections, err := in.selections(ctx, env, h)
	if err != nil {
		return out, err
	}
	nothing, some := "nothing was changed there", false
	for i, at := range places {
		reply, err := at.ask.ask(ctx, env, query.Request{Undo: selections[i]})
		if err != nil && !some {
			return out, err
		}
		if err != nil { // what was taken back before stays so, and is told
			out.Failed = append(out.Failed, problem{at.root, tools.Clean(err.Error())})
			continue
		}
		if reply.Nothing != "" {
			nothing = reply.Nothing
			continue
		}
		some = true
		if reply.Result != nil {
			out.Done += reply.Result.Done
		}
		out.Truncated = out.Truncated || len(reply.Entries) < reply.Total
		for _, e := range reply.Entries {
			if err := out.add(at, e); err != nil {
				return out, err
			}
		}
	}
	if !some {
		return out, tools.Errorf(tools.NotFound, "%s", tools.Clean(nothing))
	}
	return out, nil
}

// add adds an entry of the reply, whose paths are escaped.
func (o *undone) add(at place, e query.Entry) (err error) {
	name := func(escaped string) string {
		rel, wrong := audit.Unescape(escaped)
		err = errors.Join(err, wrong)
		return at.full(rel)
	}
	switch {
	case e.Conflict != nil && len(o.Conflicts) < maxListed:
		o.Conflicts = append(o.Conflicts, problem{name(e.Conflict.Path), e.Conflict.Why})
	case e.Unkept != nil && len(o.NotKept) < maxListed:
		o.NotKept = append(o.NotKept, problem{name(e.Unkept.Path), e.Unkept.Why})
	case e.Step != nil && len(o.Steps) < maxListed:
		s := step{string(e.Step.Action), name(e.Step.Path), ""}
		if e.Step.To != "" {
			s.To = name(e.Step.To)
		}
		o.Steps = append(o.Steps, s)
	default:
		o.Truncated = true
	}
	return err
}
