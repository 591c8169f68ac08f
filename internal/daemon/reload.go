package daemon

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/internal/agent"
	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/internal/fields"
	"github.com/scopefs/scopefs/scope"
)

// The outcomes of a reload.
const (
	reloadRules   = "new rules hold"
	reloadMounted = "mounted"
	reloadRemount = "waits for scopefs down and up" // more than its rules has changed
	reloadGone    = "definition removed, mounted until scopefs down"
	reloadEnded   = "root removed, and unmounted"
	reloadFailed  = "not loaded"
	reloadKept    = "not loaded, the last good definition holds"
	reloadWarning = "warning" // it loads, and is not as it says
	reloadHost    = "has changed: restart the daemon for that"
)

const settleTime = 100 * time.Millisecond // of quiet, after a change in agents.d

// Reload reads the definitions again. When it returns, every mounted view
// decides by its new rules, the kernel has forgotten what it knew by the old
// ones, and agents that are new are mounted. A definition that does not load changes
// nothing.
func (d *Daemon) Reload(ctx context.Context) []api.Reloaded {
	d.reloads.RLock()
	all := d.reload(ctx)
	d.reloads.RUnlock()
	d.reloads.Lock() // another reload may have seen the new agents first, and mount them
	defer d.reloads.Unlock()
	return all
}

func (d *Daemon) reload(ctx context.Context) []api.Reloaded {
	all, added := d.reloadRules()
	var mu sync.Mutex
	expected := d.expect(added)
	d.openExpected(expected)
	d.mountExpected(ctx, expected, func(id scope.ID, err error) {
		outcome := reloadMounted
		if err != nil {
			outcome = "not mounted"
		}
		r := d.recordReload(d.agent(id), outcome, err)
		mu.Lock()
		defer mu.Unlock()
		all = append(all, r)
	})
	slices.SortFunc(all, func(a, b api.Reloaded) int { return strings.Compare(string(a.Agent), string(b.Agent)) })
	return all
}

// reloadRules is Reload for agents that are mounted. It returns those that are not and
// never were.
func (d *Daemon) reloadRules() (all []api.Reloaded, added []scope.ID) {
	d.reloading.Lock()
	defer d.reloading.Unlock()
	d.Refresh("")
	now := d.loaded.Load()
	all = append(all, d.settingsChanged()...)
	for _, err := range now.Warnings {
		all = append(all, api.Reloaded{Agent: fields.AgentOf(err), Outcome: reloadWarning, Warning: err.Error()})
	}
	for _, err := range now.failed {
		r := api.Reloaded{Agent: fields.AgentOf(err), Outcome: reloadKept, Error: err.Error()}
		if _, file := errors.AsType[*fields.FileError](err); file && now.Agents[r.Agent] == nil {
			r.Outcome = reloadFailed
		}
		all = append(all, r)
	}
	var mu sync.Mutex
	var changed []api.Reloaded
	each(d.all(), func(a *agent.Agent) { // side by side: a view that is stuck delays no other
		def := now.Agents[a.ID()]
		if def == nil || d.only != "" && d.only != a.ID() {
			return
		}
		change, err := a.Reload(def)
		if change == agent.Added {
			mu.Lock()
			defer mu.Unlock()
			added = append(added, a.ID())
			return
		}
		if outcome := outcomes[change]; outcome != "" {
			r := d.recordReload(a, outcome, err)
			mu.Lock()
			defer mu.Unlock()
			changed = append(changed, r)
		}
	})
	d.RuleTasks()
	for _, a := range d.all() {
		if now.Agents[a.ID()] != nil || a.MountPoint() == "" {
			continue
		}
		if now.Agents[a.RootOf()] != nil { // its sandboxes end, too
			_ = a.EndRoot(context.Background(), true)
			all = append(all, api.Reloaded{Agent: a.ID(), Outcome: reloadEnded})
		} else {
			all = append(all, api.Reloaded{Agent: a.ID(), Outcome: reloadGone + d.homeLeft(a.ID())})
		}
	}
	slices.Sort(added)
	return slices.Concat(changed, all), added
}

// homeLeft says where HOME stays of an agent without a definition.
func (d *Daemon) homeLeft(id scope.ID) string {
	if _, err := os.Lstat(d.Paths.Home(id)); err != nil {
		return ""
	}
	return "; its HOME stays in " + d.Paths.Home(id)
}

// outcomes are those of the changes that a reload lists.
var outcomes = map[agent.Change]string{agent.NewRules: reloadRules, agent.Restarted: "view restarted",
	agent.Remount: reloadRemount, agent.Remounted: reloadMounted}

// settingsChanged reports a scopefs.yaml that is not the one the daemon started with.
func (d *Daemon) settingsChanged() []api.Reloaded {
	now, err := config.Load(d.Paths, hostChecks())
	switch {
	case err != nil:
		return []api.Reloaded{{Outcome: reloadKept, Error: err.Error()}}
	case !now.Equal(d.Settings):
		return []api.Reloaded{{File: "scopefs.yaml", Outcome: reloadHost, Restart: true}}
	}
	return nil
}

func (d *Daemon) recordReload(a *agent.Agent, outcome string, err error) api.Reloaded {
	r := api.Reloaded{Agent: a.ID(), Outcome: outcome}
	if outcome == reloadRemount {
		r.Waits = a.Pending()
		r.Outcome += ": " + strings.Join(r.Waits, ", ")
	}
	e := audit.Event{Event: audit.KindAgent, Agent: string(r.Agent), Outcome: outcome}
	if err != nil {
		r.Error, e.Detail = err.Error(), err.Error()
	}
	d.Event(e)
	return r
}
