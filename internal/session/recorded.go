package session

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/fs/history/query"
	"github.com/scopefs/scopefs/internal/ledger"
)

// RecordHistory answers a request about a history. It records a request that changes something before and after, with its
// author: by has the user id of an operator, or the session and the call of a client of the agent's tools. Its target names
// another history than the agent's.
func (a *Agent) RecordHistory(ctx context.Context, request json.RawMessage, by audit.Event,
	answer func(context.Context, json.RawMessage) (json.RawMessage, error)) (json.RawMessage, error) {
	var r query.Request
	if err := json.Unmarshal(request, &r); err != nil {
		return nil, fmt.Errorf("request: %w", err)
	}
	e, changes := ledger.HistoryEvent(&r)
	if !changes {
		return answer(ctx, request)
	}
	e.Agent, e.UID, e.Session, e.Call, e.Chain = string(a.id), by.UID, by.Session, by.Call, by.Chain
	e.Target = strings.TrimSpace(by.Target + " " + e.Target)
	e.Outcome = audit.OutcomeBegin
	if err := a.Record(ctx, e); err != nil {
		return nil, err
	}
	began := time.Now()
	// The view goes on with an undo when the client is gone.
	reply, err := answer(context.WithoutCancel(ctx), request)
	e.DurationUS = time.Since(began).Microseconds()
	if e.Outcome, e.Detail = ledger.HistoryOutcome(reply); err != nil {
		e.Outcome, e.Detail = "failed", err.Error()
	}
	a.Event(e)
	return reply, err
}
