package daemon

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/scope"
)

// ErrUnknown is the error of an agent that has no definition.
var ErrUnknown = errors.New("unknown agent")

// Agent is what ps tells.
type Agent struct {
	ID        scope.ID `json:"agent"`
	State     string   `json:"state"` // starting, mounted, failed or down
	Mount     string   `json:"mount,omitempty"`
	ViewPID   int      `json:"view_pid,omitempty"`
	Sandboxes []int    `json:"sandbox_pids,omitempty"`
	Error     string   `json:"error,omitempty"`
}

// Up mounts an agent's view at a directory; "" is its own below the run
// directory, or where it was last.
func (d *Daemon) Up(ctx context.Context, id scope.ID, at string) (*view, error) {
	d.load()
	def, err := d.definition(id)
	if err != nil {
		return nil, err
	}
	if at == "" {
		if at = d.places()[id]; at == "" {
			at = filepath.Join(d.paths.Views(), string(id))
		}
	}
	d.mu.Lock()
	old := d.views[id]
	d.mu.Unlock()
	if old != nil {
		if old.at != at {
			return nil, fmt.Errorf("%q is mounted at %q: take it down first (scopefs down %s)", id, old.at, id)
		}
		return old, old.wait(ctx)
	}
	if err := d.place(id, at); err != nil {
		return nil, err
	}
	v, err := d.up(ctx, def, at)
	if err != nil {
		_ = d.place(id, "")
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.views[id] != nil { // somebody was faster
		go v.down()
		return nil, fmt.Errorf("%q is being mounted already", id)
	}
	d.views[id] = v
	return v, nil
}

// Down ends an agent's sandboxes and unmounts its view.
func (d *Daemon) Down(id scope.ID) error {
	d.mu.Lock()
	v := d.views[id]
	delete(d.views, id)
	d.mu.Unlock()
	if v == nil {
		if _, err := d.definition(id); err != nil {
			return err
		}
		return fmt.Errorf("%q is not mounted", id)
	}
	d.endSessions(id)
	v.down()
	_ = d.place(id, "")
	d.event(audit.Event{Event: audit.KindView, Agent: string(id), Outcome: "unmounted", Path: v.at})
	return nil
}

// definition returns an agent's definition, or why there is none.
func (d *Daemon) definition(id scope.ID) (*scope.Definition, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if def := d.defs[id]; def != nil {
		return def, nil
	}
	for _, err := range d.bad {
		var bad *scope.DefinitionError
		if !errors.As(err, &bad) {
			return nil, err // agents.d itself
		}
		if bad.File == string(id)+".md" {
			return nil, err
		}
	}
	return nil, fmt.Errorf("%w %q: define it in %s", ErrUnknown, id, filepath.Join(d.paths.Base, "agents.d", string(id)+".md"))
}

// Agents lists what is defined, by name; what does not load is there as failed.
func (d *Daemon) Agents() []Agent {
	d.mu.Lock()
	defer d.mu.Unlock()
	list := []Agent{}
	for id := range d.defs {
		a := Agent{ID: id, State: stateDown}
		if v := d.views[id]; v != nil {
			v.mu.Lock()
			a.State, a.Mount, a.ViewPID = v.state, v.at, v.pid
			if v.err != nil {
				a.Error = v.err.Error()
			}
			v.mu.Unlock()
		}
		for s := range d.sessions[id] {
			a.Sandboxes = append(a.Sandboxes, s.PID())
		}
		slices.Sort(a.Sandboxes)
		list = append(list, a)
	}
	for _, err := range d.bad {
		a := Agent{State: stateFailed, Error: err.Error()}
		var bad *scope.DefinitionError
		if errors.As(err, &bad) {
			a.ID = scope.ID(strings.TrimSuffix(bad.File, ".md"))
		}
		list = slices.DeleteFunc(list, func(b Agent) bool {
			if b.ID == a.ID {
				a.State, a.Mount, a.ViewPID, a.Sandboxes = b.State, b.Mount, b.ViewPID, b.Sandboxes
			}
			return b.ID == a.ID
		})
		list = append(list, a)
	}
	slices.SortFunc(list, func(a, b Agent) int { return strings.Compare(string(a.ID), string(b.ID)) })
	return list
}

// place remembers where an agent is mounted, so that a view elsewhere than
// below the run directory is found after a crash. The file holds the path.
func (d *Daemon) place(id scope.ID, at string) error {
	dir := filepath.Join(d.paths.Run, "at")
	name := filepath.Join(dir, string(id))
	if at == "" || filepath.Dir(at) == d.paths.Views() {
		if err := os.Remove(name); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		return nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	return os.WriteFile(name, []byte(at), 0o600)
}

// places reads what place remembered.
func (d *Daemon) places() map[scope.ID]string {
	at := map[scope.ID]string{}
	dir := filepath.Join(d.paths.Run, "at")
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		if text, err := os.ReadFile(filepath.Join(dir, e.Name())); err == nil {
			at[scope.ID(e.Name())] = string(text)
		}
	}
	return at
}
