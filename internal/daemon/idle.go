package daemon

import (
	"context"
	"errors"
	"net/http"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/client"
	"github.com/scopefs/scopefs/internal/fields"
	"github.com/scopefs/scopefs/internal/session"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/tools/approvals"
)

// endIdle ends a daemon with Options.Idle that has had no session, request or waiting approval for so long. It ends an
// outdated one as soon as nothing uses it.
func (d *Daemon) endIdle(ctx context.Context) {
	tick := time.NewTicker(min(d.idle/4, time.Second))
	defer tick.Stop()
	for used := time.Now(); ; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if d.busy() {
			used = time.Now()
		} else if time.Since(used) >= d.idle || d.outdated() {
			d.endUnused(0)
		}
	}
}

// busy reports whether an agent has a session, or a call waits for the operator. An MCP server without a client keeps no
// daemon.
func (d *Daemon) busy() bool {
	for _, a := range d.all() {
		if slices.ContainsFunc(a.Sessions(), func(s api.Session) bool { return s.Kind != api.ServerSession }) {
			return true
		}
	}
	return slices.ContainsFunc(d.Approvals.List(), func(p approvals.Approval) bool {
		return p.State == approvals.Waits || p.State == approvals.Granted
	})
}

// endUnused ends the daemon if no more than some requests are in flight. From then on requests fail with ErrClosing: their
// clients have the user's daemon open the base again.
func (d *Daemon) endUnused(but int) bool {
	d.mu.Lock()
	unused := !d.closing && d.entered <= but
	d.closing = d.closing || unused
	d.mu.Unlock()
	if unused {
		d.Logger.Info("the daemon ends: nothing uses it", "base", d.Paths.Base)
		d.end(errUnused)
	}
	return unused
}

// sharedTime is how long a daemon waits for requests that end, before it says that others than its command use it.
const sharedTime = time.Second

// Outlast returns when no session or request uses the daemon of a command that has ended. It calls used if that takes long. From
// then on requests fail with ErrClosing.
func (d *Daemon) Outlast(ctx context.Context, used func()) {
	late := time.AfterFunc(sharedTime, used)
	defer late.Stop()
	for ; ctx.Err() == nil; time.Sleep(2 * time.Millisecond) {
		d.mu.Lock()
		d.closing = d.closing || d.entered == 0
		ended := d.closing
		d.mu.Unlock()
		if ended {
			return
		}
	}
}

// errUnused is why Run ends a daemon with Options.Idle.
var errUnused = errors.New("nothing uses the daemon")

// renewTime bounds how long a run of an outdated daemon waits for requests that end.
const renewTime = time.Second

// lastTime bounds how long an unused daemon answers the requests that it still has.
const lastTime = 2 * time.Second

// answerLast answers the requests of clients that have connected already, with ErrClosing: one that got no answer would not
// know that nothing was done. Under the new name nobody finds the socket, and the queue of connections is in order: once the
// last one is accepted, all are. Shutdown would close without an answer what it has accepted and not read yet.
func (d *Daemon) answerLast(ctx context.Context, server *http.Server, unanswered *sync.Map) {
	ctx, cancel := context.WithTimeout(ctx, lastTime)
	defer cancel()
	name := d.Paths.Socket() + ".ending"
	if err := os.Rename(d.Paths.Socket(), name); err == nil {
		_ = client.NewPulse(name).Check(ctx)
		os.Remove(name)
	}
	for some := true; some && ctx.Err() == nil; time.Sleep(time.Millisecond) {
		some = false
		unanswered.Range(func(any, any) bool { some = true; return false })
	}
	_ = server.Shutdown(ctx)
}

// outdated reports whether the next daemon would have other settings: scopefs.yaml has changed, or a definition that holds
// does not load any more.
func (d *Daemon) outdated() bool {
	now := d.loaded.Load()
	return d.Paths.SettingsStamp() != d.stamp || slices.ContainsFunc(now.failed, func(err error) bool {
		return now.Agents[fields.AgentOf(err)] != nil
	})
}

// renew makes a run have the settings of now: an outdated daemon ends with ErrClosing. Beside other sessions it returns a note.
func (d *Daemon) renew(id scope.ID) (note string, err error) {
	if d.idle == 0 {
		return "", nil
	}
	d.Refresh(id)
	if !d.outdated() {
		return "", nil
	}
	for end := time.Now().Add(renewTime); !d.busy() && time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if d.endUnused(1) {
			return "", session.ErrClosing
		}
	}
	return "the settings have changed or do not load (scopefs agents check): the last good ones hold until the other sessions have ended (scopefs ps)", nil
}
