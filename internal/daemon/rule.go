package daemon

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/internal/agent"
	"github.com/scopefs/scopefs/internal/amend"
	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/tools/approvals"
)

// rule returns a change of an agent's definition. If the operator has seen it, rule records and writes it, and the daemon
// has the new rules when it returns.
func (d *Daemon) rule(_ http.ResponseWriter, r *http.Request, a *agent.Agent) (any, error) {
	var req api.RuleRequest
	if err := body(r, &req); err != nil {
		return nil, err
	}
	change, err := changeOf(req)
	if err != nil {
		return nil, err
	}
	if req.As, err = approvals.Reason(req.As); err != nil {
		return nil, err
	}
	draft, err := amend.Open(d.Paths, a.ID())
	if err != nil {
		return nil, err
	}
	do := draft.Allow
	if req.Deny {
		do = draft.Deny
	}
	made := api.Rule{File: draft.File}
	if made.Said, err = do(change); err != nil {
		obstacle, ok := errors.AsType[*amend.ObstacleError](err)
		if !ok {
			return nil, err
		}
		made.Said, made.InTheWay = obstacle.Error(), obstacle.Rules
	}
	before, after := draft.Changes()
	made.Before, made.After, made.Hash = string(before), string(after), draft.Hash()
	switch {
	case req.Shown == "":
		return made, nil
	case made.InTheWay != nil, req.Shown != made.Hash:
		return nil, &api.Error{Kind: api.Conflict,
			Text: fmt.Sprintf("%s: the change is not the one that was shown: look at it again", draft.File)}
	case made.Before == made.After:
		return made, nil
	}
	uid, _ := api.PeerOf(r.Context())
	e := audit.Event{Event: audit.KindAgent, Agent: string(a.ID()), Outcome: "rule", Detail: made.Said, UID: &uid}
	if req.As != "" {
		e.Detail += fmt.Sprintf(", as %q", req.As)
	}
	if err := d.Record(r.Context(), e); err != nil {
		return nil, err
	}
	if err := draft.Write(); err != nil {
		return nil, err
	}
	made.Reloaded = d.Reload(context.WithoutCancel(r.Context()))
	return made, nil
}

func changeOf(req api.RuleRequest) (amend.Change, error) {
	made := amend.Change{Name: req.Name, Kind: amend.Kind(req.Kind), RemoveDeny: req.RemoveDeny, Access: scope.Write}
	other := scope.Read
	if req.Deny {
		made.Access = scope.Hide
	}
	switch req.Access {
	case "", made.Access.String():
	case other.String():
		made.Access = other
	default:
		return made, invalid("access %q: write %s or %s", req.Access, made.Access, other)
	}
	return made, nil
}
