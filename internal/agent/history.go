package agent

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/fs/history"
	"github.com/scopefs/scopefs/fs/history/query"
	"github.com/scopefs/scopefs/internal/ledger"
	"github.com/scopefs/scopefs/internal/view"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/agents"
)

// HistoryFor answers an operator's request about the agent's history, and records what it changes.
func (a *Agent) HistoryFor(ctx context.Context, operator uint32, request json.RawMessage) (json.RawMessage, error) {
	return ledger.RecordHistory(ctx, a, request, audit.Event{Agent: string(a.ID()), UID: &operator}, a.history)
}

// history answers a request about the agent's history: see session.Agent.
func (a *Agent) history(ctx context.Context, request json.RawMessage) (json.RawMessage, error) {
	answer, err := a.answer(ctx, request)
	var r query.Request
	if def, no := a.Definition(); no == nil && json.Unmarshal(request, &r) == nil && (r.Undo != nil || r.Commit != nil || r.Discard != nil) {
		a.shared.Views.Quotas.Recount(cmp.Or(def.Branch, a.ID())) // they change files beside the view's requests
	}
	return answer, err
}

// Unkept returns a note for the operator if changes that are to be kept where they can be are not; else "".
func (a *Agent) Unkept() string {
	v := a.currentView()
	if v == nil {
		return ""
	}
	if why := v.Unheld(); why != "" {
		return fmt.Sprintf("what is to be held of %s is read-only: %s", a.ID(), why)
	}
	if v.Unkept() == "" {
		return ""
	}
	return fmt.Sprintf("changes of %s are not kept: %s (--changes direct leaves this line out)", a.ID(), v.Unkept())
}

// Waiting returns a note for the operator if something that a rule holds waits for a commit; else "". Of a view that holds all changes the
// effects of a command say it.
func (a *Agent) Waiting() string {
	v := a.currentView()
	if v == nil || v.Definition().View.Changes == agents.ChangesHeld || !v.Waits() {
		return ""
	}
	return fmt.Sprintf("changes of %s are held: scopefs diff, commit or discard", v.Definition().HomeID())
}

// answer has a request about the agent's history answered: by the view, else by a process without a mount. Meanwhile the
// agent is not mounted, unless the request is about held changes, and not about their history: then such a process answers beside the view. A view holds
// what the definition said that it was mounted with; the rules are those of now.
func (a *Agent) answer(ctx context.Context, request json.RawMessage) (json.RawMessage, error) {
	var r query.Request
	if err := json.Unmarshal(request, &r); err != nil {
		return nil, fmt.Errorf("request: %w", err)
	}
	v := a.currentView()
	var def *agents.Definition
	if v != nil {
		def = v.Definition()
		r.Held = r.Held || (r.Diff != nil || r.Commit != nil || r.Discard != nil) && def.View.PolicySpec().Holds()
		if !r.Held && (def.View.Changes != agents.ChangesHeld || !a.ofBranch(&r)) {
			return v.History(ctx, request)
		}
	}
	now, err := a.Definition()
	if err != nil {
		return nil, err
	}
	if v == nil {
		def = now.Definition
	}
	o, err := a.enterOffline(ctx, v, def, now.Definition, r.Held || def.View.Changes == agents.ChangesHeld)
	if err != nil {
		return nil, err
	}
	if o.process == nil { // it is mounted now
		a.leaveOffline(o, true)
		if v := a.currentView(); v != nil {
			return v.History(ctx, request)
		}
		return nil, errors.New("the agent is being unmounted: repeat the request")
	}
	thaw := func() {}
	if o.held && (r.Discard != nil || r.Commit != nil && !r.Commit.Check) {
		thaw, err = a.freeze(ctx, v, def)
	}
	if err != nil {
		a.leaveOffline(o, false)
		return nil, err
	}
	answer, err := o.process.History(ctx, request)
	a.leaveOffline(o, err != nil || taken(&r, answer))
	if err == nil {
		thaw()
		return answer, nil
	}
	go func() { // the process may still be at it
		<-o.gone
		thaw()
	}()
	return nil, err
}

// ofBranch reports whether a request about held changes is not about their history, which the view has.
func (a *Agent) ofBranch(r *query.Request) bool {
	ofFile := func(v history.Version) bool { return v.Generation == "" || v.Generation == history.Base }
	a.mu.Lock()
	defer a.mu.Unlock()
	return r.Diff != nil || r.Commit != nil || r.Discard != nil ||
		r.Read != nil && ofFile(*r.Read) || len(r.Reads) > 0 && ofFile(r.Reads[0]) ||
		(r.Progress || r.Cancel) && a.offline != nil
}

// taken reports whether a commit or discard is over: nobody needs its process any more.
func taken(r *query.Request, answer json.RawMessage) bool {
	var reply query.Reply
	return r.Discard != nil || r.Commit != nil && !r.Commit.Check &&
		(json.Unmarshal(answer, &reply) != nil || int(r.Offset)+len(reply.Entries) >= reply.Total)
}

// freeze keeps the agent's view from changing what is held, until thaw is called. def is that of meant, the view of the request; nil: there
// was none. A view with another definition has another hold.
func (a *Agent) freeze(ctx context.Context, meant *view.View, def *agents.Definition) (thaw func(), err error) {
	v := a.currentView()
	if v != meant && (v == nil || v.Definition() != def) {
		return nil, errors.New("the view was replaced meanwhile: repeat the request")
	}
	if v == nil {
		return func() {}, nil
	}
	select {
	case a.freezing <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	end, err := v.Freeze(ctx)
	if err != nil {
		<-a.freezing
		return nil, err
	}
	return func() {
		end()
		<-a.freezing
	}, nil
}

// offline is the process that answers requests about the history of an agent without a view. It has the agent's turn.
type offline struct {
	started chan struct{} // closed when the fields below are set
	gone    chan struct{} // closed when the process has ended
	def     *agents.Definition
	now     *agents.Definition // by whose rules it decides
	held    bool               // it answers about what rules hold
	process *view.Offline      // nil: the agent has a view
	err     error
	free    func()

	// Guarded by Agent.mu.
	users int  // requests under way
	uses  int  // requests so far
	hurry bool // it ends with the last request; else offlineTime later
	ends  bool // it is ending
}

// offlineTime is how long the process waits for another request.
const offlineTime = time.Second

// enterOffline returns the process that answers requests. It starts one if there is none. The caller calls leaveOffline.
// A process that has other rules ends first: requests must not keep it alive.
func (a *Agent) enterOffline(ctx context.Context, v *view.View, def, now *agents.Definition, held bool) (*offline, error) {
	a.mu.Lock()
	o := a.offline
	for o != nil && (o.def != def || o.now != now || o.held != held || o.ends) {
		o.hurry = true
		uses := o.uses
		a.mu.Unlock()
		a.endOffline(o, uses)
		select {
		case <-o.gone:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		a.mu.Lock()
		o = a.offline
	}
	starts := o == nil
	if starts {
		o = &offline{started: make(chan struct{}), gone: make(chan struct{}), def: def, now: now, held: held}
		a.offline = o
	}
	o.users++
	o.uses++
	a.mu.Unlock()
	if starts {
		o.process, o.free, o.err = a.startOffline(ctx, v, def, now.View.PolicySpec(), held)
		close(o.started)
	}
	select {
	case <-o.started:
	case <-ctx.Done():
		a.leaveOffline(o, false)
		return nil, ctx.Err()
	}
	if o.err != nil {
		a.leaveOffline(o, true)
		return nil, o.err
	}
	return o, nil
}

func (a *Agent) startOffline(ctx context.Context, v *view.View, def *agents.Definition, rules scope.PolicySpec,
	held bool) (*view.Offline, func(), error) {
	if held {
		return a.startHeld(ctx, v, def, rules)
	}
	free, err := a.wait(ctx)
	if err != nil {
		return nil, nil, err
	}
	if a.currentView() != nil {
		free()
		return nil, nil, nil
	}
	p, err := view.StartOffline(&a.shared.Views, a, def, rules)
	if err != nil {
		a.dropIdleGroup()
		free()
		return nil, nil, err
	}
	return p, free, nil
}

// startHeld starts a process that answers about what is held, beside the agent's view; without one it has the agent's turn. meant is the
// view of the request: see freeze. The process finishes a commit that a crash has interrupted: no client may change what is held
// meanwhile.
func (a *Agent) startHeld(ctx context.Context, meant *view.View, def *agents.Definition,
	rules scope.PolicySpec) (*view.Offline, func(), error) {
	v, free := a.currentView(), func() {}
	if v == nil {
		var err error
		if free, err = a.wait(ctx); err != nil {
			return nil, nil, err
		}
		if v = a.currentView(); v != nil {
			free()
			free = func() {}
		}
	}
	thaw := func() {}
	var err error
	if v != meant || v != nil && v.Unfinished() {
		thaw, err = a.freeze(ctx, meant, def)
	}
	var p *view.Offline
	if err == nil {
		p, err = view.StartHeld(&a.shared.Views, a, def, rules, v)
	}
	if err == nil && v != nil && v.Unfinished() {
		_, err = p.History(ctx, json.RawMessage(`{"diff": {}, "held": true}`))
	}
	if thaw != nil {
		thaw()
	}
	if err != nil {
		if p != nil {
			p.Close()
		}
		a.dropIdleGroup()
		free()
		return nil, nil, err
	}
	return p, free, nil
}

// leaveOffline ends a request. With hurry the process ends with the last one.
func (a *Agent) leaveOffline(o *offline, hurry bool) {
	a.mu.Lock()
	o.users--
	o.hurry = o.hurry || hurry
	idle, hurry, uses := o.users == 0, o.hurry, o.uses
	a.mu.Unlock()
	switch {
	case idle && hurry:
		a.endOffline(o, uses)
	case idle:
		time.AfterFunc(offlineTime, func() { a.endOffline(o, uses) })
	}
}

// endOffline ends a process that answers no request, unless it has had more than so many.
func (a *Agent) endOffline(o *offline, uses int) {
	a.mu.Lock()
	last := o == a.offline && o.users == 0 && o.uses == uses && !o.ends
	o.ends = o.ends || last
	a.mu.Unlock()
	if !last {
		return
	}
	if o.process != nil {
		o.process.Close()
		a.dropIdleGroup()
		o.free()
	}
	a.mu.Lock()
	a.offline = nil // not before: the next process opens what this one has open
	a.mu.Unlock()
	close(o.gone)
}

// dropIdleGroup is DropGroup of an agent without a view, whose process would be in the group.
func (a *Agent) dropIdleGroup() {
	if a.currentView() == nil {
		a.DropGroup()
	}
}

// hurryOffline has the process of requests about the history end with the last of them, and returns it; nil: there is none.
func (a *Agent) hurryOffline() *offline {
	a.mu.Lock()
	o, uses := a.offline, 0
	if o != nil {
		o.hurry, uses = true, o.uses
	}
	a.mu.Unlock()
	if o != nil {
		a.endOffline(o, uses)
	}
	return o
}
