package report

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
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
	for e, err := range audit.Read(ctx, dir, audit.Filter{Since: since, Rising: true}, false) {
		switch {
		case err != nil && e.Raw != nil: // scopefs audit says which lines are damaged
			continue
		case errors.Is(err, fs.ErrNotExist):
			return nil, nil
		case err != nil:
			return last, err
		case e.Session == "" || !held(e.Agent) && (e.Changed == nil || *e.Changed == 0):
			continue
		}
		p := last[e.Agent]
		if p.Session != e.Session {
			p = api.Past{}
		}
		p.Add(e)
		last[e.Agent] = p
	}
	return last, nil
}

// AgentOf returns the agent of the last event of a log for which is holds; "": there is none.
func AgentOf(ctx context.Context, dir string, is func(*audit.Event) bool) (agent string, err error) {
	for e, err := range audit.Read(ctx, dir, audit.Filter{Rising: true}, false) {
		switch {
		case err != nil && e.Raw != nil: // as in LastChanges
		case errors.Is(err, fs.ErrNotExist):
			return "", nil
		case err != nil:
			return "", err
		case is(&e):
			agent = e.Agent
		}
	}
	return agent, nil
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
