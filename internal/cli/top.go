package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/tools"
)

type topOptions struct {
	json, once bool
	interval   time.Duration
}

// minInterval is how long the daemon keeps an answer.
const minInterval = time.Second

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

--once prints the table once. --json prints JSON, a line at each refresh: CPU is there
in seconds since the start of the processes.`,
		Args: args(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error { return a.topRun(c.Context(), o) },
	}
	c.Flags().BoolVar(&o.json, "json", false, "print JSON")
	c.Flags().BoolVar(&o.once, "once", false, "print once and end")
	c.Flags().DurationVar(&o.interval, "interval", 2*time.Second, "time between refreshes, at least 1s")
	return c
}

func (a *app) topRun(ctx context.Context, o topOptions) error {
	p, err := a.paths()
	if err != nil {
		return err
	}
	if o.interval < minInterval {
		return &exitError{exitUsage, fmt.Errorf("--interval %v: want %v or more", o.interval, minInterval)}
	}
	client := api.NewClient(p)
	switch {
	case o.json:
		return a.topJSON(ctx, client, o)
	case o.once:
		return a.topOnce(ctx, client)
	}
	in, ok := a.in.(*os.File)
	if !ok || !term.IsTerminal(int(in.Fd())) || !onTerminal(a.out) {
		return &exitError{exitUsage, errors.New("top needs a terminal: use --once or --json")}
	}
	m := newTopModel(ctx, &daemonSide{client, p}, o.interval)
	_, err = tea.NewProgram(m, tea.WithContext(ctx), tea.WithInput(in), tea.WithOutput(a.out)).Run()
	m.leave()
	if err == nil {
		err = m.fatal
	}
	return err
}

// topJSON prints a line of JSON at each refresh.
func (a *app) topJSON(ctx context.Context, client *api.Client, o topOptions) error {
	for {
		t, err := client.Top(ctx)
		if err != nil {
			return err
		}
		if err := a.printLine(t); err != nil || o.once {
			return err
		}
		select {
		case <-time.After(o.interval):
		case <-ctx.Done():
			return nil
		}
	}
}

// topOnce prints the table. CPU is of the second that it takes.
func (a *app) topOnce(ctx context.Context, client *api.Client) error {
	first, err := client.Top(ctx)
	if err != nil {
		return err
	}
	select {
	case <-time.After(minInterval + 100*time.Millisecond):
	case <-ctx.Done():
		return ctx.Err()
	}
	second, err := client.Top(ctx)
	if err != nil {
		return err
	}
	s := newTopScreen(first, second)
	lines := append(s.head(), topHeader)
	for _, row := range s.rows(false) {
		lines = append(lines, row.text)
	}
	_, err = fmt.Fprintln(a.out, strings.Join(lines, "\n"))
	return err
}

// topSource is what top needs of the daemon and the log.
type topSource interface {
	Top(context.Context) (api.Top, error)
	Approval(ctx context.Context, id string) (tools.Approval, error)
	Approve(ctx context.Context, id string, how api.DecideRequest) (tools.Approval, error)
	Deny(ctx context.Context, id string) (tools.Approval, error)
	Kill(ctx context.Context, id string) (api.Session, error)
	// Follow sends the lines of an agent's log until ctx ends, and closes the channel.
	Follow(ctx context.Context, agent string, lines chan<- string)
}

type daemonSide struct {
	*api.Client
	paths config.Paths
}

// followSince is how much of the past a followed log shows.
const followSince = 10 * time.Minute

func (d *daemonSide) Follow(ctx context.Context, agent string, lines chan<- string) {
	defer close(lines)
	w := following(lineChannel{ctx, lines})
	for e, err := range ticking(audit.Read(ctx, d.paths.Audit(), audit.Filter{Agent: agent, Since: time.Now().Add(-followSince)}, true), true) {
		if err != nil && e.Raw != nil {
			continue // scopefs audit names damaged lines
		}
		if err == nil {
			err = w.write(e)
		}
		if err != nil {
			_, _ = fmt.Fprintln(w.out, cmp.Or(ctx.Err(), err))
			return
		}
	}
}

// lineChannel is a Writer that sends each line.
type lineChannel struct {
	ctx   context.Context
	lines chan<- string
}

func (c lineChannel) Write(b []byte) (int, error) {
	select {
	case c.lines <- strings.TrimSuffix(string(b), "\n"):
		return len(b), nil
	case <-c.ctx.Done():
		return 0, c.ctx.Err()
	}
}
