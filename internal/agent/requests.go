package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/session"
	"github.com/scopefs/scopefs/internal/state"
	"github.com/scopefs/scopefs/internal/stores"
	"github.com/scopefs/scopefs/internal/view"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/activities"
	"github.com/scopefs/scopefs/scope/agents"
	"github.com/scopefs/scopefs/tools"
	"github.com/scopefs/scopefs/tools/approvals"
)

// Shared holds what the agents of one daemon share. The daemon sets the exported fields before it mounts a view.
type Shared struct {
	session.Shared
	Views      view.Host
	Registry   Registry
	Approvals  *approvals.Set // of a daemon without an operator: Alone
	Stores     *stores.Stores
	Unfinished *state.Unfinished

	branches branches
}

// Registry is the daemon's set of agents and their definitions.
type Registry interface {
	// Agent returns the agent of an id, or why there is none.
	Agent(id scope.ID) (*Agent, error)
	// Definition returns the definition that is loaded, or why there is none. It takes no lock.
	Definition(id scope.ID) (*agents.Agent, error)
	// Activities returns the calls that the operator has declared. It takes no lock.
	Activities() activities.Set
	// Refresh reads the definitions again if that of an agent may have changed.
	Refresh(id scope.ID)
	// Enter counts a request. The daemon waits for leave before it closes the log.
	Enter() (leave func(), err error)
	// Welcome opens the control socket for the user of an agent. It takes no agent's lock.
	Welcome(uid uint32) error
	// Responsive returns when the registry's lock is free.
	Responsive()
}

// own returns what belongs to one agent alone.
func (s *Shared) own(id scope.ID) session.Own {
	own := session.Own{ID: id, Rates: state.RatesOf(s.Paths.State, id), Traffic: state.TrafficOf(s.Paths.State, id)}
	if s.Unfinished != nil {
		own.Unfinished = s.Unfinished.Of(id)
	}
	own.Channel = sync.OnceValue(func() *audit.Channel { return s.Log.Channel(string(id)) }) // the log may not be open yet
	return own
}

// UserOf returns the user and group of an agent's processes.
func (s *Shared) UserOf(id scope.ID) (uid, gid uint32, err error) {
	def, err := s.Registry.Definition(id)
	if err != nil {
		return 0, 0, err
	}
	root, err := def.OpenRoot(s.Paths.Base)
	if err != nil {
		return 0, 0, err
	}
	defer root.Close()
	owner, err := s.ScopeUser(def.Definition, root)
	return owner.UID, owner.GID, err
}

// requests answers the requests of one agent in this process: see session.Daemon.
type requests struct{ *Agent }

var _ session.Daemon = requests{}

func (r requests) Definition() (*agents.Agent, error) { return r.shared.Registry.Definition(r.ID()) }

func (r requests) RootDefinition(root scope.ID) (*agents.Agent, error) {
	def, err := r.shared.Registry.Definition(root)
	if err == nil && def.RootOf != r.ID() {
		return nil, fmt.Errorf("%w: %q is no root of %q", api.ErrUnknown, root, r.ID())
	}
	return def, err
}

func (r requests) Activities() activities.Set { return r.shared.Registry.Activities() }

func (r requests) Refresh() { r.shared.Registry.Refresh(r.ID()) }

func (r requests) User() (uid, gid uint32, err error) { return r.shared.UserOf(r.ID()) }

func (r requests) Mount(ctx context.Context, operator bool) (session.View, error) {
	v, err := r.up(ctx, "", operator)
	return viewOf(v), err
}

func (r requests) View() session.View { return viewOf(r.currentView()) }

func (r requests) HomeView(ctx context.Context, def *agents.Definition) (session.View, error) {
	v, err := r.homeView(ctx, def)
	return viewOf(v), err
}

// viewOf returns a view for sessions; nil for none.
func viewOf(v *view.View) session.View {
	if v == nil {
		return nil
	}
	return v
}

func (r requests) History(ctx context.Context, request json.RawMessage) (json.RawMessage, error) {
	return r.history(ctx, request)
}

func (r requests) Approvals() *approvals.Set { return r.shared.Approvals }

func (r requests) Member(id scope.ID) (*session.Agent, error) {
	if !r.knows(id) {
		return nil, fmt.Errorf("%w: %q is no member of %q", api.ErrUnknown, id, r.ID())
	}
	a, err := r.shared.Registry.Agent(id)
	if err != nil {
		return nil, err
	}
	return a.Agent, nil
}

// knows reports whether the definitions give the agent a way to another one: as a member, as a root, or as the agent whose root it is.
func (r requests) knows(id scope.ID) bool {
	own, err := r.Definition()
	if err != nil {
		return false
	}
	if own.RootOf == id || own.Grants.Member(string(id)).Allow {
		return true
	}
	_, err = r.RootDefinition(id)
	return err == nil
}

func (r requests) StoreTools() ([]tools.Tool, error) {
	if r.shared.Stores == nil {
		return nil, nil
	}
	return r.shared.Stores.Tools()
}

func (r requests) DeclareStores(ctx context.Context) { r.shared.Stores.Declare(ctx) }

func (r requests) Enter() (leave func(), err error) { return r.shared.Registry.Enter() }

func (r requests) Welcome(uid uint32) error { return r.shared.Registry.Welcome(uid) }
