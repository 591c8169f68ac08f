package api

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/scopefs/scopefs/scope"
)

// EventQuery selects events of the log as scopefs audit does.
type EventQuery struct {
	Agent, Session, Call, Tool, Op, Path, Host, Verdict, Rule, Since string // as the flags of these names

	Denied bool
	Before uint64 // only events with a number below; 0: all
	Limit  int    // 500 at most; 0: that
}

// MaxEvents is the largest EventQuery.Limit.
const MaxEvents = 500

// Events are the newest events that fit, the newest first.
type Events struct {
	Lines []string `json:"lines"` // of the log, each an audit.Event
	More  bool     `json:"more"`  // there are older ones that fit
}

func (q EventQuery) values() url.Values {
	v := url.Values{}
	for key, text := range map[string]string{
		"agent": q.Agent, "session": q.Session, "call": q.Call, "tool": q.Tool, "op": q.Op, "path": q.Path, "host": q.Host,
		"verdict": q.Verdict, "rule": q.Rule, "since": q.Since,
	} {
		if text != "" {
			v.Set(key, text)
		}
	}
	if q.Denied {
		v.Set("denied", "1")
	}
	if q.Before > 0 {
		v.Set("before", strconv.FormatUint(q.Before, 10))
	}
	if q.Limit > 0 {
		v.Set("limit", strconv.Itoa(q.Limit))
	}
	return v
}

// Event is one event of the log, and what the current rules say.
type Event struct {
	Line string `json:"line"`          // of the log, as it is
	Why  string `json:"why,omitempty"` // as scopefs why prints it
}

// Denial is equal denials: see scopefs audit --summary.
type Denial struct {
	Count   int64     `json:"count"`
	Agent   string    `json:"agent,omitempty"`
	Event   string    `json:"event"`
	Op      string    `json:"op,omitempty"`
	Of      string    `json:"of,omitempty"` // a path, a host or a server's tool, as in the log
	Verdict string    `json:"verdict"`
	Rule    string    `json:"rule,omitempty"`
	Kind    string    `json:"rule_kind,omitempty"`
	First   time.Time `json:"first"`
	Last    time.Time `json:"last"`
	Seq     uint64    `json:"seq"`               // of the last
	Now     string    `json:"now,omitempty"`     // what the current rules decide
	Command string    `json:"command,omitempty"` // that would allow it
}

// Definition is an agent that is defined, or a file that does not load.
type Definition struct {
	Agent       scope.ID `json:"agent,omitempty"`
	Description string   `json:"description,omitempty"`
	Error       string   `json:"error,omitempty"` // with file and line; "": it loads
	Warnings    []string `json:"warnings,omitempty"`

	Shown  string `json:"shown,omitempty"`  // of one agent: as scopefs agents show prints it
	Prompt string `json:"prompt,omitempty"` // likewise scopefs prompt
}

// Events returns the newest events that fit.
func (c *Client) Events(ctx context.Context, q EventQuery) (Events, error) {
	return fetch[Events](ctx, c, http.MethodGet, "/v1/events?"+q.values().Encode(), none{})
}

// Event returns one event.
func (c *Client) Event(ctx context.Context, seq uint64) (Event, error) {
	return fetch[Event](ctx, c, http.MethodGet, "/v1/events/"+strconv.FormatUint(seq, 10), none{})
}

// Proof returns the proof of an event: a tree.Proof of package audit/tree.
func (c *Client) Proof(ctx context.Context, seq uint64) (json.RawMessage, error) {
	return fetch[json.RawMessage](ctx, c, http.MethodGet, "/v1/events/"+strconv.FormatUint(seq, 10)+"/proof", none{})
}

// Denials returns equal denials, most first. Before and Limit do not count.
func (c *Client) Denials(ctx context.Context, q EventQuery) ([]Denial, error) {
	return fetch[[]Denial](ctx, c, http.MethodGet, "/v1/denials?"+q.values().Encode(), none{})
}

// Definitions lists what is defined.
func (c *Client) Definitions(ctx context.Context) ([]Definition, error) {
	return fetch[[]Definition](ctx, c, http.MethodGet, "/v1/definitions", none{})
}

// Definition returns one agent's, with what it resolves to.
func (c *Client) Definition(ctx context.Context, id scope.ID) (Definition, error) {
	return fetch[Definition](ctx, c, http.MethodGet, "/v1/definitions/"+url.PathEscape(string(id)), none{})
}
