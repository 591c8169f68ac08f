package scope

import (
	"cmp"
	"slices"
)

// Within returns a spec that allows no operation which s or other denies. Of two specs with access: read, it opens what both
// open by the same pattern, and holds it if one of them holds anything; else it allows what both allow, and holds what one holds.
func (s PolicySpec) Within(other PolicySpec) PolicySpec {
	both := PolicySpec{Access: max(s.Access, other.Access), Hardlinks: fewerLinks(s.Hardlinks, other.Hardlinks),
		Closed: s.Closed || other.Closed}
	for _, r := range slices.Concat(s.Paths, other.Paths) {
		if both.Access == Read && r.Access == Write && (s.Holds() || other.Holds()) {
			r.Access = Hold // the other one may hold a part of what it covers
		}
		if !slices.Contains(both.Paths, r) && (r.Access > Hold || s.opens(r) && other.opens(r)) {
			both.Paths = append(both.Paths, r)
		}
	}
	for _, list := range slices.Concat(s.Protect, other.Protect) {
		same := func(l Protect) bool {
			return l.Name == list.Name && l.Hold == list.Hold && l.Packages == list.Packages && slices.Equal(l.Paths, list.Paths)
		}
		if !slices.ContainsFunc(both.Protect, same) {
			both.Protect = append(both.Protect, list)
		}
	}
	both.Git = s.Git.within(other.Git)
	return both
}

// opens reports whether the spec lets what a rule with access: write or hold covers be written, but for stricter rules.
func (s PolicySpec) opens(r PathRule) bool {
	same := func(own PathRule) bool { return own.Pattern == r.Pattern && own.Access <= Hold }
	return s.Access == Write || slices.ContainsFunc(s.Paths, same)
}

// fewerLinks returns the stricter of two rules for files with several names.
func fewerLinks(a, b Hardlinks) Hardlinks {
	order := []Hardlinks{HardlinksAllow, HardlinksRead, HardlinksDeny}
	level := func(h Hardlinks) int { return slices.Index(order, cmp.Or(h, HardlinksAllow)) }
	if level(a) < level(b) {
		return b
	}
	return a
}

// within returns rules that allow what both allow. Nil allows everything.
func (g *GitRules) within(other *GitRules) *GitRules {
	switch {
	case g == nil:
		return other
	case other == nil:
		return g
	}
	both := &GitRules{Hooks: g.Hooks || other.Hooks, Bare: g.Bare || other.Bare}
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
