// Package definitions reads the definitions and scopefs.yaml as a daemon that started now would,
// for commands that need no daemon.
package definitions

import (
	"errors"
	"slices"

	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/internal/fields"
	"github.com/scopefs/scopefs/internal/session"
	"github.com/scopefs/scopefs/internal/state"
	"github.com/scopefs/scopefs/internal/stores"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/activities"
	"github.com/scopefs/scopefs/scope/agents"
)

// Set is the definitions and the settings of a base at one time.
type Set struct {
	All  *agents.Snapshot
	Errs []error // one for each file that does not load
	Host config.Settings
	Err  error // nothing loads: there is no All
}

// Load loads all agents. errs has an error for each file that does not load.
func Load(p config.Paths) (all *agents.Snapshot, errs []error, err error) {
	s := Read(p, nil)
	return s.All, s.Errs, s.Err
}

// Try returns the errors of the agents that would not load if a directory's agents.d were what a fleet has signed.
func Try(p config.Paths, signed string) (map[scope.ID]error, error) {
	s := read(p, nil, &signed)
	if s.Err != nil {
		return nil, s.Err
	}
	wrong := map[scope.ID]error{}
	for _, err := range s.Errs {
		wrong[fields.AgentOf(err)] = err
	}
	return wrong, nil
}

// Read reads a base. Files that have not changed since an earlier set, which may be nil, are not loaded again.
func Read(p config.Paths, before *Set) *Set { return read(p, before, nil) }

// read is Read. signed, which may be nil, takes the place of the fleet's directory.
func read(p config.Paths, before *Set, signed *string) *Set {
	var s Set
	if s.Host, s.Err = Host(p); s.Err != nil {
		return &s
	}
	if signed != nil {
		s.Host.Signed = *signed
	}
	activities, wrong := activities.Set{}.Reload(p.Base, s.Host.Tools, session.CheckActivity)
	host := s.Host.Host
	host.Tools = slices.Concat(host.Tools, activities.Tools())
	host.Lent = state.Lent(p.State)
	last := agents.Resume(state.Seen(p.State))
	if before != nil && before.Err == nil {
		last = before.All.Sources(state.Seen(p.State))
	}
	s.All, s.Errs = last.Reload(p.Base, host)
	s.Errs = append(s.Errs, wrong...)
	return &s
}

// Host reads scopefs.yaml.
func Host(p config.Paths) (config.Settings, error) {
	return config.Load(p, config.Checks{Tools: session.Tools(), Stores: session.StoreTools(stores.Known)})
}

// Agent loads one agent as a daemon that started now would.
func Agent(p config.Paths, id scope.ID) (*agents.Agent, error) { return Read(p, nil).Agent(id) }

// Agent returns one agent.
func (s *Set) Agent(id scope.ID) (*agents.Agent, error) {
	if s.Err != nil {
		return nil, &api.NotLoadedError{Err: s.Err}
	}
	if def := s.All.Agents[id]; def != nil {
		return def, nil
	}
	var own, others []error // others: errors of extensions that the agent may use
	for _, err := range s.Errs {
		bad, ok := errors.AsType[*fields.FileError](err)
		switch {
		case !ok || bad.Agent == id:
			own = append(own, err)
		case bad.Agent == "":
			others = append(others, err)
		}
	}
	if own != nil {
		return nil, &api.NotLoadedError{Err: errors.Join(append(others, own...)...)}
	}
	var names []string
	for name := range s.All.Agents {
		names = append(names, string(name))
	}
	return nil, api.Unknown(id, names, "agents.d/"+string(id)+".md")
}

// Has reports whether a base has an agent of the name that loads.
func Has(p config.Paths, name string) bool {
	_, err := Agent(p, scope.ID(name))
	return err == nil
}
