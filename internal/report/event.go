package report

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/internal/printable"
)

// EventsOptions says how Events prints.
type EventsOptions struct {
	Follow bool // wait for new events
	JSON   bool // the lines of the log as they are
}

// Events prints the selected events of the log in a directory, and returns how many. Standard error gets lines that are no
// events.
func Events(ctx context.Context, dir string, sel Selection, o EventsOptions, stdout, stderr io.Writer) (printed int, err error) {
	out := &eventWriter{out: stdout, json: o.JSON}
	if o.Follow && !o.JSON {
		out.fold, out.ahead = folder{Span: followSpan}, followSpan-time.Second
	}
	ticks := o.Follow && !o.JSON
	printed, err = selected(ctx, dir, ticking(sel.events(ctx, dir, o.Follow), ticks), stderr, out.write)
	if err := out.end(); err != nil {
		return printed, err
	}
	return printed, err
}

// Lines prints lines of the log, in the order of their numbers.
func Lines(lines []string, asJSON bool, stdout io.Writer) error {
	var events []audit.Event
	for _, line := range lines {
		var e audit.Event
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			return err
		}
		e.Raw = []byte(line)
		events = append(events, e)
	}
	slices.SortFunc(events, func(a, b audit.Event) int { return cmp.Compare(a.Seq, b.Seq) })
	out := &eventWriter{out: stdout, json: asJSON}
	for _, e := range events {
		if err := out.write(e); err != nil {
			return err
		}
	}
	return out.end()
}

// Each calls f with each selected event. Standard error gets lines that are no events.
func Each(ctx context.Context, dir string, sel Selection, follow bool, stderr io.Writer, f func(audit.Event) error) error {
	_, err := selected(ctx, dir, sel.events(ctx, dir, follow), stderr, f)
	return err
}

// selected calls f with each event, and returns how many there were. An event without Raw is a tick. The end of ctx is no
// error.
func selected(ctx context.Context, dir string, events iter.Seq2[audit.Event, error], stderr io.Writer, f func(audit.Event) error) (n int, err error) {
	skipped := 0
	for e, err := range events {
		switch {
		case err != nil && e.Raw != nil:
			skipped++
			fmt.Fprintf(stderr, "scopefs: %v: skipped\n", err)
		case err != nil && ctx.Err() != nil:
			return n, nil
		case errors.Is(err, fs.ErrNotExist):
			return n, fmt.Errorf("%w: nothing was recorded yet, or give --base or --state of the daemon", err)
		case err != nil:
			return n, err
		default:
			if err := f(e); err != nil {
				return n, err
			}
			if e.Raw != nil {
				n++
			}
		}
	}
	if skipped > 0 {
		return n, fmt.Errorf("%d damaged lines in %s were skipped", skipped, dir)
	}
	return n, nil
}

// Follow prints the events of an agent's log since a time, and new ones until ctx ends. scopefs audit names damaged lines.
func Follow(ctx context.Context, dir, agent string, since time.Time, out io.Writer) error {
	_, err := Events(ctx, dir, Selection{Filter: audit.Filter{Agent: agent, Since: since}}, EventsOptions{Follow: true}, out, io.Discard)
	return err
}

// eventWriter prints a line for each event, or for equal denials.
type eventWriter struct {
	out   io.Writer
	json  bool // the lines of the log
	fold  folder
	ahead time.Duration // how much sooner than the fold a tick prints: a follower sees a denial a second after it came
}

// followSpan is how long equal denials are folded for a follower.
const followSpan = 10 * time.Second

// write prints an event. An event without Raw is a tick.
func (w *eventWriter) write(e audit.Event) error {
	switch {
	case w.json:
		_, err := fmt.Fprintf(w.out, "%s\n", e.Raw)
		return err
	case e.Raw == nil:
		return w.print(w.fold.Until(time.Now().Add(w.ahead)))
	}
	return w.print(w.fold.Add(e))
}

func (w *eventWriter) end() error { return w.print(w.fold.Rest()) }

func (w *eventWriter) print(all []folded) error {
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
func eventLine(e folded) string {
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
	if e.Changed != nil {
		words = append(words, changedBy(*e.Changed, e.Effects))
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

// changedBy says what a call or a command changed.
func changedBy(n int, effects string) string {
	if n == 0 {
		return "changed nothing"
	}
	return cmp.Or(effects, fmt.Sprint("changed ", n))
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
		took := (time.Duration(e.DurationUS) * time.Microsecond).Round(time.Millisecond)
		words = append(words, fmt.Sprintf("%d bytes sent, %d received in %v", e.Sent, e.Bytes, took))
	}
	return words
}

// NodeEvent returns an event of a node as a line. The text of an event of another host is escaped.
func NodeEvent(node string, e audit.Event) string {
	return printable.Text(fmt.Sprintf("%-12s ", node) + eventLine(folded{Event: e, Count: 1, Last: e.Time}))
}
