package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/fs/history"
	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/bases"
	"github.com/scopefs/scopefs/internal/definitions"
	"github.com/scopefs/scopefs/internal/embedded"
	"github.com/scopefs/scopefs/internal/exit"
	"github.com/scopefs/scopefs/internal/paths"
	"github.com/scopefs/scopefs/internal/printable"
	"github.com/scopefs/scopefs/internal/state"
	"github.com/scopefs/scopefs/internal/terminal"
	"github.com/scopefs/scopefs/internal/view"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/agents"
)

// directory is one of an agent's directories, with the client of its history. A command is about all of them: each has a history of
// its own, and changes as a whole or not at all.
type directory struct {
	kept
	root string // its path on the host, as lists name it; "": the agent's own
	h    *api.History
	sel  history.Selection // what of it is meant; see directories.choose
}

// path returns where the directory is on the host.
func (d directory) path() string { return d.def.Definition.Path(d.paths.Base) }

// directories are those of one agent, its own first, if they have a history that the command is about.
type directories []directory

// holdsAll reports whether the directory's changes are held, all of them.
func (d directory) holdsAll() bool { return d.def.View.Changes == agents.ChangesHeld }

// globs returns patterns for what is selected of the directory: paths, and what is below them.
func (d directory) globs() (all []string) {
	for _, rel := range d.sel.Paths {
		if name, err := audit.Unescape(rel); err == nil && name != "" {
			name = scope.QuotePattern(name)
			all = append(all, name, name+"/**")
		}
	}
	return all
}

// rootsOf returns the roots of an agent, by their directories. One that was lent and is gone is not there.
func rootsOf(k kept) (roots []kept, err error) {
	if k.def.RootOf != "" {
		return nil, nil
	}
	all, _, err := definitions.Load(k.paths)
	if err != nil {
		return nil, err
	}
	for _, id := range slices.Sorted(maps.Keys(all.Agents)) {
		def := all.Agents[id]
		if def.RootOf != k.id || def.Lent && !exists(def.Dir) {
			continue
		}
		root := k
		root.id, root.def, root.held, root.flags = id, def, false, agents.Flags{}
		roots = append(roots, root)
	}
	slices.SortStableFunc(roots, func(a, b kept) int { return strings.Compare(a.def.Dir, b.def.Dir) })
	return roots, nil
}

// keptDirectories returns the directories of an agent whose changes are kept or held: its own, and roots that have changed.
func (a *app) keptDirectories(k kept) (all directories, err error) {
	roots, err := rootsOf(k)
	if err != nil {
		return nil, err
	}
	own := k.keeps()
	if own == nil {
		all = append(all, directory{kept: k})
	}
	for _, r := range roots {
		held := r.def.View.Changes == agents.ChangesHeld
		if held && r.holding() || !held && r.keeps() == nil && view.Kept(r.paths.History(r.id, r.def.History.Dir)) {
			all = append(all, directory{kept: r, root: r.def.Dir})
		}
	}
	if len(all) == 0 {
		return nil, own
	}
	return all, nil
}

// heldDirectories returns the directories of an agent whose changes are held, as [app.asHeld] makes them: its own, and roots that hold
// something.
func (a *app) heldDirectories(ctx context.Context, k kept) (all directories, err error) {
	roots, err := rootsOf(k)
	if err != nil {
		return nil, err
	}
	own, no := a.asHeld(ctx, k)
	if no == nil {
		all = append(all, directory{kept: own})
	}
	for _, r := range roots {
		if !r.holding() {
			continue
		}
		if r, err := a.asHeld(ctx, r); err == nil {
			all = append(all, directory{kept: r, root: r.def.Dir})
		}
	}
	if len(all) == 0 {
		return nil, no
	}
	return all, nil
}

// open calls f with a client of the history of each directory. Without a daemon that has them open, it starts one for this command. It
// shows the progress.
func (a *app) open(ctx context.Context, all directories, f func(context.Context, directories) error) error {
	of := all[0]
	a.progress = terminal.Show(a.err, terminal.Soon, "opening the history of "+string(of.id))
	defer a.progress.End()
	defer func(out io.Writer) { a.out = out }(a.out)
	a.out = a.progress.Before(a.out)
	all = slices.Clone(all)
	at, unmounted := of.paths, anew(of.paths.Base, of.def.Dir) // a directory that was made anew is not mounted for the agent of the one before
	for i := range all {
		d := &all[i]
		d.paths = at
		k, end, err := a.flagged(ctx, d.kept)
		if err != nil {
			return err
		}
		defer end()
		at, unmounted = k.paths, unmounted || k.def.View.Changes == agents.ChangesHeld || k.held
		d.kept = k
	}
	client := api.NewClient(at)
	_, err := client.Agents(ctx)
	if errors.Is(err, api.ErrNoDaemon) {
		if all.opened(ctx) {
			return f(ctx, all)
		}
		_, err = bases.Retry(ctx, at, func() error { _, err := client.Agents(ctx); return err })
	}
	if errors.Is(err, api.ErrNoDaemon) {
		var flags []string // the view answers, else each request would start a process
		if unmounted {
			flags = []string{"--" + embedded.Unmounted}
		}
		p, end, err := embedded.Start(ctx, at, of.id, io.Discard, flags...)
		if err != nil {
			return err
		}
		defer end()
		client = api.NewClient(p)
	} else if err != nil {
		return err
	}
	for i := range all {
		d := &all[i]
		d.h = d.history(client)
		d.h.Listing = func(done, total int) { a.progress.Say(fmt.Sprintf("listing %d of %d", done, total)) }
	}
	a.progress.Say("reading the history of " + string(of.id))
	return f(ctx, all)
}

// opened gives each directory a client of a history that the daemon of another command has open. It reports whether all have one.
func (all directories) opened(ctx context.Context) bool {
	for i := range all {
		if all[i].h = all[i].kept.opened(ctx); all[i].h == nil {
			return false
		}
	}
	return true
}

// locate returns in which directory of an agent a PATH of a command is, and where in it. It is relative to the agent's own.
func locate(k kept, roots []kept, word string) (root, rel string, err error) {
	if len(roots) == 0 {
		rel, err = relOf(word)
		return "", rel, err
	}
	own := k.def.Definition.Path(k.paths.Base)
	full := path.Clean(word)
	if !path.IsAbs(full) {
		full = path.Join(own, full)
	}
	if rel, ok := strings.CutPrefix(full+"/", "/workspace/"); ok {
		return "", strings.TrimSuffix(rel, "/"), nil
	}
	real := path.Join(paths.Real(path.Dir(full)), path.Base(full))
	for _, at := range []string{full, real} {
		for _, r := range append([]kept{k}, roots...) {
			dir := r.def.Definition.Path(r.paths.Base)
			if rel, ok := strings.CutPrefix(at+"/", dir+"/"); ok && word != "" {
				if r.id == k.id {
					dir = ""
				}
				return dir, strings.TrimSuffix(rel, "/"), nil
			}
		}
	}
	var dirs []string
	for _, r := range roots {
		dirs = append(dirs, printable.Text(r.def.Dir))
	}
	return "", "", exit.Usagef("%q: want a path of the view, or of %s", word, strings.Join(dirs, ", or "))
}

// choose returns the directories that a command's words and selection mean, each with its own selection. Without words these are all. An
// empty selection is the last session in any of them. If there is none the error is an [api.NothingError].
func (all directories) choose(ctx context.Context, k kept, sel history.Selection, words []string) (directories, error) {
	roots, err := rootsOf(k)
	if err != nil {
		return nil, err
	}
	below := map[string][]string{}
	for _, word := range words {
		root, rel, err := locate(k, roots, word)
		if err != nil {
			return nil, err
		}
		below[root] = append(below[root], audit.Escape(rel))
	}
	for i := range all {
		all[i].sel = sel
	}
	if len(all) > 1 {
		if all, err = all.match(ctx, sel); err != nil {
			return nil, err
		}
	}
	if len(words) == 0 {
		return all, nil
	}
	all = slices.DeleteFunc(all, func(d directory) bool { return below[d.root] == nil })
	if len(all) == 0 {
		return nil, &api.NothingError{Why: "nothing was changed there"}
	}
	for i := range all {
		all[i].sel.Paths = below[all[i].root]
	}
	return all, nil
}

// match selects the same session, undo or time in all directories, and returns those that have it. If none has, it is the first.
func (all directories) match(ctx context.Context, sel history.Selection) (directories, error) {
	of := make([]*history.Generation, len(all))
	var last *history.Generation
	for i, d := range all {
		g, _, err := d.h.Newest(ctx, sel)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", d.path(), err)
		}
		if of[i] = g; g != nil && (last == nil || g.Began.After(last.Began)) {
			last = g
		}
	}
	if last == nil {
		return all[:1], nil
	}
	owner := func(g *history.Generation) string {
		if g.Parent != "" {
			return g.Parent
		}
		return g.Session
	}
	var meant directories
	for i, d := range all {
		g := of[i]
		switch {
		case sel.Checkpoint != "":
			d.sel.Checkpoint, d.sel.Since = "", last.Began
		case sel.Undo:
			if g != last && (g == nil || last.Undo.Command == "" || g.Undo.Command != last.Undo.Command) {
				if last.Undo.Command == "" {
					continue
				}
				var err error
				if g, _, err = d.h.Newest(ctx, history.Selection{Undo: true, Command: last.Undo.Command}); err != nil || g == nil {
					continue
				}
			}
			d.sel.Generations = []string{g.ID}
		case len(sel.Calls) > 0 || sel.Session != "":
			if g == nil {
				continue
			}
		case sel.Since.IsZero() && owner(last) == "": // of no session: one history cannot name those of another one
			if g == nil || owner(g) != "" {
				continue
			}
		case sel.Since.IsZero(): // it may have changed something there before another session
			d.sel.Session = owner(last)
			if g, _, err := d.h.Newest(ctx, d.sel); err != nil || g == nil {
				continue
			}
		}
		meant = append(meant, d)
	}
	return meant, nil
}

var errStale = errors.New("nothing was done: the changes are not those that were shown: look at them again")

// each calls do for each directory in turn: it changes the directory as a whole, or not at all. What a crash or an error between two
// has left, the error or the next command says, with the command that goes on. more reports whether do goes on with the next one.
func (a *app) each(all directories, op, command string, do func(d directory) (more bool, err error)) error {
	if len(all) == 1 {
		_, err := do(all[0])
		return err
	}
	var dirs []string
	for _, d := range all {
		dirs = append(dirs, d.path())
	}
	of := all[0]
	id := of.id
	if of.def.RootOf != "" {
		id = of.def.RootOf
	}
	series, err := state.BeginSeries(of.paths.State, id, state.Plan{Op: op, Command: command, Dirs: dirs})
	if err != nil {
		return err
	}
	defer series.End()
	for _, d := range all {
		more, err := do(d)
		if err != nil || !more {
			return errors.Join(err, leftOf(series))
		}
		if err := series.Changed(d.path()); err != nil {
			return errors.Join(err, leftOf(series))
		}
	}
	return nil
}

// leftOf returns an error that says which directories a command has not changed.
func leftOf(s *state.Series) error {
	done := "nothing"
	if len(s.Done) > 0 {
		done = printable.Text(strings.Join(s.Done, ", "))
	}
	return fmt.Errorf("%s: done: %s; not done: %s: %s goes on", s.Op, done, printable.Text(strings.Join(s.Left(), ", ")), s.Command)
}

// noteInterrupted says what a command that was killed has left of the agent's directories.
func (a *app) noteInterrupted(k kept) {
	id := k.id
	if k.def.RootOf != "" {
		id = k.def.RootOf
	}
	if s := state.Interrupted(k.paths.State, id); s != nil {
		s.Close()
		a.note("it was interrupted: " + leftOf(s).Error())
	}
}

// going returns a command line that goes on with an operation.
func (a *app) going(k kept, words ...string) string {
	if project := a.Dir; project != "" && project != "." {
		words = append(words, "--dir", project)
	}
	if k.named {
		words = slices.Insert(words, 1, string(k.id))
	}
	return printable.Command(append([]string{"scopefs"}, words...)...)
}

// patterns splits the GLOBs of a command by the directories that they are in; without one all are whole.
func (all directories) patterns(k kept, globs []string) (map[string][]string, error) {
	roots, err := rootsOf(k)
	if err != nil {
		return nil, err
	}
	by := map[string][]string{}
	for _, glob := range globs {
		if len(roots) == 0 || !path.IsAbs(glob) && !strings.HasPrefix(path.Clean(glob), "../") {
			by[""] = append(by[""], glob)
			continue
		}
		root, rel, err := locate(k, roots, glob)
		if err != nil {
			return nil, err
		}
		if rel == "" {
			rel = "*"
		}
		by[root] = append(by[root], rel)
	}
	return by, nil
}

// covered returns the directories that GLOBs are in, each with its own.
func (all directories) covered(k kept, globs []string) (meant directories, by map[string][]string, err error) {
	if by, err = all.patterns(k, globs); err != nil || len(globs) == 0 {
		return all, by, err
	}
	meant = slices.DeleteFunc(slices.Clone(all), func(d directory) bool { return by[d.root] == nil })
	if len(meant) == 0 { // it holds nothing
		meant = all[:1]
		if by[meant[0].root] == nil {
			return nil, nil, fmt.Errorf("nothing is held there: scopefs diff lists what is")
		}
	}
	return meant, by, nil
}
