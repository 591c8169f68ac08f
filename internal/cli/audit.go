package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"time"

	"github.com/spf13/cobra"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/internal/definitions"
	"github.com/scopefs/scopefs/internal/report"
	"github.com/scopefs/scopefs/scope"
)

type auditOptions struct {
	agent, since         string
	denied, follow, json bool
}

func (a *app) auditCmd() *cobra.Command {
	var o auditOptions
	c := &cobra.Command{
		Use:   "audit",
		Short: "read the log",
		Long: `Prints the log of decisions, oldest first. --since takes a duration before now
(10m, 2h) or a time (2006-01-02T15:04:05Z, 2006-01-02). -f prints the existing
events and then new ones; with --since 0s only new ones.

Equal denials that follow one another within ten seconds are one line: ×53 is how
many, and the time at its end is from the first to the last. --json prints each.
"and 12 unrecorded" counts equal denials that the log left out: refused connections in a
flood, reads of another call's /context.

Lines that are no events are skipped. Standard error names them, and the exit
status is 1.`,
		Args: args(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error { return a.audit(c, o) },
	}
	f := c.Flags()
	f.StringVar(&o.agent, "agent", "", "only this agent's")
	f.BoolVar(&o.denied, "denied", false, "only denials and violations")
	f.StringVar(&o.since, "since", "", "only from then on")
	f.BoolVarP(&o.follow, "follow", "f", false, "then wait for more")
	f.BoolVar(&o.json, "json", false, "print the lines as they are in the log")
	f.BoolVar(&a.all, "all", false, "of all projects of the user and his own base, by time")
	a.completeAgent(c)
	c.AddCommand(a.auditVerifyCmd(), a.auditHeadCmd(), a.auditProveCmd(), a.auditCheckProofCmd())
	return c
}

func (a *app) audit(c *cobra.Command, o auditOptions) error {
	dirs, p, err := a.logs()
	if err != nil {
		return err
	}
	filter := audit.Filter{Denied: o.denied}
	if o.agent != "" {
		id, err := scope.ParseID(o.agent)
		if err != nil {
			return err
		}
		filter.Agent = string(id)
	}
	if filter.Since, err = since(o.since, time.Now()); err != nil {
		return exitWith(exitUsage, err)
	}
	ctx, stop := signal.NotifyContext(c.Context(), os.Interrupt)
	defer stop()
	printed, err := report.Events(ctx, dirs, filter, report.EventsOptions{Follow: o.follow, JSON: o.json}, a.out, a.err)
	if err == nil && ctx.Err() == nil && filter.Agent != "" && printed == 0 && !a.all {
		return known(ctx, p, scope.ID(filter.Agent))
	}
	return err
}

// logs returns the directories of the logs that a command is about: with --all those of the user's projects and of the user's
// own base.
func (a *app) logs() (dirs []string, p config.Paths, err error) {
	if !a.all {
		p, err = a.paths()
		return []string{p.Audit()}, p, err
	}
	if a.dir != "" || a.given("base") {
		return nil, p, usagef("--all and --base or --dir: give one of them")
	}
	all := config.Projects()
	if own, err := config.OfUser(); err == nil {
		all = append(all, own)
	}
	for _, p := range all {
		dirs = append(dirs, p.Audit())
	}
	return dirs, p, nil
}

// known returns an error for an agent that has neither a definition nor an event.
func known(ctx context.Context, p config.Paths, id scope.ID) error {
	if _, err := definitions.Agent(p, id); !errors.Is(err, api.ErrUnknown) {
		return nil
	}
	for _, err := range audit.Read(ctx, p.Audit(), audit.Filter{Agent: string(id)}, false) {
		return err // of the first event
	}
	return fmt.Errorf("%w %q: neither a definition nor an event has it", api.ErrUnknown, id)
}

// since returns the time of --since; "" is the zero time.
func since(text string, now time.Time) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	if d, err := time.ParseDuration(text); err == nil {
		return now.Add(-d), nil
	}
	for _, layout := range []string{time.RFC3339, time.DateTime, time.DateOnly} {
		if t, err := time.ParseInLocation(layout, text, time.Local); err == nil {
			return t, nil
		}
	}
	return time.Time{}, fmt.Errorf("--since %q: want a duration such as 10m, or a time such as 2006-01-02T15:04:05Z", text)
}
