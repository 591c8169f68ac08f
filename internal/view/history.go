package view

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/scopefs/scopefs/fs/branch"
	"github.com/scopefs/scopefs/internal/account"
	"github.com/scopefs/scopefs/internal/claim"
	"github.com/scopefs/scopefs/internal/heart"
	"github.com/scopefs/scopefs/internal/liveness"
	"github.com/scopefs/scopefs/internal/peer"
	"github.com/scopefs/scopefs/internal/view/wire"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/agents"
	"github.com/scopefs/scopefs/scope/beneath"
	"github.com/scopefs/scopefs/scope/beneath/mounts"
)

// kept is the directory of a history; of a view that keeps nothing it has no Root.
type kept struct {
	*beneath.Root
	claim *claim.Claim // on a shared file system
}

// Close closes the directory, and lets another host use it.
func (k kept) Close() {
	if k.Root != nil {
		k.Root.Close()
	}
	k.claim.Release()
}

// openClaimed opens the directory of the agent's history for this host. On a shared file system two hosts do not use one
// history, whether or not its locks hold on both.
func (v *View) openClaimed(root *beneath.Root, owner account.User) (kept, error) {
	history, err := v.host.OpenHistory(v.def, root, owner)
	if err != nil {
		return kept{}, err
	}
	at, err := v.host.Mounts.FileSystem(history.FD())
	k := kept{Root: history}
	if err == nil && at.Shared {
		name := v.host.Paths.History(v.def.Name, v.def.History.Dir)
		k.claim, err = claim.Take(filepath.Join(filepath.Dir(name), "."+filepath.Base(name)+".host"), v.def.Placement == agents.PlacementOne)
	}
	if err != nil {
		history.Close()
		return kept{}, fmt.Errorf("history of %q: %w", v.def.Name, err)
	}
	return k, nil
}

// openHistory opens the directory of the agent's history if its view keeps or holds changes. root is the scope.
func (v *View) openHistory(root *beneath.Root, owner account.User) (kept, error) {
	changes := v.kind()
	if changes == agents.ChangesDirect {
		return kept{}, nil
	}
	history, err := v.openClaimed(root, owner)
	if changes != agents.ChangesAuto {
		return history, err
	}
	if err == nil {
		var pair mounts.Pair
		if pair, err = mounts.DetachWith(root, history.Root); err == nil {
			pair.Close()
			return history, nil
		}
		history.Close()
		err = fmt.Errorf("history: %w", err)
	}
	v.decide(err.Error())
	return kept{}, nil
}

// kind returns how the view treats changes.
func (v *View) kind() agents.Changes {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.changes
}

// decide ends auto: the view keeps changes, or keeps none for the reason unkept, as long as it is up.
func (v *View) decide(unkept string) {
	if v.kind() != agents.ChangesAuto { // only the goroutine of keep changes it
		return
	}
	changes := agents.ChangesKept
	if unkept != "" {
		changes = agents.ChangesDirect
		v.host.Logger.Warn("changes are not kept", "agent", v.def.Name, "err", unkept)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.changes, v.unkept = changes, unkept
}

// Keeps reports whether a mounted view keeps what changes destroy.
func (v *View) Keeps() bool { return v.kind() == agents.ChangesKept }

// Honours reports whether the view treats changes as a definition says. What auto means was decided when the view was mounted.
func (v *View) Honours(changes agents.Changes) bool {
	kind := v.kind()
	return changes == v.def.View.Changes || changes == kind || changes == agents.ChangesAuto && kind == agents.ChangesKept
}

// Unkept returns why a view with changes: auto keeps nothing; "" if it keeps changes, or is not to.
func (v *View) Unkept() string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.unkept
}

// History has the view answer a request about the agent's history. It waits for a view that is being mounted. An undo may
// take long: the view goes on with it when ctx ends.
func (v *View) History(ctx context.Context, request json.RawMessage) (json.RawMessage, error) {
	if v.def.View.Changes == agents.ChangesDirect {
		return nil, wire.ErrNoHistory
	}
	if err := v.Wait(ctx); err != nil {
		return nil, err
	}
	if why := v.Unkept(); why != "" {
		return nil, errors.New(why)
	}
	v.mu.Lock()
	w, requests := v.wire, v.requests
	v.mu.Unlock()
	if w == nil {
		return nil, errors.New("the view has ended and the next one starts: repeat the request")
	}
	return requestHistory(ctx, w, requests, request)
}

// requestHistory sends a request about the history and waits for the answer.
func requestHistory(ctx context.Context, w *wire.Conn, requests *peer.Requests[wire.FromView],
	request json.RawMessage) (json.RawMessage, error) {
	if len(request) > wire.MaxHistoryRequest {
		return nil, fmt.Errorf("the request has %d bytes: %d at most", len(request), wire.MaxHistoryRequest)
	}
	call, err := requests.Begin(ctx)
	if err != nil {
		return nil, err
	}
	defer call.End()
	if err := w.Send(wire.ToView{ID: call.ID, History: request}); err != nil {
		return nil, err
	}
	reply, err := call.Wait(ctx, func() {}, 0)
	switch {
	case errors.Is(err, peer.ErrStuck):
		return nil, context.Cause(ctx)
	case err != nil:
		return nil, err
	case reply.Failed != "":
		return nil, errors.New(reply.Failed)
	}
	return reply.History, nil
}

// Offline is a process that is confined as a view's and serves no mount. It answers requests about an agent's history. The
// agent must have no view meanwhile: two processes would change one history.
type Offline struct {
	of       Agent
	name     scope.ID
	process  *served
	wire     *wire.Conn
	requests *peer.Requests[wire.FromView]
	alive    context.Context
	end      context.CancelCauseFunc
	left     chan struct{} // closed when nobody reads the process's messages any more
	close    func()        // closes the directories
	dir      *beneath.Root // of held changes; nil: it is about a history
}

// StartOffline starts an Offline of an agent without a view, which decides by rules. The caller calls Close.
func StartOffline(host *Host, of Agent, def *agents.Definition, rules scope.PolicySpec) (*Offline, error) {
	switch def.View.Changes {
	case agents.ChangesDirect:
		return nil, wire.ErrNoHistory
	case agents.ChangesHeld:
		return StartHeld(host, of, def, rules, nil)
	}
	v := &View{host: host, of: of, def: def, hurry: make(chan struct{}), changed: make(chan struct{}), rules: rules,
		changes: agents.ChangesKept} // also of auto: what was kept is there
	o, err := v.offline()
	if err != nil {
		return nil, fmt.Errorf("history of %q: %w", def.Name, err)
	}
	return o, nil
}

// History has the process answer a request.
func (o *Offline) History(ctx context.Context, request json.RawMessage) (json.RawMessage, error) {
	reply, err := requestHistory(ctx, o.wire, o.requests, request)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", o.name, err)
	}
	return reply, nil
}

// Close ends the process. If the agent has no view, the caller drops its control group then.
func (o *Offline) Close() {
	o.end(nil)
	o.process.quit()
	<-o.left
	o.close()
}

// FinishCommit finishes a commit of a branch without a view that a crash has interrupted.
func FinishCommit(host *Host, of Agent, def *agents.Definition) error {
	dir, err := host.FindHistory(def)
	if err != nil {
		return err
	}
	defer dir.Close()
	return (&View{host: host, of: of, def: def}).finishHeld(dir)
}

func (v *View) offline() (*Offline, error) {
	root, owner, err := v.host.OpenScope(v.def)
	if err != nil {
		return nil, err
	}
	if err := v.may(owner); err != nil {
		root.Close()
		return nil, err
	}
	history, err := v.openHistory(root, owner)
	if err != nil {
		root.Close()
		return nil, err
	}
	if v.byRule {
		dir, err := openHoldDir(history.Root, owner)
		if err != nil {
			history.Close()
			root.Close()
			return nil, err
		}
		history.Root.Close()
		history.Root = dir
	}
	dirs := directories{scope: root, history: history.Root}
	var used *beneath.File
	if v.kind() == agents.ChangesHeld && !v.shares {
		var lock beneath.File
		if lock, err = branch.WaitFor(func() (beneath.File, error) { return use(history.Root) }); err == nil {
			used = &lock
			err = makeLayers(root, history.Root, owner)
		}
	}
	closeAll := func() {
		if used != nil {
			_ = used.Unlock() // a process that starts meanwhile would keep it for a moment
			used.Close()
		}
		history.Close()
		root.Close()
	}
	if err != nil {
		closeAll()
		return nil, err
	}
	p, err := v.spawn(dirs, nil, nil, owner, false)
	if err != nil {
		closeAll()
		return nil, err
	}
	alive, end := context.WithCancelCause(context.Background())
	requests := peer.NewRequests[wire.FromView](wire.MaxRequests)
	w := wire.New(bounded{p.wire}, wire.MaxFromView)
	cfg := v.config(history, false)
	if v.byRule || v.shares { // it has none, or the view has it
		cfg.History = nil
	}
	cfg.Offline, cfg.Passthrough, cfg.Watch, cfg.Hold, cfg.Whole = true, false, false, v.kind() == agents.ChangesHeld, cfg.Whole && !v.byRule
	if _, err = v.handshake(p, w, requests, cfg); err != nil {
		p.quit()
		end(nil)
		closeAll()
		return nil, err
	}
	v.of.Limit(v.def, p.pid)
	beats := heart.NewHeart(p.heart)
	go beats.Serve(v.of.Unlocked)
	o := &Offline{of: v.of, name: v.def.Name, process: p, wire: w, requests: requests, alive: alive, end: end,
		left: make(chan struct{}), close: closeAll}
	if cfg.Hold {
		o.dir = history.Root
	}
	go func() {
		defer close(o.left)
		(&channel{View: v, alive: alive, end: end, wire: w, requests: requests}).listen()
		requests.Close(errors.New("the process has ended"))
	}()
	go func() {
		process := liveness.Process{PID: p.pid, Ended: p.ended}
		busy := func() bool { return requests.Waiting() > 0 }
		if err := v.host.Watcher.Watch(alive, process, beats, busy); err != nil { // its user has stopped it, say
			requests.Close(err)
			p.quit()
		}
	}()
	return o, nil
}
