package agent

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/view"
	"github.com/scopefs/scopefs/scope/agents"
)

// Redefine makes the agent's view follow the definition that is loaded, for flags that began or ended. Rules hold at once. If one of
// the keys needs another mount and nobody uses the view, Redefine mounts the view again; otherwise the error says who uses it.
func (a *Agent) Redefine(ctx context.Context, keys []string) (Change, error) {
	free, err := a.take(ctx) // one after the other, each by the definition of then
	if err != nil {
		return Unchanged, err
	}
	defer free()
	def, err := a.Definition()
	if err != nil {
		return Unchanged, err
	}
	change, err := a.Reload(def)
	if err != nil {
		return change, err
	}
	a.mu.Lock()
	v, failure := a.view, a.failure
	a.mu.Unlock()
	if v == nil && failure != nil { // perhaps by the definition of an earlier Redefine
		free()
		return a.remount(ctx, "")
	}
	if v == nil {
		return change, nil
	}
	wait := slices.DeleteFunc(waiting(v, def.Definition), func(key string) bool {
		return !slices.Contains(keys, key) || key == changesKey && v.Honours(def.View.Changes)
	})
	if len(wait) == 0 {
		return change, nil
	}
	if err := v.EndUnused(a.used); err != nil {
		return change, &api.Error{Kind: api.Conflict,
			Text: fmt.Sprintf("the view of %s is mounted with %s, and in use: %v; or scopefs down %s ends all of it",
				a.ID(), mountedWith(v, wait), err, a.ID())}
	}
	a.drop(v, "for "+strings.Join(wait, ", "))
	free()
	return a.remount(ctx, v.At())
}

// drop ends a view that EndUnused has unmounted, to mount it again. The caller has the agent's turn.
func (a *Agent) drop(v *view.View, why string) {
	a.down(v)
	a.mu.Lock()
	a.view = nil
	a.mu.Unlock()
	a.Event(audit.Event{Event: audit.KindView, Agent: string(a.ID()), Outcome: "unmounted", Path: v.At(), Detail: why})
}

// remount mounts the view although the client leaves meanwhile: others had it.
func (a *Agent) remount(ctx context.Context, at string) (Change, error) {
	if _, err := a.mount(context.WithoutCancel(ctx), at, true); err != nil {
		return Unchanged, err
	}
	return Remounted, nil
}

// Honours returns an error if the view, which a session uses, does not treat changes so. Another command may have mounted it
// again since Redefine. changes are those of a flag; "" is nothing.
func (a *Agent) Honours(changes string) error {
	kind := agents.Changes(changes)
	if changes == direct {
		kind = agents.ChangesDirect
	}
	v := a.currentView()
	if changes == "" || v != nil && v.Honours(kind) {
		return nil
	}
	text := fmt.Sprintf("--changes %s: the view of %s is unmounted by now", changes, a.ID())
	if v != nil {
		text = fmt.Sprintf("--changes %s: the view of %s is mounted with %s by now", changes, a.ID(), mountedWith(v, []string{changesKey}))
	}
	return &api.Error{Kind: api.Conflict, Text: text + ": another command has changed it: start this one again"}
}

const (
	changesKey = "view.changes"
	direct     = "direct" // as a definition writes agents.ChangesDirect
)

// mountedWith says how a view was mounted, for people.
func mountedWith(v *view.View, keys []string) string {
	if !slices.Contains(keys, changesKey) {
		return "other " + strings.Join(keys, ", ")
	}
	changes := v.Definition().View.Changes
	if changes == agents.ChangesDirect {
		changes = direct
	}
	return fmt.Sprintf("changes: %s", changes)
}

// RemountUnused has the next client mount the view again, if nobody uses it then.
func (a *Agent) RemountUnused() { a.remounts.Store(true) }

// unused ends a view that is mounted by flags that ended, if nobody uses it: the next view is as it should be. The caller has the
// agent's turn.
func (a *Agent) unused(v *view.View) bool {
	if !a.remounts.Load() || v.EndUnused(a.used) != nil {
		return false
	}
	a.remounts.Store(false)
	a.drop(v, "for flags that ended")
	return true
}

// used is Used for the view, which a session of another agent may have as a root.
func (a *Agent) used() error {
	if box := a.RootUsed(); box != nil {
		return fmt.Errorf("the sandbox %s has it: end it with scopefs kill %[1]s", box.Name)
	}
	return a.Used()
}

// Used returns an error that names a session of the agent. The MCP servers of the agent start again with their next client.
func (a *Agent) Used() error {
	for _, s := range a.Sessions() {
		if s.Kind == api.ServerSession {
			continue
		}
		what := string(s.Kind)
		if s.Command != "" {
			what += " " + s.Command
		}
		return fmt.Errorf("session %s (%s) has it since %s: end it with scopefs kill %s", s.ID, what, s.Since.Local().Format(time.DateTime), s.ID)
	}
	return nil
}
