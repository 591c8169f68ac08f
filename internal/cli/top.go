package cli

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/exit"
	"github.com/scopefs/scopefs/internal/top"
)

type topOptions struct {
	json, once bool
	interval   time.Duration
}

func (a *app) topCmd() *cobra.Command {
	var o topOptions
	c := &cobra.Command{
		Use:   "top",
		Short: "show what the agents do now; approve, deny, kill",
		Long: `Shows the agents that do something, with their sessions and the calls that wait for
approval, and refreshes that every two seconds.

CPU is in percent of one processor since the last refresh. MEM is the resident memory of
the processes; what they share counts for each. WRITTEN is what the processes of the
session have written to disks since it began; removed and overwritten data counts. DENIED
and CALLS are of the last minute. COMMAND is the command of scopefs run, and otherwise the
process that used the processor most: text that the agent chooses. The disk space of an
agent's files is not shown, because it takes a walk of the tree; the first line has the
free space of the file systems of the base and the log.

Keys: up and down select; enter or a opens a call that waits, with all its arguments,
and there y approves it and n denies it; x kills the selected session, after a question;
l follows the log of the selected agent; i shows idle agents; esc goes back, q quits.

Outside of a project and without --base, and with --all, it shows all daemons of the user.

--once prints the table once. --json prints JSON, a line at each refresh: CPU is there
in seconds since the start of the processes.`,
		Args: exit.Args(cobra.NoArgs),
		RunE: a.looking(&o.json, api.NewTop(), func(ctx context.Context, client *api.Daemons, _ []string) error { return a.top(ctx, client, o) }),
	}
	c.Flags().BoolVar(&o.json, "json", false, "print JSON")
	c.Flags().BoolVar(&o.once, "once", false, "print once and end")
	c.Flags().DurationVar(&o.interval, "interval", 2*time.Second, "time between refreshes, at least 1s")
	a.addAll(c)
	return c
}

func (a *app) top(ctx context.Context, client *api.Daemons, o topOptions) error {
	if o.interval < top.MinInterval {
		return exit.Usagef("--interval %v: want %v or more", o.interval, top.MinInterval)
	}
	switch {
	case o.json:
		if o.once {
			o.interval = 0
		}
		return top.Lines(ctx, client, o.interval, a.out)
	case o.once:
		return top.Once(ctx, client, a.out)
	}
	in := a.terminal()
	if in == nil {
		return exit.Usagef("top needs a terminal: use --once or --json")
	}
	return top.Run(ctx, client, o.interval, in, a.out)
}

func (a *app) metricsCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "metrics",
		Short: "print the daemon's counters for Prometheus",
		Long: `Prints what the daemon counts, in the text format of Prometheus. scopefs daemon --metrics
127.0.0.1:9464 serves the same over HTTP to every user of this host: it names the agents and their tools.`,
		Args: exit.Args(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			client, _, err := a.client()
			if err != nil {
				return err
			}
			return client.Metrics(c.Context(), a.out)
		},
	}
}
