package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"os/signal"
	"strings"
	"time"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/config"
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
	skipped, printed := 0, 0
	var out eventWriter = &lineWriter{out: a.out}
	switch {
	case o.json:
		out = &jsonWriter{out: a.out}
	case o.follow:
		out = following(a.out)
	}
	for e, err := range ticking(audit.Read(ctx, p.Audit(), filter, o.follow), o.follow && !o.json) {
		if err != nil && e.Raw != nil {
			skipped++
			fmt.Fprintf(a.err, "scopefs: %v: skipped\n", err)
			continue
		}
		if err != nil {
			if err := out.end(); err != nil {
				return err
			}
			if ctx.Err() != nil {
				return nil
			}
			if errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("%w: nothing was recorded yet, or give --base or --state of the daemon", err)
			}
			return err
		}
		if err := out.write(e); err != nil {
			return err
		}
		printed++
	}
	if err := out.end(); err != nil {
		return err
	}
	if skipped > 0 {
		return fmt.Errorf("%d damaged lines in %s were skipped", skipped, p.Audit())
	}
	if filter.Agent != "" && printed == 0 {
		return known(ctx, p, scope.ID(filter.Agent))
	}
	return nil
}

// known returns an error for an agent that has neither a definition nor an event.
func known(ctx context.Context, p config.Paths, id scope.ID) error {
	if _, err := agentOf(p, id); !errors.Is(err, api.ErrUnknown) {
		return nil
	}
	for _, err := range audit.Read(ctx, p.Audit(), audit.Filter{Agent: string(id)}, false) {
		return err // of the first event
	}
	return fmt.Errorf("%w %q: neither a definition nor an event has it", api.ErrUnknown, id)
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

// eventWriter prints events. write with no event is a tick.
type eventWriter interface {
	write(audit.Event) error
	end() error
}

// jsonWriter prints the lines of the log.
type jsonWriter struct{ out io.Writer }

func (w *jsonWriter) write(e audit.Event) error {
	_, err := fmt.Fprintf(w.out, "%s\n", e.Raw)
	return err
}

func (w *jsonWriter) end() error { return nil }

// lineWriter prints a line for each event, or for equal denials.
type lineWriter struct {
	out   io.Writer
	fold  audit.Fold
	ahead time.Duration // how much sooner than the fold a tick prints
}

// following returns a lineWriter for somebody who waits for events: a denial is printed a
// second after it came.
func following(out io.Writer) *lineWriter {
	const span = 10 * time.Second
	return &lineWriter{out: out, fold: audit.Fold{Span: span}, ahead: span - time.Second}
}

func (w *lineWriter) write(e audit.Event) error {
	if e.Raw == nil {
		return w.print(w.fold.Until(time.Now().Add(w.ahead)))
	}
	return w.print(w.fold.Add(e))
}

func (w *lineWriter) end() error { return w.print(w.fold.Rest()) }

func (w *lineWriter) print(all []audit.Folded) error {
	for _, e := range all {
		if _, err := fmt.Fprintln(w.out, eventLine(e)); err != nil {
			return err
		}
	}
	return nil
}

// ticking adds an event without Raw whenever none came for a while, if wanted.
func ticking(events iter.Seq2[audit.Event, error], wanted bool) iter.Seq2[audit.Event, error] {
	if !wanted {
		return events
	}
	type item struct {
		e   audit.Event
		err error
	}
	return func(yield func(audit.Event, error) bool) {
		read, stop := make(chan item), make(chan struct{})
		defer close(stop)
		go func() {
			defer close(read)
			for e, err := range events {
				select {
				case read <- item{e, err}:
				case <-stop:
					return
				}
			}
		}()
		ticks := time.NewTicker(200 * time.Millisecond)
		defer ticks.Stop()
		for {
			next, ok := item{}, true
			select {
			case next, ok = <-read:
			case <-ticks.C:
			}
			if !ok || !yield(next.e, next.err) {
				return
			}
		}
	}
}

// eventLine returns an event as a line: time, agent, operation and rule.
func eventLine(e audit.Folded) string {
	words := []string{fmt.Sprintf("%5d", e.Seq), e.Time.Local().Format("2006-01-02 15:04:05.000")}
	add := func(format, v string) {
		if v != "" {
			words = append(words, fmt.Sprintf(format, v))
		}
	}
	add("%-14s", e.Agent)
	kind := string(e.Verdict)
	if kind == "" {
		kind = e.Event.Event
	}
	add("%-9s", kind)
	add("server %s", e.Server)
	if e.Count > 1 {
		words = append(words, fmt.Sprint("×", e.Count))
	}
	add("%s", e.Op)
	add("%s", e.Outcome)
	add("%s", quoted(e.Path))
	add("-> %s", quoted(e.Target))
	add("%s", e.Errno)
	add("(%s)", e.Rule)
	if e.Exit != nil {
		words = append(words, fmt.Sprint("exit ", *e.Exit))
	}
	if e.Event.Event == audit.KindNetwork {
		words = append(words, traffic(e.Event)...)
	}
	add("by %s", quoted(e.Program))
	switch {
	case e.Count > 1:
		words[len(words)-1] += ","
		words = append(words, span(e.Last.Sub(e.Time)))
	default:
		if e.PID != 0 {
			words = append(words, fmt.Sprintf("pid %d", e.PID))
		}
		add("call %s", e.Call)
	}
	if e.Unrecorded > 0 {
		words = append(words, fmt.Sprintf("and %d unrecorded", e.Unrecorded))
	}
	add("%s", e.Detail)
	return strings.Join(words, " ")
}

// span returns a duration to a tenth of a second, or to a second from ten seconds on.
func span(d time.Duration) string {
	if d < 10*time.Second {
		return fmt.Sprintf("%.1f s", d.Seconds())
	}
	return fmt.Sprintf("%.0f s", d.Seconds())
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
