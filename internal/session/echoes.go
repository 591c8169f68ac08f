package session

import (
	"context"
	"errors"
	"sync"

	"github.com/scopefs/scopefs/internal/view/wire"
	"github.com/scopefs/scopefs/tools/sandbox"
)

// polling are variables by which programs look for changes instead of waiting for inotify(7): chokidar (vite, webpack-dev-server, nodemon),
// watchpack, tsc and Python's watchfiles.
var polling = map[string]string{
	"CHOKIDAR_USEPOLLING": "1", "WATCHPACK_POLLING": "true", "WATCHFILES_FORCE_POLLING": "1",
	"TSC_WATCHFILE": "DynamicPriorityPolling", "TSC_WATCHDIRECTORY": "DynamicPriorityPolling",
}

// echoPoint is a sandbox that has a view, and where.
type echoPoint struct {
	box *Sandbox
	at  string
}

// Echo sends a request of a view to the agent's sandboxes that have it: see view.Agent.
func (a *Agent) Echo(ctx context.Context, v View, e wire.Echo) (all []wire.EchoReply, err error) {
	points := a.havingView(v)
	if of := a.rootOf(); of != nil {
		points = append(points, of.havingRoot(a)...)
	}
	var mu sync.Mutex
	var asked sync.WaitGroup
	for _, p := range points {
		if e.To != "" && e.To != p.box.Name {
			continue
		}
		asked.Go(func() {
			reply, failed := p.box.echoer().Echo(ctx, p.at, e.Request)
			mu.Lock()
			defer mu.Unlock()
			if failed == nil {
				all = append(all, wire.EchoReply{From: p.box.Name, Reply: reply})
			} else if err = errors.Join(err, failed); !errors.Is(failed, sandbox.ErrEnded) {
				a.Logger.Debug("echo", "agent", a.id, "sandbox", p.box.Name, "err", failed)
			}
		})
	}
	asked.Wait()
	if len(all) > 0 {
		err = nil // those of the others look for themselves the next time
	}
	return all, err
}

// havingView returns the agent's sandboxes on a view.
func (a *Agent) havingView(v View) (points []echoPoint) {
	own := a.View() == v
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, box := range a.sessions {
		if box.view == v || own && box.view == nil && box.held == nil { // nil: it was adopted
			points = append(points, echoPoint{box, sandbox.Workspace})
		}
	}
	return points
}

// havingRoot returns the agent's sandboxes that have a root.
func (a *Agent) havingRoot(root *Agent) (points []echoPoint) {
	at := root.View().Definition().Dir
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, box := range a.sessions {
		if withRoot(root.id)(box) {
			points = append(points, echoPoint{box, at})
		}
	}
	return points
}

// echoer returns what repeats changes of the host in the sandbox.
func (b *Sandbox) echoer() *sandbox.Ports {
	b.echoing.Do(func() { b.echoes = b.Ports() })
	return b.echoes
}
