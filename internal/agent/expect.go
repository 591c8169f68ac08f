package agent

import (
	"context"
	"errors"
	"io/fs"
)

// Expect makes an agent that is neither mounted nor down "starting". If it returns true,
// the caller calls OpenExpected and MountExpected.
func (a *Agent) Expect() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.tried || a.view != nil || a.starting {
		return false
	}
	a.starting = true
	return true
}

// OpenExpected opens the socket of an agent that is expected: a client that connects
// early waits for the view. MountExpected returns errors of the definition or scope.
func (a *Agent) OpenExpected() {
	def, err := a.Definition()
	if err != nil {
		return
	}
	root, owner, err := a.OpenScope(def.Definition)
	if err != nil {
		return
	}
	root.Close()
	if err := a.OpenSocket(owner); err != nil {
		a.Logger.Error("tools", "agent", a.ID(), "err", err)
	}
}

// MountExpected mounts the view of an agent that is expected. The error is ErrDown
// when the operator has unmounted the agent meanwhile.
func (a *Agent) MountExpected(ctx context.Context) error {
	err := ctx.Err()
	if err == nil {
		_, err = a.mount(ctx, "", false)
	}
	a.mu.Lock()
	a.starting = false
	a.mu.Unlock()
	if err != nil {
		a.closeUnused(ctx)
	}
	return err
}

// Appear mounts the view of an agent that could not be mounted because the directory of its dir: did not exist, or another host had
// its lease, if that is over. It reports whether it tried.
func (a *Agent) Appear(ctx context.Context) (tried bool, err error) {
	if a.placed() {
		_, err := a.mount(ctx, "", false)
		return true, err
	}
	a.mu.Lock()
	missing := a.view == nil && errors.Is(a.failure, fs.ErrNotExist)
	a.mu.Unlock()
	if !missing {
		return false, nil
	}
	def, err := a.Definition()
	if err != nil || def.Dir == "" || def.Lent { // the sandbox that has a lent root mounts it
		return false, nil
	}
	root, err := def.OpenRoot(a.Paths.Base)
	if err != nil {
		return false, nil
	}
	root.Close()
	_, err = a.mount(ctx, "", false)
	return true, err
}

// closeUnused closes the socket of an agent that has no view.
func (a *Agent) closeUnused(ctx context.Context) {
	free, err := a.take(ctx)
	if err != nil {
		return // the daemon ends, and closes all
	}
	defer free()
	if a.currentView() == nil {
		a.CloseSocket()
	}
}

// forget makes an agent whose mount failed be down, as after Down. It returns true.
func (a *Agent) forget() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.tried, a.failure = true, nil
	return true
}

// unexpect makes an agent that waits for its first mount stay down, and reports
// whether it did wait. The caller has the agent's turn.
func (a *Agent) unexpect() bool {
	a.mu.Lock()
	waits := a.starting
	if waits {
		a.starting = false
		a.tried, a.failure = true, nil // as after Down: see mount
	}
	a.mu.Unlock()
	if waits {
		a.CloseSocket()
	}
	return waits
}
