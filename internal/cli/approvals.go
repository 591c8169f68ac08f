package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/exit"
	"github.com/scopefs/scopefs/internal/report"
	"github.com/scopefs/scopefs/tools/approvals"
)

func (a *app) approvalsCmd() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "approvals [list|watch|show ID|approve ID|deny ID|revoke ID]",
		Short: "list, approve and deny calls that need approval",
		Long: `Calls of tools under policy.tools.ask need the operator's approval. An approval
covers one call, once, within 15 minutes: the same agent, tool and arguments, while
the agent's rules, the file at the path and its content stay the same. For a task,
AGENT is the chain of agents (editor>writer), and the approval covers that chain
only. A call that would see scopes of its client's context is approved for exactly
their content; show prints a preview, and approve ID --scopes NAME,NAME grants fewer. A
path through a link is shown with the path that it resolves to. approve --help tells of
standing approvals, for calls that are still to come.
An agent cannot reach the socket that decides.

Outside of a project and without --base, and with --all, these commands are about all
daemons of the user.`,
		Args: exit.Args(cobra.NoArgs),
		RunE: a.looking(&asJSON, []approvals.Approval{}, func(ctx context.Context, client *api.Daemons, _ []string) error {
			list, err := client.Approvals(ctx)
			if list == nil {
				return err
			}
			return errors.Join(a.print(report.Approvals(list), asJSON), err)
		}),
	}
	c.PersistentFlags().BoolVar(&asJSON, "json", false, "print JSON")
	a.addAll(c)
	c.AddCommand(&cobra.Command{
		Use: "list", Short: "list the calls that wait, and what is approved", Args: exit.Args(cobra.NoArgs), RunE: c.RunE,
	}, &cobra.Command{
		Use: "show ID", Short: "show a call with its arguments, as JSON", Args: exit.Args(cobra.ExactArgs(1)),
		RunE: a.operating(func(ctx context.Context, client *api.Daemons, words []string) error {
			p, err := client.Approval(ctx, words[0])
			if err != nil {
				return err
			}
			return report.JSON(a.out, p)
		}),
	})
	c.AddCommand(a.watchCmd(&asJSON), a.approveCmd(&asJSON), a.denyCallCmd(&asJSON), &cobra.Command{
		Use: "revoke ID", Short: "end a standing approval, or one that is not used yet", Args: exit.Args(cobra.ExactArgs(1)),
		RunE: a.operating(func(ctx context.Context, client *api.Daemons, words []string) error {
			p, err := client.Revoke(ctx, words[0], api.DecideRequest{})
			p.State = "revoked"
			return a.decided(p, err, asJSON)
		}),
	})
	return c
}

func (a *app) denyCallCmd(asJSON *bool) *cobra.Command {
	var how api.DecideRequest
	c := &cobra.Command{
		Use: "deny ID", Short: "deny a call that waits", Args: exit.Args(cobra.ExactArgs(1)),
		RunE: a.operating(func(ctx context.Context, client *api.Daemons, words []string) error {
			p, err := client.Deny(ctx, words[0], how)
			return a.decided(p, err, *asJSON)
		}),
	}
	c.Flags().StringVar(&how.Reason, "reason", "", "a `TEXT` for the agent: it reads why")
	addShown(c, &how.Shown)
	return c
}

func addShown(c *cobra.Command, shown *string) {
	c.Flags().StringVar(shown, "shown", "", "only the call with this `HASH`, of approvals show")
}

// approveOptions are the flags of approve.
type approveOptions struct {
	shown           string
	scopes, paths   []string
	pattern         string
	duration        time.Duration
	session, always bool
}

func (a *app) approveCmd(asJSON *bool) *cobra.Command {
	var o approveOptions
	c := &cobra.Command{
		Use: "approve ID", Short: "approve a call that waits", Args: exit.Args(cobra.ExactArgs(1)),
		Long: `Approves a call, once. With --for, --session or --always it makes a standing approval
as well: for calls of the same agent and tool with the same arguments or, with
--pattern, for calls that the pattern covers. A pattern is matched against what the
call is about:

  bash        the command, word by word: "git status *". * is no option, and ** at the
              end is any words. Only one program and its words are covered: nothing with
              ; | & > $ or other marks of the shell
  files       the paths, as in a definition: "src/**"
  network     HOST:PORT: "*.example.org:443"
  others      ** alone

A standing approval ends when the agent's rules change.`,
		Example: `  scopefs approvals approve ID --pattern 'git status *' --for 1h
  scopefs approvals approve ID --always`,
		RunE: func(c *cobra.Command, words []string) error {
			how, err := o.request(c)
			if err != nil {
				return err
			}
			client, err := a.daemons(c.Context())
			if err != nil {
				return err
			}
			p, err := client.Approve(c.Context(), words[0], how)
			return a.decided(p, err, *asJSON)
		},
	}
	c.Flags().StringSliceVar(&o.scopes, "scopes", nil, "the scopes of its context that the call gets, and no other")
	c.Flags().StringArrayVar(&o.paths, "allow-paths", nil, "of a commit only what a `GLOB` covers, and what that needs; may be repeated")
	c.Flags().StringVar(&o.pattern, "pattern", "", "approve later calls that it covers, too")
	c.Flags().DurationVar(&o.duration, "for", 0, "for so long, such as 1h")
	c.Flags().BoolVar(&o.session, "session", false, "until the agent's session ends")
	c.Flags().BoolVar(&o.always, "always", false, "until it is revoked")
	addShown(c, &o.shown)
	c.MarkFlagsMutuallyExclusive("for", "session", "always")
	return c
}

func (o *approveOptions) request(c *cobra.Command) (api.DecideRequest, error) {
	how := api.DecideRequest{Scopes: o.scopes, Paths: o.paths, Shown: o.shown}
	switch lasts := c.Flags().Changed("for") || o.session || o.always; {
	case c.Flags().Changed("for") && o.duration <= 0:
		return how, fmt.Errorf("--for %v is not above zero: write one such as 1h", o.duration)
	case c.Flags().Changed("pattern") && o.pattern == "":
		return how, errors.New("--pattern is empty: leave it out for calls with the same arguments")
	case o.pattern != "" && !lasts:
		return how, errors.New("--pattern: no end is given: add --for 1h, --session or --always")
	case lasts:
		how.Standing = &approvals.Terms{Pattern: o.pattern, For: o.duration, Session: o.session}
	}
	return how, nil
}

// decided prints what a decision made.
func (a *app) decided(p approvals.Approval, err error, asJSON bool) error {
	switch {
	case err != nil:
	case asJSON:
		err = report.Line(a.out, p)
	default:
		fmt.Fprintln(a.out, report.Decision(p))
	}
	return err
}
