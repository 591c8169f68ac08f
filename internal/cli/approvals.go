package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/tools"
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
An agent cannot reach the socket that decides.`,
		Args: args(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error { return a.listApprovals(c, asJSON) },
	}
	c.PersistentFlags().BoolVar(&asJSON, "json", false, "print JSON")
	c.AddCommand(&cobra.Command{
		Use: "list", Short: "list the calls that wait, and what is approved", Args: args(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error { return a.listApprovals(c, asJSON) },
	}, &cobra.Command{
		Use: "show ID", Short: "show a call with its arguments, as JSON", Args: args(cobra.ExactArgs(1)),
		RunE: func(c *cobra.Command, words []string) error { return a.showApproval(c, words[0]) },
	})
	c.AddCommand(a.watchCmd(&asJSON), a.approveCmd(), &cobra.Command{
		Use: "deny ID", Short: "deny a call that waits", Args: args(cobra.ExactArgs(1)),
		RunE: func(c *cobra.Command, words []string) error { return a.decide(c, words[0], (*api.Client).Deny) },
	}, &cobra.Command{
		Use: "revoke ID", Short: "end a standing approval, or one that is not used yet", Args: args(cobra.ExactArgs(1)),
		RunE: func(c *cobra.Command, words []string) error {
			return a.decide(c, words[0], func(client *api.Client, ctx context.Context, id string) (tools.Approval, error) {
				p, err := client.Revoke(ctx, id)
				p.State = "revoked"
				return p, err
			})
		},
	})
	return c
}

// approveOptions are the flags of approve.
type approveOptions struct {
	scopes          []string
	pattern         string
	duration        time.Duration
	session, always bool
}

func (a *app) approveCmd() *cobra.Command {
	var o approveOptions
	c := &cobra.Command{
		Use: "approve ID", Short: "approve a call that waits", Args: args(cobra.ExactArgs(1)),
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
			return a.decide(c, words[0], func(client *api.Client, ctx context.Context, id string) (tools.Approval, error) {
				return client.Approve(ctx, id, how)
			})
		},
	}
	c.Flags().StringSliceVar(&o.scopes, "scopes", nil, "the scopes of its context that the call gets, and no other")
	c.Flags().StringVar(&o.pattern, "pattern", "", "approve later calls that it covers, too")
	c.Flags().DurationVar(&o.duration, "for", 0, "for so long, such as 1h")
	c.Flags().BoolVar(&o.session, "session", false, "until the agent's session ends")
	c.Flags().BoolVar(&o.always, "always", false, "until it is revoked")
	c.MarkFlagsMutuallyExclusive("for", "session", "always")
	return c
}

func (o *approveOptions) request(c *cobra.Command) (api.DecideRequest, error) {
	how := api.DecideRequest{Scopes: o.scopes}
	switch lasts := c.Flags().Changed("for") || o.session || o.always; {
	case c.Flags().Changed("for") && o.duration <= 0:
		return how, fmt.Errorf("--for %v is not above zero: write one such as 1h", o.duration)
	case c.Flags().Changed("pattern") && o.pattern == "":
		return how, errors.New("--pattern is empty: leave it out for calls with the same arguments")
	case o.pattern != "" && !lasts:
		return how, errors.New("--pattern: no end is given: add --for 1h, --session or --always")
	case lasts:
		how.Standing = &tools.Terms{Pattern: o.pattern, For: o.duration, Session: o.session}
	}
	return how, nil
}

// decide sends a decision and prints what it made.
func (a *app) decide(c *cobra.Command, id string, send func(*api.Client, context.Context, string) (tools.Approval, error)) error {
	p, err := a.paths()
	if err != nil {
		return err
	}
	decided, err := send(api.NewClient(p), c.Context(), id)
	if err == nil {
		fmt.Fprintln(a.out, decision(decided))
	}
	return err
}

// decision says what a decision made.
func decision(p tools.Approval) string {
	text := fmt.Sprintf("%s %s of %s: %s", p.ID, p.Tool, p.Whose(), p.State)
	switch p.State {
	case tools.ApprovalStands:
		return text + ", " + ends(p)
	case tools.ApprovalGranted, tools.ApprovalDenied:
		return text + " " + ends(p)
	}
	return text
}

// ends says when an approval ends.
func ends(p tools.Approval) string {
	switch {
	case p.Ends != "":
		return "until session " + p.Ends + " ends"
	case p.Expires.IsZero():
		return "until it is revoked"
	}
	return "until " + expires(p)
}

// expires says when an approval ends, in a column.
func expires(p tools.Approval) string {
	switch {
	case p.Ends != "":
		return "with " + p.Ends
	case p.Expires.IsZero():
		return "never"
	case time.Until(p.Expires) > 12*time.Hour:
		return p.Expires.Local().Format(time.DateTime)
	}
	return p.Expires.Local().Format(time.TimeOnly)
}

func (a *app) approvals(c *cobra.Command) ([]tools.Approval, error) {
	p, err := a.paths()
	if err != nil {
		return nil, err
	}
	return api.NewClient(p).Approvals(c.Context())
}

func (a *app) listApprovals(c *cobra.Command, asJSON bool) error {
	list, err := a.approvals(c)
	if err != nil {
		return err
	}
	if asJSON {
		return a.printJSON(list)
	}
	if len(list) == 0 {
		return nil
	}
	w := tabwriter.NewWriter(a.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "ID\tSTATE\tAGENT\tTOOL\tABOUT\tEXPIRES")
	for _, p := range list {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%q\t%s\n", p.ID, p.State, p.Whose(), p.Tool, about(p)+seen(p), expires(p))
	}
	return w.Flush()
}

// about returns a short description of a call: the command of bash, the path and
// its target, or the arguments.
func about(p tools.Approval) string {
	if p.Pattern != "" {
		return p.Pattern
	}
	var in struct{ Command, To string }
	_ = json.Unmarshal(p.Arguments, &in) // long arguments are cut, and then do not decode
	switch {
	case p.Tool == "bash" && in.Command != "":
		return short(in.Command)
	case p.Tool == "bash", p.Path == "":
		return short(string(p.Arguments))
	}
	return p.About(in.To)
}

// seen returns what a call would see of a context.
func seen(p tools.Approval) string {
	var all []string
	for _, part := range p.Context {
		all = append(all, fmt.Sprintf("%s (%d bytes)", part.Name, part.Bytes))
	}
	if all == nil {
		return ""
	}
	return ", sees " + strings.Join(all, ", ")
}

// short returns the beginning of a text.
func short(s string) string {
	if r := []rune(s); len(r) > 60 {
		return string(r[:57]) + "..."
	}
	return s
}

func (a *app) showApproval(c *cobra.Command, id string) error {
	paths, err := a.paths()
	if err != nil {
		return err
	}
	p, err := api.NewClient(paths).Approval(c.Context(), id)
	if err != nil {
		return err
	}
	return a.printJSON(p)
}

func (a *app) tokenCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "token AGENT",
		Short: "print an agent's token for MCP over HTTP",
		Long: `Prints the token that a client sends as "Authorization: Bearer TOKEN" to a daemon
that serves MCP over HTTP (scopefs daemon --http). Whoever has the token acts as the
agent. All tokens derive from STATE/http.key: to revoke them, remove that file and
restart the daemon.`,
		Args:              args(cobra.ExactArgs(1)),
		ValidArgsFunction: a.complete,
		RunE: func(c *cobra.Command, words []string) error {
			client, id, err := a.client(words[0])
			if err != nil {
				return err
			}
			text, err := client.Token(c.Context(), id)
			if err == nil {
				fmt.Fprintln(a.out, text)
			}
			return err
		},
	}
}
