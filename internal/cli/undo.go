package cli

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/scopefs/scopefs/fs/history"
	"github.com/scopefs/scopefs/fs/history/query"
	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/exit"
	"github.com/scopefs/scopefs/internal/report"
	"github.com/scopefs/scopefs/internal/terminal"
)

type undoOptions struct {
	selectOptions
	dry, json, force, each bool
	shown                  string
}

// addUndoFlags adds the flags of undo and redo.
func (o *undoOptions) addUndoFlags(c *cobra.Command) {
	c.Flags().BoolVarP(&o.dry, "dry-run", "n", false, "print what it would do and its hash, and do nothing")
	c.Flags().StringVar(&o.shown, "shown", "", "do what the dry run with this `HASH` printed, or nothing")
	c.Flags().BoolVar(&o.json, "json", false, "print JSON")
	c.Flags().BoolVar(&o.each, "each", false, "with --dry-run: list each step in git's own files")
	c.MarkFlagsMutuallyExclusive("dry-run", "shown")
}

func (a *app) undoCmd() *cobra.Command {
	var o undoOptions
	c := &cobra.Command{
		Use:   "undo AGENT|--dir DIR [PATH...]",
		Short: "take back what an agent changed",
		Long: `Takes changes of an agent back, the newest first, while the agent may go on working. The
agent's definition must say view: {changes: kept}, or held: then the changes are in a layer, which
the undo changes alone. A session's changes are found in the layer that has them.

Say which: --call, --session, --since or --checkpoint, and PATH for those of a file or
below a directory. With PATH alone they are those of the last session; --session last
selects them all.

What the host, another call or another session changed since stays as it is, and is listed
as a conflict. What the agent's rules do not let it change stays as well. With --force the
newer version is kept beside the old one, as NAME.newer1. What was not kept is listed, too.
An undo is in the log and in the history: scopefs redo takes it back.

All directories of the agent are meant: each changes as a whole or not at all. --root DIR
selects one. ^C takes back what the undo has done so far in a directory, and says what it
leaves.

Exit status: 0 everything was taken back, 1 there were conflicts, something was not kept,
there was nothing to do, or it failed, 2 bad usage.`,
		ValidArgsFunction: a.completePaths,
		RunE: func(c *cobra.Command, words []string) error {
			k, err := a.agentWith(c.Context(), words)
			if err == nil {
				k, err = a.changedBy(c.Context(), k, &o.selectOptions)
			}
			if err != nil {
				return err
			}
			if k.settled != nil {
				return fmt.Errorf("%s: the changes of the last session were held until the %s at %s, which no undo takes back: "+
					"--session ID selects another one", k.id, k.settled.Op, k.settled.Time.Local().Format(time.DateTime))
			}
			if o.none() && len(k.words) == 0 {
				return exit.Usagef("which changes: give --call, --session, --since, --checkpoint or PATH (--session last for those of the last session)")
			}
			sel, of, err := o.selection(c)
			if err != nil {
				return err
			}
			sel.Force = o.force
			return a.undo(c.Context(), k, undoing{"undo", of, sel, k.words, o.dry, o.json, o.each, o.shown})
		},
	}
	o.addFlags(c)
	a.completeSession(c, "last")
	o.addUndoFlags(c)
	c.Flags().BoolVarP(&o.force, "force", "f", false, "keep what others changed since beside what comes back, as NAME.newer1")
	return c
}

func (a *app) redoCmd() *cobra.Command {
	var o undoOptions
	c := &cobra.Command{
		Use:   "redo AGENT|--dir DIR [UNDO]",
		Short: "take the last undo back",
		Long: `Takes back your last undo that was not taken back, as scopefs undo takes back changes: with
the same conflicts and exit statuses. UNDO is the id of another one, also of the agent's:
scopefs changes --list has them.`,
		ValidArgsFunction: a.complete,
		RunE: func(c *cobra.Command, words []string) error {
			k, err := a.agentWith(c.Context(), words)
			if err != nil {
				return err
			}
			of := "the last undo"
			if len(k.words) > 1 {
				return exit.Usagef("redo takes one whole undo back: leave %q out", k.words[1])
			} else if len(k.words) == 1 {
				of = "undo " + k.words[0]
			}
			in, err := a.redoIn(c.Context(), k)
			if err != nil {
				return err
			}
			for i, k := range in {
				sel := history.Selection{Undo: true, Generations: k.words}
				err = a.undo(c.Context(), k, undoing{"redo", of, sel, nil, o.dry, o.json, o.each, o.shown})
				if _, nothing := errors.AsType[*api.NothingError](err); !nothing || i == len(in)-1 {
					break
				}
			}
			return err
		},
	}
	o.addUndoFlags(c)
	return c
}

// redoIn returns where a redo looks for its undo: where the last undo was, or, for the one that k.words name, in the agent's history and in
// each of its layers.
func (a *app) redoIn(ctx context.Context, k kept) ([]kept, error) {
	held, err := a.heldLayers(k)
	if err != nil || len(held) == 0 {
		return []kept{k}, err
	}
	if len(k.words) > 0 {
		return append(slices.Collect(maps.Values(held)), k), nil
	}
	id, err := report.LastUndo(ctx, k.paths.Audit(), func(id string) bool {
		_, is := held[id]
		return is || id == string(k.id)
	})
	if l, is := held[id]; is {
		k = l
	}
	return []kept{k}, err
}

// undoing is an undo or a redo.
type undoing struct {
	op, of    string
	sel       history.Selection
	paths     []string // of the command line
	dry, json bool
	each      bool
	shown     string // the hash of a plan; "": any
}

// undo does or plans it in all directories of an agent, and prints what it did.
func (a *app) undo(ctx context.Context, k kept, u undoing) error {
	a.noteInterrupted(k)
	all, err := a.keptDirectories(k)
	if err != nil {
		return err
	}
	return a.open(ctx, all, func(ctx context.Context, all directories) error {
		all, err := all.choose(ctx, k, u.sel, u.paths)
		if err != nil {
			return err
		}
		return a.undoIn(ctx, k, all, u)
	})
}

// undoIn is undo in directories that were chosen.
func (a *app) undoIn(ctx context.Context, k kept, all directories, u undoing) error {
	r := report.UndoOf(k.id, u.op, u.of, u.dry, "", &history.Result{})
	shown := map[string]string{}
	own := len(all) == 1 && all[0].root == ""
	if own {
		shown[""] = u.shown
	}
	if u.dry || u.shown != "" && !own {
		plans := report.UndoOf(k.id, u.op, u.of, true, "", &history.Result{})
		var none error
		for _, d := range all {
			p, hash, err := d.h.Plan(ctx, d.sel)
			if nothing, ok := errors.AsType[*api.NothingError](err); ok {
				none = nothing
				continue
			}
			if err != nil {
				return err
			}
			plans.Join(d.root, report.UndoOf(k.id, u.op, u.of, true, hash, p))
			shown[d.root] = hash
		}
		if none != nil && len(shown) == 0 {
			return none
		}
		if plans.Hash, plans.Each = query.Together(shown), u.each; u.dry {
			return a.printUndo(k, plans, u.json)
		} else if plans.Hash != u.shown {
			return errStale
		}
		all = slices.DeleteFunc(all, func(d directory) bool { return shown[d.root] == "" })
	}
	var none *api.NothingError
	command := ""
	if len(all) > 1 {
		command = strconv.FormatInt(time.Now().UnixNano(), 36)
	}
	err := a.each(all, u.op, a.goesOn(k, all, u), func(d directory) (more bool, err error) {
		d.sel.Command = command
		result, err := attend(ctx, a, d.h, u.op, func() (*history.Result, error) { return d.h.Undo(ctx, d.sel, shown[d.root]) })
		if nothing, ok := errors.AsType[*api.NothingError](err); ok && len(all) > 1 {
			none = nothing
			return true, nil
		}
		if result != nil {
			r.Join(d.root, report.UndoOf(k.id, u.op, u.of, false, "", result))
		}
		return result != nil && !result.Rolled, err
	})
	switch {
	case len(r.Steps) == 0 && r.Whole() && err != nil:
		return err
	case len(r.Steps) == 0 && r.Whole() && none != nil:
		return none
	case err != nil:
		return errors.Join(a.print(r, u.json), err)
	}
	return a.printUndo(k, r, u.json)
}

// goesOn returns the command that goes on with an undo or a redo of several directories.
func (a *app) goesOn(k kept, all directories, u undoing) string {
	words := []string{u.op}
	switch sel := all[0].sel; {
	case sel.Undo: // it takes back what the command before has left
	case len(sel.Calls) > 0:
		words = append(words, "--call", strings.Join(sel.Calls, ","))
	case sel.Session != "":
		words = append(words, "--session", sel.Session)
	case !sel.Since.IsZero():
		words = append(words, "--since", sel.Since.Format(time.RFC3339Nano))
	}
	return a.going(k, append(words, u.paths...)...)
}

func (a *app) printUndo(k kept, r *report.Undo, asJSON bool) error {
	if err := a.print(r, asJSON); err != nil {
		return err
	}
	if len(r.Steps) == 0 && r.Whole() {
		a.elsewhere(k)
	}
	if !r.Whole() || len(r.Steps) == 0 {
		return exit.With(exit.Failed, nil)
	}
	return nil
}

// attend calls do, an undo or a request about a branch, and shows its steps in the line of progress. The first interrupt cancels it.
func attend[T any](ctx context.Context, a *app, h *api.History, op string, do func() (T, error)) (T, error) {
	interrupts := make(chan os.Signal, 1)
	signal.Notify(interrupts, os.Interrupt)
	defer signal.Stop(interrupts)
	type outcome struct {
		result T
		err    error
	}
	done := make(chan outcome, 1)
	go func() {
		r, err := do()
		done <- outcome{r, err}
	}()
	asking, end := context.WithCancel(ctx) // an agent that is not mounted answers only after the undo has ended
	defer end()
	tick := time.NewTicker(terminal.Soon / 2)
	defer tick.Stop()
	a.progress.Say(op)
	for {
		select {
		case o := <-done:
			return o.result, o.err
		case <-interrupts:
			what := "taking back what the " + op + " has done"
			if op == "commit" || op == "discard" {
				what = "the " + op + " ends, or finishes if it has begun"
			}
			fmt.Fprintf(a.progress.Before(a.err), "scopefs: interrupted: %s\n", what)
			signal.Stop(interrupts) // the next one ends this command: the undo goes on
			go func() { _ = h.Cancel(asking) }()
		case <-tick.C:
			if a.progress == nil {
				continue
			}
			go func() {
				if n, total, err := h.Progress(asking); err == nil && total > 0 {
					a.progress.Say(fmt.Sprintf("%s: %d of %d steps", op, n, total))
				}
			}()
		}
	}
}
