package daemon

import (
	"context"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/cmd/scopefs/internal/viewer"
	"github.com/scopefs/scopefs/scope"
)

// The states of a view.
const (
	stateStarting = "starting"
	stateMounted  = "mounted"
	stateFailed   = "failed"
	stateDown     = "down"
)

const (
	readyTimeout = 10 * time.Second // for a view to confine itself
	unmountGrace = 3 * time.Second  // for those who use a view to let go
	metadataTime = time.Second      // how long the kernel may keep metadata that cannot be watched
	quickDeath   = 2 * time.Second  // a view that lives no longer is restarted more slowly
)

// view keeps one agent's view mounted: it starts the process that serves it,
// takes its events to the log, and starts another when it dies.
type view struct {
	d   *Daemon
	def *scope.Definition
	at  string

	stop context.CancelFunc
	done chan struct{} // closed when it is unmounted and the process is gone

	telling sync.Mutex // see tellLog

	mu      sync.Mutex
	changed chan struct{} // closed and replaced when state changes
	state   string
	err     error
	ending  bool // it is to go down
	owner   user
	pid     int
	wire    *viewer.Wire
	process *os.Process      // that serves it
	rules   scope.PolicySpec // by which it decides, or is about to
	ruled   uint64           // counts them
	acks    map[uint64]chan string
	hurry   chan struct{} // closed while the view is to take new rules: see setRules
}

// up starts keeping a view mounted and waits until it is, or cannot be. The
// caller has the agent's turn.
func (d *Daemon) up(ctx context.Context, def *scope.Definition, at string) (*view, error) {
	made, err := mountPoint(def.Name, at)
	if err != nil {
		return nil, err
	}
	// The view outlives the request that asks for it.
	life, stop := context.WithCancel(context.WithoutCancel(ctx))
	v := &view{d: d, def: def, at: at, stop: stop, done: make(chan struct{}), changed: make(chan struct{}), hurry: make(chan struct{}), state: stateStarting, rules: def.View.PolicySpec()}
	d.mu.Lock()
	closing := d.closing
	if !closing {
		if now := d.rules.Agents[def.Name]; now != nil { // a reload meanwhile did not see us
			v.def, v.rules = now.Definition, now.View.PolicySpec()
		}
		d.views[def.Name] = v
		go v.keep(life)
	}
	d.mu.Unlock()
	if closing {
		stop()
		err = errClosing
	} else if err = v.wait(ctx); err != nil {
		v.down()
		d.mu.Lock()
		delete(d.views, def.Name)
		d.mu.Unlock()
	}
	if err != nil && made {
		unix.Rmdir(at)
	}
	return v, err
}

// wait waits until the view is mounted or could not be.
func (v *view) wait(ctx context.Context) error {
	for {
		v.mu.Lock()
		state, err, changed := v.state, v.err, v.changed
		v.mu.Unlock()
		switch state {
		case stateMounted:
			return nil
		case stateFailed:
			return fmt.Errorf("mount %q: %w", v.def.Name, err)
		case stateDown:
			return fmt.Errorf("view of %q is down", v.def.Name)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// served tells which of the processes that served the view in turn does now; 0
// when none does, or the view is about to go down.
func (v *view) served() (pid int, owner user) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.state != stateMounted || v.ending {
		return 0, user{}
	}
	return v.pid, v.owner
}

// user is as whom it runs.
func (v *view) user() user {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.owner
}

func (v *view) set(state string, pid int, err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.state, v.pid, v.err = state, pid, err
	close(v.changed)
	v.changed = make(chan struct{})
}

// keep serves the view again and again until it is to end. Who waits for a view
// that has died waits for the next one; one that cannot start has failed.
func (v *view) keep(life context.Context) {
	defer close(v.done)
	pause := 10 * time.Millisecond
	for {
		began := time.Now()
		mounted, err := v.serve(life)
		state, outcome := stateFailed, "not mounted"
		if mounted {
			state, outcome = stateStarting, "died"
		}
		if life.Err() != nil {
			state, err = stateDown, nil
		}
		v.mu.Lock()
		v.wire, v.process = nil, nil
		for id, ack := range v.acks {
			delete(v.acks, id)
			ack <- "it has ended; the next one starts with them"
		}
		v.mu.Unlock()
		v.set(state, 0, err)
		v.d.endSessions(v.def.Name) // their mount is dead
		if state == stateDown {
			return
		}
		if time.Since(began) > quickDeath {
			pause = 10 * time.Millisecond
		}
		v.d.event(audit.Event{Event: audit.KindView, Agent: string(v.def.Name), Outcome: outcome, Path: v.at, Detail: err.Error()})
		select {
		case <-life.Done():
			v.set(stateDown, 0, nil)
			return
		case <-time.After(pause):
		}
		pause = min(2*pause, 5*time.Second)
	}
}

// serve mounts the view once and returns when its process has ended.
func (v *view) serve(ctx context.Context) (mounted bool, err error) {
	root, owner, err := openScope(v.d.paths.Base, v.def.Name, v.def.User)
	if err != nil {
		return false, err
	}
	defer root.Close()
	if err := v.may(owner); err != nil {
		return false, err
	}
	mount, conn, err := newMount(v.def.Name, owner, v.shared())
	if err != nil {
		return false, err
	}
	defer mount.Close()
	cmd, wire, err := v.spawn(root, conn, owner)
	if err != nil {
		return false, err
	}
	defer wire.Close()
	ended := make(chan struct{})
	defer func() { <-ended }()
	alive, dead := context.WithCancel(ctx)
	go func() {
		defer close(ended)
		_ = cmd.Wait()
		dead()
	}()
	w := viewer.NewWire(bounded{wire})
	means, err := v.handshake(cmd.Process, wire, w)
	if err == nil {
		err = attach(mount, v.def.Name, v.at)
	}
	mount.Close() // the mount point holds it now
	if err != nil {
		_ = cmd.Process.Kill()
		return false, err
	}
	v.mu.Lock()
	v.owner = owner
	v.mu.Unlock()
	v.d.event(audit.Event{Event: audit.KindView, Agent: string(v.def.Name), Outcome: "mounted", Path: v.at, PID: cmd.Process.Pid, Detail: fmt.Sprint(means)})
	v.set(stateMounted, cmd.Process.Pid, nil)
	if err := closedTo(owner, v.at); err != nil && !v.shared() {
		v.d.logger.Warn("no sandbox will start on this view", "agent", v.def.Name, "err", err)
	}

	leave := context.AfterFunc(ctx, func() { v.unmount(cmd.Process) })
	defer leave()
	v.listen(alive, w)
	// One that still runs and is not heard any more cannot record.
	_ = cmd.Process.Kill()
	<-ended
	return true, fmt.Errorf("view process ended: %v", cmd.ProcessState)
}

// unmount takes the view down: when nobody uses it at once, else after a grace
// time for good, in which case those who still use it get ENOTCONN.
func (v *view) unmount(p *os.Process) {
	for end := time.Now().Add(unmountGrace); ; time.Sleep(20 * time.Millisecond) {
		err := unmount(v.at)
		if err == nil {
			break
		}
		if time.Now().After(end) {
			v.d.logger.Warn("view is in use: unmounting it all the same", "agent", v.def.Name, "err", err)
			_ = unix.Unmount(v.at, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
			break
		}
	}
	// A view whose mount is gone ends by itself, unless it is still in use.
	time.AfterFunc(500*time.Millisecond, func() { _ = p.Kill() })
}

// down ends the sandboxes on the view, and it, and waits until nothing is left.
func (v *view) down() {
	v.mu.Lock()
	v.ending = true
	v.mu.Unlock()
	v.stop()
	v.d.endSessions(v.def.Name)
	<-v.done
	_, _ = unmountStale(v.def.Name, v.at, 0) // a view that had failed
}
