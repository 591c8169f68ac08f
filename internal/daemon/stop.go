package daemon

import (
	"maps"
	"os"
	"slices"
	"sync"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/internal/agent"
	"github.com/scopefs/scopefs/internal/session"
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
	wg.Go(func() {
		if err := d.CloseSandboxes(); err != nil {
			d.Logger.Error("sandboxes", "err", err)
		}
	})
	d.notify("STOPPING=1")
	mounted := slices.DeleteFunc(slices.Clone(all), func(a *agent.Agent) bool { return a.MountPoint() == "" })
	down := &progress{d: d, what: "views unmounted", all: len(mounted)}
	each(mounted, func(a *agent.Agent) {
		a.Unmount()
		down.step()
	})
	wg.Wait()
	for _, a := range all {
		a.DropGroup()
	}
	d.unmountLeft()
	d.requests.Wait()
	d.Warnings.Close()
	if err := d.Stores.Close(); err != nil {
		d.Logger.Error("stores", "err", err)
	}
	d.Event(audit.Event{Event: audit.KindDaemon, Outcome: "stopped", PID: os.Getpid()})
	wg.Go(d.Guard.Close) // it has views that did not end
	if err := d.Log.Close(); err != nil {
		d.Logger.Error("audit", "err", err)
	}
	if err := d.Unfinished.Close(); err != nil {
		d.Logger.Error("state", "err", err)
	}
	wg.Wait()
	d.Control.Close()
	os.Remove(d.Paths.Socket())
	d.lock.Close()
	if d.base != nil {
		d.base.Close()
	}
}

// each calls f for all agents at the same time, and waits.
func each(all []*agent.Agent, f func(*agent.Agent)) {
	var wg sync.WaitGroup
	for _, a := range all {
		wg.Go(func() { f(a) })
	}
	wg.Wait()
}
