package daemon

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/scopefs/scopefs/internal/agent"
	"github.com/scopefs/scopefs/internal/client"
	"github.com/scopefs/scopefs/internal/state"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/agents"
)

// lend makes directories roots of an agent, for the sandboxes whose Purpose names them, and returns their ids. It changes no
// definition. The state has them, so that their changes can be undone later.
func (d *Daemon) lend(ctx context.Context, a *agent.Agent, with []client.Root) (ids []scope.ID, err error) {
	def, err := a.Definition()
	if err != nil {
		return nil, err
	}
	for _, w := range with {
		r := agents.Root{Dir: w.Dir, Changes: agents.ChangesInherited, Lent: true}
		switch {
		case w.Ask:
			r.Access = scope.Ask
		case w.Read:
			r.Access = scope.Read
		}
		same := func(o agents.Root) bool { return o.Dir == r.Dir }
		switch {
		case w.Some && (slices.ContainsFunc(def.View.Roots, same) || r.Dir == def.Dir || def.Placement == agents.PlacementOne):
			continue
		case !filepath.IsAbs(r.Dir) || filepath.Clean(r.Dir) != r.Dir:
			return nil, invalid("--with %q: is no clean absolute path", r.Dir)
		case slices.ContainsFunc(def.View.Roots, same):
			return nil, invalid("--with %s: the definition of %s has it in view.roots already", r.Dir, a.ID())
		case def.Placement == agents.PlacementOne:
			return nil, invalid("--with %s: %s has placement: one, and a lease is for the agent's directory alone", r.Dir, a.ID())
		}
		id := agents.RootID(a.ID(), r)
		if known := d.Definitions()[id]; known != nil && known.View.Closed == w.Ask {
			ids = append(ids, id)
			continue
		}
		if other := d.agent(id); other != nil { // another run has lent it otherwise
			if other.RootUsed() != nil {
				return nil, invalid("--with %s: another command has it with another access: wait for its end", r.Dir)
			}
			_ = other.EndRoot(ctx, true)
		}
		root, _, err := d.OpenScope(agents.RootOfAgent(def.Definition, r)) // what is refused is not stored
		if err == nil {
			root.Close()
			err = state.Lend(d.Paths.State, a.ID(), r)
		}
		switch {
		case err == nil:
			ids = append(ids, id)
		case !w.Some:
			return nil, fmt.Errorf("--with %s: %w", r.Dir, err)
		}
	}
	if len(ids) > 0 {
		d.Refresh("")
	}
	return ids, nil
}

// endRoots unmounts the roots of an agent that were lent to a sandbox and that no other one has, also one that is left to the next
// daemon.
func (d *Daemon) endRoots(ctx context.Context, ids []scope.ID) {
	for _, id := range ids {
		if a := d.agent(id); a != nil && !d.HandOver.Load() {
			_ = a.EndRoot(ctx, false)
		}
	}
}

// rootsOf returns the roots of an agent that have a view.
func (d *Daemon) rootsOf(id scope.ID) []*agent.Agent {
	return slices.DeleteFunc(d.all(), func(a *agent.Agent) bool { return a.RootOf() != id })
}

// downRoots unmounts the roots of an agent, whose own view is unmounted.
func (d *Daemon) downRoots(ctx context.Context, id scope.ID) (err error) {
	for _, a := range d.rootsOf(id) {
		err = errors.Join(err, a.EndRoot(ctx, true))
	}
	return err
}
