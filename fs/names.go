package fs

import (
	"slices"

	"github.com/scopefs/scopefs/scope"
)

// fewNames is the largest list that is searched linearly.
const fewNames = 8

// names holds the known names of one object. Only judge visits all of them, since a file may
// have thousands. The zero value is empty.
type names struct {
	list    []nameIn
	newest  int            // index into list
	size    int64          // approximate bytes
	index   map[nameIn]int // into list; nil up to fewNames
	verdict *verdict       // the last result of judge
}

// verdict counts names by the access that a policy grants on them.
type verdict struct {
	policy *scope.Policy
	moves  uint64         // tree.moves when the names were judged
	access []scope.Access // of each name of the list, or unjudged, or lost
	fresh  []nameIn       // added after that
	count  [unjudged]int
}

// verdict.access also has the value unjudged for a name that was not judged yet, and lost for
// a name that is not connected to the root.
const (
	unjudged = scope.Hide + 1
	lost     = scope.Hide + 2
)

func (s *names) find(at nameIn) int {
	if s.index == nil {
		return slices.Index(s.list, at)
	}
	if i, ok := s.index[at]; ok {
		return i
	}
	return -1
}

// only replaces all names by at.
func (s *names) only(at nameIn) {
	if cap(s.list) > fewNames {
		s.list = nil
	}
	*s = names{list: append(s.list[:0], at), size: at.size()}
}

// add makes at the newest name.
func (s *names) add(at nameIn) {
	if i := s.find(at); i >= 0 {
		s.newest = i
		return
	}
	s.newest = len(s.list)
	s.list = append(s.list, at)
	s.size += at.size()
	if s.index != nil {
		s.index[at] = s.newest
	} else if len(s.list) > fewNames {
		s.index = make(map[nameIn]int, 2*fewNames)
		for i, at := range s.list {
			s.index[at] = i
		}
	}
	if s.verdict != nil {
		s.verdict.access = append(s.verdict.access, unjudged)
		s.verdict.fresh = append(s.verdict.fresh, at)
	}
}

// remove removes a name and reports whether it was there. The last of the list takes its
// place.
func (s *names) remove(at nameIn) bool {
	i := s.find(at)
	if i < 0 {
		return false
	}
	s.size -= at.size()
	last := len(s.list) - 1
	if v := s.verdict; v != nil {
		v.count1(v.access[i], -1)
		v.access[i] = v.access[last]
		v.access = v.access[:last]
	}
	moved := s.list[last]
	s.list[i], s.list[last] = moved, nameIn{}
	s.list = s.list[:last]
	if s.index != nil {
		s.index[moved] = i
		delete(s.index, at)
	}
	switch s.newest {
	case i:
		s.newest = max(last-1, 0)
	case last:
		s.newest = i
	}
	return true
}

func (v *verdict) count1(a scope.Access, n int) {
	if a < unjudged {
		v.count[a] += n
	}
}

// judge returns the name on which a policy grants least: the newest of them, or any. It
// evaluates the policy once a name, until the policy changes or a directory moves. path
// returns the path of a name.
func (s *names) judge(policy *scope.Policy, moves uint64, path func(nameIn) (string, bool)) (at nameIn, ok bool) {
	v := s.verdict
	if v == nil || v.policy != policy || v.moves != moves {
		v = &verdict{policy: policy, moves: moves, access: make([]scope.Access, len(s.list)), fresh: slices.Clone(s.list)}
		for i := range v.access {
			v.access[i] = unjudged
		}
		s.verdict = v
	}
	for _, at := range v.fresh {
		i := s.find(at)
		if i < 0 || v.access[i] != unjudged { // removed, or added again
			continue
		}
		v.access[i] = lost
		if rel, ok := path(at); ok {
			v.access[i] = policy.Strict(rel)
		}
		v.count1(v.access[i], 1)
	}
	v.fresh = nil
	for worst := scope.Hide; ; worst-- {
		if v.count[worst] > 0 {
			i := s.newest
			if v.access[i] != worst {
				i = slices.Index(v.access, worst)
			}
			return s.list[i], true
		}
		if worst == 0 {
			return nameIn{}, false
		}
	}
}
