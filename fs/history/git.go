package history

import (
	"slices"
	"strings"

	"github.com/scopefs/scopefs/fs/history/journal"
)

// inGit returns the directory .git that has a path of git's state: HEAD, the index, refs, logs, objects, and the files that replace them.
// All of it is undone, or nothing: without the objects that HEAD, a ref or the index names, a repository is broken. What configures
// git, or is executed by it, is no such path.
func inGit(rel string) (dir string, ok bool) {
	before, rest, ok := strings.Cut("/"+rel, "/.git/")
	if !ok {
		return "", false
	}
	name, _, _ := strings.Cut(rest, "/")
	switch strings.TrimSuffix(name, ".lock") {
	case "config", "config.worktree", "hooks", "info", "modules", "worktrees":
		return "", false
	}
	return strings.TrimPrefix(before+"/.git", "/"), true
}

// leaves reports whether a record is of git's state in a repository that the Selection leaves.
func (sel Selection) leaves(e *entry) bool {
	in := func(rel string) bool {
		dir, ok := inGit(rel)
		return ok && slices.Contains(sel.without, dir)
	}
	return len(sel.without) > 0 && e.Kind != journal.Written && (in(e.Path) || in(e.second()))
}

// inverted returns the records that sel means, and their inverses. A conflict in git's state of a repository leaves all of that state.
func (s *Store) inverted(sel Selection, hooks Hooks) (*selected, *world, error) {
	var kept []Problem
	for {
		found, err := s.find(sel)
		if nothing, ok := err.(*ErrNothing); ok && nothing.Unchanged && len(kept) > 0 {
			found, err = &selected{}, nil
		}
		if err != nil {
			return nil, nil, err
		}
		w := s.replay(found, hooks)
		more := false
		for _, p := range w.plan.Conflicts {
			dir, ok := inGit(p.Path)
			if !ok || slices.Contains(sel.without, dir) || w.at(p.Path).dir { // objects of others in a directory
				continue
			}
			remedy := "git reset, or --force"
			if sel.Force {
				remedy = "git reset"
			}
			p.Why += ": git's HEAD, index, refs and objects stay as they are (" + remedy + ")"
			sel.without, kept, more = append(sel.without, dir), append(kept, p), true
		}
		if !more {
			w.plan.Conflicts = append(kept, w.plan.Conflicts...)
			return found, w, nil
		}
	}
}
