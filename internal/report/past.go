package report

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/internal/api"
)

// Happened is the last session of an agent that has changed something.
type Happened struct {
	api.Past
	Dir   string `json:"dir,omitempty"` // of a project
	Held  bool   `json:"held,omitempty"`
	Lists string `json:"lists"` // the command that lists the changes
}

// Happenings are the last changes of several agents, the newest first.
type Happenings []Happened

// LastChanges returns the last session of each agent of a log that has changed something, by the agent's id. Of an agent for which held
// holds, whose changes the log does not have, it is the last session.
func LastChanges(ctx context.Context, dir string, since time.Time, held func(agent string) bool) (map[string]api.Past, error) {
	last := map[string]api.Past{}
	err := events(ctx, dir, since, func(e *audit.Event) {
		if e.Session == "" || !held(e.Agent) && (e.Changed == nil || *e.Changed == 0) {
			return
		}
		p := last[e.Agent]
		if p.Session != e.Session {
			p = api.Past{}
		}
		p.Add(*e)
		last[e.Agent] = p
	})
	return last, err
}

// events calls f for the events of a log, in order.
func events(ctx context.Context, dir string, since time.Time, f func(*audit.Event)) error {
	for e, err := range audit.Read(ctx, dir, audit.Filter{Since: since, Rising: true}, false) {
		switch {
		case err != nil && e.Raw != nil: // scopefs audit says which lines are damaged
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case err != nil:
			return err
		default:
			f(&e)
		}
	}
	return nil
}

// LastEvent returns the last event of a log for which is holds; the zero Event: there is none.
func LastEvent(ctx context.Context, dir string, is func(*audit.Event) bool) (last audit.Event, err error) {
	err = events(ctx, dir, time.Time{}, func(e *audit.Event) {
		if is(e) {
			last = *e
		}
	})
	return last, err
}

// LastUndo returns the one of some agents that has the last undo of an operator which was not taken back; "": there is none.
func LastUndo(ctx context.Context, dir string, of func(agent string) bool) (agent string, err error) {
	var undone []string
	err = events(ctx, dir, time.Time{}, func(e *audit.Event) {
		if e.Event != audit.KindHistory || e.Outcome != "done" || e.Session != "" || !of(e.Agent) {
			return
		}
		switch e.Op {
		case "undo":
			undone = append(undone, e.Agent)
		case "redo":
			if !strings.Contains(e.Detail, ", 0 conflicts") {
				return // another redo goes on
			}
			for i, id := range slices.Backward(undone) {
				if id == e.Agent {
					undone = slices.Delete(undone, i, i+1)
					break
				}
			}
		}
	})
	if len(undone) > 0 {
		agent = undone[len(undone)-1]
	}
	return agent, err
}

// Sorted returns the list in order, for JSON as well.
func (list Happenings) Sorted() Happenings {
	return slices.SortedFunc(slices.Values(some(list)), func(a, b Happened) int { return b.Last.Compare(a.Last) })
}

// Print prints a row for each agent.
func (list Happenings) Print(w io.Writer) error {
	if len(list) == 0 {
		_, err := fmt.Fprintln(w, "no agent of yours has changed anything: scopefs run --dir DIR -- PROGRAM starts one")
		return err
	}
	var t Table
	t.Row("LAST", "CHANGES", "LIST")
	for _, h := range list {
		text := h.Text()
		if h.Held {
			text = "held, not counted here"
		}
		t.Row(h.Last.Local().Format(time.DateTime), text, h.Lists)
	}
	return t.Print(w)
}
