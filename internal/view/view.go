// Package view keeps an agent's view mounted: it starts the process that serves the view, package serve, records that process's
// events, and starts another when it dies. Package wire has their messages.
//
// Lock order, outermost first: View.ruling, View.mu. Nothing is recorded under a lock but spool.mu.
package view

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/fs/fusemount"
	"github.com/scopefs/scopefs/internal/account"
	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/mount"
	"github.com/scopefs/scopefs/internal/peer"
	"github.com/scopefs/scopefs/internal/usage"
	"github.com/scopefs/scopefs/internal/view/wire"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/agents"
	"github.com/scopefs/scopefs/tools/sandbox"
)

const (
	readyTimeout = 30 * time.Second       // for a view to confine itself; a dead one is noticed at once
	unmountGrace = 300 * time.Millisecond // for users of a view to finish
	detachGrace  = 500 * time.Millisecond // for users that another mount namespace has
	endTime      = 3 * time.Second        // for a view whose connection has ended
	serverTime   = 6 * time.Second        // for the server of a shared file system to answer what changes nothing
	metadataTime = time.Second            // how long the kernel may keep metadata that cannot be watched
	quickDeath   = 2 * time.Second        // a view that lives no longer is restarted more slowly
	reapTime     = time.Second            // for a killed process to be gone

	quickPause = 10 * time.Millisecond // before a view is started again, the first time
	longPause  = time.Second           // the longest, for one that dies or fails again and again
)

// View keeps an agent's view mounted: it starts the process that serves the view,
// records that process's events, and starts another when it dies.
type View struct {
	host *Host
	of   Agent
	def  *agents.Definition
	at   string

	spool atomic.Pointer[spool] // of the process; nil: none
	below mount.FileSystem      // that the agent's directory is on; guarded by mu
	share *usage.Share          // of the agent's quota; nil: none. Only the goroutine of keep uses it

	hidden int // entries of the mount point that the view hides

	life context.Context // ends when the view is to be unmounted, or is left to the next daemon
	stop context.CancelFunc
	done chan struct{} // closed when it is unmounted and the process is gone

	sending sync.Mutex // see sendLog
	parting sync.Mutex // held while EndUnused unmounts: the view's end is then not a death
	ruling  sync.Mutex // held by SetRules, also while the view answers; for nothing else

	asking atomic.Int32 // rules that the view has not acknowledged: it is not idle

	mu        sync.Mutex
	changed   chan struct{} // closed and replaced when state changes
	state     api.State
	err       error
	ending    bool           // it is about to end
	owner     *account.User  // since it was mounted first; nil: it was not
	changes   agents.Changes // of the definition; the first mount decides what auto is
	unkept    string         // why that is direct
	late      string         // why fanotify(7) watches nothing; "": it does, or need not
	held      *heldDir       // where it holds what rules say; nil: nowhere
	unheld    string         // why it does not though a rule says so
	byRule    bool           // it serves no mount, and is for what rules hold
	shares    bool           // likewise, beside the view that has the lock of what is held
	pid       int
	build     string // of its process, if that is another one than the daemon's
	wire      *wire.Conn
	process   *served                       // that serves the view
	lingering []<-chan struct{}             // closed when a process that served the view and was killed is gone
	mayLeave  bool                          // it may live on without this daemon
	leaving   bool                          // it does
	requests  *peer.Requests[wire.FromView] // to the process, about the history
	beside    wire.Beside                   // what sandboxes have had beside the agent's directory since Start
	rules     scope.PolicySpec              // by which the view decides, or is about to
	ruled     uint64                        // counts them
	acks      map[uint64]chan string
	hurry     chan struct{} // closed while the view is to take new rules: see SetRules
}

// Lingering returns for each process that has served the view and was killed a channel that is closed when it is gone. A disk that
// does not answer can keep one, which may go on with a change.
func (v *View) Lingering() []<-chan struct{} {
	v.mu.Lock()
	defer v.mu.Unlock()
	return slices.Clone(v.lingering)
}

// Start keeps a view of an agent mounted from now on, at a mount point that hides so many entries.
func Start(ctx context.Context, host *Host, of Agent, def *agents.Definition, at string, hidden int) *View {
	// The view outlives the request that mounts it.
	life, stop := context.WithCancel(context.WithoutCancel(ctx))
	v := &View{host: host, of: of, def: def, at: at, hidden: hidden, life: life, stop: stop, done: make(chan struct{}),
		changed: make(chan struct{}), hurry: make(chan struct{}),
		state: api.Starting, rules: def.View.PolicySpec(), changes: def.View.Changes}
	go v.keep(life, v.serve)
	return v
}

// At returns the mount point.
func (v *View) At() string { return v.at }

// Definition returns the definition with which the view was started. Its rules may be newer: see SetRules.
func (v *View) Definition() *agents.Definition { return v.def }

// named returns the agent, and for a command without a daemon the directory: it knows no agent.
func (v *View) named() string {
	if v.host.Private && v.def.Dir != "" {
		return v.def.Dir
	}
	return string(v.def.Name)
}

// Wait waits until the view is mounted or could not be.
func (v *View) Wait(ctx context.Context) error {
	for {
		v.mu.Lock()
		state, err, changed := v.state, v.err, v.changed
		v.mu.Unlock()
		switch state {
		case api.Mounted:
			return nil
		case api.Failed:
			return fmt.Errorf("mount %q: %w", v.named(), err)
		case api.Down:
			return fmt.Errorf("view of %q is down", v.def.Name)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Served returns the process that serves the view now; 0 when none does, or when the
// view is about to end.
func (v *View) Served() (pid int, owner account.User) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.state != api.Mounted || v.ending {
		return 0, account.User{}
	}
	return v.pid, *v.owner
}

// User returns the user that a view runs as that was mounted.
func (v *View) User() account.User {
	v.mu.Lock()
	defer v.mu.Unlock()
	return *v.owner
}

func (v *View) set(state api.State, pid int, err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.state, v.pid, v.err = state, pid, err
	close(v.changed)
	v.changed = make(chan struct{})
}

// keep serves the view again and again until it is to end. Requests that wait for a view
// that has died wait for the next one. A view that cannot start has failed, and keep
// tries again: its directory or file system may come back.
func (v *View) keep(life context.Context, serve func(context.Context) (mounted bool, err error)) {
	defer close(v.done)
	pause, recorded := quickPause, ""
	for {
		began := time.Now()
		mounted, err := serve(life)
		state, outcome := api.Failed, "not mounted"
		if mounted {
			state, outcome, recorded = api.Starting, "died", "" // each death is recorded
		}
		if errors.Is(err, sandbox.ErrOutOfMemory) {
			outcome = sandbox.OutcomeMemory
		}
		v.parting.Lock()
		if life.Err() != nil || v.isLeaving() { // Leave ends life next
			state, err = api.Down, nil
		}
		v.parting.Unlock()
		v.mu.Lock()
		v.wire, v.requests, v.process, v.mayLeave = nil, nil, nil, false
		for id, ack := range v.acks {
			delete(v.acks, id)
			ack <- "it has ended; the next one starts with them"
		}
		v.mu.Unlock()
		v.set(state, 0, err)
		ended := v.of.EndSandboxes() // their mount is dead
		if state == api.Down {
			ended()
			return
		}
		if time.Since(began) > quickDeath {
			pause = quickPause
		}
		if err.Error() != recorded {
			v.of.Event(audit.Event{Event: audit.KindView, Agent: string(v.def.Name), Outcome: outcome, Path: v.at, Detail: err.Error()})
		}
		recorded = err.Error()
		select {
		case <-life.Done():
			v.set(api.Down, 0, nil)
			return
		case <-time.After(pause):
		}
		pause = min(2*pause, longPause)
	}
}

// serve mounts the view once and returns when its process has ended, or is left to the next daemon. The view's clients
// have their answers or errors by then.
func (v *View) serve(ctx context.Context) (mounted bool, err error) {
	last := v.host.claim(v.def.Name, v.at)
	defer func() { last.end() }()
	root, owner, err := v.host.OpenScope(v.def)
	if err != nil {
		return false, err
	}
	defer root.Close()
	if err := v.may(owner); err != nil {
		return false, err
	}
	if err := v.host.Current(v.def, root); err != nil {
		return false, err
	}
	v.findBelow(root)
	history, err := v.openHistory(root, owner)
	if err != nil {
		return false, err
	}
	defer func() {
		if v.isLeaving() {
			history.claim.Leave()
		}
		history.Close()
	}()
	if v.share, err = v.joinQuota(last); err != nil {
		return false, err
	}
	defer func() {
		if !v.isLeaving() { // the view goes on to count
			v.host.Quotas.Leave(v.share)
		}
	}()
	var r *running
	var h *heldDir
	defer func() { v.closeHold(h) }()
	outcome := "taken over"
	if last != nil {
		if h, err = v.openHold(ctx, last, root, history, owner); err == nil {
			r, err = v.takeOver(ctx, last, root, history, h != nil, owner)
		} else {
			last.end()
		}
		last = nil
		if err != nil {
			v.host.Logger.Warn("the view of the last daemon ends: another one is mounted", "agent", v.def.Name, "err", err)
			v.closeHold(h)
			h = nil
		}
	}
	if r == nil {
		outcome = "mounted"
		if h, err = v.openHold(ctx, nil, root, history, owner); err != nil {
			return false, err
		}
		dirs := directories{scope: root, history: history.Root, quota: v.share.File(), lock: h.lockFile()}
		if h != nil && h.history.Root != nil {
			dirs.history = h.history.Root
		}
		if r, err = v.launch(ctx, dirs, root, history, h != nil, owner); err != nil {
			return false, err
		}
	}
	how := ""
	defer func() {
		if v.isLeaving() {
			r.leave(v)
			return
		}
		if ended := r.end(v); mounted && how == "" {
			err = fmt.Errorf("view process ended: %s", ended)
		}
		if mounted && r.outOfMemory() {
			err = fmt.Errorf("%w: %w", sandbox.ErrOutOfMemory, err)
		}
	}()
	v.mu.Lock()
	v.owner, v.build = &owner, r.build
	v.mu.Unlock()
	v.of.Event(audit.Event{Event: audit.KindView, Agent: string(v.def.Name), Outcome: outcome, Path: v.at, PID: r.pid,
		Detail: r.means + v.sharedNote()})
	v.set(api.Mounted, r.pid, nil)
	if err := account.ClosedTo(owner, v.at); err != nil && !v.shared() {
		v.host.Logger.Warn("no sandbox will start on this view", "agent", v.def.Name, "err", err)
	}

	// Each of these ends serve: the process closes its end of the channel; the process
	// does not answer; the scope is gone; the view is to end.
	go func() { r.dead(v.probe(r.alive, r.served, r.beats, r.conn, r.requests)) }()
	if r.spool != nil {
		go func() { r.dead(r.spool.watch(r.alive)) }()
	}
	go func() {
		if err := v.watchScope(r.alive, root, history); err != nil {
			r.dead(err)
		}
	}()
	left := make(chan struct{})
	leave := context.AfterFunc(ctx, func() {
		defer close(left)
		if v.isLeaving() {
			r.hangUp()
			return
		}
		v.unmount(r.conn, r.served)
	})
	defer func() {
		if !leave() { // or it could unmount the next view
			<-left
		}
	}()
	lost := context.AfterFunc(r.alive, func() {
		// What a process sent before it ended is read to the end.
		if ctx.Err() == nil && context.Cause(r.alive) != errEnded {
			_ = r.conn.Abort()
			r.served.wire.Close()
		}
	})
	defer lost()
	<-r.listened
	if cause := context.Cause(r.alive); cause != nil && cause != errEnded && ctx.Err() == nil {
		how = cause.Error()
		return true, cause
	}
	return true, nil // the deferred quit returns how the process ended
}

// unmount unmounts the view: at once when no process uses it, else after a grace time,
// and then processes that still use it get ENOTCONN.
func (v *View) unmount(conn fusemount.Connection, p *served) {
	for end, pause := time.Now().Add(unmountGrace), time.Millisecond; ; pause = min(2*pause, 16*time.Millisecond) {
		err := fusemount.Unmount(v.at)
		if err == nil {
			break
		}
		if time.Now().After(end) {
			v.host.Logger.Warn("view is in use: unmounting it all the same", "agent", v.def.Name, "err", err)
			_ = conn.Abort()
			_ = fusemount.Detach(v.at)
			break
		}
		time.Sleep(pause)
	}
	// A view whose mount is gone ends by itself, unless it is still in use.
	select {
	case <-p.ended:
		return
	case <-time.After(detachGrace):
		_ = conn.Abort()
	}
	if !p.await(endTime) {
		v.host.Logger.Warn("view does not end: killing it", "agent", v.def.Name)
		p.Kill()
		p.wire.Close()
	}
}

// Responsive returns when the lock of the view is free.
func (v *View) Responsive() {
	v.mu.Lock()
	defer v.mu.Unlock()
}

// Status adds the state of the view to that of its agent.
func (v *View) Status(s *api.Agent) {
	v.mu.Lock()
	defer v.mu.Unlock()
	s.State, s.Mount, s.ViewPID, s.Program, s.Hidden = v.state, v.at, v.pid, v.build, v.hidden
	s.Shared, s.Holds = v.sharing(), v.def.View.Changes == agents.ChangesHeld || v.def.View.PolicySpec().Holds()
	if v.err != nil {
		s.Error = v.err.Error()
	}
	s.Disk = v.host.Quotas.Use(v.def.Name)
	if v.late != "" {
		s.Late = fmt.Sprintf("%s: raise the limit (sysctl fs.fanotify.max_user_groups), then scopefs down %s, then up", v.late, v.def.Name)
	}
}

// Ended returns a channel that is closed when the view is unmounted.
func (v *View) Ended() <-chan struct{} { return v.done }

// SetLease sends the view when its lease ends. A process that starts later has it from the daemon's leases.
func (v *View) SetLease(until time.Duration) {
	v.mu.Lock()
	w := v.wire
	v.mu.Unlock()
	if w != nil {
		_ = w.Send(wire.ToView{Lease: until}) // after an error the view has ended
	}
}

// UpdateLog sends the view whether the log can be written.
func (v *View) UpdateLog() {
	v.mu.Lock()
	w := v.wire
	v.mu.Unlock()
	if w != nil {
		_ = v.sendLog(w)
	}
}

// EndUnused unmounts the view for good, unless something uses it: another mount of it, an open file or a working directory on it
// (umount(2) fails with EBUSY), or what used finds. Then it returns an error, and the view goes on. No sandbox starts on the view
// meanwhile: see Served. After success the caller calls Down.
func (v *View) EndUnused(used func() error) error {
	v.setEnding(true)
	err := used()
	if err == nil {
		err = v.unmountUnused()
	}
	if err != nil {
		v.setEnding(false)
	}
	return err
}

func (v *View) unmountUnused() error {
	all, err := v.host.Mounts.Read()
	if err != nil {
		return err
	}
	if other := mount.Other(all, v.at); other != "" {
		return fmt.Errorf("it is mounted at %s too: unmount that", other)
	}
	v.parting.Lock()
	defer v.parting.Unlock()
	switch err := fusemount.Unmount(v.at); {
	case errors.Is(err, unix.EBUSY):
		return fmt.Errorf("a process has a file or its working directory in %s (fuser -vm %s lists it): end the process", v.at, v.at)
	case err != nil:
		return err
	}
	v.stop()
	return nil
}

func (v *View) setEnding(ending bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.ending = ending
}

// Down ends the view and its sandboxes, and waits until nothing is left.
func (v *View) Down() {
	v.End()
	_, _ = mount.UnmountStale(v.def.Name, v.at, 0) // a view that had failed
	v.host.Release(v.at)
}

// End is Down that leaves a dead mount: the entries beneath it stay hidden.
func (v *View) End() {
	v.setEnding(true)
	v.stop()
	ended := v.of.EndSandboxes()
	<-v.done
	ended()
	v.of.DropGroup()
}
