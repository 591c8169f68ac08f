package daemon

import (
	"errors"
	"net/http"
	"strings"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/cmd/scopefs/internal/control"
	"github.com/scopefs/scopefs/cmd/scopefs/internal/state"
	"github.com/scopefs/scopefs/tools"
)

// loadApprovals takes over the approvals of an earlier daemon.
func (d *Daemon) loadApprovals() error {
	store, kept, lost, err := state.OpenApprovals(d.Paths.State, d.Settings)
	if err != nil {
		return err
	}
	for _, err := range lost {
		d.Logger.Error("an approval is lost: the agent has to ask again", "err", err)
	}
	d.Approvals = tools.NewApprovals(store, kept...)
	return nil
}

// approvalHandlers answer the operator's words on calls that wait. They are on
// the control socket alone: an agent has no way to it.
func (d *Daemon) approvalHandlers(mux *http.ServeMux) {
	mux.HandleFunc("GET /v1/approvals", func(w http.ResponseWriter, r *http.Request) {
		list := []tools.Approval{}
		if d.Approvals != nil {
			for _, p := range d.Approvals.List() {
				list = append(list, p.Brief())
			}
		}
		_ = reply(w, list)
	})
	mux.HandleFunc("GET /v1/approvals/{id}", func(w http.ResponseWriter, r *http.Request) {
		p, err := tools.Approval{}, tools.ErrNoApproval
		if d.Approvals != nil {
			p, err = d.Approvals.Get(r.PathValue("id"))
		}
		if err != nil {
			fail(w, http.StatusNotFound, err)
			return
		}
		_ = reply(w, p)
	})
	for word, grant := range map[string]bool{"approve": true, "deny": false} {
		mux.HandleFunc("POST /v1/approvals/{id}/"+word, func(w http.ResponseWriter, r *http.Request) {
			leave, err := d.Enter()
			if err != nil {
				fail(w, http.StatusServiceUnavailable, err)
				return
			}
			defer leave()
			var said control.DecideRequest
			if err := body(r, &said); err != nil {
				fail(w, http.StatusBadRequest, err)
				return
			}
			p, err := d.decide(r, r.PathValue("id"), grant, said.Scopes)
			if err != nil {
				fail(w, http.StatusBadRequest, err)
				return
			}
			_ = reply(w, p)
		})
	}
}

func (d *Daemon) decide(r *http.Request, id string, grant bool, scopes []string) (tools.Approval, error) {
	if d.Approvals == nil {
		return tools.Approval{}, errors.New("this daemon serves one command alone: nothing waits for approval")
	}
	uid, _ := r.Context().Value(peerKey{}).(uint32)
	return d.Approvals.Decide(id, grant, scopes, func(p tools.Approval) error {
		detail := p.ID
		if p.Granted != nil {
			detail += ", scopes " + strings.Join(p.Granted, " ")
		}
		return d.Record(r.Context(), audit.Event{Event: audit.KindApproval, Agent: string(p.Agent), Session: p.Session, Chain: p.Chain, Op: p.Tool,
			Path: p.Path, Rule: p.Rule, Outcome: p.State, UID: &uid, Detail: detail})
	})
}
