// Package lookup answers what operators look up through the control API: events of the log, proofs, denials and
// definitions. It reads the files that the commands read, and changes nothing.
package lookup

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/audit/proof"
	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/internal/definitions"
	"github.com/scopefs/scopefs/internal/report"
	"github.com/scopefs/scopefs/internal/state"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/agents"
)

// Files are those of one daemon.
type Files struct {
	Paths config.Paths
	turn  chan struct{} // of the one request that reads: a log may be large

	// Of the request that has the turn.
	known *definitions.Set // of the last request
	said  map[explained][2]string
}

// New returns the files of a daemon.
func New(p config.Paths) *Files { return &Files{Paths: p, turn: make(chan struct{}, 1)} }

// readTime bounds a request.
const readTime = 20 * time.Second

// Handle adds the requests. reply and fail write an answer.
func (f *Files) Handle(mux *http.ServeMux, reply func(http.ResponseWriter, any), fail func(http.ResponseWriter, error)) {
	add := f.add(mux, reply, fail)
	add("/v1/events", f.events)
	add("/v1/events/{seq}", f.event)
	add("/v1/events/{seq}/proof", f.proof)
	add("/v1/denials", f.denials)
	add("/v1/definitions", f.definitions)
	add("/v1/definitions/{id}", f.definition)
}

type look func(context.Context, *http.Request) (any, error)

// add returns a function that adds a request.
func (f *Files) add(mux *http.ServeMux, reply func(http.ResponseWriter, any), fail func(http.ResponseWriter, error)) func(string, look) {
	return func(pattern string, look look) {
		mux.HandleFunc("GET "+pattern, func(w http.ResponseWriter, r *http.Request) {
			ctx, cancel := context.WithTimeout(r.Context(), readTime)
			defer cancel()
			answer, err := f.inTurn(ctx, func() (any, error) { return look(ctx, r) })
			if err != nil {
				fail(w, err)
				return
			}
			reply(w, answer)
		})
	}
}

// HandleDenials adds the request for the newest denials of an agent that may returns true for, and for nothing else of the log.
func (f *Files) HandleDenials(mux *http.ServeMux, may func(*http.Request, scope.ID) bool, reply func(http.ResponseWriter, any), fail func(http.ResponseWriter, error)) {
	f.add(mux, reply, fail)("/v1/events", func(ctx context.Context, r *http.Request) (any, error) {
		if !may(r, scope.ID(r.URL.Query().Get("agent"))) {
			return nil, api.ErrUnknown
		}
		q := r.URL.Query()
		q.Set("denied", "1")
		r.URL.RawQuery = q.Encode()
		return f.events(ctx, r)
	})
}

func (f *Files) inTurn(ctx context.Context, look func() (any, error)) (any, error) {
	select {
	case f.turn <- struct{}{}:
		defer func() { <-f.turn }()
	case <-ctx.Done():
		return nil, errors.New("other requests read the log: ask again")
	}
	answer, err := look()
	if err == nil && ctx.Err() != nil {
		err = errors.New("the log is too large to be read in 20 seconds: give --since, or use scopefs audit")
	}
	return answer, err
}

// read reads the definitions.
func (f *Files) read() *definitions.Set {
	f.known = definitions.Read(f.Paths, f.known)
	return f.known
}

func invalid(err error) error { return &api.Error{Kind: api.Invalid, Text: err.Error()} }

// selection returns the selection of a request.
func selection(r *http.Request) (sel report.Selection, err error) {
	q := r.URL.Query()
	sel.Agent, sel.Session, sel.Call, sel.Op = q.Get("agent"), q.Get("session"), q.Get("call"), q.Get("op")
	sel.Tool, sel.Path, sel.Host, sel.RuleKind = q.Get("tool"), q.Get("path"), q.Get("host"), q.Get("rule")
	sel.Verdict, sel.Denied = audit.Verdict(q.Get("verdict")), q.Get("denied") != ""
	if sel.Agent != "" {
		if _, err := scope.ParseID(sel.Agent); err != nil {
			return sel, invalid(err)
		}
	}
	if err := sel.Check(); err != nil {
		return sel, invalid(err)
	}
	if sel.Since, err = report.Since(q.Get("since"), time.Now()); err != nil {
		return sel, invalid(err)
	}
	return sel, nil
}

func number(text string, otherwise uint64) (uint64, error) {
	if text == "" {
		return otherwise, nil
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0, invalid(errors.New(strconv.Quote(text) + " is no number"))
	}
	return n, nil
}

// events returns the newest events. It reads the end of the log first, because a reader of the whole decodes every line.
func (f *Files) events(ctx context.Context, r *http.Request) (any, error) {
	sel, err := selection(r)
	if err != nil {
		return nil, err
	}
	before, err := number(r.URL.Query().Get("before"), 0)
	if err != nil {
		return nil, err
	}
	limit, err := number(r.URL.Query().Get("limit"), api.MaxEvents)
	if err != nil || limit == 0 || limit > api.MaxEvents {
		return nil, invalid(errors.New("limit: want 1 to 500"))
	}
	_, size, _ := proof.Head(f.Paths.Audit()) // about the number of lines; there is none before the first event is signed
	end := uint64(max(size, 0))
	if before > 0 && before < end {
		end = before
	}
	for window := 4 * limit; ; window *= 8 {
		sel.After = end - min(window, end)
		last := make([]string, 0, limit+1)
		err := report.Each(ctx, f.Paths.Audit(), sel, false, io.Discard, func(e audit.Event) error {
			if before > 0 && e.Seq >= before {
				return errPast
			}
			if len(last) > int(limit) {
				last = slices.Delete(last, 0, 1)
			}
			last = append(last, string(e.Raw))
			return nil
		})
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return api.Events{Lines: []string{}}, nil
		case err != nil && !errors.Is(err, errPast) && len(last) == 0:
			return nil, err // some lines may be damaged: scopefs audit names them
		case len(last) <= int(limit) && sel.After > 0 && ctx.Err() == nil:
			continue
		}
		more := len(last) > int(limit)
		if more {
			last = last[1:]
		}
		slices.Reverse(last)
		return api.Events{Lines: last, More: more}, nil
	}
}

var errPast = errors.New("past the last event")

func (f *Files) event(ctx context.Context, r *http.Request) (any, error) {
	seq, err := number(r.PathValue("seq"), 0)
	if err != nil {
		return nil, err
	}
	e, err := report.Event(ctx, f.Paths, seq)
	if err != nil {
		return nil, invalid(err)
	}
	reason, err := report.Why(ctx, f.Paths, f.read(), seq)
	if err != nil {
		return api.Event{Line: string(e.Raw)}, nil // an event without a decision
	}
	var text strings.Builder
	reason.Suggest(f.Paths, f.known, f.words)
	if err := reason.Print(&text); err != nil {
		return nil, err
	}
	return api.Event{Line: string(e.Raw), Why: text.String()}, nil
}

// words are those by which a command names an agent of the daemon.
func (f *Files) words(id scope.ID) []string {
	return []string{"--base", f.Paths.Base, "--agent", string(id)}
}

func (f *Files) proof(ctx context.Context, r *http.Request) (any, error) {
	seq, err := number(r.PathValue("seq"), 0)
	if err != nil {
		return nil, err
	}
	heads, err := state.SignedHeads(f.Paths.State)
	if err != nil {
		return nil, err
	}
	p, err := proof.Prove(ctx, f.Paths.Audit(), proof.ProveOptions{Seq: seq, Beside: heads})
	if errors.Is(err, proof.ErrNotProved) {
		err = invalid(err)
	}
	return p, err
}

func (f *Files) denials(ctx context.Context, r *http.Request) (any, error) {
	sel, err := selection(r)
	if err != nil {
		return nil, err
	}
	list, _, err := report.Denials(ctx, f.Paths, sel, f.explain(f.read()), io.Discard)
	if err != nil && len(list) == 0 && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	all := []api.Denial{}
	for _, d := range list[:min(len(list), maxDenials)] {
		all = append(all, api.Denial{Count: d.Count, Agent: d.Agent, Event: d.Event, Op: d.Op, Of: d.Of,
			Verdict: string(d.Verdict), Rule: d.Rule, Kind: d.Kind,
			First: d.First, Last: d.Last, Seq: d.Seq, Now: d.Now, Command: d.Command})
	}
	return all, nil
}

// explained is what an explanation of a denial is of. An agent whose rules have not changed is the same *agents.Agent.
type explained struct {
	agent                                                       *agents.Agent
	chain, event, op, server, path, target, rule, kind, verdict string
}

// maxExplained limits the explanations that are kept: each tries a change of a definition.
const maxExplained = 10_000

// explain returns report.Explain for the definitions that were read, with what it said before.
func (f *Files) explain(known *definitions.Set) func(audit.Event) (now, command string) {
	return func(e audit.Event) (now, command string) {
		agent, err := known.Agent(scope.ID(e.Agent))
		if err != nil {
			return report.Explain(f.Paths, known, e, f.words)
		}
		key := explained{agent, e.Chain, e.Event, e.Op, e.Server, e.Path, e.Target, e.Rule, e.RuleKind, string(e.Verdict)}
		if old, ok := f.said[key]; ok {
			return old[0], old[1]
		}
		if f.said == nil || len(f.said) >= maxExplained {
			f.said = map[explained][2]string{}
		}
		now, command = report.Explain(f.Paths, known, e, f.words)
		f.said[key] = [2]string{now, command}
		return now, command
	}
}

// maxDenials limits the list of denials that differ.
const maxDenials = 1000

func (f *Files) definitions(context.Context, *http.Request) (any, error) {
	known := f.read()
	if known.Err != nil {
		return nil, known.Err
	}
	list := []api.Definition{}
	for _, d := range report.ListDefinitions(known.All, known.Errs) {
		list = append(list, api.Definition{Agent: d.Agent, Description: d.Description, Error: d.Error, Warnings: d.Warnings})
	}
	return list, nil
}

func (f *Files) definition(_ context.Context, r *http.Request) (any, error) {
	id, err := scope.ParseID(r.PathValue("id"))
	if err != nil {
		return nil, err
	}
	shown, err := report.ShowAgent(f.Paths, f.read(), id)
	if err != nil {
		return nil, err
	}
	def, err := f.known.Agent(id)
	if err != nil {
		return nil, err
	}
	var text strings.Builder
	if err := shown.Print(&text); err != nil {
		return nil, err
	}
	return api.Definition{Agent: id, Description: shown.Description, Shown: text.String(), Prompt: def.Grants.Prompt()}, nil
}
