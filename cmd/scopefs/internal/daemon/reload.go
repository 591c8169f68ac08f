package daemon

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/cmd/scopefs/internal/config"
	"github.com/scopefs/scopefs/cmd/scopefs/internal/control"
	"github.com/scopefs/scopefs/cmd/scopefs/internal/viewer"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/agents"
)

// The outcomes of a reload.
const (
	reloadRules   = "new rules hold"
	reloadMounted = "mounted"
	reloadRemount = "waits for scopefs down and up" // more than its rules has changed
	reloadGone    = "definition removed, mounted until scopefs down"
	reloadFailed  = "not loaded"
	reloadKept    = "not loaded, the last good definition holds"
	reloadWarning = "warning" // it loads, and is not as it says
	reloadHost    = "has changed: restart the daemon for that"
)

const (
	settleTime = 100 * time.Millisecond // of quiet, after a change in agents.d
	ackTime    = 5 * time.Second        // for a view to take new rules
)

// Reload reads the definitions again. When it returns, every mounted view
// decides by its new rules, the kernel has forgotten what it knew by the old
// ones, and what is new is mounted. What does not load changes nothing.
func (d *Daemon) Reload(ctx context.Context) []control.Reloaded {
	all, added := d.reloadRules()
	var mu sync.Mutex
	d.mountExpected(ctx, d.expect(added), func(id scope.ID, err error) {
		outcome := reloadMounted
		if err != nil {
			outcome = "not mounted"
		}
		r := d.tellReload(id, outcome, err)
		mu.Lock()
		defer mu.Unlock()
		all = append(all, r)
	})
	slices.SortFunc(all, func(a, b control.Reloaded) int { return strings.Compare(string(a.Agent), string(b.Agent)) })
	return all
}

// reloadRules is Reload for what is mounted, and returns what is not and never was.
func (d *Daemon) reloadRules() (all []control.Reloaded, added []scope.ID) {
	d.reloading.Lock()
	defer d.reloading.Unlock()
	d.load()
	d.mu.Lock()
	loaded, warnings, bad := d.rules.Agents, d.rules.Warnings, d.bad
	d.mu.Unlock()
	all = append(all, d.hostChanged()...)
	for _, err := range warnings {
		r := control.Reloaded{Outcome: reloadWarning, Warning: err.Error()}
		if def, ok := errors.AsType[*agents.DefinitionError](err); ok {
			r.Agent = def.Agent
		}
		all = append(all, r)
	}
	for _, err := range bad {
		r := control.Reloaded{Outcome: reloadKept, Error: err.Error()}
		if def, ok := errors.AsType[*agents.DefinitionError](err); ok {
			r.Agent = def.Agent
			if loaded[r.Agent] == nil {
				r.Outcome = reloadFailed
			}
		}
		all = append(all, r)
	}
	changed, added := d.changed(loaded)
	told := make([][]control.Reloaded, len(changed))
	var wg sync.WaitGroup
	for i, c := range changed { // side by side: a view that is stuck keeps nobody else waiting
		wg.Go(func() { told[i] = d.reload(c) })
	}
	wg.Wait()
	for _, v := range d.allViews() {
		if loaded[v.def.Name] == nil {
			all = append(all, control.Reloaded{Agent: v.def.Name, Outcome: reloadGone})
		}
	}
	return slices.Concat(append(told, all)...), added
}

// hostChanged tells when scopefs.yaml is not what the daemon was started with.
func (d *Daemon) hostChanged() []control.Reloaded {
	now, err := config.Load(d.paths, hostChecks())
	switch {
	case err != nil:
		return []control.Reloaded{{Outcome: reloadKept, Error: err.Error()}}
	case !reflect.DeepEqual(now, d.host):
		return []control.Reloaded{{File: "scopefs.yaml", Outcome: reloadHost}}
	}
	return nil
}

// A change is an agent whose definition is another than at the last reload, or
// than its view was started with.
type change struct {
	agent   *agents.Agent
	view    *view // nil: none
	granted bool  // the grants are others
}

// changed finds the changes, and the agents that have no view and never had one.
func (d *Daemon) changed(loaded map[scope.ID]*agents.Agent) (changed []change, added []scope.ID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for id, agent := range loaded {
		if d.only != "" && d.only != id {
			continue
		}
		last, v := d.granted[id], d.views[id]
		d.granted[id] = agent.Grants
		if _, known := d.failed[id]; v == nil && !known {
			added = append(added, id) // one that was taken down, or could not be mounted, is for the operator
		} else if last != agent.Grants || v != nil && v.def != agent.Definition {
			changed = append(changed, change{agent, v, last != nil && !last.Equal(agent.Grants)})
		}
	}
	slices.Sort(added)
	return changed, added
}

func (d *Daemon) tellReload(id scope.ID, outcome string, err error) control.Reloaded {
	r := control.Reloaded{Agent: id, Outcome: outcome}
	e := audit.Event{Event: audit.KindAgent, Agent: string(id), Outcome: outcome}
	if err != nil {
		r.Error, e.Detail = err.Error(), err.Error()
	}
	d.event(e)
	return r
}

// reload has one agent's definition hold. Its grants hold since it was loaded.
func (d *Daemon) reload(c change) []control.Reloaded {
	id, changed := c.agent.Name, false
	if v := c.view; v != nil {
		var err error
		if changed, err = v.setRules(c.agent.View.PolicySpec()); err != nil {
			return []control.Reloaded{d.tellReload(id, "view restarted", err)}
		}
		if !sameButRules(v.def, c.agent.Definition) {
			return []control.Reloaded{d.tellReload(id, reloadRemount, nil)}
		}
	}
	if changed || c.granted {
		return []control.Reloaded{d.tellReload(id, reloadRules, nil)}
	}
	return nil
}

// sameButRules reports whether two definitions differ in the rules at most that
// a view can take while it is mounted, or in what is not the view's, such as its
// grants.
func sameButRules(a, b *agents.Definition) bool {
	x, y := *a, *b
	for _, def := range []*agents.Definition{&x, &y} {
		def.View.Access, def.View.Paths, def.View.Hardlinks = 0, nil, ""
		def.DisplayName, def.Description, def.Prompt, def.Reach, def.Durable = "", "", "", agents.Reach{}, nil
	}
	return reflect.DeepEqual(x, y)
}

// setRules makes the view decide by new rules. It returns when it does: a view
// that does not answer is killed, and the next one has them from the start.
func (v *view) setRules(spec scope.PolicySpec) (changed bool, err error) {
	v.mu.Lock()
	if reflect.DeepEqual(v.rules, spec) {
		v.mu.Unlock()
		return false, nil
	}
	v.rules = spec
	wire, process := v.wire, v.process
	v.ruled++
	id, ack := v.ruled, make(chan string, 1)
	v.acks = map[uint64]chan string{id: ack}
	if wire != nil {
		// The answer comes after denials that wait for their pace: by the same wire,
		// and what they lock the kernel needs to forget.
		close(v.hurry)
		defer v.unhurried()
	}
	v.mu.Unlock()
	if wire == nil {
		return true, nil // it starts with them: see handshake
	}
	if err = wire.Send(viewer.ToView{ID: id, Policy: &spec}); err == nil {
		select {
		case text := <-ack:
			if text == "" {
				return true, nil
			}
			err = errors.New(text)
		case <-time.After(ackTime):
			err = fmt.Errorf("no answer within %v", ackTime)
		}
	}
	_ = process.Kill()
	return true, fmt.Errorf("the view of %q did not take new rules: %w", v.def.Name, err)
}

// unhurried has denials keep their pace again.
func (v *view) unhurried() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.hurry = make(chan struct{})
}

// acked notes that the view decides by the rules of an id.
func (v *view) acked(id uint64, failed string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if ack := v.acks[id]; ack != nil {
		delete(v.acks, id)
		ack <- failed
	}
}
