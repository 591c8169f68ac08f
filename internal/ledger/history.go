package ledger

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/fs/history"
	"github.com/scopefs/scopefs/fs/history/query"
)

// HistoryEvent returns the event of a request that changes something.
func HistoryEvent(r *query.Request) (e audit.Event, changes bool) {
	e = audit.Event{Event: audit.KindHistory}
	switch sel := r.Undo; {
	case r.Checkpoint != nil:
		e.Op, e.Target = "checkpoint", *r.Checkpoint
	case r.Offset > 0:
		return e, false
	case r.Commit != nil:
		e.Op, e.Target = "commit", strings.Join(r.Commit.Paths, " ")
	case r.Discard != nil:
		e.Op, e.Target = "discard", strings.Join(r.Discard.Paths, " ")
	case sel == nil:
		return e, false
	case sel.Undo:
		e.Op, e.Target = "redo", strings.Join(sel.Generations, " ")
	default:
		e.Op, e.Target = "undo", describe(sel)
		if len(sel.Paths) == 1 {
			e.Path, _ = audit.Unescape(sel.Paths[0]) // else the view refuses the request
		}
	}
	return e, true
}

// describe returns a selection as words of the command line.
func describe(sel *history.Selection) string {
	switch {
	case len(sel.Calls) > 0:
		return "call " + strings.Join(sel.Calls, " ")
	case sel.Session != "":
		return "session " + sel.Session
	case len(sel.Generations) > 0:
		return "generation " + strings.Join(sel.Generations, " ")
	case sel.Checkpoint != "":
		return "since checkpoint " + sel.Checkpoint
	case sel.Client != "":
		return "session " + sel.Client
	case !sel.Since.IsZero():
		return "since " + sel.Since.UTC().Format(time.RFC3339Nano)
	}
	return "the last session"
}

// HistoryOutcome returns the outcome of a request that changed something, and what it did. The view is not trusted: it may answer
// anything.
func HistoryOutcome(answer json.RawMessage) (outcome, detail string) {
	var reply query.Reply
	if err := json.Unmarshal(answer, &reply); err != nil {
		return "failed", "the view's answer: " + err.Error()
	}
	if reply.Checkpoint != "" {
		return "done", reply.Checkpoint
	}
	if reply.Stale {
		return "failed", "what was shown has changed"
	}
	if reply.Nothing != "" {
		return "failed", reply.Nothing
	}
	if reply.Result == nil {
		return "failed", "the view's answer has no result"
	}
	detail = fmt.Sprintf("%d steps, %d conflicts, %d not kept", reply.Result.Done, reply.Conflicts, reply.Unkept)
	if reply.Merged > 0 {
		detail += fmt.Sprintf(", %d merged", reply.Merged)
	}
	if reply.Result.Rolled {
		return "rolled back", detail
	}
	return "done", detail
}

// RecordHistory answers a request about a history. It records a request that changes something before and after, with its
// author: by has the agent, and the user id of an operator, or the session and the call of a client of the agent's tools. Its
// target names another history than the agent's.
func RecordHistory(ctx context.Context, log recorder, request json.RawMessage, by audit.Event,
	answer func(context.Context, json.RawMessage) (json.RawMessage, error)) (json.RawMessage, error) {
	var r query.Request
	if err := json.Unmarshal(request, &r); err != nil {
		return nil, fmt.Errorf("request: %w", err)
	}
	e, changes := HistoryEvent(&r)
	if !changes {
		return answer(ctx, request)
	}
	e.Agent, e.UID, e.Session, e.Call, e.Chain = by.Agent, by.UID, by.Session, by.Call, by.Chain
	e.Target = strings.TrimSpace(by.Target + " " + e.Target)
	e.Outcome = audit.OutcomeBegin
	if err := log.Record(ctx, e); err != nil {
		return nil, err
	}
	began := time.Now()
	// The view goes on with an undo when the client is gone.
	reply, err := answer(context.WithoutCancel(ctx), request)
	e.DurationUS = time.Since(began).Microseconds()
	if e.Outcome, e.Detail = HistoryOutcome(reply); err != nil {
		e.Outcome, e.Detail = "failed", err.Error()
	}
	log.Event(e)
	return reply, err
}
