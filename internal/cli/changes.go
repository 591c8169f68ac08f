package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/exit"
	"github.com/scopefs/scopefs/internal/report"
)

type changesOptions struct {
	selectOptions
	formOptions
	list bool
}

// formOptions are the flags that select how changes are printed.
type formOptions struct{ json, names, stat, patch, each bool }

func (o *formOptions) addFlags(c *cobra.Command) {
	c.Flags().BoolVarP(&o.patch, "patch", "p", false, "print diffs")
	c.Flags().BoolVar(&o.stat, "stat", false, "print how many lines changed")
	c.Flags().BoolVar(&o.names, "name-only", false, "print the names alone")
	c.Flags().BoolVar(&o.json, "json", false, "print JSON")
	c.Flags().BoolVar(&o.each, "each", false, "list each of git's own files, and of several removals of one path")
}

func (o *formOptions) form() report.ChangesForm {
	switch {
	case o.names:
		return report.ChangesNames
	case o.stat:
		return report.ChangesStat
	case o.patch:
		return report.ChangesPatch
	}
	return report.ChangesTable
}

func (a *app) changesCmd() *cobra.Command {
	var o changesOptions
	c := &cobra.Command{
		Use:   "changes [AGENT|--dir DIR] [PATH...]",
		Short: "show what an agent changed, by file",
		Long: `Lists what an agent's programs and tools changed, from its history: files that were
added, changed, removed and moved, and modes, with the calls and programs that did it.
The agent's definition must say view: {changes: kept}, or held.

Without a flag the changes are those of the last session: of a command of scopefs run, or
of a client of the tools. PATH, of the view, selects a file or what is below a directory.

A file is compared with what it was before the next change that is not selected, and
otherwise with what it is now: what the host wrote since then is in the diff. "not kept"
names a file that undo cannot bring back, and why. A file of more than 4 MiB, or that is no
text, has no diff.

Of a directory whose changes are held, the list has all that is held there, as scopefs diff.
What git keeps in .git is one line, and so are removals of one path that differ in nothing but
their time; --each lists each.

--list lists what can be named: checkpoints, calls, sessions, undos.

The list has all directories of the agent: what is in a further one has its path on the host.
--root DIR selects one.

Outside of a project and without AGENT, and with --all, it lists what each agent of the user has
changed last, by the log, with the command that lists the changes.`,
		ValidArgsFunction: a.completePaths,
		RunE: func(c *cobra.Command, words []string) error {
			if err := oneOf(c, "patch", "stat", "name-only", "list"); err != nil {
				return err
			}
			return a.changes(c, words, o)
		},
	}
	o.selectOptions.addFlags(c)
	a.completeSession(c, "last")
	o.formOptions.addFlags(c)
	a.addAll(c)
	c.Flags().BoolVar(&o.list, "list", false, "list the checkpoints, calls, sessions and undos in the history")
	return c
}

func (a *app) changes(c *cobra.Command, words []string, o changesOptions) error {
	if a.all && len(words) > 0 {
		return exit.Usagef("--all and AGENT or PATH: give one of them")
	}
	if a.all || a.ofNone(words) {
		return a.changesOfAll(c, o)
	}
	k, err := a.agentWith(c.Context(), words)
	if err != nil {
		return err
	}
	a.noteInterrupted(k)
	if !o.list {
		l, err := a.changedBy(c.Context(), k, &o.selectOptions)
		if err != nil {
			return err
		}
		if l.settled == nil {
			k = l
		}
	}
	all, err := a.keptDirectories(k)
	if err != nil {
		return err
	}
	held := !slices.ContainsFunc(all, func(d directory) bool { return !d.holdsAll() })
	if held && !o.list && len(k.words) == 0 { // the same in every selection
		if all, err = a.heldDirectories(c.Context(), k); err != nil {
			return err
		}
		return a.diff(c.Context(), k, all, diffOptions{formOptions: o.formOptions})
	}
	if o.list {
		return a.listGenerations(c.Context(), all, k, o)
	}
	sel, of, err := o.selection(c)
	if err != nil {
		return err
	}
	return a.open(c.Context(), all, func(ctx context.Context, all directories) error {
		all, err := all.choose(ctx, k, sel, k.words)
		if nothing, ok := errors.AsType[*api.NothingError](err); ok {
			return a.printChanges(k, report.NoChanges(k.id, of, o.form(), nothing.Why), o.formOptions)
		}
		if err != nil {
			return err
		}
		var r *report.Changes
		for _, d := range all {
			var one *report.Changes
			if d.holdsAll() {
				one, err = report.FindDiff(ctx, d.h, k.id, d.globs(), o.form(), false)
			} else {
				one, err = report.FindChanges(ctx, d.h, k.id, d.sel, of, o.form())
			}
			if err != nil {
				return fmt.Errorf("%s: %w", d.path(), err)
			}
			if r == nil {
				if r = report.NoChanges(k.id, of, o.form(), one.Nothing()); held {
					r = one.Empty()
				}
			}
			r.Join(d.root, one)
		}
		return a.printChanges(k, r, o.formOptions)
	})
}

// joined adds the changes of a directory to those of others; nil: there are none yet.
func joined(all *report.Changes, d directory, one *report.Changes) *report.Changes {
	if all == nil {
		all = one.Empty()
	}
	all.Join(d.root, one)
	return all
}

func (a *app) printChanges(k kept, r *report.Changes, o formOptions) error {
	r.Compared, r.Each = a.compared, o.each
	if k.def.RootOf != "" {
		r.Agent, r.Root = k.def.RootOf, k.def.Dir
	}
	if o.json {
		r.Complete()
	}
	if len(r.Changes) == 0 {
		a.elsewhere(k)
	}
	return a.print(r, o.json)
}

// compared shows how many files of a list are compared.
func (a *app) compared(done, total int) {
	a.progress.Say(fmt.Sprintf("compared %d of %d files", done, total))
}

func (a *app) listGenerations(ctx context.Context, all directories, k kept, o changesOptions) error {
	if len(k.words) > 0 || o.calls != nil || o.session != "" || o.checkpoint != "" {
		return exit.Usagef("--list: give --since alone beside it")
	}
	from, err := report.Since(o.since, time.Now())
	if err != nil {
		return exit.With(exit.Usage, err)
	}
	return a.open(ctx, all, func(ctx context.Context, all directories) error {
		lists := report.Generations{}
		for _, d := range all {
			list, err := d.h.Generations(ctx, from)
			if err != nil {
				return err
			}
			lists = lists.Join(d.root, report.GenerationsOf(list))
		}
		return a.print(lists, o.json)
	})
}
