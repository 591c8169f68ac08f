package view

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/fs/branch"
	"github.com/scopefs/scopefs/fs/hold"
	"github.com/scopefs/scopefs/internal/account"
	"github.com/scopefs/scopefs/internal/peer"
	"github.com/scopefs/scopefs/internal/view/wire"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/agents"
	"github.com/scopefs/scopefs/scope/beneath"
	"github.com/scopefs/scopefs/scope/beneath/mounts"
)

// heldDir is where a view has what it holds.
type heldDir struct {
	history kept // of the view that holds by rules; else it is the view's
	dir     *beneath.Root
	used    beneath.File // the lock of dir, if locked
	locked  bool
}

func (h *heldDir) Close() {
	if h == nil {
		return
	}
	if h.locked {
		h.used.Close()
	}
	if h.dir != nil {
		h.dir.Close()
	}
	h.history.Close()
}

// These bound how long a view waits for the process that answers about held changes.
const (
	lockTime  = 3 * time.Second
	briefTime = 2 * time.Second // the holder may still have the lock of a view that has ended
)

// openHold opens where the view holds changes; nil: it holds none, or cannot hold what rules hold. It has such paths read-only then, and
// Unheld says why. The error is of a view that holds every change, and of one that is taken over with what it holds, last. history is
// the view's.
func (v *View) openHold(ctx context.Context, last *leftView, root *beneath.Root, history kept, owner account.User) (*heldDir, error) {
	whole := v.kind() == agents.ChangesHeld
	v.mu.Lock()
	holds := whole || v.rules.Holds()
	v.mu.Unlock()
	if last != nil && !last.Config.Hold {
		last = nil // it has no lock
	}
	var h *heldDir
	var err error
	if holds {
		h, err = v.tryHold(ctx, last, root, history, owner)
	}
	if err != nil && (last != nil || whole) {
		return nil, err
	}
	why := ""
	if err != nil {
		why = err.Error()
		v.host.Logger.Warn("held paths are read-only", "agent", v.def.Name, "err", err)
	}
	v.mu.Lock()
	v.unheld, v.held = why, h
	v.mu.Unlock()
	return h, nil
}

func (v *View) tryHold(ctx context.Context, last *leftView, root *beneath.Root, history kept, owner account.User) (h *heldDir, err error) {
	if v.def.Identity == agents.IdentityCaller {
		return nil, errors.New("identity: caller holds no changes")
	}
	h = &heldDir{}
	if v.kind() == agents.ChangesHeld {
		f, err := history.Object("")
		if err != nil {
			return nil, err
		}
		h.dir = beneath.NewRoot(f.FD())
	} else if h.history, err = v.openClaimed(root, owner); err != nil {
		return nil, err
	} else {
		history = h.history
	}
	pair, err := mounts.DetachWith(root, history.Root)
	if err == nil {
		pair.Close()
		if h.dir == nil {
			h.dir, err = openHoldDir(history.Root, owner)
		}
	}
	if err != nil {
		h.Close()
		return nil, fmt.Errorf("history: %w", err)
	}
	if last != nil {
		h.used, err = last.takeLock(h.dir)
	} else if err = v.finishHeld(h.dir); err == nil {
		err = h.lock(ctx)
	}
	if h.locked = err == nil; err == nil && last == nil { // else the view has it open
		err = makeLayers(root, h.dir, owner)
	}
	if err != nil {
		h.Close()
		return nil, fmt.Errorf("changes: held: %w", err)
	}
	return h, nil
}

// takeLock returns the lock of what the view holds in dir, when nobody uses that for a commit.
func (l *leftView) takeLock(dir *beneath.Root) (used beneath.File, err error) {
	if !l.locked() {
		return used, errors.New("it holds nothing")
	}
	if _, err = branch.WaitFor(func() (struct{}, error) { return struct{}{}, idle(dir) }); err != nil {
		return used, err
	}
	return l.lock()
}

// lock takes the lock of whoever changes the upper layer.
func (h *heldDir) lock(ctx context.Context) (err error) {
	for began := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		if h.used, err = use(h.dir); !errors.Is(err, branch.ErrUsed) || ctx.Err() != nil {
			return err
		}
		since := time.Since(began) // another view keeps the lock
		if since > lockTime || since > briefTime && !errors.Is(idle(h.dir), branch.ErrBusy) {
			return err
		}
	}
}

// openHoldDir opens the directory of what rules hold, and makes it if it is missing.
func openHoldDir(history *beneath.Root, owner account.User) (*beneath.Root, error) {
	top, err := history.Dir("")
	if err != nil {
		return nil, err
	}
	defer top.Close()
	if err := top.Mkdir(hold.StateName, 0o700); err == nil {
		err = give(history, hold.StateName, owner, 0o700, false)
		if err != nil {
			return nil, err
		}
	} else if err != unix.EEXIST {
		return nil, err
	}
	d, err := history.Object(hold.StateName)
	if err != nil {
		return nil, err
	}
	if st, err := d.Stat(); err != nil || !st.IsDir() || st.Uid != owner.UID { // that user can move others here: see branch.Remove
		d.Close()
		return nil, errors.Join(err, fmt.Errorf("%s is no directory of user %d", hold.StateName, owner.UID))
	}
	return beneath.NewRoot(d.FD()), nil
}

// finishHeld finishes a commit that a crash has interrupted.
func (v *View) finishHeld(dir *beneath.Root) error {
	if !errors.Is(idle(dir), errUnfinished) {
		return nil
	}
	o, err := StartHeld(v.host, v.of, v.def, v.def.View.PolicySpec(), nil)
	if err != nil {
		return err
	}
	defer o.Close()
	_, err = o.History(context.Background(), []byte(`{"diff": {}, "held": true}`))
	return err
}

// Unheld returns why the view has held paths read-only; "" if it does not.
func (v *View) Unheld() string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.unheld
}

// Holding reports whether the view has a place for what rules hold, or holds all changes.
func (v *View) Holding() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.held != nil
}

// Freeze keeps the agent's clients from changing names that rules hold, until thaw is called.
func (v *View) Freeze(ctx context.Context) (thaw func(), err error) {
	if err := v.Wait(ctx); err != nil {
		return nil, err
	}
	v.mu.Lock()
	w, requests, held := v.wire, v.requests, v.held
	v.mu.Unlock()
	if w == nil {
		return nil, errors.New("the view has ended and the next one starts: repeat the request")
	}
	if held == nil {
		return func() {}, nil
	}
	thaw = func() {
		_ = v.freeze(context.Background(), w, requests, false) // a view that has ended is not frozen
	}
	if err := v.freeze(ctx, w, requests, true); err != nil {
		thaw()
		return nil, fmt.Errorf("keep the view of %q from changing what is held: %w", v.def.Name, err)
	}
	return thaw, nil
}

// freeze sends the view that it is frozen, or not any more, and waits for its answer: to the latter for ackTime.
func (v *View) freeze(ctx context.Context, w *wire.Conn, requests *peer.Requests[wire.FromView], frozen bool) error {
	if !frozen {
		var end context.CancelFunc
		ctx, end = context.WithTimeout(ctx, ackTime)
		defer end()
	}
	call, err := requests.Begin(ctx)
	if err != nil {
		return err
	}
	defer call.End()
	if err := w.Send(wire.ToView{ID: call.ID, Freeze: &frozen}); err != nil {
		return err
	}
	_, err = call.Wait(ctx, func() {}, 0)
	return err
}

// sharedLock is a descriptor of the lock of what a view holds; nil: there is none.
type sharedLock struct{ beneath.File }

func (l *sharedLock) close() {
	if l != nil {
		l.Close()
	}
}

// shareHold returns the lock of what the view holds, which keeps the next view from it; nil: it holds nothing, or there is no view.
func (v *View) shareHold() (*sharedLock, error) {
	if v == nil {
		return nil, nil
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.held == nil {
		return nil, nil
	}
	used, err := v.held.used.Dup()
	return &sharedLock{used}, err
}

// Waits reports whether the view holds files or removals, for the operator to take over.
func (v *View) Waits() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	left := maxWaits
	return v.held != nil && waits(v.held.dir, hold.UpperName, &left)
}

// maxWaits bounds the directories that Waits reads.
const maxWaits = 1000

func waits(root *beneath.Root, dir string, left *int) (found bool) {
	_ = root.Each(dir, func(name string) bool {
		at := beneath.Join(dir, name)
		st, err := root.Stat(at)
		*left--
		found = err == nil && (*left < 0 || !st.IsDir() || waits(root, at, left))
		return !found
	})
	return found
}

// lockFile returns the lock of what the view holds; nil: none.
func (h *heldDir) lockFile() *beneath.File {
	if h == nil {
		return nil
	}
	return &h.used
}

// closeHold closes what openHold has opened. A view that is left to the next daemon keeps its part.
func (v *View) closeHold(h *heldDir) {
	v.mu.Lock()
	v.held = nil
	v.mu.Unlock()
	if h != nil && v.isLeaving() {
		h.history.claim.Leave()
	}
	h.Close()
}

// Unfinished reports whether a commit of what the view holds was interrupted.
func (v *View) Unfinished() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.held != nil && errors.Is(idle(v.held.dir), errUnfinished)
}

// StartHeld starts an Offline that answers about what a view holds, and decides by rules. live is the agent's view; nil: there is
// none.
func StartHeld(host *Host, of Agent, def *agents.Definition, rules scope.PolicySpec, live *View) (*Offline, error) {
	v := &View{host: host, of: of, def: def, hurry: make(chan struct{}), changed: make(chan struct{}), rules: rules,
		changes: agents.ChangesHeld, byRule: def.View.Changes != agents.ChangesHeld}
	shares, err := live.shareHold()
	if err != nil {
		return nil, err
	}
	v.shares = shares != nil
	o, err := v.offline()
	if err != nil {
		shares.close()
		return nil, fmt.Errorf("held changes of %q: %w", def.Name, err)
	}
	end := o.close
	o.close = func() {
		end()
		shares.close()
	}
	return o, nil
}
