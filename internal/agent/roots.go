package agent

import (
	"context"

	"github.com/scopefs/scopefs/scope"
)

// RootOf returns the agent whose root has the view that is mounted; "": it is none.
func (a *Agent) RootOf() scope.ID {
	if v := a.currentView(); v != nil {
		return v.Definition().RootOf
	}
	return ""
}

// EndRoot unmounts the view of a root, which the next sandbox that has the root mounts again. Without force it does nothing while
// a sandbox has the root.
func (a *Agent) EndRoot(ctx context.Context, force bool) error {
	free, err := a.take(ctx)
	if err != nil {
		return err
	}
	defer free()
	v := a.currentView()
	if v == nil {
		return nil
	}
	if !force {
		if err := v.EndUnused(a.used); err != nil {
			return nil // it is in use
		}
	}
	a.end(v, "")
	a.mu.Lock()
	defer a.mu.Unlock()
	a.tried = false
	return nil
}
