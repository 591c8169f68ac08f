package view

import (
	"context"
	"slices"

	"github.com/scopefs/scopefs/internal/view/wire"
)

// Beside says that a sandbox has directories beside the agent's: links of the host lead to them from now on. In a sandbox that does not
// have them they dangle.
func (v *View) Beside(ctx context.Context, dirs []string) error {
	v.mu.Lock()
	now := v.beside
	for _, dir := range dirs {
		if !slices.Contains(now.Dirs, dir) {
			now.Place, now.Dirs = v.def.Dir, append(slices.Clone(now.Dirs), dir)
		}
	}
	known := len(now.Dirs) == len(v.beside.Dirs)
	v.beside = now
	w, requests := v.wire, v.requests
	v.mu.Unlock()
	if known || w == nil || v.def.Dir == "" { // a process that starts has them
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, ackTime)
	defer cancel()
	call, err := requests.Begin(ctx)
	if err != nil {
		return err
	}
	defer call.End()
	if err := w.Send(wire.ToView{ID: call.ID, Beside: &now}); err != nil {
		return err
	}
	_, err = call.Wait(ctx, func() {}, 0)
	return err
}

// besides returns what a process that starts gets of Beside and of the definition.
func (v *View) besides() wire.Beside {
	place, dirs := v.def.Beside()
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, dir := range dirs {
		if !slices.Contains(v.beside.Dirs, dir) {
			v.beside.Place, v.beside.Dirs = place, append(slices.Clone(v.beside.Dirs), dir)
		}
	}
	return v.beside
}
