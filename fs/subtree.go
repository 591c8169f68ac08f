package fs

import (
	"errors"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/audit/event"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/beneath"
)

// maxSubtree bounds the objects below a directory that moves, where the view judges each. Beyond it rename(2) fails
// with EXDEV, and programs copy: the view then judges each name that they make.
const maxSubtree = 10_000

// fixed keeps directories from moving until unlock is called, also by other views if the policy has path rules. With
// same it fails with ErrStale if the directory of a place has moved since the decision about its name.
func (v *View) fixed(p *place, same bool) (unlock func(), err error) {
	v.moves.RLock()
	done, err := v.alone()
	if err != nil {
		v.moves.RUnlock()
		return nil, err
	}
	unlock = func() {
		done()
		v.moves.RUnlock()
	}
	if same {
		err = v.unmoved(p)
	}
	if err != nil {
		unlock()
		return nil, err
	}
	return unlock, nil
}

// still is fixed where the decision about the name of a place depends on its directory, or always is set. Elsewhere it
// is steady.
func (v *View) still(p *place, always bool) (unlock func(), err error) {
	if always || v.policy.Load().Placed(p.name) {
		return v.fixed(p, true)
	}
	return v.steady(), nil
}

// unmoved returns ErrStale if the directory of a place is no longer where it was opened. The caller holds View.moves
// and View.alone.
func (v *View) unmoved(places ...*place) error {
	for _, p := range places {
		if rel, ok := v.nodes.newest(p.node); !ok || rel != p.base {
			return beneath.ErrStale
		}
		if v.policy.Load().Uniform() {
			continue
		}
		now := place{node: p.node} // another view may have moved it
		if err := v.openDirAt(&now); err != nil {
			return err
		}
		now.dir.Close()
	}
	return nil
}

// judgeSubtrees is judgeSubtree for a rename, in both directions if it exchanges. The caller holds View.moves and
// View.alone.
func (v *View) judgeSubtrees(old, new *place, moved, other *beneath.Stat, exchange bool) error {
	if moved.IsDir() {
		if err := v.judgeSubtree(old.path(), new.path(), exchange); err != nil {
			return err
		}
	}
	if exchange && other.IsDir() {
		return v.judgeSubtree(new.path(), old.path(), true)
	}
	return nil
}

// judgeSubtree judges what is below a directory that is about to move. Lists of protect must decide about each name as
// they do now, no name may need an approval, and no link may lead where a new link may not, unless it does so now.
func (v *View) judgeSubtree(from, to string, exchange bool) error {
	s := subtree{View: v, policy: v.policy.Load(), from: from, to: to, left: maxSubtree, moved: *v.root}
	s.alike = s.policy.Alike(from, to)
	switch {
	case s.alike && strings.Count(to, "/") >= strings.Count(from, "/"):
		return nil
	case !s.alike && v.hold != nil && !v.whole:
		return syscall.EXDEV
	}
	s.moved.Moved = func(rel string) (string, bool) {
		if below, ok := cutPath(rel, to); ok {
			return from + below, true
		}
		below, ok := cutPath(rel, from)
		if ok && exchange {
			return to + below, true
		}
		return rel, !ok
	}
	return s.walk()
}

// cutPath returns what follows a directory in a path that is at or below it.
func cutPath(rel, dir string) (below string, ok bool) {
	below, ok = strings.CutPrefix(rel, dir)
	return below, ok && (below == "" || below[0] == '/')
}

// subtree is what judgeSubtree looks at.
type subtree struct {
	*View
	policy   *scope.Policy
	from, to string
	alike    bool // the lists decide alike
	left     int  // objects
	moved    beneath.Root
}

// walk judges the objects. It fails with EXDEV where it cannot.
func (s *subtree) walk() error {
	for dirs := []string{""}; len(dirs) > 0; {
		dir := dirs[len(dirs)-1]
		dirs = dirs[:len(dirs)-1]
		var denied error
		err := s.root.Each(s.from+dir, func(name string) bool {
			if s.left--; s.left < 0 {
				denied = syscall.EXDEV
				return false
			}
			below := dir + "/" + name
			st, err := s.root.Stat(s.from + below)
			if denied = s.judge(below, &st, err); st.IsDir() {
				dirs = append(dirs, below)
			}
			return denied == nil
		})
		switch {
		case denied != nil:
			return denied
		case err != nil && !errors.Is(err, beneath.ErrStale):
			return syscall.EXDEV // no permission to read the directory, or an error
		}
	}
	return nil
}

// judge judges an object. statErr is the error of its attributes: a link that is gone needs no judgement.
func (s *subtree) judge(below string, st *beneath.Stat, statErr error) error {
	from, to := s.from+below, s.to+below
	if !s.alike {
		if s.policy.Asks(from) || s.policy.Asks(to) {
			return syscall.EXDEV // an approval is for a path: programs copy, and each name that they open or make asks
		}
		was, old := s.policy.Listed(from)
		is, new := s.policy.Listed(to)
		switch {
		case is > was:
			return listedBelow(to, new)
		case is < was:
			return listedBelow(from, old)
		}
	}
	if statErr != nil || !st.IsLink() {
		return nil
	}
	text, err := s.root.Readlink(from)
	if err != nil {
		return syscall.EXDEV
	}
	if err = s.judgeIn(&s.moved, to, text); err != nil && s.judgeNew(from, text) == nil {
		return err
	}
	return nil
}

// listedBelow returns the denial of a move for the sake of a name that a list of protect has.
func listedBelow(rel, rule string) error {
	e := event.Event{Path: rel, Verdict: event.Deny, Rule: rule, RuleKind: string(scope.KindProtect)}
	return &unrecorded{e, unix.EACCES}
}
