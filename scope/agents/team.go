package agents

import (
	"fmt"
	"maps"
	"path"
	"slices"

	"go.yaml.in/yaml/v3"

	"github.com/scopefs/scopefs/internal/fields"
	"github.com/scopefs/scopefs/internal/folder"
	"github.com/scopefs/scopefs/scope"
)

// The team of a repository are the agents of its key agents. Each is an agent of the same directory, by the user's definition
// and keys of its own in place of those of the RepositoryFile.

func (r *repository) readTeam(n *yaml.Node) error {
	if len(n.Content) > 2*maxTeam { // each may name all others
		return fmt.Errorf("agents: has more than %d agents: remove some", maxTeam)
	}
	return fields.EachKey(n, func(name string, value *yaml.Node) error {
		id, err := scope.ParseID(name)
		if err != nil {
			return err
		}
		m := &repository{file: r.file, text: r.text, member: true}
		r.team[id] = m
		if err := m.read(value, id); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		return nil
	})
}

// maxTeam limits the agents of a team.
const maxTeam = 32

// readStores reads the stores that this host embeds, with their defaults: they have no address, command or secret.
func (r *repository) readStores(n *yaml.Node) error {
	return fields.EachKey(n, func(name string, value *yaml.Node) error {
		if name != "kv" && name != "sql" || value.Kind != yaml.MappingNode || len(value.Content) > 0 {
			return fmt.Errorf("stores: %s: what is not kv: {} or sql: {} only your own scopefs.yaml sets: remove it", name)
		}
		r.stores = append(r.stores, name)
		return nil
	})
}

// StoresOf returns the stores of a RepositoryFile, none of a text that does not load. Only Foreign of host matters.
func StoresOf(host Host, text []byte) []string {
	return parseRepository(host, RepositoryFile, "", folder.TextOf(text)).stores
}

// team returns the agents of the team of an agent. files are the names of definitions.
func (p *parsed) team(files []string) (all []*parsed) {
	if p.trusted == nil || p.trusted.err != nil || p.def == nil || p.err != nil || p.def.Branch != "" {
		return nil
	}
	for _, id := range slices.Sorted(maps.Keys(p.trusted.team)) {
		if slices.Contains(files, string(id)+".md") {
			err := fields.ErrorAt(p.trusted.file, 1, p.id, fmt.Errorf("agents: %s has a definition of yours: rename one", id))
			p.trusted = &repository{file: p.trusted.file, text: p.trusted.text, err: err}
			return nil
		}
		t, def := p.trusted.team[id], *p.def
		def.View.Roots = nil
		def.Name, def.TeamOf, def.DisplayName, def.Description, def.Prompt = id, p.id, "", t.def.Description, t.def.Prompt
		all = append(all, &parsed{id: id, file: t.file, def: &def, refs: p.refs, of: p.text, trusted: t})
	}
	return all
}

// Proposal is what the text of a RepositoryFile would make of an agent.
type Proposal struct {
	Without, With *Agent
	Team          []*Agent // sorted by id
	Stores        []string
}

// Own returns an agent as its own definition alone defines it, without a trusted RepositoryFile; nil: that does not load.
func (s *Snapshot) Own(id scope.ID) *Agent {
	p, _ := s.Propose(id, nil)
	return p.Without
}

// Propose returns an agent without a trusted RepositoryFile, and as it would be with the text of one. Errors name the file
// RepositoryFile.
func (s *Snapshot) Propose(id scope.ID, text []byte) (p Proposal, errs []error) {
	f := s.files[id]
	if f == nil {
		return p, []error{fmt.Errorf("no agent %q is in %s: define it", id, agentsDir)}
	}
	next, bare := *s, *f.parsed
	var files []string
	for _, f := range s.files {
		files = append(files, path.Base(f.file))
	}
	next.known.team = map[string]scope.ID{}
	maps.Copy(next.known.team, s.known.team)
	maps.DeleteFunc(next.known.team, func(_ string, of scope.ID) bool { return of == id })
	bare.trusted = nil
	if p.Without, errs, _ = next.agent(&bare, s.seen); errs != nil {
		return p, errs
	}
	bare.trusted = parseRepository(s.known.host, RepositoryFile, id, folder.TextOf(text))
	team := bare.team(files)
	p.Stores = bare.trusted.stores
	next.known.team = maps.Clone(next.known.team)
	for _, m := range team {
		next.known.team[string(m.id)] = id
	}
	for _, m := range append(team, &bare) {
		agent, wrong, _ := next.agent(m, s.seen)
		if m == &bare {
			p.With = agent
		} else {
			p.Team = append(p.Team, agent)
		}
		errs = append(errs, wrong...)
	}
	return p, errs
}
