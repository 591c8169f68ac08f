package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/internal/definitions"
	"github.com/scopefs/scopefs/internal/exit"
	"github.com/scopefs/scopefs/internal/report"
	"github.com/scopefs/scopefs/internal/terminal"
	"github.com/scopefs/scopefs/scope/agents"
	"github.com/scopefs/scopefs/scope/widening"
	"github.com/scopefs/scopefs/tools"
)

type trustOptions struct {
	show, yes, revoke, json bool
	hash                    string
}

func (a *app) trustCmd() *cobra.Command {
	var o trustOptions
	c := &cobra.Command{
		Use:   "trust [--dir DIR]",
		Short: "put a repository's .scopefs.yaml in force, after you have read it",
		Long: `Shows .scopefs.yaml of a project's directory, its difference to what was trusted last
and what it allows beyond your own definition, and asks on the terminal. What you accept
is copied to the project's base and is in force: a later change of the file is not.

Scripts and editors give --yes --hash HASH, the hash that --show printed: a file that
has changed meanwhile is refused.

Exit status: 0 trusted or shown, 1 not trusted, 2 bad usage.`,
		Args: exit.Args(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error { return a.trust(c.Context(), o) },
	}
	c.Flags().BoolVar(&o.show, "show", false, "show the file and its hash, and ask nothing")
	c.Flags().BoolVar(&o.json, "json", false, "with --show: print JSON")
	c.Flags().BoolVar(&o.yes, "yes", false, "trust without a question; needs --hash")
	c.Flags().StringVar(&o.hash, "hash", "", "the SHA-256 of the file that is meant")
	c.Flags().BoolVar(&o.revoke, "revoke", false, "take what was trusted out of force")
	return c
}

func (a *app) trust(ctx context.Context, o trustOptions) error {
	switch {
	case o.yes != (o.hash != ""):
		return exit.Usagef("--yes and --hash: give both: scopefs trust --show prints the hash")
	case o.yes && o.show, o.revoke && (o.show || o.yes), o.json && !o.show:
		return exit.Usagef("--show, --yes and --revoke: give one of them, --json with --show alone")
	}
	if a.dir == "" && a.flags.Base == "" {
		if _, found := config.FindProject("."); !found {
			a.dir = "."
		}
	}
	_, project, err := a.where()
	if err != nil {
		return err
	}
	if project == nil {
		return exit.Usagef("trust is for the directory of a project: give --dir DIR, and no --base")
	}
	if o.revoke {
		if err := project.Revoke(); errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("%s: nothing of it is trusted", filepath.Join(project.Dir, agents.RepositoryFile))
		} else if err != nil {
			return err
		}
		fmt.Fprintf(a.out, "%s is no longer in force\n", agents.RepositoryFile)
		return a.afterTrust(ctx)
	}
	text, hash, err := project.Proposed() // the one read: what is shown is what is kept
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s: no such file: nothing to trust", filepath.Join(project.Dir, agents.RepositoryFile))
	}
	if err != nil {
		return err
	}
	if o.yes && o.hash != hash {
		return fmt.Errorf("%s: its hash is %s, not that of --hash: read it again with scopefs trust --show", filepath.Join(project.Dir, agents.RepositoryFile), hash)
	}
	p, _, err := a.begun()
	if err != nil {
		return err
	}
	shown, err := a.proposal(p, project, text, hash)
	if err != nil {
		return err
	}
	if o.show {
		return a.print(shown, o.json)
	}
	if !o.yes {
		ask := terminal.Asker(a.in, a.err)
		if ask == nil {
			return exit.Usagef("trust: there is no terminal to ask on: read the file with scopefs trust --show, and give --yes --hash HASH")
		}
		shown.Width = int(terminal.Size().Cols)
		if err := shown.Print(a.err); err != nil { // where the question is
			return err
		}
		answer, err := ask(ctx, tools.Question{Text: "Trust it?", Options: []string{"yes", "no"}})
		if err != nil {
			return err
		}
		if answer.Text != "yes" {
			return fmt.Errorf("%s is not trusted: what was in force stays", agents.RepositoryFile)
		}
	}
	if err := project.Trust(text); err != nil {
		return err
	}
	fmt.Fprintf(a.out, "trusted %s %s\n", agents.RepositoryFile, hash)
	return a.afterTrust(ctx)
}

// proposal returns what a text of a repository is for its agent. The error is that of a text that would not load.
func (a *app) proposal(p config.Paths, project *config.Project, text []byte, hash string) (*report.Proposal, error) {
	p.Proposal = string(text)
	all, _, err := definitions.Load(p)
	if err != nil {
		return nil, err
	}
	proposed, errs := all.Propose(project.ID, text)
	if errs != nil {
		return nil, errors.Join(errs...)
	}
	r := &report.Proposal{File: filepath.Join(project.Dir, agents.RepositoryFile), Hash: hash, Text: string(text), Widens: widening.Team(proposed)}
	switch last, of, err := project.Trusted(); {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, err
	default:
		r.Compare(last, of)
	}
	return r, nil
}

// afterTrust makes a daemon of the project decide by what is trusted now.
func (a *app) afterTrust(ctx context.Context) error {
	p, project, err := a.existing()
	if err != nil {
		return err
	}
	all, err := api.NewClient(p).Reload(ctx)
	if errors.Is(err, api.ErrNoDaemon) {
		return nil
	}
	for _, r := range all {
		switch {
		case r.Error != "":
			err = errors.Join(err, errors.New(r.Error))
		case r.Agent == project.ID: // limits wait for scopefs down and up
			fmt.Fprintf(a.out, "%s: %s\n", r.Agent, r.Outcome)
		}
	}
	return err
}
