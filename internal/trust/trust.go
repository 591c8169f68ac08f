// Package trust decides which text of a project's repository is in force: what scopefs trust does, and the console. The daemon
// of the project uses it, and the command where no daemon runs.
package trust

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"path/filepath"

	unified "github.com/rogpeppe/go-internal/diff"

	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/internal/definitions"
	"github.com/scopefs/scopefs/scope/agents"
	"github.com/scopefs/scopefs/scope/widening"
)

// Of returns what the repository of a project proposes; nil if it proposes nothing, and nothing of it is in force.
func Of(p config.Paths, project config.Project) (*api.Proposal, error) {
	t, err := config.TrustOf(project)
	if err != nil || t.Hash == "" && t.LastHash == "" {
		return nil, err
	}
	return of(p, project, t)
}

func of(p config.Paths, project config.Project, t config.Trust) (*api.Proposal, error) {
	made := &api.Proposal{ID: api.Repository, File: filepath.Join(project.Dir, agents.RepositoryFile), Hash: t.Hash, Text: string(t.Text),
		Last: t.LastHash, Before: string(t.Last), Widens: []string{}, Agents: []string{string(project.ID)}, Waits: t.Waits()}
	if t.Hash != "" {
		p.Proposal = string(t.Text)
		all, _, err := definitions.Load(p)
		if err != nil {
			return nil, err
		}
		proposed, errs := all.Propose(project.ID, t.Text)
		if errs != nil {
			made.Error = errors.Join(errs...).Error()
		} else {
			made.Widens = append(made.Widens, widening.Team(proposed)...)
		}
	}
	Seal(made)
	return made, nil
}

// Seal sets the fields of a proposal that follow from the others.
func Seal(p *api.Proposal) {
	if p.Last != "" {
		diff := unified.Diff("trusted", []byte(p.Before), filepath.Base(p.File), []byte(p.Text))
		if _, rest, ok := bytes.Cut(diff, []byte("\n")); ok { // "diff a b"
			p.Diff = string(rest)
		}
	}
	text, _ := json.Marshal([]any{p.ID, p.File, p.Hash, p.Text, p.Last, p.Before, p.Widens, p.Error}) // cannot fail
	sum := sha256.Sum256(text)
	p.Shown = hex.EncodeToString(sum[:])
}

// Decide does what a request says about what the repository of a project proposes now. It reads the file once: what the
// request is about is what it keeps. It calls record before that.
func Decide(p config.Paths, project config.Project, req api.ProposalRequest, record func(api.Proposal) error) (*api.Proposal, error) {
	made := &api.Proposal{ID: api.Repository, File: filepath.Join(project.Dir, agents.RepositoryFile), Agents: []string{string(project.ID)}}
	if req.Do == api.RevokeProposal {
		if !project.InForce() {
			return nil, &api.Error{Kind: api.Other, Text: made.File + ": nothing of it is trusted"}
		}
		t, _ := config.TrustOf(project) // for the record: what cannot be read is revoked, too
		made.Last = t.LastHash
		if err := record(*made); err != nil {
			return nil, err
		}
		return made, config.Revoke(project)
	}
	t, err := config.TrustOf(project)
	if err != nil {
		return nil, err
	}
	if t.Hash == "" && t.LastHash == "" {
		return nil, &api.Error{Kind: api.Other, Text: made.File + ": no such file: nothing to trust"}
	}
	if made, err = of(p, project, t); err == nil {
		err = made.Fits(req)
	}
	if err == nil {
		err = record(*made)
	}
	switch {
	case err != nil:
		return nil, err
	case req.Do == api.AcceptProposal:
		err = config.Accept(project, t)
	default:
		err = config.Deny(project, t)
	}
	return made, err
}
