package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/internal/embedded"
	"github.com/scopefs/scopefs/internal/exit"
	"github.com/scopefs/scopefs/internal/forget"
	"github.com/scopefs/scopefs/internal/paths"
	"github.com/scopefs/scopefs/internal/printable"
	"github.com/scopefs/scopefs/internal/prompt"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/agents"
)

func (a *app) forgetCmd() *cobra.Command {
	yes := false
	c := &cobra.Command{
		Use:   "forget AGENT|DIR",
		Short: "remove what scopefs keeps of an agent or a project",
		Long: `Removes an agent's HOME, history, held changes, rates, approvals, tokens, its database of the
store sql, and what it has in the stores kv, messages and objects of scopefs.yaml, also on servers
that others share. Of a project, by the name of its directory, its id or a path, it removes the definition
and everything else in its base, also of directories that were at the path before. DIR need not
exist any more. It prints what it removes, and asks. It cannot be taken back.

The agent's directory stays, and so do the log, by its retention, and an agent's own definition.
What it has on a server of the stores sql and metrics, and what it has published to channels, is
listed with the command that removes it, where there is one. Nothing is removed while the agent
has a view or a session, or while a daemon of the project runs.`,
		Args:              exit.Args(cobra.MaximumNArgs(1)),
		ValidArgsFunction: a.complete,
		RunE: func(c *cobra.Command, words []string) error {
			switch {
			case len(words) == 1:
				return a.forget(c.Context(), words[0], yes)
			case a.Dir != "":
				return a.forget(c.Context(), a.Dir, yes)
			}
			return exit.Usagef("whose state: give AGENT, or the DIR of a project (scopefs forget .)")
		},
	}
	c.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
	return c
}

func (a *app) forget(ctx context.Context, name string, yes bool) error {
	all, err := a.forgettable(name)
	if err != nil {
		return err
	}
	if len(all) > 0 {
		return a.forgetProjects(ctx, all, yes)
	}
	p, err := a.paths()
	if errors.Is(err, paths.ErrNoBase) {
		return fmt.Errorf("no project is named %q: give its path, or --base DIR for the agent of a base", name)
	}
	if err != nil {
		return err
	}
	id, err := scope.ParseID(name) // its definition may be gone
	if err != nil {
		return err
	}
	client, end, err := a.daemonFor(ctx, p, id)
	if err != nil {
		return err
	}
	defer end()
	made, err := client.Forget(ctx, id, false)
	if err != nil {
		return err
	}
	a.removes(made)
	if len(made.Lines()) == 0 {
		fmt.Fprintf(a.out, "nothing is kept of %s\n", id)
		return nil
	}
	if err := a.consent(ctx, yes); err != nil {
		return err
	}
	if _, err = client.Forget(ctx, id, true); err == nil {
		fmt.Fprintf(a.out, "%s: forgotten\n", id)
	}
	return err
}

// forgettable returns the projects of a name, or those that have been at a path.
func (a *app) forgettable(name string) ([]config.Project, error) {
	if a.Flags.Base != "" {
		return nil, nil
	}
	if _, err := os.Stat(name); err == nil || strings.Contains(name, "/") {
		if name, err = filepath.Abs(name); err != nil {
			return nil, err
		}
		name = paths.Real(name)
	}
	found, err := paths.Finder{DirOf: agents.DirOf}.Projects(name)
	switch {
	case err == nil && len(found) == 0 && filepath.IsAbs(name):
		return nil, fmt.Errorf("no agent has run in %s, or its state is gone", name)
	case len(found) > 1 && !filepath.IsAbs(name):
		return nil, exit.Usagef("%q is the name of %d projects: give the path of one", name, len(found))
	}
	if err == nil && len(found) == 1 && !found[0].Gone { // with what earlier directories at its path have left
		found, err = paths.Finder{DirOf: agents.DirOf}.Projects(found[0].Dir)
	}
	return found, err
}

// daemonFor returns a client of the daemon of a base. Without one it starts one that mounts nothing.
func (a *app) daemonFor(ctx context.Context, p config.Paths, id scope.ID) (*api.Client, func(), error) {
	client := api.NewClient(p)
	_, err := client.Agents(ctx)
	if !errors.Is(err, api.ErrNoDaemon) {
		return client, func() {}, err
	}
	if running := embedded.Running(p); len(running) > 0 {
		return nil, nil, fmt.Errorf("a command of yours runs an agent in %s: end it: scopefs ps --all", p.Base)
	}
	p, end, err := embedded.Start(ctx, p, id, io.Discard, "--"+embedded.Unmounted)
	return api.NewClient(p), end, err
}

func (a *app) forgetProjects(ctx context.Context, all []config.Project, yes bool) error {
	var bases []config.Paths
	for _, project := range all {
		p, err := config.Paths{Base: project.Base}.Complete()
		if err != nil {
			return err
		}
		if _, err := api.NewClient(p).Agents(ctx); !errors.Is(err, api.ErrNoDaemon) {
			return fmt.Errorf("the daemon of %s runs: %s ends it", project.Dir, p.Stop())
		}
		bases = append(bases, p)
		held, err := a.forgetIn(ctx, p, project.ID, false)
		if err != nil {
			return err
		}
		held.Paths = forget.Project(p) // which has those of the agent
		a.removes(held)
	}
	if err := a.consent(ctx, yes); err != nil {
		return err
	}
	for i, p := range slices.Backward(bases) { // the oldest one has the others' name
		_, err := a.forgetIn(ctx, p, all[i].ID, true)
		if err == nil {
			err = forget.Remove(forget.Project(p))
		}
		if err != nil {
			return err
		}
		fmt.Fprintf(a.out, "%s: forgotten; its log stays in %s\n", all[i].ID, printable.Text(p.Audit()))
	}
	return nil
}

// forgetIn asks a daemon of a base what it keeps of an agent, or has it removed.
func (a *app) forgetIn(ctx context.Context, p config.Paths, id scope.ID, do bool) (api.Forgotten, error) {
	client, end, err := a.daemonFor(ctx, p, id)
	if err != nil {
		return api.Forgotten{}, err
	}
	defer end()
	return client.Forget(ctx, id, do)
}

// removes prints what is removed, and what is not.
func (a *app) removes(f api.Forgotten) {
	for _, line := range f.Lines() {
		fmt.Fprintf(a.out, "remove  %s\n", printable.Text(line))
	}
	for _, line := range f.Stays() {
		fmt.Fprintf(a.out, "leave   %s\n", printable.Text(line))
	}
}

func (a *app) consent(ctx context.Context, yes bool) error {
	if yes {
		return nil
	}
	return prompt.Consent(ctx, "remove this?", a.in, a.err)
}
