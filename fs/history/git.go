package history

import (
	"bytes"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/fs/history/journal"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/beneath"
)

// IndexSum returns scope.SumGitIndex of an object of root whose name is that of git's index, or becomes rel; nil if it is none.
func IndexSum(root *beneath.Root, at, rel string, st *beneath.Stat) []byte {
	if beneath.Base(rel) != "index" || !st.IsRegular() {
		return nil
	}
	f, err := root.Open(at, unix.O_RDONLY, st.ID())
	if err != nil {
		return nil
	}
	defer f.Close()
	if sum, err := scope.SumGitIndex(f.Reader(), int64(st.Size)); err == nil {
		return sum
	}
	return nil
}

// refreshed reports whether the host has only refreshed git's index since a record has left it. Then the present index stands for that one.
func (w *world) refreshed(e *entry, t thing) bool {
	if e.Kind != journal.Moved && e.Kind != journal.Restored || !t.regular() {
		return false
	}
	root, at := w.store.tree, t.real
	if t.kept != "" {
		root, at = w.store.dir, t.kept
	}
	same := w.sameIndex(e, root, at)
	if same {
		w.alias[w.same(e.Object)] = w.same(t.id)
	}
	return same
}

// sameIndex reports whether an index has the entries that a record notes.
func (w *world) sameIndex(e *entry, root *beneath.Root, at string) bool {
	noted, err := w.store.inline(e.gen.name, e.Record)
	st, failed := root.Stat(at)
	return err == nil && failed == nil && len(noted) > 0 && bytes.Equal(noted, IndexSum(root, at, "index", &st))
}

// InGit returns the directory .git that has a path of git's state: HEAD, the index, refs, logs, objects, and the files that replace them,
// also those of linked worktrees. All of it is undone, or nothing: without the objects that HEAD, a ref or the index names, a repository
// is broken. What configures git, or is executed by it, is no such path.
func InGit(rel string) (dir string, ok bool) {
	dir, _, ok = gitState(rel)
	return dir, ok
}

// gitState is InGit with the first name below the directory, or below that of a linked worktree in it.
func gitState(rel string) (dir, name string, ok bool) {
	before, rest, ok := strings.Cut("/"+rel, "/.git/")
	if own, linked := strings.CutPrefix(rest, "worktrees/"); linked {
		_, rest, _ = strings.Cut(own, "/")
	}
	name, _, _ = strings.Cut(rest, "/")
	configures := []string{"config", "config.worktree", "hooks", "info", "modules"}
	return strings.TrimPrefix(before+"/.git", "/"), name, ok && !slices.Contains(configures, strings.TrimSuffix(name, ".lock"))
}

// leaves reports whether a record is of git's state in a repository that the Selection leaves.
func (s *Store) leaves(sel *Selection, e *entry) bool {
	in := func(rel string) bool {
		dir, ok := InGit(s.opt.Within + rel)
		return ok && slices.Contains(sel.without, dir)
	}
	return len(sel.without) > 0 && e.Kind != journal.Written && (in(e.Path) || in(e.second()))
}

// inverted returns the records that sel means, and their inverses. A conflict in git's state of a repository leaves all of that state:
// also with force, if the conflict is of HEAD or a ref, since the commits of others may build on those that the undo would remove.
func (s *Store) inverted(sel Selection, hooks Hooks) (found *selected, w *world, err error) {
	var left []Problem
	force := sel.Force
	remedy := "git reset, or --force"
	if sel.Undo || sel.Client != "" { // neither redo nor an agent's tool has --force
		remedy = "git reset"
	}
	for sel.Force = false; ; {
		found, err = s.find(sel)
		if nothing, ok := err.(*ErrNothing); ok && nothing.Unchanged && len(left) > 0 {
			found, err = &selected{}, nil
		}
		if err != nil {
			return nil, nil, err
		}
		w = s.replay(found, hooks)
		more := w.leave(&sel, true, "git reset")
		switch {
		case sel.Force:
			more = append(more, w.leave(&sel, false, "git reset")...)
		case !force:
			more = append(more, w.leave(&sel, false, remedy)...)
		}
		left = append(left, more...)
		switch {
		case len(more) == 0 && sel.Force == force:
			w.plan.Conflicts = append(left, w.plan.Conflicts...)
			return found, w, nil
		case len(more) == 0:
			sel.Force = true
		}
	}
}

// leave has a Selection leave the repositories with a conflict in git's state, or only those with one of HEAD and refs. It returns one
// conflict of each. A directory with others' objects is none.
func (w *world) leave(sel *Selection, commits bool, remedy string) (left []Problem) {
	for _, p := range w.plan.Conflicts {
		dir, name, ok := gitState(w.store.opt.Within + p.Path)
		if !ok || slices.Contains(sel.without, dir) || w.at(p.Path).dir ||
			commits && !slices.Contains([]string{"HEAD", "refs", "packed-refs", "logs"}, name) {
			continue
		}
		p.Why += ": git's HEAD, index, refs and objects stay as they are (" + remedy + ")"
		sel.without, left = append(sel.without, dir), append(left, p)
	}
	return left
}
