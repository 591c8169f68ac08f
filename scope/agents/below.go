package agents

import (
	"cmp"
	"slices"
	"strings"

	"github.com/scopefs/scopefs/scope"
)

// specBelow returns the spec that decides below the directory rel, by paths relative to it, as s does.
func specBelow(s scope.PolicySpec, rel string) scope.PolicySpec {
	rules := s.Paths
	s.Paths, s.Protect = nil, slices.Clone(s.Protect)
	for _, r := range rules {
		for _, pattern := range patternsBelow(r.Pattern, rel) {
			if pattern == "**" && r.Access >= scope.Seal { // the root itself cannot be hidden
				pattern = "*"
			}
			s.Paths = append(s.Paths, scope.PathRule{Pattern: pattern, Access: r.Access, Name: cmp.Or(r.Name, r.Pattern)})
		}
	}
	for i, list := range s.Protect {
		s.Protect[i].Paths = nil
		for _, pattern := range list.Paths {
			s.Protect[i].Paths = append(s.Protect[i].Paths, patternsBelow(scope.Fold(pattern), scope.Fold(rel))...)
		}
	}
	return s
}

// patternsBelow returns patterns of what a pattern matches below the directory rel, by paths relative to it.
func patternsBelow(pattern, rel string) (all []string) {
	whole, _ := scope.Expand(pattern) // scope.Compile has read it
	all = whole
	for name := range strings.SplitSeq(rel, "/") {
		var next []string
		for _, rest := range all {
			for _, left := range after(rest, name) {
				if !slices.Contains(next, left) {
					next = append(next, left)
				}
			}
		}
		all = next
	}
	for i, rest := range all {
		if !slices.ContainsFunc(strings.Split(rest, "/"), func(part string) bool { return part != "" && part != "**" }) {
			all[i] = "**"
		}
	}
	if strings.HasPrefix(pattern, "**/") { // it stays, and is written as before
		all = append(slices.DeleteFunc(all, func(rest string) bool { return slices.Contains(whole, rest) }), pattern)
	}
	return all
}

// after returns what may be left of a pattern without braces once a name has matched; "" matches everything.
func after(pattern, name string) []string {
	text, rest, _ := strings.Cut(pattern, "/")
	switch {
	case pattern == "":
		return []string{""}
	case text == "**":
		return append(after(rest, name), pattern)
	}
	one, err := scope.Compile(scope.PolicySpec{Paths: []scope.PathRule{{Pattern: text, Access: scope.Read}}})
	if err != nil || one.ByPaths(scope.OpStat, name).Access != scope.Read {
		return nil
	}
	return []string{rest}
}
