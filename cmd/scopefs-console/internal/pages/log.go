package pages

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/scope"
)

// query returns the filters of a form.
func query(r *http.Request) (q api.EventQuery, err error) {
	v := r.URL.Query()
	q = api.EventQuery{
		Agent: v.Get("agent"), Session: v.Get("session"), Call: v.Get("call"), Tool: v.Get("tool"), Op: v.Get("op"), Path: v.Get("path"),
		Host: v.Get("host"), Verdict: v.Get("verdict"), Rule: v.Get("rule"), Since: v.Get("since"), Denied: v.Get("denied") != "",
	}
	if text := v.Get("before"); text != "" {
		if q.Before, err = strconv.ParseUint(text, 10, 64); err != nil {
			return q, invalid("before: %q is no number", text)
		}
	}
	return q, nil
}

// eventsOf parses lines of the log. One that is no event is shown as its text.
func eventsOf(lines []string) (list []audit.Event) {
	for _, line := range lines {
		var e audit.Event
		if json.Unmarshal([]byte(line), &e) != nil {
			e = audit.Event{Event: "?", Detail: line}
		}
		list = append(list, e)
	}
	return list
}

// log is the page that searches the log.
func (s *Site) log(ctx context.Context, r *http.Request) (page, error) {
	q, err := query(r)
	if err != nil {
		return page{}, err
	}
	q.Limit = 200
	found, err := s.client.Events(ctx, q)
	if err != nil {
		return page{}, err
	}
	data := struct {
		Query  api.EventQuery
		Events []audit.Event
		Older  string // the query of the next page
	}{Query: q, Events: eventsOf(found.Lines)}
	if n := len(data.Events); found.More && n > 0 {
		v := r.URL.Query()
		v.Set("before", fmt.Sprint(data.Events[n-1].Seq))
		data.Older = v.Encode()
	}
	p := page{Name: "log", Title: "Log", Data: data}
	if q.Before == 0 {
		p.Follow = "log"
	}
	return p, nil
}

// event is the page of one event.
func (s *Site) event(ctx context.Context, r *http.Request) (page, error) {
	seq, err := strconv.ParseUint(r.PathValue("seq"), 10, 64)
	if err != nil {
		return page{}, invalid("%q is no event", r.PathValue("seq"))
	}
	got, err := s.client.Event(ctx, seq)
	if err != nil {
		return page{}, err
	}
	e := eventsOf([]string{got.Line})[0]
	return page{Name: "event", Title: fmt.Sprint("Event ", seq), Data: struct {
		audit.Event
		Line, Why string
	}{e, got.Line, got.Why}}, nil
}

// proof answers the proof of an event as a file.
func (s *Site) proof(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), askTime)
	defer cancel()
	seq, err := strconv.ParseUint(r.PathValue("seq"), 10, 64)
	var text json.RawMessage
	if err == nil {
		text, err = s.client.Proof(ctx, seq)
	}
	if err != nil {
		http.Error(w, show(err.Error()), http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Disposition", fmt.Sprintf(`attachment; filename="event-%d.proof.json"`, seq))
	_, _ = w.Write(text)
}

// denials is the page of equal denials.
func (s *Site) denials(ctx context.Context, r *http.Request) (page, error) {
	q, err := query(r)
	if err != nil {
		return page{}, err
	}
	list, err := s.client.Denials(ctx, q)
	if err != nil {
		return page{}, err
	}
	type of struct{ Agent, Rule string }
	type group struct {
		of
		Count int64
		List  []api.Denial
	}
	var groups []*group
	known := map[of]*group{}
	for _, d := range list {
		key := of{d.Agent, d.Rule}
		g := known[key]
		if g == nil {
			g = &group{of: key}
			known[key], groups = g, append(groups, g)
		}
		g.Count += d.Count
		g.List = append(g.List, d)
	}
	return page{Name: "denials", Title: "Denials", Data: struct {
		Query  api.EventQuery
		Groups []*group
	}{q, groups}}, nil
}

// definitions is the page of what is defined.
func (s *Site) definitions(ctx context.Context, r *http.Request) (page, error) {
	list, err := s.client.Definitions(ctx)
	if err != nil {
		return page{}, err
	}
	slices.SortStableFunc(list, func(a, b api.Definition) int { return cmp.Compare(rank(b.Error != ""), rank(a.Error != "")) })
	var data struct {
		Part   []api.Definition
		Listed listed
	}
	data.Part, data.Listed, err = listOf(r, list, func(d api.Definition) string { return string(d.Agent) })
	return page{Name: "definitions", Title: "Definitions", Data: data}, err
}

// definition is the page of an agent.
func (s *Site) definition(ctx context.Context, r *http.Request) (page, error) {
	d, err := s.client.Definition(ctx, scope.ID(r.PathValue("id")))
	return page{Name: "definition", Title: "Definition of " + string(d.Agent), Data: d}, err
}

// call is a call of a session, with what belongs to it.
type call struct {
	audit.Event // the one that begins, or that refused it
	Ended       bool
	End         audit.Event
	Of          []audit.Event
	Denied      int
}

// Took returns how long the call took.
func (c call) Took() string {
	if !c.Ended {
		return ""
	}
	return (time.Duration(c.End.DurationUS) * time.Microsecond).Round(time.Millisecond).String()
}

// session is the page of a session: its calls in time, the newest first.
func (s *Site) session(ctx context.Context, r *http.Request) (page, error) {
	id := r.PathValue("id")
	found, err := s.client.Events(ctx, api.EventQuery{Session: id})
	if err != nil {
		return page{}, err
	}
	top, _, err := s.live.top(ctx)
	if err != nil {
		return page{}, err
	}
	data := struct {
		ID, Agent string
		Running   *api.TopSession
		Calls     []*call
		Others    []audit.Event
		More      bool
	}{ID: id, More: found.More}
	for _, one := range top.Sessions {
		if one.ID == id {
			data.Running, data.Agent = &one, string(one.Agent)
		}
	}
	events := eventsOf(found.Lines)
	slices.Reverse(events)
	if events, err = s.whole(ctx, events); err != nil {
		return page{}, err
	}
	data.Calls, data.Others = callsOf(events)
	if data.Agent == "" && len(events) > 0 {
		data.Agent = events[0].Agent
	}
	if data.Running == nil && len(events) == 0 {
		return page{}, invalid("no session %q runs, or is in the log", id)
	}
	return page{Name: "session", Title: "Session " + id, Follow: "log top", Data: data}, nil
}

// maxWhole limits the calls whose other events are read.
const maxWhole = 20

// whole adds the events of the newest calls that have no session: a call may begin before its sandbox. One that has begun in
// the session has all of them there.
func (s *Site) whole(ctx context.Context, events []audit.Event) ([]audit.Event, error) {
	seen, known, read := map[string]bool{}, map[uint64]bool{}, 0
	for _, e := range events {
		known[e.Seq] = true
		if e.Event == audit.KindCall && e.Outcome == audit.OutcomeBegin {
			seen[e.Call] = true
		}
	}
	for _, e := range slices.Backward(events) {
		if e.Call == "" || seen[e.Call] || read >= maxWhole {
			continue
		}
		seen[e.Call] = true
		read++
		found, err := s.client.Events(ctx, api.EventQuery{Call: e.Call, Limit: 100})
		if err != nil {
			return nil, err
		}
		for _, more := range eventsOf(found.Lines) {
			if !known[more.Seq] {
				known[more.Seq] = true
				events = append(events, more)
			}
		}
	}
	slices.SortFunc(events, func(a, b audit.Event) int { return cmp.Compare(a.Seq, b.Seq) })
	return events, nil
}

// callsOf puts events together by call.
func callsOf(events []audit.Event) (calls []*call, others []audit.Event) {
	byID := map[string]*call{}
	for _, e := range events {
		c := byID[e.Call]
		denied := e.Verdict == audit.Deny || e.Verdict == audit.Violation
		switch {
		case e.Call == "":
			others = append(others, e)
		case c == nil:
			c = &call{Event: e}
			byID[e.Call] = c
			calls = append(calls, c)
			if e.Event == audit.KindCall && e.Outcome != audit.OutcomeBegin {
				c.Ended, c.End = true, e
			}
		case e.Event == audit.KindCall && e.Outcome != audit.OutcomeBegin:
			c.Ended, c.End = true, e
		case e.Event == audit.KindCall:
			c.Of = append([]audit.Event{c.Event}, c.Of...) // something was recorded before it began
			c.Event = e
		default:
			c.Of = append(c.Of, e)
		}
		if c != nil && denied {
			c.Denied++
		}
	}
	slices.Reverse(calls)
	slices.Reverse(others)
	return calls, others
}

// end ends a session.
func (s *Site) end(ctx context.Context, r *http.Request) (string, error) {
	id := r.PathValue("id")
	_, err := s.client.Kill(ctx, id)
	return "/sessions/" + url.PathEscape(id), err
}

// about returns what an event is about, in a line.
func about(e audit.Event) string {
	var words []string
	for _, word := range []string{e.Server, e.Path, e.Target} {
		if word != "" {
			words = append(words, word)
		}
	}
	return strings.Join(words, " → ")
}

// verdict returns the decision of an event, or its outcome.
func verdict(e audit.Event) string {
	switch {
	case e.Verdict == audit.Deny, e.Verdict == audit.Violation, e.Outcome == "":
		return string(e.Verdict)
	}
	return e.Outcome
}

// amount returns the bytes of an event.
func amount(e audit.Event) string {
	switch {
	case e.Sent > 0:
		return size(e.Sent) + " sent, " + size(e.Bytes) + " received"
	case e.Bytes > 0:
		return size(e.Bytes)
	}
	return ""
}
