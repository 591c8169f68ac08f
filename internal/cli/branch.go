package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"

	"github.com/scopefs/scopefs/fs/history/query"
	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/definitions"
	"github.com/scopefs/scopefs/internal/exit"
	"github.com/scopefs/scopefs/internal/paths"
	"github.com/scopefs/scopefs/internal/printable"
	"github.com/scopefs/scopefs/internal/report"
	"github.com/scopefs/scopefs/internal/view"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/agents"
)

func (a *app) branchCmd() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "branch AGENT|--dir DIR NAME",
		Short: "make a branch of an agent, whose changes are held",
		Long: `Makes a branch of an agent: an agent AGENT-NAME with the same definition and directory. Its
changes are held: it sees the directory with its own changes, and the directory does not
change before scopefs commit. Several branches may work side by side. How long it takes does
not depend on the size of the directory.

In a project the branch is named NAME alone. All commands take --branch NAME, such as
scopefs run --dir . --branch NAME -- PROGRAM.`,
		Args:              exit.Args(cobra.RangeArgs(1, 2)),
		ValidArgsFunction: a.complete,
		RunE: func(c *cobra.Command, words []string) error {
			p, project, err := a.existing()
			if errors.Is(err, paths.ErrNoBase) {
				err = exit.Usagef("branch: no agent has run in this directory yet: start one with scopefs run --dir . -- PROGRAM, or give --base DIR AGENT NAME")
			}
			if err != nil {
				return err
			}
			agent, name := "", words[len(words)-1]
			if len(words) == 2 {
				agent = words[0]
			}
			switch {
			case a.Branch != "":
				return exit.Usagef("--branch: give the branch of a branch's agent another NAME, and leave --branch out")
			case agent == "" && project == nil:
				return exit.Usagef("which agent: give AGENT NAME, or --dir DIR NAME for a directory without one")
			}
			of, err := a.baseAgentIn(p, project, agent)
			if err != nil {
				return err
			}
			id, err := branchID(project, of, name)
			if err != nil {
				return err
			}
			if err := definitions.MakeBranch(p, id, of); err != nil {
				return err
			}
			if asJSON {
				return report.Line(a.out, map[string]scope.ID{"branch": id, "agent": of})
			}
			fmt.Fprintln(a.out, id)
			return nil
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	c.AddCommand(a.branchListCmd(), a.branchRemoveCmd())
	return c
}

func (a *app) branchListCmd() *cobra.Command {
	asJSON := false
	c := &cobra.Command{
		Use:   "list",
		Short: "list the agents whose changes are held",
		Args:  exit.Args(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			p, _, err := a.existing()
			if err != nil {
				return err
			}
			all, errs, err := definitions.Load(p)
			if err != nil {
				return err
			}
			for _, err := range errs {
				fmt.Fprintf(a.err, "scopefs: %v\n", err)
			}
			list := report.Branches{}
			for _, id := range slices.Sorted(maps.Keys(all.Agents)) {
				def := all.Agents[id]
				k := kept{paths: p, id: id, def: def}
				if def.View.Changes != agents.ChangesHeld {
					if _, holds := k.left(); !holds {
						continue
					}
					k.flags.Changes = agents.ChangesHeld
				}
				b := k.asBranch(all)
				err := a.with(c.Context(), k, func(ctx context.Context, h *api.History) error { return b.Find(ctx, h, "") })
				if err != nil {
					b.Error = err.Error()
				}
				list = append(list, b)
			}
			list.Compare()
			return a.print(list, asJSON)
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

// asBranch returns the row of an agent in a list of branches. A root is that of the agent or branch that it is of.
func (k kept) asBranch(all *agents.Snapshot) report.Branch {
	of, root := k.def, ""
	if owner := all.Agents[k.def.RootOf]; owner != nil {
		of, root = owner, k.def.Dir
	}
	return report.Branch{Branch: of.Name, Agent: cmp.Or(of.Branch, of.Name), Root: root}
}

func (a *app) branchRemoveCmd() *cobra.Command {
	return &cobra.Command{
		Use:     "remove BRANCH",
		Aliases: []string{"rm"},
		Short:   "remove a branch with the changes that it holds",
		Long: `Removes a branch and the changes that were not committed. It must not be mounted: scopefs
down BRANCH.`,
		Args:              exit.Args(cobra.ExactArgs(1)),
		ValidArgsFunction: a.complete,
		RunE: func(c *cobra.Command, words []string) error {
			p, id, err := a.agentNamed(c.Context(), words[0])
			if err != nil {
				return err
			}
			all, err := api.NewClient(p).Agents(c.Context())
			if err != nil && !errors.Is(err, api.ErrNoDaemon) {
				return err
			}
			for _, agent := range all {
				if agent.ID == id && agent.State != api.Down {
					return fmt.Errorf("branch %s is %s: scopefs down %s", id, agent.State, id)
				}
			}
			def, err := definitions.Agent(p, id)
			if errors.Is(err, api.ErrUnknown) {
				return exit.Usagef("there is no branch %q: scopefs branch list has them", id)
			}
			went := "what it held is not known" // its removal needs no count
			if err == nil && def.Branch != "" {
				var b report.Branch
				find := func(ctx context.Context, h *api.History) error { return b.Find(ctx, h, "") }
				if a.with(c.Context(), kept{paths: p, id: id, def: def}, find) == nil {
					went = report.Dropped(b.Changes)
				}
			}
			if err := definitions.RemoveBranch(p, id); err != nil {
				return err
			}
			fmt.Fprintf(a.out, "%s, branch remove: %s\n", id, went)
			return nil
		},
	}
}

// heldAgent returns the agent of a command line, and its directories whose changes are held: the layer that has them.
func (a *app) heldAgent(ctx context.Context, words []string) (k kept, all directories, err error) {
	if k, err = a.agentWith(ctx, words); err != nil {
		return k, nil, err
	}
	if len(k.words) > 0 {
		return k, nil, exit.Usagef("%q is no flag: give --path GLOB for a part of the changes", k.words[0])
	}
	a.noteInterrupted(k)
	if a.Branch == "" && (!k.named || !k.holds(ctx)) {
		if k, err = a.layer(ctx, k); err != nil {
			return k, nil, err
		}
	}
	all, err = a.heldDirectories(ctx, k)
	return k, all, err
}

// asHeld makes requests about an agent those about what it holds, by its definition or by a view that it had before.
func (a *app) asHeld(ctx context.Context, k kept) (kept, error) {
	branched, holds := k.left()
	switch rules := k.def.View.PolicySpec().Holds(); {
	case k.def.View.Changes == agents.ChangesHeld, k.mounted(ctx).Holds:
	case holds, branched && !rules: // by flags, or a definition, of before
		k.flags.Changes = agents.ChangesHeld
	case !rules:
		return k, fmt.Errorf("the changes of %s are not held: give --changes held to run, or write view: {changes: held}, "+
			"or paths with hold, into %s, for the changes from then on", k.id, k.def.Path(k.paths.Base))
	}
	k.held = k.def.View.Changes != agents.ChangesHeld && k.flags.Changes == ""
	return k, nil
}

// left is view.Left.
func (k kept) left() (branched, holds bool) {
	return view.Left(k.paths.History(k.id, k.def.History.Dir))
}

// mounted returns the agent as the daemon has it; zero without one.
func (k kept) mounted(ctx context.Context) (found api.Agent) {
	all, _ := api.NewClient(k.paths).Agents(ctx)
	for _, agent := range all {
		if agent.ID == k.id {
			found = agent
		}
	}
	return found
}

type diffOptions struct {
	formOptions
	paths []string
	hash  bool
}

func (a *app) diffCmd() *cobra.Command {
	var o diffOptions
	c := &cobra.Command{
		Use:   "diff AGENT|--dir DIR",
		Short: "show what a commit would take over",
		Long: `Lists what differs between an agent's branch and its directory: files that were added,
changed, removed and moved, and modes. They are held by run --changes held, by the definition
with view: {changes: held} or rules with hold, or on a branch. Where several layers hold changes,
it lists them and asks for one.

A conflict is what the directory has changed since the branch was made, and the agent has not
seen. The line says whether scopefs commit --merge takes both changes, or why not.`,
		ValidArgsFunction: a.complete,
		RunE: func(c *cobra.Command, words []string) error {
			if err := oneOf(c, "patch", "stat", "name-only"); err != nil {
				return err
			}
			k, all, err := a.heldAgent(c.Context(), words)
			if err != nil {
				return err
			}
			return a.diff(c.Context(), k, all, o)
		},
	}
	addPaths(c, &o.paths)
	c.Flags().BoolVar(&o.hash, "hash", false, "print the hash of the changes, for --shown of commit and discard")
	o.addFlags(c)
	return c
}

// diff prints what the directories of an agent hold.
func (a *app) diff(ctx context.Context, k kept, all directories, o diffOptions) error {
	all, globs, err := all.covered(k, o.paths)
	if err != nil {
		return err
	}
	return a.open(ctx, all, func(ctx context.Context, all directories) error {
		var r *report.Changes
		hashes := map[string]string{}
		for _, d := range all {
			one, err := report.FindDiff(ctx, d.h, k.id, globs[d.root], o.form(), o.hash)
			if err != nil {
				return fmt.Errorf("%s: %w", d.path(), err)
			}
			if r = joined(r, d, one); len(one.Changes) > 0 {
				hashes[d.root] = one.Hash
			}
		}
		if o.hash {
			r.Hash = query.Together(hashes)
		}
		return a.printChanges(k, r, o.formOptions)
	})
}

// shown returns the hashes of what the directories hold, if together they have the one that a diff printed. Of a single directory the view
// compares it.
func (all directories) shown(ctx context.Context, globs map[string][]string, hash string) (map[string]string, error) {
	hashes := map[string]string{}
	if hash == "" {
		return hashes, nil
	}
	for _, d := range all {
		diff, err := d.h.Diff(ctx, globs[d.root], true)
		if err != nil {
			return nil, err
		}
		if len(diff.List) > 0 {
			hashes[d.root] = diff.Hash
		}
	}
	if query.Together(hashes) != hash {
		return nil, errStale
	}
	return hashes, nil
}

func addPaths(c *cobra.Command, paths *[]string) {
	c.Flags().StringArrayVar(paths, "path", nil, "only what a `GLOB` covers, such as src/**; may be repeated")
}

func addShownPaths(c *cobra.Command, paths *[]string, hash *string) {
	addPaths(c, paths)
	c.Flags().StringVar(hash, "shown", "", "the changes have the `HASH` that scopefs diff --hash printed, or nothing is done")
}

type commitOptions struct {
	api.CommitOptions
	git  string
	json bool
}

func (a *app) commitCmd() *cobra.Command {
	var o commitOptions
	c := &cobra.Command{
		Use:   "commit AGENT|--dir DIR",
		Short: "take an agent's held changes over into its directory",
		Long: `Takes what scopefs diff lists over into the agent's directory: all of it or nothing. Of
several directories each is taken as a whole, and a conflict in one has nothing taken in
any. What the agent's rules do not let it change is not taken. The agent may go on working.

What the directory has changed since the branch was made is a conflict, and nothing is
taken: --theirs takes the agent's version of conflicts, --ours leaves the directory's and
takes the rest. --merge takes both changes to a text, if they are to different lines, lists
such files, and is --ours for other conflicts. A commit that was interrupted is finished by
the next command.

--git NAME takes nothing but git's commits: those of the agent's HEAD become the branch NAME
of the directory's repository, in each directory that is one. The directory's HEAD, index and
files stay.

Exit status: 0 everything was taken, 1 there were conflicts, there was nothing to take, or
it failed, 2 bad usage.`,
		ValidArgsFunction: a.complete,
		RunE: func(c *cobra.Command, words []string) error {
			if err := oneOf(c, "theirs", "ours", "merge", "git"); err != nil {
				return err
			}
			if o.git != "" && (len(o.Paths) > 0 || o.Hash != "") {
				return exit.Usagef("--git takes commits, which have no --path and no --shown")
			}
			k, all, err := a.heldAgent(c.Context(), words)
			if err != nil {
				return err
			}
			if o.git != "" {
				return a.takeGit(c.Context(), k, all, o.git, o.json)
			}
			return a.commit(c.Context(), k, all, o)
		},
	}
	addShownPaths(c, &o.Paths, &o.Hash)
	c.Flags().BoolVar(&o.Theirs, "theirs", false, "take the agent's version of conflicts")
	c.Flags().BoolVar(&o.Ours, "ours", false, "leave the directory's version of conflicts, and take the rest")
	c.Flags().BoolVar(&o.Merge, "merge", false, "take both changes to different lines of a text, and else leave the directory's version")
	c.Flags().StringVar(&o.git, "git", "", "take git's commits as the branch `NAME` of the directory's repository, and nothing else")
	c.Flags().BoolVar(&o.json, "json", false, "print JSON")
	return c
}

// commit takes what the directories of an agent hold over. A conflict in one of them has nothing taken in any.
func (a *app) commit(ctx context.Context, k kept, all directories, o commitOptions) error {
	all, globs, err := all.covered(k, o.Paths)
	if err != nil {
		return err
	}
	return a.open(ctx, all, func(ctx context.Context, all directories) error {
		hashes, err := all.shown(ctx, globs, o.Hash)
		if err != nil {
			return err
		}
		r := &report.Commit{Agent: k.id}
		take := func(d directory, check bool) (*api.Committed, error) {
			opt := o.CommitOptions
			opt.Paths, opt.Hash, opt.Check = globs[d.root], hashes[d.root], check
			return attend(ctx, a, d.h, "commit", func() (*api.Committed, error) { return d.h.Commit(ctx, opt) })
		}
		conflicts := false
		if len(all) > 1 && !o.Theirs && !o.Ours && !o.Merge {
			checked := &report.Commit{Agent: k.id}
			for _, d := range all {
				one, err := take(d, true)
				if err != nil {
					return fmt.Errorf("%s: %w", d.path(), err)
				}
				checked.Join(d.root, api.Committed{Conflicts: one.Conflicts})
			}
			if conflicts = len(checked.Conflicts) > 0; conflicts {
				r = checked
			}
		}
		if !conflicts {
			words := []string{"commit"}
			for flag, set := range map[string]bool{"--theirs": o.Theirs, "--ours": o.Ours, "--merge": o.Merge} {
				if set {
					words = append(words, flag)
				}
			}
			for _, glob := range o.Paths {
				words = append(words, "--path", glob)
			}
			err = a.each(all, "commit", a.going(k, words...), func(d directory) (more bool, err error) {
				one, err := take(d, false)
				if one != nil {
					r.Join(d.root, *one)
				}
				return one != nil && (len(one.Conflicts) == 0 || len(one.Taken) > 0 || o.Ours || o.Merge), err
			})
		}
		if err != nil && len(r.Taken) == 0 && len(r.Conflicts) == 0 {
			return err
		}
		if err := errors.Join(a.print(r, o.json), err); err != nil {
			return err
		}
		if len(r.Conflicts) > 0 || len(r.Taken) == 0 {
			return exit.With(exit.Failed, nil)
		}
		return nil
	})
}

// takeGit is commit --git, in each directory that is a repository.
func (a *app) takeGit(ctx context.Context, k kept, all directories, branch string, asJSON bool) error {
	commits := 0
	for _, d := range all {
		if d.root != "" && !exists(filepath.Join(d.root, ".git")) {
			continue
		}
		n, err := a.takeGitIn(ctx, d, branch)
		if err != nil {
			return err
		}
		commits += n
		switch {
		case n == 0:
		case asJSON:
			line := map[string]any{"agent": k.id, "branch": branch, "commits": n}
			if d.root != "" {
				line["root"] = d.root
			}
			if err := report.Line(a.out, line); err != nil {
				return err
			}
		default:
			are := "1 commit is"
			if n > 1 {
				are = fmt.Sprintf("%d commits are", n)
			}
			of, merge := branch, []string{"git", "merge", branch}
			if d.root != "" {
				of, merge = branch+" of "+printable.Text(d.root), []string{"git", "-C", d.root, "merge", branch}
			}
			next := printable.Command(merge...)
			if k.def.Branch != "" && k.def.HomeID() == k.id { // it holds what the commits have, until it is removed
				next += ", then " + printable.Command("scopefs", "branch", "remove", string(k.id))
			}
			fmt.Fprintf(a.out, "%s, commit: %s the branch %s: %s\n", k.id, are, of, next)
		}
	}
	if commits == 0 {
		return fmt.Errorf("%s has no commit that the directory's repository lacks", k.id)
	}
	return nil
}

func (a *app) takeGitIn(ctx context.Context, d directory, branch string) (commits int, err error) {
	k, end, err := a.flagged(ctx, d.kept)
	if err != nil {
		return 0, err
	}
	defer end()
	return a.commitGit(ctx, k, branch)
}

func (a *app) discardCmd() *cobra.Command {
	var paths []string
	all, asJSON, hash := false, false, ""
	c := &cobra.Command{
		Use:   "discard AGENT|--dir DIR --all|--path GLOB",
		Short: "drop an agent's held changes",
		Long: `Drops what scopefs diff lists: the agent sees its directory's version again. It cannot be
taken back.`,
		ValidArgsFunction: a.complete,
		RunE: func(c *cobra.Command, words []string) error {
			if all == (len(paths) > 0) {
				return exit.Usagef("what is dropped: give --all, or --path GLOB")
			}
			k, all, err := a.heldAgent(c.Context(), words)
			if err != nil {
				return err
			}
			return a.discard(c.Context(), k, all, paths, hash, asJSON)
		},
	}
	addShownPaths(c, &paths, &hash)
	c.Flags().BoolVar(&all, "all", false, "all changes")
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

// discard drops what the directories of an agent hold.
func (a *app) discard(ctx context.Context, k kept, all directories, paths []string, hash string, asJSON bool) error {
	all, globs, err := all.covered(k, paths)
	if err != nil {
		return err
	}
	words := []string{"discard", "--all"}
	if len(paths) > 0 {
		words = words[:1]
	}
	for _, glob := range paths {
		words = append(words, "--path", glob)
	}
	return a.open(ctx, all, func(ctx context.Context, all directories) error {
		hashes, err := all.shown(ctx, globs, hash)
		if err != nil {
			return err
		}
		dropped := 0
		err = a.each(all, "discard", a.going(k, words...), func(d directory) (more bool, err error) {
			n, err := attend(ctx, a, d.h, "discard", func() (int, error) { return d.h.Discard(ctx, globs[d.root], hashes[d.root]) })
			dropped += n
			return err == nil, err
		})
		switch {
		case err != nil && dropped == 0:
		case asJSON:
			err = errors.Join(report.Line(a.out, map[string]any{"agent": k.id, "dropped": dropped}), err)
		default:
			fmt.Fprintln(a.out, report.Discarded(k.id, dropped))
		}
		return err
	})
}
