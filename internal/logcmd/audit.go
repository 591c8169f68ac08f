// Package logcmd is scopefs audit and the commands below it, which read the log. They need no daemon.
package logcmd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/internal/definitions"
	"github.com/scopefs/scopefs/internal/exit"
	"github.com/scopefs/scopefs/internal/paths"
	"github.com/scopefs/scopefs/internal/report"
	"github.com/scopefs/scopefs/internal/terminal"
	"github.com/scopefs/scopefs/scope"
)

// Env is what the commands have of the command line.
type Env struct {
	In       io.Reader
	Out, Err io.Writer
	Named    func(name string) (string, error) // the id of an agent or a project of that name, before Paths; "" and an unknown name stay
	Paths    func() (config.Paths, error)
	All      func() ([]string, error) // the directories of the logs of the user
	Words    func(scope.ID) []string  // by which a command names an agent
	Version  string                   // of scopefs
}

type options struct {
	report.Selection
	since                       string
	follow, json, tree, summary bool
	all                         bool
}

// New returns scopefs audit.
func New(v Env) *cobra.Command {
	var o options
	c := &cobra.Command{
		Use:   "audit",
		Short: "read the log",
		Long: `Prints the log of decisions, oldest first. --since takes a duration before now
(10m, 2h) or a time (2006-01-02T15:04:05Z, 2006-01-02). -f prints the existing
events and then new ones; with --since 0s only new ones. Events fit all filters that
are given. --path and --host take patterns: 'src/**', '*.example.com'.

Equal denials that follow one another within ten seconds are one line: ×53 is how
many, and the time at its end is from the first to the last. --json prints each.
"and 12 unrecorded" counts equal denials that the log left out: refused connections in a
flood, reads of another call's /context.

--tree prints each call once, below its session, with what was recorded of it.
--summary counts equal denials, most first, and prints the command that would allow
them.

Lines that are no events are skipped. Standard error names them, and the exit
status is 1.`,
		Args: func(c *cobra.Command, words []string) error {
			if len(words) > 0 && strings.ContainsAny(words[0], "./") {
				return exit.Usagef("audit: %q is an argument too many: quote a pattern, as in --path 'src/**'", words[0])
			}
			return exit.Args(cobra.NoArgs)(c, words)
		},
		RunE: func(c *cobra.Command, _ []string) error { return v.audit(c.Context(), o) },
	}
	f := c.Flags()
	v.selection(c, &o)
	f.BoolVarP(&o.follow, "follow", "f", false, "then wait for more")
	f.BoolVar(&o.json, "json", false, "print the lines as they are in the log; with --tree or --summary, JSON")
	f.BoolVar(&o.tree, "tree", false, "print calls below their sessions")
	f.BoolVar(&o.summary, "summary", false, "count equal denials")
	c.MarkFlagsMutuallyExclusive("follow", "tree", "summary")
	c.MarkFlagsMutuallyExclusive("all", "summary") // which names one definition
	c.AddCommand(v.exportCmd(), v.verifyCmd(), v.headCmd(), v.proveCmd(), v.checkProofCmd())
	return c
}

// selection adds the flags that select events.
func (v Env) selection(c *cobra.Command, o *options) {
	f, s := c.Flags(), &o.Selection
	f.BoolVar(&o.all, "all", false, "of all projects of the user and his own base, by time: the default outside of both")
	f.StringVar(&s.Agent, "agent", "", "only this agent's")
	f.StringVar(&s.Session, "session", "", "only of this session; last is that of the log's last event")
	f.StringVar(&s.Call, "call", "", "only of this call")
	f.StringVar(&s.Tool, "tool", "", "only calls of this tool")
	f.StringVar(&s.Op, "op", "", "only with this operation, such as write")
	f.StringVar(&s.Path, "path", "", "only file operations on paths that match this pattern")
	f.StringVar(&s.Host, "host", "", "only connections to hosts that match this pattern")
	f.StringVar((*string)(&s.Verdict), "verdict", "", "only with this verdict: allow, deny or violation")
	f.StringVar(&s.RuleKind, "rule", "", "only by rules of this kind: path, access, protect, network and others (rule_kind in --json)")
	f.BoolVar(&s.Denied, "denied", false, "only denials and violations")
	f.StringVar(&o.since, "since", "", "only from then on")
}

func (v Env) audit(ctx context.Context, o options) error {
	p, dir, err := v.logs(&o)
	if err != nil {
		return err
	}
	if err := o.check(time.Now()); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt)
	defer stop()
	if o.Session == "last" && !o.all {
		of := func(e *audit.Event) bool { return e.Session != "" && (o.Agent == "" || e.Agent == o.Agent) }
		last, err := report.LastEvent(ctx, dir, of)
		if err != nil {
			return err
		}
		o.Session = cmp.Or(last.Session, o.Session)
	}
	printed := 0
	switch {
	case o.tree:
		printed, err = report.Tree(ctx, dir, o.Selection, o.json, v.Out, v.Err)
	case o.summary:
		printed, err = report.Summarize(ctx, p, o.Selection, v.Words, o.json, v.Out, v.Err)
	default:
		printed, err = report.Events(ctx, dir, o.Selection, report.EventsOptions{Follow: o.follow, JSON: o.json}, v.Out, v.Err)
	}
	if o.all && printed > 0 && !o.json && !o.tree && !o.follow {
		fmt.Fprintln(v.Err, "scopefs: each project numbers its own events: scopefs why N --dir DIR explains event N of the project of DIR")
	}
	if errors.Is(err, fs.ErrPermission) && p.Base != "" {
		return v.own(ctx, p, o, err)
	}
	if err != nil || ctx.Err() != nil || printed > 0 {
		return err
	}
	if o.Agent != "" && !o.all {
		err = known(ctx, p, scope.ID(o.Agent))
	}
	if err == nil && (o.Session != "" || terminal.Is(v.Err)) {
		fmt.Fprintln(v.Err, "scopefs: the log has no such event")
	}
	return err
}

// own prints the denials of the agents that run as this user, who may not read the log: a daemon of root answers. no is the error for
// everything else.
func (v Env) own(ctx context.Context, p config.Paths, o options, no error) error {
	if o.follow || o.tree || o.summary || !o.Denied {
		return fmt.Errorf("%w: the user of an agent may read its denials: scopefs audit --denied", no)
	}
	client := api.NewClient(p)
	all, err := client.Agents(ctx)
	if err != nil {
		return fmt.Errorf("%w, and %w", no, err)
	}
	ids := []string{o.Agent}
	if o.Agent == "" {
		ids = nil
		for _, a := range all {
			ids = append(ids, string(a.ID))
		}
	}
	var lines []string
	for _, id := range ids {
		found, err := client.Events(ctx,
			api.EventQuery{Agent: id, Session: o.Session, Call: o.Call, Tool: o.Tool, Op: o.Op, Path: o.Path, Host: o.Host,
				Verdict: string(o.Verdict), Rule: o.RuleKind, Since: o.since, Denied: true})
		if err != nil {
			return err
		}
		if found.More {
			fmt.Fprintf(v.Err, "scopefs: %s has more denials than these %d: give --since, or other filters\n", id, len(found.Lines))
		}
		lines = append(lines, found.Lines...)
	}
	return report.Lines(lines, o.json, v.Out)
}

// logs returns the directory of the log, and selects the further ones; p is zero with --all.
func (v Env) logs(o *options) (p config.Paths, dir string, err error) {
	if !o.all {
		if o.Agent, err = v.Named(o.Agent); err == nil {
			p, err = v.Paths()
		}
		if !errors.Is(err, paths.ErrNoBase) || o.summary {
			return p, p.Audit(), err
		}
		o.all = true
	}
	all, err := v.All()
	if err != nil || len(all) == 0 {
		return p, "", cmp.Or(err, exit.Usagef("--all: set HOME, or XDG_STATE_HOME to a directory"))
	}
	o.Beside = all[1:]
	return p, all[0], nil
}

// check checks the flags that select events.
func (o *options) check(now time.Time) (err error) {
	if o.Agent != "" {
		if _, err := scope.ParseID(o.Agent); err != nil {
			return err
		}
	}
	if err := o.Selection.Check(); err != nil {
		return exit.With(exit.Usage, err)
	}
	if o.Since, err = report.Since(o.since, now); err != nil {
		return exit.With(exit.Usage, err)
	}
	return nil
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
