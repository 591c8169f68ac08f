package cli

import (
	"encoding/json"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/scopefs/scopefs/cmd/scopefs/internal/control"
	"github.com/scopefs/scopefs/tools"
)

func (a *app) approvalsCmd() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "approvals [list|show ID|approve ID|deny ID]",
		Short: "list, approve and deny calls that need approval",
		Long: `Calls of tools under policy.tools.ask need the operator's approval. An approval
covers one call, once, within 15 minutes: the same agent, tool and arguments, while
the agent's rules, the file at the path and its content stay the same. For a task,
AGENT is the chain of agents (editor>writer), and the approval covers that chain
only. A call that would see scopes of its client's context is approved for exactly
their content; show prints a preview, and approve ID --scopes NAME,NAME grants fewer. A path through a link is shown with the path that it resolves to.
An agent cannot reach the socket that decides.`,
		Args: args(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error { return a.listApprovals(c, asJSON) },
	}
	c.PersistentFlags().BoolVar(&asJSON, "json", false, "print JSON")
	c.AddCommand(&cobra.Command{
		Use: "list", Short: "list the calls that wait", Args: args(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error { return a.listApprovals(c, asJSON) },
	}, &cobra.Command{
		Use: "show ID", Short: "show a call with its arguments, as JSON", Args: args(cobra.ExactArgs(1)),
		RunE: func(c *cobra.Command, words []string) error { return a.showApproval(c, words[0]) },
	})
	for word, grant := range map[string]bool{"approve": true, "deny": false} {
		var scopes []string
		decide := &cobra.Command{
			Use: word + " ID", Short: word + " a call that waits", Args: args(cobra.ExactArgs(1)),
			RunE: func(c *cobra.Command, words []string) error {
				p, err := a.paths()
				if err != nil {
					return err
				}
				decided, err := control.NewClient(p).Decide(c.Context(), words[0], grant, scopes)
				if err != nil {
					return err
				}
				fmt.Fprintf(a.out, "%s %s of %s: %s until %s\n", decided.ID, decided.Tool, decided.Whose(), decided.State, decided.Expires.Local().Format(time.TimeOnly))
				return nil
			},
		}
		if grant {
			decide.Flags().StringSliceVar(&scopes, "scopes", nil, "the scopes of its context that the call gets, and no other")
		}
		c.AddCommand(decide)
	}
	return c
}

func (a *app) approvals(c *cobra.Command) ([]tools.Approval, error) {
	p, err := a.paths()
	if err != nil {
		return nil, err
	}
	return control.NewClient(p).Approvals(c.Context())
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
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%q\t%s\n", p.ID, p.State, p.Whose(), p.Tool, about(p)+seen(p), p.Expires.Local().Format(time.TimeOnly))
	}
	return w.Flush()
}

// about returns a short description of a call: the command of bash, the path and
// its target, or the arguments.
func about(p tools.Approval) string {
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
	p, err := control.NewClient(paths).Approval(c.Context(), id)
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
