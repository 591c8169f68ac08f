package stores

import (
	"maps"
	"slices"
	"strings"

	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/agents"
)

// Proposals returns what programs declare in place of what holds, sorted by store. It starts and asks no program: a call that
// failed for it, or a check, has read the declaration.
func (s *Stores) Proposals(loaded map[scope.ID]*agents.Agent) (all []api.Proposal) {
	if s.programs == nil {
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(s.programs.all)) {
		if made, ok := s.programs.all[name].proposal(); ok {
			at := slices.IndexFunc(s.all, func(one store) bool { return one.kind == programKind && one.name == name })
			made.Agents = s.all[at].agents(loaded)
			all = append(all, made)
		}
	}
	return all
}

// proposal returns what the program proposes. Its credentials are replaced.
func (p *program) proposal() (made api.Proposal, ok bool) {
	p.mu.Lock()
	holds, now, denied := p.holds, p.proposed, p.denied
	p.mu.Unlock()
	if holds == nil || now == nil {
		return made, false
	}
	made = api.Proposal{ID: api.StoreProposal + p.name, File: strings.Join(p.config.Command, " "), Hash: now.hash, Text: p.redact(now.text),
		Last: holds.hash, Before: p.redact(holds.text), Widens: []string{}, Waits: now.hash != denied}
	if now.wrong != nil {
		made.Error = p.redact(now.wrong.Error())
	}
	return made, true
}

// Accept makes a declaration hold that a program has proposed, by its hash; with deny it stays as it is. It reports whether
// the program proposes that. A program that declares something else by then proposes it.
func (s *Stores) Accept(id, hash string, deny bool) bool {
	if s.programs == nil {
		return false
	}
	p := s.programs.all[strings.TrimPrefix(id, api.StoreProposal)]
	if p == nil {
		return false
	}
	p.mu.Lock()
	ok := p.proposed != nil && p.proposed.hash == hash
	if ok && deny {
		p.denied = hash
	} else if ok {
		p.holds, p.proposed = p.proposed, nil
	}
	p.mu.Unlock()
	if ok && !deny {
		s.programs.changed()
	}
	return ok
}
