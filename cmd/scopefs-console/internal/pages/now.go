package pages

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/tools/approvals"
)

type approval = approvals.Approval

// now is the page of what runs.
func (s *Site) now(ctx context.Context, r *http.Request) (page, error) {
	top, before, err := s.live.top(ctx)
	if err != nil && top.Time.IsZero() {
		return page{}, err
	}
	rates, cells := ratesOf(top, before), map[string]string{}
	var data struct {
		Agents       []row
		Sessions     []row
		Calls        []api.TopCall
		Disks        []api.Disk
		Listed       listed
		MoreSessions int
		MoreCalls    int
		Past         []*api.Past
	}
	if len(top.Agents) > maxListed { // those that do something first
		works := map[scope.ID]bool{}
		for _, one := range top.Sessions {
			works[one.Agent] = true
		}
		top.Agents = slices.Clone(top.Agents)
		slices.SortStableFunc(top.Agents, func(a, b api.TopAgent) int { return cmp.Compare(importance(a, works), importance(b, works)) })
	}
	agents, part, err := listOf(r, top.Agents, func(a api.TopAgent) string { return string(a.ID) })
	if err != nil {
		return page{}, err
	}
	data.Listed, data.Disks = part, top.Disks
	for _, a := range agents {
		rates.agent(cells, a)
		data.Agents = append(data.Agents, row{Of: a, Key: key("a", string(a.ID)), cells: cells})
	}
	data.MoreSessions, data.MoreCalls = max(0, len(top.Sessions)-maxListed), max(0, len(top.Calls)-maxListed)
	data.Calls = top.Calls[:len(top.Calls)-data.MoreCalls]
	for _, one := range top.Sessions[:len(top.Sessions)-data.MoreSessions] {
		rates.session(cells, one)
		data.Sessions = append(data.Sessions, row{Of: one, Key: key("s", one.ID), cells: cells})
	}
	if data.Past, err = s.past(ctx, top.Sessions, maxPast); err != nil {
		return page{}, err
	}
	return page{Name: "now", Title: "Now", Follow: "top", Data: data}, nil
}

// maxPast limits the sessions that have ended on the page of what runs.
const maxPast = 10

// past returns the sessions of the newest events, the last one first, without some: most of them at most; 0: all.
func (s *Site) past(ctx context.Context, without []api.TopSession, most int) (list []*api.Past, err error) {
	found, err := s.client.Events(ctx, api.EventQuery{})
	if err != nil {
		return nil, err
	}
	known := map[string]*api.Past{}
	for _, one := range without {
		known[one.ID] = &api.Past{}
	}
	for _, e := range eventsOf(found.Lines) {
		if e.Session == "" {
			continue
		}
		p := known[e.Session]
		if p == nil {
			if most > 0 && len(list) == most {
				continue
			}
			p = &api.Past{}
			known[e.Session], list = p, append(list, p)
		}
		p.Add(e)
	}
	return list, nil
}

// importance orders agents: those that fail, those that work, the others.
func importance(a api.TopAgent, works map[scope.ID]bool) int {
	switch {
	case a.State != api.Mounted && a.State != api.Down:
		return 0
	case works[a.ID] || a.Running > 0 || a.Calls > 0 || a.Denials > 0:
		return 1
	}
	return 2
}

// row is a row of a table with cells that change.
type row struct {
	Of    any
	Key   string
	cells map[string]string
}

// cell is a cell of a row, and the name by which the script finds it.
type cell struct{ Key, Text string }

// Cell returns the text of a cell.
func (r row) Cell(name string) string { return r.cells[key(r.Key, name)] }

// rates are what cells show of an answer, and of what processes used before.
type rates struct {
	now    time.Time
	passed time.Duration
	before map[string]float64 // processor time
}

func ratesOf(now, before api.Top) rates {
	r := rates{now.Time, now.Used.Sub(before.Used), map[string]float64{}}
	for _, a := range before.Agents {
		r.before[key("a", string(a.ID))] = a.CPU
	}
	for _, s := range before.Sessions {
		r.before[key("s", s.ID)] = s.CPU
	}
	return r
}

func (r rates) use(cells map[string]string, of string, u api.Use) {
	cells[key(of, "cpu")] = percent(u.CPU, r.before, of, r.passed)
	cells[key(of, "memory")] = size(u.Memory)
	cells[key(of, "processes")] = strconv.Itoa(u.Processes)
	cells[key(of, "written")] = size(u.Written)
}

// agent adds the cells of an agent that change all the time.
func (r rates) agent(cells map[string]string, a api.TopAgent) {
	of := key("a", string(a.ID))
	r.use(cells, of, a.Use)
	for name, n := range map[string]int64{"running": a.Running, "open": a.Open, "calls": a.Calls, "denials": a.Denials} {
		cells[key(of, name)] = strconv.FormatInt(n, 10)
	}
}

// session adds those of a session.
func (r rates) session(cells map[string]string, s api.TopSession) {
	of := key("s", s.ID)
	r.use(cells, of, s.Use)
	cells[key(of, "age")] = since(r.now.Sub(s.Since).Truncate(10 * time.Second))
	cells[key(of, "program")] = show(s.Program)
}

func diskCells(cells map[string]string, disks []api.Disk) {
	for i, d := range disks {
		cells[key("disk", strconv.Itoa(i))] = size(d.Free)
	}
}

// percent returns the use of a processor between two answers.
func percent(cpu float64, before map[string]float64, of string, passed time.Duration) string {
	old, ok := before[of]
	if !ok || passed <= 0 || cpu < old {
		return "–"
	}
	return fmt.Sprintf("%.0f %%", 100*(cpu-old)/passed.Seconds())
}
