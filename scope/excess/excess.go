// Package excess compares rules: it says what some allow and others, which hold now, do not.
package excess

import (
	"cmp"
	"slices"

	"github.com/scopefs/scopefs/scope"
)

// Excess is something that rules allow and other rules, which hold now, do not.
type Excess struct {
	Key       string // of a definition
	What      string // that it allows, for people
	Witness   string // a path, request or name that shows it; "": What does
	Before    string // what decided about the witness; "": no rule was about it
	Undecided bool   // What was not compared, and may allow more
}

// String returns a line, which is not printable: it has texts of definitions.
func (e Excess) String() string {
	line := e.Key + ": " + e.What
	if e.Undecided {
		line = "undecided: " + line
	}
	if e.Witness != "" {
		line += ", such as " + e.Witness
	}
	if e.Before != "" {
		line += "; before: " + e.Before
	}
	return line
}

// MaxSteps bounds the searches of Words for one comparison: less than a second.
const MaxSteps = 1_000_000

// Of returns what a policy allows and was does not: of the paths that a changed rule is about the one that may be used most, one
// for each rule. The cost grows with the number of changed rules.
func Of(p, was *scope.Policy) (all []Excess) {
	spec, old := p.Spec(), was.Spec()
	steps, most := MaxSteps, spec.Access
	mine, theirs := rulesOf(spec), rulesOf(old)
	for _, r := range mine {
		most = min(most, r.access)
	}
	for _, c := range candidates(spec, old, mine, theirs) {
		best, found := scope.Hide, Excess{Key: "view"}
		visit := func(word string) bool {
			now, old := p.ByPaths(scope.OpStat, word), was.ByPaths(scope.OpStat, word)
			gate, before := p.Gate(word), was.Gate(word)
			if (now.Access < old.Access || gate == "" && before != "" && now.Access < scope.Ask) && now.Access < best {
				best, found.What, found.Witness, found.Before = now.Access, accessTexts[now.Access], word, old.Rule
				if gate != "" {
					found.What += " once you allow it"
				} else if before != "" {
					found.Before = before
				}
			}
			return best > most
		}
		// Most rules that are gone are gone for each of their paths.
		decided := Words(pathGrammar, c.among[:1], &steps, visit)
		if best > most && len(c.among) > 1 {
			decided = Words(pathGrammar, c.among, &steps, visit)
		}
		if best < scope.Hide && !slices.ContainsFunc(all, func(e Excess) bool { return e.What == found.What && e.Before == found.Before }) {
			all = append(all, found)
		}
		undecided := Excess{Key: "view", What: c.text, Undecided: true} // one for all patterns of a list
		if best > most && (!decided || best == scope.Hold && slices.ContainsFunc(spec.Protect, func(l scope.Protect) bool { return l.Hold })) &&
			!slices.Contains(all, undecided) {
			all = append(all, undecided)
		}
	}
	if old.Closed && !spec.Closed {
		all = append(all, Excess{Key: "view", What: "nothing is asked first", Before: "access: " + scope.Ask.String()})
	}
	if spec.Hardlinks.Within(old.Hardlinks) != spec.Hardlinks {
		all = append(all, Excess{Key: "view", What: "hardlinks: " + string(spec.Hardlinks), Before: "hardlinks: " + string(old.Hardlinks)})
	}
	return append(all, ofGit(spec.Git, old.Git)...)
}

var accessTexts = [...]string{
	scope.Write: "paths can be read and changed", scope.Hold: "paths can be read, and changes are held", scope.Read: "paths can be read",
	scope.Seal: "paths have attributes",
}

// candidate is a rule that only one of two policies has. Where they differ, they differ at one of its paths.
type candidate struct {
	text  string
	among []Expression // the rule, and those that may decide in its place
}

// candidates returns the rules that old has and spec has not, and those that spec alone has and that open what old closes by default.
func candidates(spec, old scope.PolicySpec, mine, theirs []rule) (all []candidate) {
	has := func(list []rule) map[key]bool {
		keys := map[key]bool{}
		for _, r := range list {
			keys[r.key] = true
		}
		return keys
	}
	own, before := has(mine), has(theirs)
	add := func(r rule, over ...[]rule) {
		c := candidate{text: r.text, among: []Expression{r.expression()}}
		for _, list := range over {
			for _, o := range list {
				if o.key != r.key {
					c.among = append(c.among, o.expression())
				}
			}
		}
		all = append(all, c)
	}
	for _, r := range theirs {
		opens := func(o rule) bool { return o.access < r.access && !o.folded }
		if !own[r.key] && (spec.Access < r.access || slices.ContainsFunc(mine, opens)) {
			add(r, slices.DeleteFunc(slices.Clone(mine), func(o rule) bool { return o.folded && o.access < r.access && !o.git }))
		}
	}
	for _, r := range mine {
		if !before[r.key] && r.access < old.Access && !r.folded {
			add(r, mine, theirs)
		}
	}
	if spec.Access < old.Access {
		add(rule{text: "access: " + spec.Access.String(), path: "**"}, mine, theirs)
	}
	return all
}

// rule is an alternative of a rule of a policy.
type rule struct {
	key
	path string // the pattern, without braces
	text string // as in a Decision
	git  bool   // its paths are git's, where no rule holds changes
}

// key is what makes two rules equal. A folded one is of a list of Protect.
type key struct {
	pattern string
	access  scope.Access
	folded  bool
}

// rulesOf returns the rules of a policy, without those that never decide.
func rulesOf(spec scope.PolicySpec) (all []rule) {
	add := func(pattern string, access scope.Access, name string, folded, git bool) {
		paths, _ := scope.Expand(pattern) // Compile has read it
		for _, path := range paths {
			if spec.Access != scope.Write || access != scope.Write {
				all = append(all, rule{key{pattern, access, folded}, path, cmp.Or(name, pattern) + ": " + access.String(), git})
			}
		}
	}
	for _, r := range spec.Paths {
		add(r.Pattern, r.Access, r.Name, false, false)
	}
	for _, list := range spec.Protect {
		access := scope.Read
		if list.Hold {
			access = scope.Hold
		}
		for _, pattern := range list.Paths {
			add(scope.Fold(pattern), access, "protect "+list.Name, true, false)
		}
	}
	if spec.Git != nil && slices.ContainsFunc(all, func(r rule) bool { return r.access == scope.Hold }) {
		add("**/{*,}.git", scope.Read, "git", true, true)
	}
	return all
}

// ofGit returns what rules for git allow and was do not. Nil allows everything.
func ofGit(g, was *scope.GitRules) (all []Excess) {
	add := func(what string) { all = append(all, Excess{Key: "protect", What: what}) }
	var keys []string
	switch {
	case was == nil:
		return nil
	case g == nil:
		g = &scope.GitRules{}
	}
	if was.Hooks && !g.Hooks {
		add("git's hooks can be changed")
	}
	if was.Config != nil && g.Config == nil {
		add("git's configuration can be changed")
	} else if was.Config != nil {
		keys = slices.DeleteFunc(slices.Clone(g.Config), func(key string) bool { return slices.Contains(was.Config, key) })
	}
	for _, key := range keys {
		add("git's configuration can be changed at " + key)
	}
	return all
}
