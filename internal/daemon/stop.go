package daemon

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/internal/agent"
	"github.com/scopefs/scopefs/internal/session"
	"github.com/scopefs/scopefs/tools/sandbox"
)

// Enter counts a request in. close waits for leave before it closes the log.
func (d *Daemon) Enter() (leave func(), err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closing {
		return nil, session.ErrClosing
	}
	d.requests.Add(1)
	d.entered++
	return func() {
		d.mu.Lock()
		d.entered--
		d.mu.Unlock()
		d.requests.Done()
	}, nil
}

// sandboxTime is how long the sandboxes may take to end when the views are left to the next daemon. After it the views end, too.
const sandboxTime = 2 * time.Second

// within reports whether f returns in time.
func within(limit time.Duration, f func()) bool {
	done := make(chan struct{})
	go func() { f(); close(done) }()
	select {
	case <-done:
		return true
	case <-time.After(limit):
		return false
	}
}

// close ends clients, sandboxes and views, then the log. A client ends with its sandbox, and
// what in a sandbox waits for its view ends only with that: they go together. What none of
// them may start again, Refuse refuses.
func (d *Daemon) close() {
	d.mu.Lock()
	d.closing = true
	all := slices.Collect(maps.Values(d.agents))
	d.mu.Unlock()
	for _, a := range all {
		a.Refuse()
	}
	waited := d.Approvals.Close()
	d.Log.Hurry()
	if waited {
		each(all, (*agent.Agent).Drain)
	}
	var wg sync.WaitGroup
	wg.Go(func() { each(all, (*agent.Agent).CloseSocket) })
	var outliving []*sandbox.Session
	for _, a := range all {
		if d.HandOver.Load() {
			outliving = append(outliving, a.Outliving()...)
		}
	}
	wg.Go(func() {
		if err := d.CloseOthers(outliving); err != nil {
			d.Logger.Error("sandboxes", "err", err)
		}
	})
	d.notify("STOPPING=1")
	leave := d.HandOver.Load() && within(sandboxTime, wg.Wait)
	mounted := slices.DeleteFunc(slices.Clone(all), func(a *agent.Agent) bool { return a.MountPoint() == "" })
	down := &progress{d: d, what: "views unmounted", all: len(mounted)}
	var left sync.Map
	var views atomic.Int32
	each(mounted, func(a *agent.Agent) {
		if leave && a.Leave() {
			left.Store(a, nil)
			views.Add(1)
		} else {
			a.Unmount()
		}
		down.step()
	})
	wg.Wait()
	if err := d.CloseSandboxes(); err != nil {
		d.Logger.Error("sandboxes", "err", err)
	}
	for _, a := range all {
		if _, is := left.Load(a); !is {
			a.DropGroup()
		}
	}
	d.unmountLeft()
	d.requests.Wait()
	if d.stopStreams != nil { // after the views, whose leases they give back
		if !d.HandOver.Load() {
			d.giveBack(all)
		}
		d.stopStreams()
	}
	d.tokens.close()
	d.Warnings.Close()
	if err := d.Stores.Close(); err != nil {
		d.Logger.Error("stores", "err", err)
	}
	d.Event(audit.Event{Event: audit.KindDaemon, Outcome: "stopped", PID: os.Getpid()})
	if leave {
		if n := views.Load(); n > 0 {
			d.Logger.Warn(fmt.Sprintf("views live on for %v for the next daemon: start it, or end them with %s",
				d.Grace, d.Paths.Stop()), "views", n)
		}
		d.Networks.Leave()
		wg.Go(d.Holder.Leave)
	} else {
		d.Networks.Close()
		wg.Go(d.Holder.Close) // it has views that did not end
	}
	if err := d.Log.Close(); err != nil {
		d.Logger.Error("audit", "err", err)
	}
	if err := d.Unfinished.Close(); err != nil {
		d.Logger.Error("state", "err", err)
	}
	wg.Wait()
	d.Control.Close()
	os.Remove(d.Paths.Socket())
	if views.Load() == 0 {
		d.claimed.Release()
	}
	d.lock.Close()
	if d.base != nil {
		d.base.Close()
	}
}

// giveBackTime bounds the wait for the server of the fleet to have the leases that a daemon gives back at its end.
const giveBackTime = 3 * time.Second

// giveBack gives the leases of agents back, whose views have ended.
func (d *Daemon) giveBack(all []*agent.Agent) {
	ctx, cancel := context.WithTimeout(context.Background(), giveBackTime)
	defer cancel()
	for _, a := range all {
		a.GiveBack()
	}
	d.Views.Placement.Flush(ctx)
}

// each calls f for all agents at the same time, and waits.
func each(all []*agent.Agent, f func(*agent.Agent)) {
	var wg sync.WaitGroup
	for _, a := range all {
		wg.Go(func() { f(a) })
	}
	wg.Wait()
}
