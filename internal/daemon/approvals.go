package daemon

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/internal/account"
	"github.com/scopefs/scopefs/internal/agent"
	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/session"
	"github.com/scopefs/scopefs/internal/state"
	"github.com/scopefs/scopefs/tools/approvals"
)

// loadApprovals makes the set of approvals, and reads those of an earlier daemon. kept resume and lost is recorded when the
// log is open. A headless daemon has approvals in memory alone.
func (d *Daemon) loadApprovals(headless bool) (kept []approvals.Approval, lost []audit.Event, err error) {
	if headless {
		d.Approvals = approvals.NewSet(nil)
		d.Approvals.Alone = true
	} else {
		store, all, errs, err := state.OpenApprovals(d.Paths.State, d.Settings)
		if err != nil {
			return nil, nil, err
		}
		for _, err := range errs {
			d.Logger.Error("an approval is lost: the agent has to ask again", "err", err)
			lost = append(lost, audit.Event{Event: audit.KindApproval, Outcome: "ended", Detail: err.Error()})
		}
		d.Approvals, kept = approvals.NewSet(store), all
	}
	d.Approvals.Ended = func(p approvals.Approval, why string) {
		e := eventOf(p, "ended")
		if p.State == approvals.Waits {
			e.Outcome = "timed_out"
		}
		e.Detail += ": " + why
		d.Event(e)
	}
	return kept, lost, nil
}

// eventOf returns the event of a change of an approval.
func eventOf(p approvals.Approval, outcome string) audit.Event {
	e := audit.Event{Event: audit.KindApproval, Agent: string(p.Agent), Session: p.Session, Chain: p.Chain, Op: p.Tool,
		Path: p.Path, Rule: p.Rule, Outcome: outcome, Detail: p.ID}
	if p.Granted != nil {
		e.Detail += ", scopes " + strings.Join(p.Granted, " ")
	}
	if p.State == approvals.Stands {
		e.Detail += ", standing"
		if p.Pattern != "" {
			e.Detail += fmt.Sprintf(", pattern %q", p.Pattern)
		}
		if !p.Expires.IsZero() {
			e.Detail += ", until " + p.Expires.UTC().Format(time.RFC3339)
		}
		if p.Ends != "" {
			e.Detail += ", until the session ends"
		}
	}
	return e
}

// approvalHandlers answer the operator's words on calls that wait. They are on
// the control socket alone: an agent has no way to it.
func (d *Daemon) approvalHandlers(mux *http.ServeMux) {
	mux.HandleFunc("GET /v1/approvals", func(w http.ResponseWriter, r *http.Request) {
		list := []approvals.Approval{}
		for _, p := range d.Approvals.List() {
			list = append(list, p.Brief())
		}
		_ = reply(w, list)
	})
	mux.HandleFunc("GET /v1/inbox", func(w http.ResponseWriter, r *http.Request) { _ = reply(w, d.Approvals.Inbox()) })
	mux.HandleFunc("GET /v1/approvals/watch", d.watchApprovals)
	mux.HandleFunc("GET /v1/approvals/{id}", func(w http.ResponseWriter, r *http.Request) {
		p, err := d.Approvals.Get(r.PathValue("id"))
		if err != nil {
			fail(w, http.StatusNotFound, err)
			return
		}
		_ = reply(w, p)
	})
	mux.HandleFunc("POST /v1/agents/{id}/grant", d.forAgent(func(_ http.ResponseWriter, r *http.Request, a *agent.Agent) (any, error) {
		var req api.GrantRequest
		if err := body(r, &req); err != nil {
			return nil, err
		}
		return d.grant(r, a, req)
	}))
	for word, decide := range map[string]func(*http.Request, string, api.DecideRequest) (approvals.Approval, error){
		"approve": d.approve,
		"deny": func(r *http.Request, id string, said api.DecideRequest) (approvals.Approval, error) {
			return d.Approvals.Decide(id, false, answer(r, said), d.recordDecision(r, "", said.As))
		},
		"revoke": func(r *http.Request, id string, said api.DecideRequest) (approvals.Approval, error) {
			return d.Approvals.Revoke(id, answer(r, said), d.recordDecision(r, "revoked", said.As))
		},
	} {
		mux.HandleFunc("POST /v1/approvals/{id}/"+word, d.changing(func(_ http.ResponseWriter, r *http.Request) (any, error) {
			var said api.DecideRequest
			if err := body(r, &said); err != nil {
				return nil, err
			}
			var err error
			if said.As, err = approvals.Reason(said.As); err != nil {
				return nil, err
			}
			p, err := decide(r, r.PathValue("id"), said)
			return p.Brief(), err
		}))
	}
}

// watchApprovals answers with a line for each change of an approval, those there are first.
func (d *Daemon) watchApprovals(w http.ResponseWriter, r *http.Request) {
	changes, stop := d.Approvals.Watch()
	defer stop()
	w.Header().Set("Content-Type", "application/jsonl")
	lines, out := json.NewEncoder(w), http.NewResponseController(w)
	for {
		if err := out.Flush(); err != nil {
			return
		}
		select {
		case <-r.Context().Done():
			return
		case c, ok := <-changes:
			if !ok {
				return
			}
			_ = out.SetWriteDeadline(time.Now().Add(watchTime))
			if err := lines.Encode(c); err != nil {
				return
			}
		}
	}
}

// watchTime is how long a watcher may take to read one change.
const watchTime = 10 * time.Second

// grant makes standing approvals of later calls of a tool, or of connections to a host: one, or one for each session of
// the agent that runs now. It allows nothing that the rules deny.
func (d *Daemon) grant(r *http.Request, a *agent.Agent, req api.GrantRequest) (made []approvals.Approval, err error) {
	if d.only != "" && d.only != a.ID() {
		return nil, invalid("this daemon serves %s alone", d.only)
	}
	def, err := d.Definition(a.ID())
	if err != nil {
		return nil, err
	}
	terms := approvals.Terms{For: req.For, Session: req.Session}
	of := approvals.Approval{Agent: a.ID(), Tool: req.Tool, Kind: approvals.KindTool, Policy: def.Grants.Version()}
	if req.Host == "" {
		of.Rule = def.Grants.Tool(req.Tool).Rule
	} else {
		of.Tool, of.Kind, terms.Pattern = session.NetworkOfCommands, approvals.KindHost, req.Host
	}
	sessions := []string{""}
	if req.Session {
		if sessions = a.Approvable(req.Host != ""); len(sessions) == 0 {
			return nil, invalid("no session of %s runs: give --for 1h", a.ID())
		}
	}
	for _, of.Session = range sessions {
		p, err := d.Approvals.Grant(of, terms, d.recordDecision(r, "", ""))
		if err != nil {
			return made, err
		}
		made = append(made, p.Brief())
	}
	return made, nil
}

// answer returns what an operator says with a decision.
func answer(r *http.Request, said api.DecideRequest) approvals.Answer {
	by := "an operator"
	if uid, ok := api.PeerOf(r.Context()); ok {
		by = fmt.Sprintf("user %d", account.HostUID(uid))
	}
	if said.As != "" {
		by += fmt.Sprintf(" (%s)", said.As)
	}
	return approvals.Answer{Scopes: said.Scopes, Paths: said.Paths, Reason: said.Reason, Shown: said.Shown, By: by}
}

// approve grants a call, or makes a standing approval from it.
func (d *Daemon) approve(r *http.Request, id string, said api.DecideRequest) (approvals.Approval, error) {
	record := d.recordDecision(r, "", said.As)
	if said.Standing == nil {
		return d.Approvals.Decide(id, true, answer(r, said), record)
	}
	if said.Scopes != nil || said.Paths != nil {
		return approvals.Approval{}, errors.New("a standing approval is for no part of a call: " +
			"approve the one call with --scopes or --allow-paths")
	}
	return d.Approvals.Stand(id, *said.Standing, answer(r, said), record)
}

// recordDecision returns a function that records what the operator of a request has decided, or the request that waits in
// place of the one that was shown. "" is an approval's state.
func (d *Daemon) recordDecision(r *http.Request, outcome, as string) func(approvals.Approval) error {
	uid, _ := api.PeerOf(r.Context())
	return d.recordAs(r.Context(), &uid, outcome, as)
}

// recordAs is recordDecision for an operator who is a user of the host, or nil: as says who it is.
func (d *Daemon) recordAs(ctx context.Context, uid *uint32, outcome, as string) func(approvals.Approval) error {
	return func(p approvals.Approval) error {
		e := eventOf(p, cmp.Or(outcome, p.State))
		if e.UID = uid; p.State == approvals.Waits {
			e.Outcome, e.UID = audit.OutcomeAsked, nil
		}
		if p.Reason != "" {
			e.Detail += fmt.Sprintf(", reason %q", p.Reason)
		}
		if as != "" {
			e.Detail += fmt.Sprintf(", as %q", as)
		}
		return d.Record(ctx, e)
	}
}
