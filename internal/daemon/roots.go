package daemon

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"

	"github.com/scopefs/scopefs/internal/agent"
	"github.com/scopefs/scopefs/internal/client"
	"github.com/scopefs/scopefs/internal/state"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/agents"
)

// lend makes directories roots of an agent, for the sandboxes whose Purpose names them, and returns their ids. It changes no
// definition. The state has them, so that their changes can be undone later. The caller ends them with endRoots, also after an error.
func (d *Daemon) lend(ctx context.Context, a *agent.Agent, with []client.Root) (ids []scope.ID, err error) {
	def, err := a.Definition()
	if err != nil {
		return nil, err
	}
	for _, w := range with {
		r := agents.Root{Dir: w.Dir, Changes: agents.ChangesInherited, Lent: true}
		switch {
		case w.Ask:
			r.SetAccess(scope.Ask, w.Read)
		case w.Read:
			r.Access = scope.Read
		}
		same := func(o agents.Root) bool { return o.Dir == r.Dir }
		switch {
		case w.Some && (slices.ContainsFunc(def.View.Roots, same) || r.Dir == def.Dir || def.Placement == agents.PlacementOne):
			continue
		case !filepath.IsAbs(r.Dir) || filepath.Clean(r.Dir) != r.Dir:
			return ids, invalid("--with %q: is no clean absolute path", r.Dir)
		case slices.ContainsFunc(def.View.Roots, same):
			return ids, invalid("--with %s: the definition of %s has it in view.roots already", r.Dir, a.ID())
		case def.Placement == agents.PlacementOne:
			return ids, invalid("--with %s: %s has placement: one, and a lease is for the agent's directory alone", r.Dir, a.ID())
		}
		id := agents.RootID(a.ID(), r)
		if !d.leases.take(id, w.Ask) {
			return ids, invalid("--with %s: another command has it with another access: wait for its end", r.Dir)
		}
		ids = append(ids, id)
		if known := d.Definitions()[id]; known != nil && known.View.Closed == w.Ask {
			continue
		}
		if other := d.agent(id); other != nil { // another run has lent it otherwise
			if other.RootUsed() != nil { // one that the last daemon has left
				return ids, invalid("--with %s: another command has it with another access: wait for its end", r.Dir)
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
		case !w.Some:
			return ids, fmt.Errorf("--with %s: %w", r.Dir, err)
		default:
			ids = ids[:len(ids)-1]
			d.leases.leave(id)
		}
	}
	if len(ids) > 0 {
		d.Refresh("")
	}
	return ids, nil
}

// leases count the commands that have a root that was lent: all have it with one access.
type leases struct {
	mu  sync.Mutex
	all map[scope.ID]lease
}

type lease struct {
	commands int
	asks     bool
}

// take counts a command until leave is called; false: another one has the root with another access.
func (l *leases) take(id scope.ID, asks bool) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	now, lent := l.all[id]
	if lent && now.asks != asks {
		return false
	}
	if l.all == nil {
		l.all = map[scope.ID]lease{}
	}
	l.all[id] = lease{now.commands + 1, asks}
	return true
}

func (l *leases) leave(id scope.ID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.all[id]
	if now.commands--; now.commands <= 0 {
		delete(l.all, id)
		return
	}
	l.all[id] = now
}

// endRoots unmounts the roots of an agent that were lent to a sandbox and that no other one has, also one that is left to the next
// daemon.
func (d *Daemon) endRoots(ctx context.Context, ids []scope.ID) {
	for _, id := range ids {
		if a := d.agent(id); a != nil && !d.HandOver.Load() {
			_ = a.EndRoot(ctx, false)
		}
		d.leases.leave(id)
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
