package cli

import (
	"context"
	"errors"
	"fmt"
	osuser "os/user"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/exit"
	"github.com/scopefs/scopefs/internal/fields"
	"github.com/scopefs/scopefs/internal/report"
	"github.com/scopefs/scopefs/scope"
)

func (a *app) tokenCmd() *cobra.Command {
	var valid, origin string
	var asJSON bool
	c := &cobra.Command{
		Use:   "token AGENT|--dir DIR",
		Short: "make, list or revoke tokens of agents for MCP over TCP",
		Long: `Prints a token that a client sends as "Authorization: Bearer TOKEN" to a daemon
that serves MCP on TCP (scopefs daemon --http), and on standard error its id and when it
ends. The agent's socket needs none: RUN/mcp/AGENT.sock.

A token is for one agent, and for connections of processes of one user: the agent's
user, or --origin. Root and the daemon's user may use each. A request with a token from
another user is refused, and recorded as a violation.

A token of an earlier release is in no list and has no origin. It ends when it says,
and where it says no end, 30 days after the first daemon that knew ends has served
HTTP. To revoke those, and all others, remove STATE/http.key and restart the daemon.`,
		Example: `  scopefs token notes --for 12h
  scopefs token notes --origin ada
  scopefs token revoke notes`,
		Args:              ofAgent,
		ValidArgsFunction: a.complete,
		RunE: a.askingOf(func(ctx context.Context, client *api.Client, id scope.ID) error {
			req, err := tokenRequest(valid, origin)
			if err != nil {
				return err
			}
			made, err := client.Token(ctx, id, req)
			switch {
			case err != nil:
				return err
			case made.ID == "":
				return errors.New("the daemon is of an earlier release, whose tokens cannot be listed and revoked: restart it")
			case asJSON:
				return report.JSON(a.out, made)
			}
			fmt.Fprintln(a.out, made.Token)
			fmt.Fprintf(a.err, "scopefs: the token ends %s: make another before with scopefs token %s; scopefs token revoke %s ends it now\n",
				made.Ends.Local().Format(time.RFC3339), id, made.ID)
			return nil
		}),
	}
	c.Flags().StringVar(&valid, "for", "30d", "how long the token is valid, such as 12h or 90d")
	c.Flags().StringVar(&origin, "origin", "",
		"the `USER` of this host whose processes may use it, by name or number (default the agent's user)")
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	c.AddCommand(a.tokenListCmd(), a.tokenRevokeCmd())
	return c
}

func tokenRequest(valid, origin string) (req api.TokenRequest, err error) {
	if req.For, err = time.ParseDuration(valid); err != nil {
		req.For, err = fields.ParseAge(valid)
	}
	if err == nil && req.For <= 0 {
		err = fmt.Errorf("%s is not above zero: write one such as 30d", valid)
	}
	if err != nil {
		return req, exit.Usagef("--for: %w", err)
	}
	if origin == "" {
		return req, nil
	}
	uid, err := strconv.ParseUint(origin, 10, 32)
	if err != nil {
		u, err := osuser.Lookup(origin)
		if err != nil {
			return req, exit.Usagef("--origin: %w", err)
		}
		if uid, err = strconv.ParseUint(u.Uid, 10, 32); err != nil {
			return req, exit.Usagef("--origin: %w", err)
		}
	}
	of := uint32(uid)
	req.Origin = &of
	return req, nil
}

func (a *app) tokenListCmd() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "list",
		Short: "list the tokens that have not ended",
		Long: `Lists the tokens of all agents of the daemon: their ids, whose processes may use
them, and when they end. No list has their text.`,
		Args: exit.Args(cobra.NoArgs),
		RunE: a.asking(func(ctx context.Context, client *api.Client, _ []string) error {
			list, err := client.Tokens(ctx)
			if err != nil {
				return err
			}
			return a.print(report.Tokens(list), asJSON)
		}),
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

func (a *app) tokenRevokeCmd() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "revoke ID|AGENT",
		Short: "revoke a token, or all of an agent",
		Long: `Revokes a token by its id, or all tokens of an agent. Requests that have it end at
once, streams too; later ones get 401. The agent's sessions stay for clients with another
token.`,
		Args: exit.Args(cobra.ExactArgs(1)),
		RunE: func(c *cobra.Command, words []string) error {
			name, err := a.named(words[0])
			if err != nil {
				return err
			}
			return a.asking(func(ctx context.Context, client *api.Client, _ []string) error {
				list, err := client.RevokeTokens(ctx, name)
				if asJSON && err == nil {
					return report.JSON(a.out, list)
				}
				for _, t := range list {
					fmt.Fprintf(a.out, "%s of %s: revoked\n", t.ID, t.Agent)
				}
				return err
			})(c, words)
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}
