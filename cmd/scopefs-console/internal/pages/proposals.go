package pages

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/scopefs/scopefs/cmd/scopefs-console/internal/access"
	"github.com/scopefs/scopefs/internal/api"
)

// proposal is a text of a repository or a program, which waits, with what it would do.
type proposal struct {
	api.Proposal
	Key   string // in ids of the page
	Store string // "": it is a repository's
	Diff  diff
	More  int // lines of Widens that are left out
}

// Gone reports whether the repository has no file any more.
func (p proposal) Gone() bool { return p.Hash == "" && p.Error == "" }

// Partial reports whether the page leaves out a part of what the proposal is. To accept it takes one more word.
func (p proposal) Partial() bool { return p.Diff.Left > 0 || p.More > 0 }

// proposals returns what waits for the operator's word on its text.
func (s *Site) proposals(ctx context.Context) (all []proposal, err error) {
	list, err := s.client.Proposals(ctx)
	for _, p := range list {
		if p.Waits {
			all = append(all, s.proposalOf(p))
		}
	}
	return all, err
}

func (s *Site) proposalOf(p api.Proposal) proposal {
	one := proposal{Proposal: p, Key: strings.ReplaceAll(p.ID, " ", "-")}
	name := p.File
	if store, ok := strings.CutPrefix(p.ID, api.StoreProposal); ok {
		one.Store, name = store, "tools.json"
	}
	one.Diff = s.diffOf(name, p.Before, p.Text)
	if len(p.Widens) > maxRows {
		one.Widens, one.More = p.Widens[:maxRows], len(p.Widens)-maxRows
	}
	return one
}

// decideProposal accepts or denies what was shown, and shows the inbox.
func (s *Site) decideProposal(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), askTime)
	defer cancel()
	notice, status, err := s.decidedProposal(ctx, r)
	if err != nil {
		s.write(w, r, failed(err))
		return
	}
	s.answer(ctx, w, r, status, []string{notice}, "")
}

func (s *Site) decidedProposal(ctx context.Context, r *http.Request) (notice string, status int, err error) {
	hash := r.PostFormValue("hash")
	req := api.ProposalRequest{
		ID:    r.PostFormValue("id"),
		Do:    r.PostFormValue("do"),
		Hash:  &hash,
		Shown: r.PostFormValue("shown"),
		As:    access.Of(ctx).As(),
	}
	switch {
	case req.Shown == "":
		return "", 0, invalid("the form does not say what was shown")
	case req.Do != api.AcceptProposal && req.Do != api.DenyProposal:
		return "", 0, invalid("%q is no decision", req.Do)
	}
	if req.Do == api.AcceptProposal && r.PostFormValue("partial") == "" {
		list, err := s.client.Proposals(ctx)
		if err != nil {
			return "", 0, err
		}
		for _, p := range list {
			if p.Shown == req.Shown && s.proposalOf(p).Partial() {
				return "", 0, invalid("the page does not show all of it: say that you accept it all the same, or use scopefs trust")
			}
		}
	}
	done, err := s.client.DecideProposal(ctx, req)
	if refused, ok := errors.AsType[*api.Error](err); ok && refused.Kind == api.Conflict {
		return "Nothing was done: this has changed since it was shown. What waits now is below: look at it again.", http.StatusConflict, nil
	}
	if err != nil {
		return "", 0, err
	}
	notice = "Denied: what was in force stays."
	if req.Do == api.AcceptProposal {
		notice = "Accepted: " + done.File
	}
	for _, one := range done.Reloaded {
		switch {
		case one.Error != "":
			notice += " " + one.Error
		case slices.Contains(done.Agents, string(one.Agent)):
			notice += fmt.Sprintf(" %s: %s.", one.Agent, one.Outcome)
		}
	}
	return notice, http.StatusOK, nil
}
