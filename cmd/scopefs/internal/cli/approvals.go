package cli

import (
	"encoding/json"
	"fmt"
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
		Short: "decide about calls that the operator is to approve",
		Long: `Calls of tools under policy.tools.ask wait here for the operator's word. What is
approved is this call, once, within 15 minutes: of this agent, this tool and these
arguments, as long as the agent's rules, the file that the path leads to and its
content are what they were. Of a task, AGENT is the chain of agents (editor>writer):
what is approved for one chain is approved for no other. A path that leads through a
link is shown with what it is.
An agent cannot reach the socket on which this is said.`,
		Args: args(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error { return a.listApprovals(c, asJSON) },
	}
	c.PersistentFlags().BoolVar(&asJSON, "json", false, "print JSON")
	c.AddCommand(&cobra.Command{
		Use: "list", Short: "list what waits", Args: args(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error { return a.listApprovals(c, asJSON) },
	}, &cobra.Command{
		Use: "show ID", Short: "show a call with its arguments, as JSON", Args: args(cobra.ExactArgs(1)),
		RunE: func(c *cobra.Command, words []string) error { return a.showApproval(c, words[0]) },
	})
	for word, grant := range map[string]bool{"approve": true, "deny": false} {
		c.AddCommand(&cobra.Command{
			Use: word + " ID", Short: word + " a call that waits", Args: args(cobra.ExactArgs(1)),
			RunE: func(c *cobra.Command, words []string) error {
				p, err := a.paths()
				if err != nil {
					return err
				}
				decided, err := control.NewClient(p).Decide(c.Context(), words[0], grant)
				if err != nil {
					return err
				}
				fmt.Fprintf(a.out, "%s %s of %s: %s until %s\n", decided.ID, decided.Tool, decided.Whose(), decided.State, decided.Expires.Local().Format(time.TimeOnly))
				return nil
			},
		})
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
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%q\t%s\n", p.ID, p.State, p.Whose(), p.Tool, about(p), p.Expires.Local().Format(time.TimeOnly))
	}
	return w.Flush()
}

// about says in a few words what a call would do: the command of bash, a file and
// where it would go, or the arguments.
func about(p tools.Approval) string {
	var in struct{ Command, To string }
	_ = json.Unmarshal(p.Arguments, &in) // of long ones there is only the beginning
	switch {
	case p.Tool == "bash" && in.Command != "":
		return short(in.Command)
	case p.Tool == "bash", p.Path == "":
		return short(string(p.Arguments))
	}
	return p.About(in.To)
}

// short is the beginning of a text.
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
		Long: `Prints the token that a client gives as "Authorization: Bearer TOKEN" to a daemon
that serves MCP by HTTP (scopefs daemon --http). Who has it is the agent. All
tokens are made of STATE/http.key: to make them void, remove that and start the
daemon again.`,
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
