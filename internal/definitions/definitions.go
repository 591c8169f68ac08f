// Package definitions reads the definitions and scopefs.yaml as a daemon that started now would,
// for commands that need no daemon.
package definitions

import (
	"errors"
	"fmt"
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

// Load loads all agents. errs has an error for each file that does not load.
func Load(p config.Paths) (all *agents.Snapshot, errs []error, err error) {
	host, err := Host(p)
	if err != nil {
		return nil, nil, err
	}
	activities, wrong := activities.Set{}.Reload(p.Base, host.Tools, session.CheckActivity)
	host.Tools = slices.Concat(host.Tools, activities.Tools())
	all, errs = agents.Resume(state.Seen(p.State)).Reload(p.Base, host.Host)
	return all, append(errs, wrong...), nil
}

// Host reads scopefs.yaml.
func Host(p config.Paths) (config.Settings, error) {
	tools, err := session.Tools()
	if err != nil {
		return config.Settings{}, err
	}
	return config.Load(p, config.Checks{Tools: tools, Stores: session.StoreTools(stores.Known)})
}

// Agent loads one agent as a daemon that started now would.
func Agent(p config.Paths, id scope.ID) (*agents.Agent, error) {
	all, errs, err := Load(p)
	if err != nil {
		return nil, &api.NotLoadedError{Err: err}
	}
	if def := all.Agents[id]; def != nil {
		return def, nil
	}
	var own, others []error // others: errors of extensions that the agent may use
	for _, err := range errs {
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
	return nil, fmt.Errorf("%w %q: define it in agents.d/%s.md", api.ErrUnknown, id, id)
}

// Has reports whether a base has an agent of the name that loads.
func Has(p config.Paths, name string) bool {
	_, err := Agent(p, scope.ID(name))
	return err == nil
}
