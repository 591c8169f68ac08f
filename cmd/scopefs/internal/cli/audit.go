package cli

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"strings"
	"time"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/scopefs/scopefs/audit"
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
	_ = c.RegisterFlagCompletionFunc("agent", func(c *cobra.Command, _ []string, word string) ([]string, cobra.ShellCompDirective) {
		return a.complete(c, nil, word)
	})
	return c
}

func (a *app) audit(c *cobra.Command, o auditOptions) error {
	p, err := a.paths()
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
		return &exitError{exitUsage, err}
	}
	ctx, stop := signal.NotifyContext(c.Context(), os.Interrupt)
	defer stop()
	skipped := 0
	for e, err := range audit.Read(ctx, p.Audit(), filter, o.follow) {
		if err != nil && e.Raw != nil {
			skipped++
			fmt.Fprintf(a.err, "scopefs: %v: skipped\n", err)
			continue
		}
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			if errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("%w: nothing was recorded yet, or give --base or --state of the daemon", err)
			}
			return err
		}
		if o.json {
			_, err = fmt.Fprintf(a.out, "%s\n", e.Raw)
		} else {
			err = printEvent(a.out, e)
		}
		if err != nil {
			return err
		}
	}
	if skipped > 0 {
		return fmt.Errorf("%d damaged lines in %s were skipped", skipped, p.Audit())
	}
	return nil
}

func since(text string, now time.Time) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	if d, err := time.ParseDuration(text); err == nil {
		return now.Add(-d), nil
	}
	for _, layout := range []string{time.RFC3339, time.DateOnly} {
		if t, err := time.ParseInLocation(layout, text, time.Local); err == nil {
			return t, nil
		}
	}
	return time.Time{}, fmt.Errorf("--since %q: want a duration such as 10m, or a time such as 2006-01-02T15:04:05Z", text)
}

// printEvent prints an event on one line: time, agent, operation and rule.
func printEvent(w io.Writer, e audit.Event) error {
	words := []string{fmt.Sprintf("%5d", e.Seq), e.Time.Local().Format("2006-01-02 15:04:05.000")}
	add := func(format, v string) {
		if v != "" {
			words = append(words, fmt.Sprintf(format, v))
		}
	}
	add("%-14s", e.Agent)
	kind := string(e.Verdict)
	if kind == "" {
		kind = e.Event
	}
	add("%-9s", kind)
	add("%s", e.Op)
	add("%s", e.Outcome)
	add("%s", quoted(e.Path))
	add("-> %s", quoted(e.Target))
	add("%s", e.Errno)
	add("(%s)", e.Rule)
	if e.PID != 0 {
		words = append(words, fmt.Sprintf("pid %d", e.PID))
	}
	if e.Event == audit.KindNetwork {
		words = append(words, traffic(e)...)
	}
	add("call %s", e.Call)
	add("%s", e.Detail)
	_, err := fmt.Fprintln(w, strings.Join(words, " "))
	return err
}

// traffic describes the end of a connection or a request.
func traffic(e audit.Event) (words []string) {
	if e.Status != 0 {
		words = append(words, fmt.Sprint("status ", e.Status))
	}
	if e.DurationUS != 0 {
		words = append(words, fmt.Sprintf("%d bytes sent, %d received in %v", e.Sent, e.Bytes, (time.Duration(e.DurationUS)*time.Microsecond).Round(time.Millisecond)))
	}
	return words
}

// quoted returns s, in quotes if it contains characters that could pass for the
// next words of the line.
func quoted(s string) string {
	for _, r := range s {
		if !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune(`/._-+,=@~#%\`, r) {
			return `"` + strings.ReplaceAll(s, `"`, `\"`) + `"`
		}
	}
	return s
}
