package agents

import "github.com/scopefs/scopefs/scope"

// Distinct returns rules for people: of those with one name the first, whose pattern is the name.
func Distinct(rules []scope.PathRule) (all []scope.PathRule) {
	seen := map[string]bool{}
	for _, r := range rules {
		if r.Name != "" {
			if seen[r.Name] {
				continue
			}
			seen[r.Name], r.Pattern = true, r.Name
		}
		all = append(all, r)
	}
	return all
}
