package session

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/scopefs/scopefs/internal/account"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/agents"
	"github.com/scopefs/scopefs/tools/file"
	"github.com/scopefs/scopefs/tools/file/message"
	"github.com/scopefs/scopefs/tools/sandbox"
)

// rootsOf returns the roots that a sandbox of the agent has now: agents with RootOf, and where their directories are.
func (a *Agent) rootsOf(p Purpose) (ids []scope.ID, at []sandbox.Root) {
	def, err := a.Definition()
	if p.Held != nil || p.NoView || err != nil {
		return nil, nil
	}
	for _, r := range def.View.Roots {
		ids = append(ids, agents.RootID(a.id, r))
	}
	all := slices.Concat(ids, p.Lent)
	ids = nil
	for _, id := range all {
		if root, err := a.RootDefinition(id); err == nil && root.RootOf == a.id {
			ids, at = append(ids, id), append(at, sandbox.Root{At: root.Dir})
		}
	}
	return ids, at
}

// rootTexts names the roots for the agent.
func (a *Agent) rootTexts(p Purpose) (texts []string) {
	ids, at := a.rootsOf(p)
	for i, id := range ids {
		text := at[i].At
		if def, err := a.RootDefinition(id); err == nil && def.View.Access == scope.Read {
			text += " (" + scope.Read.String() + ")"
		} else if err == nil && def.View.Closed {
			text += " (" + scope.Ask.String() + ")"
		}
		texts = append(texts, text)
	}
	return texts
}

// reached returns the directories that the client's tools reach, with their access unless that is write.
func (c *client) reached() []string {
	own := sandbox.Workspace
	if def, err := c.agent.Definition(); err == nil && (def.View.Access == scope.Read || c.rules().ReadOnly()) {
		own += " (" + scope.Read.String() + ")"
	}
	return append([]string{own}, c.agent.rootTexts(c.newPurpose())...)
}

// rootsShown returns the roots of the client's sandboxes, for the agent.
func (c *client) rootsShown() (all []scopeRoot) {
	ids, at := c.agent.rootsOf(c.newPurpose())
	for i, id := range ids {
		r := scopeRoot{Dir: at[i].At, Access: scope.Write.String()}
		if def, err := c.agent.RootDefinition(id); err == nil {
			if r.Access = def.View.Access.String(); def.View.Closed {
				r.Access = scope.Ask.String()
			}
		}
		all = append(all, r)
	}
	return all
}

// dirs returns the directories of the client's sandbox, for file tools.
func (c *client) dirs() message.Dirs {
	dirs := file.Own()
	def, err := c.agent.Definition()
	if err != nil || len(def.View.Roots) == 0 {
		return dirs
	}
	if _, at := c.agent.rootsOf(c.newPurpose()); len(at) > 0 {
		dirs.At = def.Dir
		for _, r := range at {
			dirs.Roots = append(dirs.Roots, r.At)
		}
	}
	return dirs
}

// rootView is the mounted view of a root, for one sandbox.
type rootView struct {
	id   scope.ID
	view View
	pid  int      // that serves it
	dir  *os.File // see sandbox.Root
}

// rootViews are those of one sandbox.
type rootViews []rootView

func (all rootViews) close() {
	for _, r := range all {
		r.dir.Close()
	}
}

// spec returns what the sandbox mounts.
func (all rootViews) spec() (roots []sandbox.Root) {
	for _, r := range all {
		roots = append(roots, sandbox.Root{View: r.dir, At: r.view.Definition().Dir})
	}
	return roots
}

// dirs returns where the roots are.
func (all rootViews) dirs() (dirs []string) {
	for _, r := range all {
		dirs = append(dirs, r.view.Definition().Dir)
	}
	return dirs
}

// ids returns the roots' agents.
func (all rootViews) ids() (ids []scope.ID) {
	for _, r := range all {
		ids = append(ids, r.id)
	}
	return ids
}

// served reports whether the same processes serve the views still.
func (all rootViews) served() bool {
	return !slices.ContainsFunc(all, func(r rootView) bool { now, _ := r.view.Served(); return now != r.pid })
}

// mountRoots mounts the views of a sandbox's roots, if need be. The caller closes them.
func (a *Agent) mountRoots(ctx context.Context, owner account.User, p Purpose) (all rootViews, err error) {
	ids, at := a.rootsOf(p)
	for i, id := range ids {
		r, err := a.mountRoot(ctx, id, owner, p)
		if err != nil {
			all.close()
			return nil, fmt.Errorf("root %q: %w", at[i].At, err)
		}
		all = append(all, r)
	}
	return all, nil
}

func (a *Agent) mountRoot(ctx context.Context, id scope.ID, owner account.User, p Purpose) (r rootView, err error) {
	of, err := a.Member(id)
	if err != nil {
		return r, err
	}
	r.id = id
	if r.view, err = of.Mount(ctx, p.Parent == "" && p.By == nil); err != nil {
		return r, err
	}
	var user account.User
	if r.pid, user = r.view.Served(); r.pid == 0 {
		return r, errViewEnded
	}
	if user != owner {
		return r, fmt.Errorf("it belongs to user %d, and the agent's processes to user %d: set user in the definition", user.UID, owner.UID)
	}
	r.dir, _, err = a.openMount(r.view)
	if now, _ := r.view.Served(); err != nil && now != r.pid {
		err = errors.Join(errViewEnded, err) // the last sandbox that had it has ended meanwhile
	}
	return r, err
}

// rootsServed returns the processes of the views of roots, which may outlive the daemon.
func (a *Agent) rootsServed(ids []scope.ID) (pids []int, err error) {
	for _, id := range ids {
		of, err := a.Member(id)
		if err != nil {
			return nil, err
		}
		v := of.View()
		if v == nil || !v.Holdable() {
			return nil, fmt.Errorf("the view of its root %s ends with the daemon", id)
		}
		pid, _ := v.Served()
		pids = append(pids, pid)
	}
	return pids, nil
}

// rootOf returns the agent that has this one as a root; nil: this one is an agent of its own.
func (a *Agent) rootOf() *Agent {
	v := a.View()
	if v == nil || v.Definition().RootOf == "" {
		return nil
	}
	of, err := a.Member(v.Definition().RootOf)
	if err != nil {
		return nil
	}
	return of
}

// keeper returns the agent whose calls make the operations of this agent's view, and the path of one of them for those calls.
func (a *Agent) keeper(rel string) (of *Agent, at string) {
	if of = a.rootOf(); of == nil {
		return a, rel
	}
	return of, filepath.Join(a.View().Definition().Dir, rel)
}

// rootAt returns the root of the agent that a path of its calls is in, and the path in it; nil: the path is in its own directory.
func (a *Agent) rootAt(at string) (root *agents.Agent, rel string) {
	def, err := a.Definition()
	if err != nil || !filepath.IsAbs(at) {
		return nil, at
	}
	for _, r := range def.View.Roots {
		if rel, ok := message.Within(r.Dir, at); ok {
			root, err := a.RootDefinition(agents.RootID(a.id, r))
			if err == nil {
				return root, rel
			}
		}
	}
	return nil, at
}

// withRoot reports whether a sandbox has a root.
func withRoot(id scope.ID) func(*Sandbox) bool {
	return func(b *Sandbox) bool { return slices.Contains(b.roots, id) }
}

// RootUsed returns a sandbox that has the agent as a root; nil: none has.
func (a *Agent) RootUsed() *Sandbox {
	of := a.rootOf()
	if of == nil {
		return nil
	}
	of.mu.Lock()
	defer of.mu.Unlock()
	for _, box := range of.sessions {
		if withRoot(a.id)(box) {
			return box
		}
	}
	return nil
}
