package scope

import (
	"fmt"
	"slices"
	"strings"
)

// Remedy returns the smallest change of the rules that would allow op on rel,
// or "" if they allow it. It is for messages to people and slower than File.
func (p *Policy) Remedy(op Op, rel string) string {
	if p.fallback == nil || p.File(op, rel).Allow {
		return ""
	}
	want := Read
	if op.Mutates() {
		want = Write
	}
	var fixes, lists []string
	for _, r := range p.spec.Paths {
		covered := func(r rule) bool { return covers(r.parts, rel) }
		if r.Access > want && r.Access != Hold && slices.ContainsFunc(alternatives(r), covered) {
			fix := fmt.Sprintf("set %q to %s in view.paths", r.Pattern, want)
			if p.fallback.access <= want {
				fix += " or remove it"
			}
			if r.Name != "" {
				fix = "remove " + r.Name + " from view"
			}
			fixes = append(fixes, fix)
		}
	}
	for _, list := range p.spec.Protect {
		covered := func(pattern string) bool {
			rules := alternatives(PathRule{Pattern: Fold(pattern), Access: Read})
			return slices.ContainsFunc(rules, func(r rule) bool { return covers(r.parts, Fold(rel)) })
		}
		if op.Mutates() && !list.Hold && (!list.Packages || !packaged(rel)) && slices.ContainsFunc(list.Paths, covered) {
			lists = append(lists, list.Name)
		}
	}
	if git := p.spec.Git; git != nil {
		if d, ok := git.file(op, rel); ok && !d.Allow {
			lists = append(lists, gitLists...)
		}
	}
	fixes = append(fixes, unprotect(lists)...)
	if fixes == nil {
		return "set view.access to write, or give the path a rule of its own in view.paths"
	}
	return strings.Join(fixes, ", and ")
}

// RemedyMove is Remedy for Move.
func (p *Policy) RemedyMove(rel string) string {
	if p.fallback == nil || rel == "" || p.Move(rel).Allow {
		return ""
	}
	var fixes, lists []string
	for _, r := range p.spec.Paths {
		below := func(rule rule) bool {
			rule.inert = r.Access == Write && p.spec.Access == Write
			return rule.across(rel)
		}
		if slices.ContainsFunc(alternatives(r), below) {
			fixes = append(fixes, fmt.Sprintf("remove %q from view.paths, for it is about what is below", r.Pattern))
		}
	}
	for _, list := range p.spec.Protect {
		below := func(pattern string) bool {
			rules := alternatives(PathRule{Pattern: Fold(pattern), Access: Read})
			return slices.ContainsFunc(rules, func(r rule) bool { return r.across(Fold(rel)) })
		}
		free := list.Packages && installedIn(rel) == inPackages
		if !free && slices.ContainsFunc(list.Paths, below) {
			lists = append(lists, list.Name)
		}
	}
	if _, ok := p.spec.Git.move(rel); ok {
		lists = append(lists, gitLists...)
	}
	return strings.Join(append(fixes, unprotect(lists)...), ", and ")
}

// gitLists are the lists of protect by which git's files are judged.
var gitLists = []string{"git-config", "git-hooks"}

// unprotect returns the change of the rules that removes lists from protect; nil: there are none.
func unprotect(lists []string) []string {
	if lists == nil {
		return nil
	}
	slices.Sort(lists)
	return []string{"remove " + strings.Join(slices.Compact(lists), " and ") + " from protect"}
}

// alternatives returns the rules for r, which Compile has accepted.
func alternatives(r PathRule) []rule {
	rules, err := parseRule(r)
	if err != nil {
		panic(err) // cannot happen: Compile read it
	}
	return rules
}
