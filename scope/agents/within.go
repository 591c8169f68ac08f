package agents

import (
	"slices"

	"github.com/scopefs/scopefs/scope"
)

// within returns a spec that allows no operation which s or other denies. Of two specs with access: read, it opens what both
// open by the same pattern, and holds it if one of them holds anything; else it allows what both allow, and holds what one holds.
func within(s, other scope.PolicySpec) scope.PolicySpec {
	both := scope.PolicySpec{Access: max(s.Access, other.Access), Hardlinks: s.Hardlinks.Within(other.Hardlinks),
		Closed: s.Closed || other.Closed}
	for _, r := range slices.Concat(s.Paths, other.Paths) {
		if both.Access == scope.Read && r.Access == scope.Write && (s.Holds() || other.Holds()) {
			r.Access = scope.Hold // the other one may hold a part of what it covers
		}
		if !slices.Contains(both.Paths, r) && (r.Access > scope.Hold || opens(s, r) && opens(other, r)) {
			both.Paths = append(both.Paths, r)
		}
	}
	for _, list := range slices.Concat(s.Protect, other.Protect) {
		same := func(l scope.Protect) bool {
			return l.Name == list.Name && l.Hold == list.Hold && l.Packages == list.Packages && slices.Equal(l.Paths, list.Paths)
		}
		if !slices.ContainsFunc(both.Protect, same) {
			both.Protect = append(both.Protect, list)
		}
	}
	both.Git = gitWithin(s.Git, other.Git)
	return both
}

// opens reports whether a spec lets what a rule with access: write or hold covers be written, but for stricter rules.
func opens(s scope.PolicySpec, r scope.PathRule) bool {
	same := func(own scope.PathRule) bool { return own.Pattern == r.Pattern && own.Access <= scope.Hold }
	return s.Access == scope.Write || slices.ContainsFunc(s.Paths, same)
}

// gitWithin returns rules that allow what both allow. Nil allows everything.
func gitWithin(g, other *scope.GitRules) *scope.GitRules {
	switch {
	case g == nil:
		return other
	case other == nil:
		return g
	}
	both := &scope.GitRules{Hooks: g.Hooks || other.Hooks, Bare: g.Bare || other.Bare}
	switch { // nil keys judge no content
	case g.Config == nil:
		both.Config = other.Config
	case other.Config == nil:
		both.Config = g.Config
	default:
		both.Config = slices.DeleteFunc(slices.Clone(g.Config), func(key string) bool { return !slices.Contains(other.Config, key) })
		if len(both.Config) == 0 {
			both.Config = []string{""} // no key; JSON would make nil of an empty list
		}
	}
	return both
}

// fixed returns a spec with Read in place of Hold.
func fixed(s scope.PolicySpec) scope.PolicySpec {
	s.Protect, s.Paths = slices.Clone(s.Protect), slices.Clone(s.Paths)
	for i := range s.Protect {
		s.Protect[i].Hold = false
	}
	for i := range s.Paths {
		if s.Paths[i].Access == scope.Hold {
			s.Paths[i].Access = scope.Read
		}
	}
	return s
}
