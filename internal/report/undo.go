package report

import (
	"cmp"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"

	"github.com/scopefs/scopefs/audit/event"
	"github.com/scopefs/scopefs/fs/history"
	"github.com/scopefs/scopefs/internal/printable"
	"github.com/scopefs/scopefs/scope"
)

// Undo is what an undo or a redo did, or would do.
type Undo struct {
	Agent     scope.ID          `json:"agent"`
	Op        string            `json:"op"` // undo, redo
	Of        string            `json:"of"` // which changes, in words
	DryRun    bool              `json:"dry_run"`
	Done      int               `json:"done"` // steps, with those for the times of directories
	Rolled    bool              `json:"rolled_back"`
	Steps     []history.Step    `json:"steps"`
	Conflicts []history.Problem `json:"conflicts"`
	Unkept    []history.Problem `json:"not_kept"`
	Hash      string            `json:"hash,omitempty"` // of what a dry run prints
	Each      bool              `json:"-"`              // git's own files have a line each
}

// UndoOf returns the report of a result.
func UndoOf(id scope.ID, op, of string, dry bool, hash string, r *history.Result) *Undo {
	return &Undo{
		Agent: id, Op: op, Of: of, DryRun: dry, Done: r.Done, Rolled: r.Rolled,
		Steps: some(named(r.Steps)), Conflicts: some(r.Conflicts), Unkept: some(r.Unkept), Hash: hash,
	}
}

// named returns steps without the name under which a view writes a file of git before it has its own: that is for a moment.
func named(steps []history.Step) (all []history.Step) {
	staged := func(rel string) bool { return path.Base(rel) == scope.StagedGitFile }
	for _, s := range steps {
		switch move := s.Action == history.Move; {
		case move && staged(s.To):
			s.Action, s.To = history.Remove, ""
		case move && staged(s.Path):
			s.Action, s.Path, s.To = history.Restore, s.To, ""
		case staged(s.Path):
			continue
		}
		all = append(all, s)
	}
	return all
}

// Join adds what was done in a directory of the agent: its own, or the root dir, whose paths become those of the host.
func (r *Undo) Join(dir string, other *Undo) {
	for _, s := range other.Steps {
		if s.Path = inRoot(dir, s.Path); s.To != "" {
			s.To = inRoot(dir, s.To)
		}
		r.Steps = append(r.Steps, s)
	}
	r.Conflicts = append(r.Conflicts, problemsIn(dir, other.Conflicts)...)
	r.Unkept = append(r.Unkept, problemsIn(dir, other.Unkept)...)
	r.Done, r.Rolled = r.Done+other.Done, r.Rolled || other.Rolled
}

func problemsIn(dir string, list []history.Problem) (all []history.Problem) {
	for _, p := range list {
		all = append(all, history.Problem{Path: inRoot(dir, p.Path), Why: p.Why})
	}
	return all
}

// Whole reports whether everything was taken back.
func (r *Undo) Whole() bool { return !r.Rolled && len(r.Conflicts) == 0 && len(r.Unkept) == 0 }

// actions are what steps do, in words, in the order of a summary.
var actions = []struct {
	action history.Action
	words  string
}{
	{history.Copy, "newer copied"}, {history.Rewrite, "rewritten"}, {history.Restore, "restored"},
	{history.Reveal, "back to the directory's"},
	{history.Mkdir, "directories made"}, {history.Move, "moved"},
	{history.Exchange, "exchanged"}, {history.Return, "taken away again"}, {history.Remove, "removed"}, {history.Attribute, "attributes"},
}

// summary counts the steps by what they do.
func (r *Undo) summary() string {
	counts := map[history.Action]int{}
	for _, step := range r.Steps {
		counts[step.Action]++
	}
	var words []string
	for _, a := range actions {
		if n := counts[a.action]; n > 0 {
			words = append(words, fmt.Sprintf("%d %s", n, a.words))
		}
	}
	switch {
	case words == nil && len(r.Conflicts)+len(r.Unkept) > 0:
		return "nothing taken back"
	case words == nil:
		return "nothing to do"
	}
	return strings.Join(words, ", ")
}

// Print prints the summary, the conflicts and what was not kept; of a dry run, all steps.
func (r *Undo) Print(w io.Writer) error {
	var b strings.Builder
	would := ""
	if r.DryRun {
		would = ", not done (--dry-run)"
	}
	fmt.Fprintf(&b, "%s, %s, %s%s: %s\n", r.Agent, r.Op, printable.Text(r.Of), would, r.summary())
	if r.DryRun {
		var table Table
		ofGit := map[string]int{}
		for _, step := range r.Steps {
			if dir, is := history.InGit(step.Path); is {
				ofGit[dir]++
			}
		}
		for _, step := range r.Steps {
			if dir, is := history.InGit(step.Path); is && !r.Each {
				if n := ofGit[dir]; n > 0 {
					table.Row(r.Op, quoted(dir)+"/* ("+counted(n, "step")+")")
				}
				ofGit[dir] = 0
				continue
			}
			name := quoted(step.Path)
			if step.To != "" {
				name += " -> " + quoted(step.To)
			}
			table.Row(string(step.Action), name)
		}
		_ = table.Print(&b) // to memory
	}
	if r.Rolled {
		b.WriteString("interrupted: what was done is taken back\n")
	}
	unkept := map[string]string{}
	for _, p := range r.Unkept {
		unkept[p.Path] = p.Why
		fmt.Fprintf(&b, "not kept: %s: %s\n", printable.Text(quoted(p.Path)), printable.Text(p.Why))
	}
	for _, p := range slices.DeleteFunc(slices.Clone(r.Conflicts), func(p history.Problem) bool { return unkept[p.Path] == p.Why }) {
		fmt.Fprintf(&b, "conflict: %s: %s\n", printable.Text(quoted(p.Path)), printable.Text(p.Why))
	}
	if r.DryRun && len(r.Steps) > 0 {
		fmt.Fprintf(&b, "to do this, or nothing if it has changed: --shown %s\n", r.Hash)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// Generations are the generations of a history.
type Generations []Generation

// Generation is one generation.
type Generation struct {
	Kind string `json:"kind"`           // checkpoint, undo, redo, call, session
	Root string `json:"root,omitempty"` // the further directory of the agent that it is of
	history.Generation
	Undo *none `json:"undo,omitempty"` // hides that of Generation: Kind says it
	Redo *none `json:"redo,omitempty"`
}

// Join adds the generations of a directory of the agent: of its own, or of the root dir. The oldest are first. A checkpoint that all
// directories have is there once.
func (all Generations) Join(dir string, other Generations) Generations {
	for _, g := range other {
		same := func(o Generation) bool {
			return o.Root != event.Escape(dir) && (o.Checkpoint == g.Checkpoint || o.ID == g.Checkpoint)
		}
		if g.Kind == "checkpoint" && g.Checkpoint != "" && slices.ContainsFunc(all, same) {
			continue
		}
		g.Root = event.Escape(dir)
		all = append(all, g)
	}
	slices.SortStableFunc(all, func(a, b Generation) int { return a.Began.Compare(b.Began) })
	return all
}

// GenerationsOf returns the report of a list.
func GenerationsOf(all []history.Generation) Generations {
	list := Generations{}
	for _, g := range all {
		kind := "session"
		switch {
		case g.Undo != nil && g.Header.Redo:
			kind = "redo"
		case g.Undo != nil:
			kind = "undo"
		case g.Checkpoint != "" || g.Changes == 0 && g.Session == "" && g.Call == "":
			kind = "checkpoint"
		case g.Call != "":
			kind = "call"
		}
		list = append(list, Generation{Kind: kind, Generation: g})
	}
	return list
}

// Print prints a row for each generation.
func (all Generations) Print(w io.Writer) error {
	var t Table
	roots := slices.ContainsFunc(all, func(g Generation) bool { return g.Root != "" })
	row := func(root string, words ...any) {
		if roots {
			words = append(words, cmp.Or(quoted(root), "-"))
		}
		t.Row(words...)
	}
	row("ROOT", "BEGAN", "KIND", "ID", "CHANGES", "KEPT")
	for _, g := range all {
		id := g.ID
		switch {
		case g.Checkpoint != "" && g.Parent == "": // a client's is named by its id
			id = g.Checkpoint
		case g.Call != "":
			id = g.Call
		case g.Kind == "session" && g.Parent != "":
			id = g.Parent
		case g.Kind == "session" && g.Session != "":
			id = g.Session
		}
		kept := "-" // it is still written
		if g.Bytes > 0 {
			kept = sizeText(g.Bytes)
		}
		row(g.Root, g.Began.Local().Format("2006-01-02 15:04:05.000"), g.Kind, quoted(id), g.Changes, kept)
	}
	return t.Print(w)
}
