// Package trustcmd has the commands that put what a repository or a program proposes in force: scopefs trust, and scopefs stores
// accept.
package trustcmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"

	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/internal/exit"
	"github.com/scopefs/scopefs/internal/report"
	"github.com/scopefs/scopefs/internal/terminal"
	"github.com/scopefs/scopefs/internal/terminal/question"
	"github.com/scopefs/scopefs/internal/trust"
	"github.com/scopefs/scopefs/scope/agents"
	"github.com/scopefs/scopefs/tools"
)

// Env is what the commands have of the command line.
type Env struct {
	In       io.Reader
	Out, Err io.Writer
	Client   func() (*api.Client, error)
	Project  func() (*config.Project, error) // nil: the command is about a base
	Begin    func() (config.Paths, error)    // makes the project if need be
}

// options are of a decision about a proposal.
type options struct {
	show, yes, deny, revoke, json bool
	hash                          string
}

func (o *options) flags(c *cobra.Command) {
	c.Flags().BoolVar(&o.show, "show", false, "show the text and its hash, and ask nothing")
	c.Flags().BoolVar(&o.json, "json", false, "with --show: print JSON")
	c.Flags().BoolVar(&o.yes, "yes", false, "trust without a question; needs --hash")
	c.Flags().BoolVar(&o.deny, "deny", false, "do not trust the text, nor show it as waiting; needs --hash")
	c.Flags().StringVar(&o.hash, "hash", "", "the SHA-256 of the text that is meant")
}

func (o *options) check() error {
	given := 0
	for _, flag := range []bool{o.yes, o.deny, o.show, o.revoke} {
		if flag {
			given++
		}
	}
	switch {
	case given <= 1 && (o.yes || o.deny) != (o.hash != ""):
		return exit.Usagef("--yes and --hash: give both: --show prints the hash")
	case given > 1, o.json && !o.show:
		return exit.Usagef("--show, --yes, --deny and --revoke: give one of them, --json with --show alone")
	}
	return nil
}

// Trust returns scopefs trust.
func (v Env) Trust() *cobra.Command {
	var o options
	c := &cobra.Command{
		Use:   "trust [--dir DIR]",
		Short: "put a repository's .scopefs.yaml in force, after you have read it",
		Long: `Shows .scopefs.yaml of a project's directory, its difference to what was trusted last
and what it allows beyond your own definition, and asks on the terminal. What you accept
is copied to the project's base and is in force: a later change of the file is not.

Scripts and editors give --yes --hash HASH, the hash that --show printed: a file that
has changed meanwhile is refused. The console's inbox shows the same.

Exit status: 0 trusted, shown or denied, 1 not trusted, 2 bad usage.`,
		Args: exit.Args(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			if err := o.check(); err != nil {
				return err
			}
			return v.trust(c.Context(), o)
		},
	}
	o.flags(c)
	c.Flags().BoolVar(&o.revoke, "revoke", false, "take what was trusted out of force")
	return c
}

func (v Env) trust(ctx context.Context, o options) error {
	project, err := v.Project()
	if err != nil {
		return err
	}
	if project == nil {
		return exit.Usagef("trust is for the directory of a project: give --dir DIR, and no --base")
	}
	if !project.Exists() { // it is not made for nothing
		found, err := config.TrustOf(*project)
		if err == nil && found.Hash == "" {
			err = fmt.Errorf("%s/%s: no such file: nothing to trust", project.Dir, agents.RepositoryFile)
		}
		if err != nil {
			return err
		}
	}
	p, err := v.Begin()
	if err != nil {
		return err
	}
	client := api.NewClient(p)
	return v.decide(ctx, o, func() (*api.Proposal, error) {
		shown, err := proposalOf(ctx, client, api.Repository)
		if errors.Is(err, api.ErrNoDaemon) {
			shown, err = trust.Of(p, *project)
		}
		if err == nil && (shown == nil || shown.Hash == "" && shown.Error == "") {
			err = fmt.Errorf("%s/%s: no such file: nothing to trust", project.Dir, agents.RepositoryFile)
		}
		return shown, err
	}, func(req api.ProposalRequest) (done api.ProposalReply, err error) {
		req.ID = api.Repository
		done, err = client.DecideProposal(ctx, req)
		if errors.Is(err, api.ErrNoDaemon) {
			var made *api.Proposal
			if made, err = trust.Decide(p, *project, req, func(api.Proposal) error { return nil }); err == nil {
				done.Proposal = *made
			}
		}
		done.File = agents.RepositoryFile
		return done, err
	})
}

// proposalOf returns the proposal with an id; nil if there is none.
func proposalOf(ctx context.Context, client *api.Client, id string) (*api.Proposal, error) {
	all, err := client.Proposals(ctx)
	if i := slices.IndexFunc(all, func(p api.Proposal) bool { return p.ID == id }); err == nil && i >= 0 {
		return &all[i], nil
	}
	return nil, err
}

// decide shows a proposal, and makes the decision that the options or the user have.
func (v Env) decide(ctx context.Context, o options, get func() (*api.Proposal, error), do func(api.ProposalRequest) (api.ProposalReply, error)) error {
	req, said := api.ProposalRequest{Do: api.AcceptProposal, Hash: &o.hash}, "trusted %s %s\n"
	switch {
	case o.revoke:
		req.Do, said = api.RevokeProposal, "%s is no longer in force\n"
	case o.deny:
		req.Do, said = api.DenyProposal, "%s is not trusted, and not shown as waiting: %s\n"
	case !o.yes:
		found, err := get()
		if err == nil && found.Error != "" {
			err = errors.New(found.Error)
		}
		if err != nil {
			return err
		}
		shown := &report.Proposal{Proposal: *found}
		if o.show {
			if o.json {
				return report.JSON(v.Out, shown)
			}
			return shown.Print(v.Out)
		}
		ask := question.Asker(v.In, v.Err)
		if ask == nil {
			return exit.Usagef("trust: there is no terminal to ask on: read the text with --show, and give --yes --hash HASH")
		}
		shown.Width = int(terminal.Size().Cols)
		if err := shown.Print(v.Err); err != nil { // where the question is
			return err
		}
		answer, err := ask(ctx, tools.Question{Text: "Trust it?", Options: []string{"yes", "no"}})
		if err != nil {
			return err
		}
		if answer.Text != "yes" {
			return errors.New("not trusted: what was in force stays")
		}
		req.Hash, req.Shown = &shown.Hash, shown.Shown
	}
	done, err := do(req)
	if err != nil {
		return err
	}
	if o.revoke {
		fmt.Fprintf(v.Out, said, done.File)
	} else {
		fmt.Fprintf(v.Out, said, done.File, done.Hash)
	}
	for _, r := range done.Reloaded {
		switch {
		case r.Error != "":
			err = errors.Join(err, errors.New(r.Error))
		case slices.Contains(done.Agents, string(r.Agent)): // limits wait for scopefs down and up
			fmt.Fprintf(v.Out, "%s: %s\n", r.Agent, r.Outcome)
		}
	}
	return err
}

// Accept returns scopefs stores accept.
func (v Env) Accept() *cobra.Command {
	var o options
	c := &cobra.Command{
		Use:   "accept STORE",
		Short: "let a store's program declare its tools as it does now",
		Long: `Shows how the program of a store declares its tools now, and the difference to what holds,
and asks on the terminal. Until you accept it, calls of a tool that is declared otherwise fail.

Exit status: 0 accepted, shown or denied, 1 not accepted, 2 bad usage.`,
		Args: exit.Args(cobra.ExactArgs(1)),
		RunE: func(c *cobra.Command, words []string) error {
			client, err := v.Client()
			if err == nil {
				err = o.check()
			}
			if err != nil {
				return err
			}
			id := api.StoreProposal + words[0]
			return v.decide(c.Context(), o, func() (*api.Proposal, error) {
				shown, err := proposalOf(c.Context(), client, id)
				if err == nil && shown == nil {
					err = fmt.Errorf("%s: nothing waits: scopefs stores checks its program", words[0])
				}
				return shown, err
			}, func(req api.ProposalRequest) (api.ProposalReply, error) {
				req.ID = id
				return client.DecideProposal(c.Context(), req)
			})
		},
	}
	o.flags(c)
	return c
}
