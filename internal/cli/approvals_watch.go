package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/exit"
	"github.com/scopefs/scopefs/internal/top"
)

func (a *app) watchCmd(asJSON *bool) *cobra.Command {
	return &cobra.Command{
		Use: "watch", Short: "show each call as it comes, and decide", Args: exit.Args(cobra.NoArgs),
		Long: `Shows each call that needs approval as it comes, with what it would do: the diff of
an edit or a write, the command of bash, otherwise the arguments. Keys decide:

  y  approve this call         n  deny it
  a  approve it, and calls with the same arguments until that is revoked
  s  the same, until the agent's session ends
  p  approve it and calls that a pattern covers: see approve --help
  v  show all of it            l  later: go to the next call
  q  quit

Keys that were typed before a call was shown do not decide about it. When another
operator decides first, the watch shows it and goes on.

Without a terminal, or with --json, each change is a line of JSON on standard output,
{"outcome": ..., "approval": {...}}, and each line of standard input is a decision:
"y ID", "n ID", "a ID", "s ID", "p ID DURATION PATTERN", with an answer on standard
output, {"id": ..., "error": ...} without error if it was made. After y, a and s the
call's hash may follow: one that has changed is refused; after n, a reason for the agent. After the end of standard input
the watch goes on without decisions, until it is interrupted.

The watch does not end with a daemon: it goes on with the next one, and shows what waits
there. A watch of all daemons of the user (see scopefs help approvals) takes in those that
start later.`,
		RunE: a.operating(func(ctx context.Context, client *api.Daemons, _ []string) error {
			// Without a daemon the error comes before the terminal is raw.
			if _, err := client.Approvals(ctx); err != nil {
				return err
			}
			if in := a.terminal(); in != nil && !*asJSON {
				return top.WatchKeys(ctx, client, in, a.out)
			}
			return top.WatchLines(ctx, client, a.in, a.out)
		}),
	}
}
