package daemon

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/cmd/scopefs/internal/viewer"
	"github.com/scopefs/scopefs/scope"
)

// Reloaded tells what a reload did with one agent, or why it did nothing.
type Reloaded struct {
	Agent   scope.ID `json:"agent,omitempty"`
	Outcome string   `json:"outcome"` // of the constants below
	Error   string   `json:"error,omitempty"`
}

// The outcomes of a reload; agents of which nothing has changed are not told.
const (
	reloadRules   = "new rules hold"
	reloadMounted = "mounted"
	reloadRemount = "waits for scopefs down and up" // more than its rules has changed
	reloadGone    = "definition removed, mounted until scopefs down"
	reloadFailed  = "not loaded"
	reloadKept    = "not loaded, the last good definition holds"
)

const (
	settleTime = 100 * time.Millisecond // of quiet, after a change in agents.d
	ackTime    = 5 * time.Second        // for a view to take new rules
)

// Reload reads the definitions again. When it returns, every mounted view
// decides by its new rules, and the kernel has forgotten what it knew by the
// old ones. What does not load changes nothing.
func (d *Daemon) Reload(ctx context.Context) []Reloaded {
	d.reloading.Lock()
	defer d.reloading.Unlock()
	d.load()
	d.mu.Lock()
	agents, bad := d.rules.Agents, d.bad
	d.mu.Unlock()
	var all []Reloaded
	for _, err := range bad {
		r := Reloaded{Outcome: reloadKept, Error: err.Error()}
		if def, ok := errors.AsType[*scope.DefinitionError](err); ok {
			r.Agent = def.Agent
			if agents[r.Agent] == nil {
				r.Outcome = reloadFailed
			}
		}
		all = append(all, r)
	}
	for id, agent := range agents {
		if d.only == "" || d.only == id {
			all = append(all, d.reload(ctx, id, agent)...)
		}
	}
	for _, v := range d.allViews() {
		if agents[v.def.Name] == nil {
			all = append(all, Reloaded{Agent: v.def.Name, Outcome: reloadGone})
		}
	}
	slices.SortFunc(all, func(a, b Reloaded) int { return strings.Compare(string(a.Agent), string(b.Agent)) })
	return all
}

// reload has one agent's definition hold. Its grants hold since it was loaded.
func (d *Daemon) reload(ctx context.Context, id scope.ID, agent *scope.Agent) []Reloaded {
	told := func(outcome string, err error) []Reloaded {
		r := Reloaded{Agent: id, Outcome: outcome}
		e := audit.Event{Event: audit.KindAgent, Agent: string(id), Outcome: outcome}
		if err != nil {
			r.Error, e.Detail = err.Error(), err.Error()
		}
		d.event(e)
		return []Reloaded{r}
	}
	d.mu.Lock()
	_, known := d.failed[id]
	granted := d.granted[id] != nil && !d.granted[id].Equal(agent.Grants)
	d.granted[id] = agent.Grants
	d.mu.Unlock()
	v := d.view(id)
	if v == nil {
		if known { // it has been up, or could not be: that is for the operator
			if granted {
				return told(reloadRules, nil)
			}
			return nil
		}
		if _, err := d.Up(ctx, id, ""); err != nil {
			return told("not mounted", err)
		}
		return told(reloadMounted, nil)
	}
	changed, err := v.setRules(agent.View.PolicySpec())
	if err != nil {
		return told("view restarted", err)
	}
	if !sameButRules(v.def, agent.Definition) {
		return told(reloadRemount, nil)
	}
	if changed || granted {
		return told(reloadRules, nil)
	}
	return nil
}

// sameButRules reports whether two definitions differ in the rules at most that
// a view can take while it is mounted, or in what is not the view's, such as its
// grants.
func sameButRules(a, b *scope.Definition) bool {
	x, y := *a, *b
	for _, def := range []*scope.Definition{&x, &y} {
		def.View.Access, def.View.Paths, def.View.Hardlinks = 0, nil, ""
		def.Description, def.Prompt, def.Reach, def.Durable = "", "", scope.Reach{}, nil
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
