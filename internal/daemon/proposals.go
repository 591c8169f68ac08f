package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/internal/trust"
	"github.com/scopefs/scopefs/tools/approvals"
)

// How long an answer waits for the file system of a project, which may not answer.
const (
	lookTime   = 5 * time.Second
	glanceTime = time.Second // of Top
)

// look returns what f returns, which reads the project's directory. f may go on after the end of ctx; until it returns, all
// looks at a turn, of capacity 1, fail.
func look[T any](ctx context.Context, within time.Duration, turn chan struct{}, f func() (T, error)) (got T, err error) {
	type answer struct {
		got T
		err error
	}
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	late := errors.New("the file system of the project does not answer")
	select {
	case turn <- struct{}{}:
	case <-ctx.Done():
		return got, late
	}
	answered := make(chan answer, 1)
	go func() {
		defer func() { <-turn }()
		got, err := f()
		answered <- answer{got, err}
	}()
	select {
	case a := <-answered:
		return a.got, a.err
	case <-ctx.Done():
		return got, late
	}
}

// proposals returns what is proposed, the repository's first. Of one that cannot be read it says so.
func (d *Daemon) proposals(ctx context.Context) []api.Proposal {
	all := []api.Proposal{}
	if project, ok := config.ProjectOfBase(d.Paths); ok {
		made, err := look(ctx, lookTime, d.looking, func() (*api.Proposal, error) { return trust.Of(d.Paths, project) })
		if err != nil {
			made = &api.Proposal{ID: api.Repository, File: project.Dir, Agents: []string{string(project.ID)}, Error: err.Error(), Waits: true}
		}
		if made != nil {
			all = append(all, *made)
		}
	}
	for _, made := range d.Stores.Proposals(d.Definitions()) {
		trust.Seal(&made)
		all = append(all, made)
	}
	return all
}

// proposed names the proposals that wait, each with its hash. It loads no definition.
func (d *Daemon) proposed() (names []string) {
	if project, ok := config.ProjectOfBase(d.Paths); ok {
		if t, err := look(context.Background(), glanceTime, d.looking, func() (config.Trust, error) { return config.TrustOf(project) }); err != nil || t.Waits() {
			names = append(names, api.Repository+" "+t.Hash+" "+t.LastHash)
		}
	}
	for _, made := range d.Stores.Proposals(nil) {
		if made.Waits {
			names = append(names, made.ID+" "+made.Hash)
		}
	}
	return names
}

func (d *Daemon) proposalHandlers(mux *http.ServeMux) {
	mux.HandleFunc("GET /v1/proposals", func(w http.ResponseWriter, r *http.Request) { _ = reply(w, d.proposals(r.Context())) })
	mux.HandleFunc("POST /v1/proposals", d.changing(func(_ http.ResponseWriter, r *http.Request) (any, error) {
		var req api.ProposalRequest
		err := body(r, &req)
		if err == nil {
			req.As, err = approvals.Reason(req.As)
		}
		if err != nil {
			return nil, err
		}
		record := func(p api.Proposal) error { return d.recordProposal(r.Context(), p, req) }
		var made *api.Proposal
		if strings.HasPrefix(req.ID, api.StoreProposal) {
			made, err = d.decideStore(req, record)
		} else if project, ok := config.ProjectOfBase(d.Paths); ok && req.ID == api.Repository {
			made, err = look(r.Context(), lookTime, d.looking, func() (*api.Proposal, error) { return trust.Decide(d.Paths, project, req, record) })
		} else {
			err = invalid("id: nothing of this name is proposed")
		}
		if err != nil {
			return nil, err
		}
		answer := api.ProposalReply{Proposal: *made}
		if req.ID == api.Repository && req.Do != api.DenyProposal {
			answer.Reloaded = d.Reload(context.WithoutCancel(r.Context()))
		}
		return answer, nil
	}))
}

// decideStore decides about what the program of a store declares.
func (d *Daemon) decideStore(req api.ProposalRequest, record func(api.Proposal) error) (*api.Proposal, error) {
	gone := &api.Error{Kind: api.Conflict, Text: req.ID + ": its program declares nothing that waits: look again"}
	for _, made := range d.Stores.Proposals(d.Definitions()) {
		if made.ID != req.ID {
			continue
		}
		trust.Seal(&made)
		err := made.Fits(req)
		if err == nil && req.Do == api.RevokeProposal {
			err = invalid("do: a store has nothing to revoke: give accept or deny")
		}
		if err == nil {
			err = record(made)
		}
		if err == nil && !d.Stores.Accept(req.ID, made.Hash, req.Do == api.DenyProposal) {
			err = gone
		}
		return &made, err
	}
	return nil, gone
}

// recordProposal records a decision before it holds.
func (d *Daemon) recordProposal(ctx context.Context, p api.Proposal, req api.ProposalRequest) error {
	uid, _ := api.PeerOf(ctx)
	outcome := map[string]string{api.AcceptProposal: "proposal accepted", api.DenyProposal: "proposal denied",
		api.RevokeProposal: "proposal revoked"}[req.Do]
	detail := fmt.Sprintf("%s, SHA-256 %s, was %s", p.File, cmp.Or(p.Hash, config.NoFile), cmp.Or(p.Last, config.NoFile))
	e := audit.Event{Event: audit.KindDaemon, Outcome: outcome, Detail: detail, UID: &uid}
	if req.As != "" {
		e.Detail += fmt.Sprintf(", as %q", req.As)
	}
	return d.Record(ctx, e)
}
