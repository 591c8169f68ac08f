package catalog

import "slices"

// InBoth returns the patterns and names that two lists cover; nil is a list without restriction. Of two patterns of which
// neither covers the other, it has the names that both match, and nothing else.
func InBoth(a, b, names []string, covers func(pattern, other string) bool) []string {
	everything := func(list []string) bool { return slices.Contains(list, Everything) }
	switch {
	case a == nil, b != nil && everything(a):
		return b
	case b == nil, everything(b):
		return a
	}
	in := func(list []string, s string) bool {
		return slices.ContainsFunc(list, func(p string) bool { return covers(p, s) })
	}
	both := []string{}
	for _, s := range slices.Concat(a, b, names) {
		if in(a, s) && in(b, s) && !in(both, s) {
			both = append(both, s)
		}
	}
	return both
}

// Covers reports whether a pattern of tools matches every tool that another matches.
func (t Tools) Covers(pattern, other string) bool {
	p, errP := t.ParsePattern(pattern)
	o, errO := t.ParsePattern(other)
	if errP != nil || errO != nil || o.All {
		return errP == nil && errO == nil && p.All
	}
	if o.Server == "" && o.Name == MCP { // which stands for all tools of servers; m* does not
		return p.All || p.Server == "" && p.Name == MCP
	}
	return p.Match(ToolName{Server: o.Server, Name: o.Name})
}
