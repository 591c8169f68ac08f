package daemon

import (
	"cmp"
	"context"
	"fmt"
	"net/http"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/internal/agent"
	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/agents"
)

// flagged are flags that hold for an agent, and how many commands have them.
type flagged struct {
	agents.Flags
	commands int
	defined  agents.Changes // by the definition, when the first of them began
}

// holdFlags has flags hold for an agent and its branches until the client ends the request. It answers when they do.
func (d *Daemon) holdFlags(w http.ResponseWriter, r *http.Request, a *agent.Agent) (any, error) {
	var flags agents.Flags
	if err := body(r, &flags); err != nil {
		return nil, err
	}
	if err := flags.Check(); err != nil {
		return nil, invalid("%v", err)
	}
	if flags == (agents.Flags{}) { // of a command that shares the daemon of another one
		return nil, untilGone(w, r)
	}
	uid, _ := api.PeerOf(r.Context())
	e := audit.Event{Event: audit.KindAgent, Agent: string(a.ID()), Outcome: "flags hold", Detail: flags.String(), UID: &uid}
	if err := d.Record(r.Context(), e); err != nil {
		return nil, err
	}
	defer func() {
		e.Outcome = "flags end"
		d.Event(e)
	}()
	if err := d.flag(a, flags); err != nil {
		return nil, err
	}
	defer d.unflag(a, flags)
	if err := d.redefine(r.Context(), a, flags); err != nil {
		return nil, fmt.Errorf("%s: %w", flags, err)
	}
	return nil, untilGone(w, r)
}

// untilGone answers, and returns when the client ends the request.
func untilGone(w http.ResponseWriter, r *http.Request) error {
	if reply(w, struct{}{}) == nil { // else the client has gone
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}
	return nil
}

// flag has flags hold for the definitions that are read from now on. Other flags of another command stay, and what other sessions
// may do does not grow.
func (d *Daemon) flag(a *agent.Agent, flags agents.Flags) error {
	def, err := a.Definition()
	if err != nil {
		return err
	}
	if _, err := flags.Of(def.Definition); err != nil {
		return err
	}
	d.loading.Lock()
	defer d.loading.Unlock()
	now := d.flags[a.ID()]
	if now.commands > 0 && now.Flags != flags {
		return &api.Error{Kind: api.Conflict, Text: fmt.Sprintf("%s: another command has %s for %s: wait for its end", flags, now.Flags, a.ID())}
	}
	if now.commands == 0 && flags.ShowSecrets {
		for _, of := range d.all() {
			if err := of.Used(); err != nil && d.flagsReach(a.ID(), of.ID()) {
				return &api.Error{Kind: api.Conflict, Text: fmt.Sprintf("%s: the view of %s is in use: %v", flags, of.ID(), err)}
			}
		}
	}
	if now.commands == 0 {
		now.defined = def.View.Changes
	}
	d.flags[a.ID()] = flagged{flags, now.commands + 1, now.defined}
	return nil
}

// unkept returns an error for a run with or without a flag for changes, if a flag of another command has the view keep nothing, and the
// definition does not say so: what the run destroys would be lost, which nobody has chosen for it.
func (d *Daemon) unkept(id scope.ID, changes string) error {
	d.loading.Lock()
	now := d.flags[id]
	d.loading.Unlock()
	if now.commands == 0 || now.Changes != "direct" || now.defined == agents.ChangesDirect || changes == "direct" {
		return nil
	}
	return &api.Error{Kind: api.Conflict, Text: fmt.Sprintf("another command has %s for %s, and this one would keep nothing: "+
		"wait for its end, or give --changes direct or held", now.Flags, id)}
}

// flagsReach reports whether flags of an agent hold for another one: itself, a branch of it, or a root of these.
func (d *Daemon) flagsReach(id, other scope.ID) bool {
	def := d.Definitions()[other]
	return id == other || def != nil && (def.Branch == id || def.RootOf != "" && d.flagsReach(id, def.RootOf))
}

// unflag ends what flag began. A view that somebody else uses stays mounted by the flags until nobody does.
func (d *Daemon) unflag(a *agent.Agent, flags agents.Flags) {
	d.loading.Lock()
	now := d.flags[a.ID()]
	now.commands--
	d.flags[a.ID()] = now
	if now.commands == 0 {
		delete(d.flags, a.ID())
	}
	d.loading.Unlock()
	select {
	case <-d.runs.over: // the next daemon has no flags
		return
	default:
	}
	if now.commands > 0 {
		return
	}
	if err := d.redefine(context.Background(), a, flags); err != nil {
		d.Logger.Info("the view stays mounted by flags that ended until nobody uses it", "agent", a.ID(), "flags", flags.String(), "err", err)
		a.RemountUnused()
	}
}

// redefine makes the views of an agent and its branches follow the definitions by the flags that hold now. flags are those that changed.
// A view that cannot follow keeps no other from it; the error is the first one's.
func (d *Daemon) redefine(ctx context.Context, a *agent.Agent, flags agents.Flags) error {
	d.Refresh(a.ID())
	var keys []string
	if flags.Changes != "" {
		keys = []string{"view.changes"}
	}
	var failed error
	for _, of := range d.all() {
		if !d.flagsReach(a.ID(), of.ID()) {
			continue
		}
		change, err := of.Redefine(ctx, keys)
		if outcome := outcomes[change]; outcome != "" {
			d.recordReload(of, outcome, nil)
		}
		failed = cmp.Or(failed, err)
	}
	return failed
}
