package daemon

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/fields"
	"github.com/scopefs/scopefs/internal/session"
	"github.com/scopefs/scopefs/internal/state"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/activities"
	"github.com/scopefs/scopefs/scope/agents"
)

// loaded are the definitions that hold, and why others do not.
type loaded struct {
	*agents.Snapshot
	activities activities.Set
	failed     []error
	flags      map[scope.ID]agents.Flags
}

// Activities returns the calls that the operator has declared.
func (d *Daemon) Activities() activities.Set { return d.loaded.Load().activities }

// Definitions returns the definitions that hold.
func (d *Daemon) Definitions() map[scope.ID]*agents.Agent { return d.loaded.Load().Agents }

// Definition returns what an agent is and may do now, or why there is none.
func (d *Daemon) Definition(id scope.ID) (*agents.Agent, error) {
	now := d.loaded.Load()
	if def := now.Agents[id]; def != nil {
		return def, nil
	}
	var own []error
	for _, err := range now.failed {
		failed, ok := errors.AsType[*fields.FileError](err)
		if !ok || failed.Agent == id { // agents.d itself, or the agent
			own = append(own, err)
		}
	}
	if own != nil {
		return nil, &api.NotLoadedError{Err: errors.Join(own...)}
	}
	var names []string
	for name := range now.Agents {
		names = append(names, string(name))
	}
	return nil, api.Unknown(id, names, filepath.Join(d.Paths.Base, "agents.d", string(id)+".md"))
}

// Refresh reads the definitions if that of an agent may have changed; "" is all. A client that starts waits for d.loading,
// so the changes are recorded, and what runs is ended, after that is released. A definition that does not load any more
// stays as it was.
func (d *Daemon) Refresh(id scope.ID) {
	if was, now := d.replace(id); now != nil {
		d.replaced(was, now)
	}
}

// replaced is the effects of replace on what runs.
func (d *Daemon) replaced(was, now *loaded) {
	for _, err := range added(was.failed, now.failed) {
		d.Logger.Error("definition", "err", err)
		d.Event(audit.Event{Event: audit.KindAgent, Agent: string(fields.AgentOf(err)), Outcome: "not loaded", Detail: err.Error()})
	}
	for _, err := range added(was.Warnings, now.Warnings) {
		d.Logger.Warn("definition", "err", err)
	}
	redeclared := !now.activities.Equal(was.activities)
	ids := regranted(was.Snapshot, now.Snapshot)
	for _, a := range d.all() {
		if redeclared {
			a.DeclareActivities()
		}
		a.RefreshClients(ids)
	}
	d.Approvals.Recheck(ids, func(id scope.ID) string {
		if def := d.Definitions()[id]; def != nil {
			return def.Grants.Version()
		}
		return ""
	})
}

// replace is Refresh without its effects on what runs, and without the log. now is nil if the last definitions are current.
func (d *Daemon) replace(id scope.ID) (was, now *loaded) {
	d.loading.Lock()
	defer d.loading.Unlock()
	was = d.loaded.Load()
	last := was.Snapshot
	activities, wrong := was.activities.Reload(d.Paths.Base, d.Settings.Tools, session.CheckActivity)
	flags := map[scope.ID]agents.Flags{}
	for id, f := range d.flags {
		flags[id] = f.Flags
	}
	if id != "" && maps.Equal(flags, was.flags) && activities.Equal(was.activities) && last.Current(d.Paths.Base, id) {
		return was, nil
	}
	host := d.Settings.Host
	host.Tools, host.Flags = slices.Concat(host.Tools, activities.Tools()), flags
	host.Lent = state.Lent(d.Paths.State)
	next, errs := last.Reload(d.Paths.Base, host)
	errs = append(errs, wrong...)
	d.register(next) // before anybody can find a definition without its agent
	now = &loaded{next, activities, errs, flags}
	d.loaded.Store(now)
	d.Views.Quotas.Define(next.Agents)
	if len(d.Views.Quotas.Limited()) > 0 {
		d.bounded.Do(func() { close(d.limited) })
	}
	if seen := next.Seen(); !maps.Equal(seen, last.Seen()) {
		if err := state.KeepSeen(d.Paths.State, seen); err != nil {
			d.Logger.Error("what has loaded is not kept for the next daemon", "err", err)
		}
	}
	return was, now
}

// added returns the errors that are in the new list and not in the old one.
func added(before, now []error) []error {
	return slices.DeleteFunc(slices.Clone(now), func(err error) bool {
		return slices.ContainsFunc(before, func(old error) bool { return old.Error() == err.Error() })
	})
}

// regranted returns the agents that have come, gone or got other grants, which
// cover their network, sorted.
func regranted(last, next *agents.Snapshot) (ids []scope.ID) {
	for id, agent := range next.Agents {
		if old := last.Agents[id]; old == nil || old != agent && !old.Grants.Equal(agent.Grants) {
			ids = append(ids, id)
		}
	}
	for id := range last.Agents {
		if next.Agents[id] == nil {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// watcher watches the files below the base directory that define agents, and those of the user's settings.
type watcher struct {
	*fsnotify.Watcher
	base string
	user string // "": none
}

// followed are the directories of definitions.
var followed = []string{"agents.d", "extensions.d", "presets.d", "protect.d", "skills", "activities.d"}

// follow watches a directory, and of skills and extensions each one's own. It is an error that
// there is none only for agents.d.
func (w watcher) follow(name string) error {
	dir := filepath.Join(w.base, name)
	_ = w.Remove(dir)
	err := w.Add(dir)
	switch {
	case name == "agents.d":
		return err
	case errors.Is(err, os.ErrNotExist):
		return nil
	case err != nil:
		return err
	}
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		if e.IsDir() {
			err = errors.Join(err, w.Add(filepath.Join(dir, e.Name())))
		}
	}
	return err
}

// followUser watches the user's settings, and the nearest directory above them, where they may be made or replaced.
func (w watcher) followUser() {
	again := func(dir string) error {
		_ = w.Remove(dir)
		return w.Add(dir)
	}
	below := []string{filepath.Join(w.user, "agents.d"), filepath.Join(w.user, "protect.d"), filepath.Join(w.user, "presets.d"), w.user}
	for at := filepath.Dir(w.user); again(at) != nil && at != "/"; at = filepath.Dir(at) {
		below = append(below, at)
	}
	for _, dir := range slices.Backward(below) { // those above first, so that what is made meanwhile is seen
		_ = again(dir) // fails while there is none
	}
}

// meansUser is means for the user's settings.
func (w watcher) meansUser(name string) bool {
	if w.user == "" || !strings.HasPrefix(name, w.user+"/") && !strings.HasPrefix(w.user+"/", name+"/") {
		return false
	}
	if filepath.Ext(name) != ".yaml" { // a directory
		w.followUser()
	}
	return true
}

// followMore watches what extensions bring, which only a snapshot knows.
func (w watcher) followMore(all *agents.Snapshot) {
	for _, dir := range all.Directories() {
		_ = w.Add(filepath.Join(w.base, dir)) // one that is gone is seen in its parent
	}
}

// means reports whether an event is about definitions, and follows what has come.
func (w watcher) means(e fsnotify.Event) bool {
	rel, err := filepath.Rel(w.base, e.Name)
	if err != nil || !filepath.IsLocal(rel) {
		return w.meansUser(e.Name)
	}
	switch dir, name := filepath.Split(rel); {
	case dir == "" && slices.Contains(followed, name):
		_ = w.follow(name) // fails while there is none
		return true
	case dir == "skills/", dir == "extensions.d/":
		_ = w.follow(dir)
		return true
	case dir == "agents.d/":
		return filepath.Ext(name) == ".md" || filepath.Ext(name) == ".yaml"
	case dir == "presets.d/", dir == "protect.d/":
		return filepath.Ext(name) == ".yaml"
	case dir == "activities.d/", strings.HasPrefix(dir, "extensions.d/"), rel == "scopefs.yaml":
		return true
	default:
		return name == "SKILL.md"
	}
}

// watch reloads when definitions have changed and are left alone for a moment.
func (d *Daemon) watch(ctx context.Context) {
	files, err := fsnotify.NewWatcher()
	w := watcher{files, d.Paths.Base, d.Paths.User}
	if err == nil {
		defer w.Close()
		// The base as well: each of them may be replaced as a whole.
		err = w.Add(w.base)
		for _, name := range followed {
			err = errors.Join(err, w.follow(name))
		}
		if w.user != "" {
			w.followUser()
		}
	}
	if err != nil {
		d.Logger.Warn("definitions are not watched: use scopefs reload", "err", err)
		return
	}
	settle := time.NewTimer(settleTime) // once at first: what has changed before we watched
	for {
		select {
		case <-ctx.Done():
			return
		case e, ok := <-w.Events:
			if !ok {
				return
			}
			if w.means(e) {
				settle.Reset(settleTime)
			}
		case err := <-w.Errors:
			d.Logger.Warn("watching definitions", "err", err)
			settle.Reset(settleTime)
		case <-settle.C:
			leave, err := d.Enter()
			if err != nil {
				return
			}
			for _, r := range d.Reload(ctx) {
				if r.File != "" {
					d.Logger.Warn(r.File + ": " + r.Outcome)
					continue
				}
				d.Logger.Info("reload", "agent", r.Agent, "outcome", r.Outcome, "err", r.Error)
			}
			w.followMore(d.loaded.Load().Snapshot)
			leave()
		}
	}
}
