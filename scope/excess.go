package scope

import "slices"

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

// Excess returns what the policy allows and was does not: of the paths that a changed rule is about the one that may be used most, one
// for each rule. The cost grows with the number of changed rules.
func (p *Policy) Excess(was *Policy) (all []Excess) {
	steps, most := MaxSteps, p.spec.Access
	for _, r := range p.ruleList() {
		most = min(most, r.access)
	}
	for _, c := range p.candidates(was) {
		best, found := Hide, Excess{Key: "view"}
		visit := func(word string) bool {
			now, old := p.byPaths(OpStat, word), was.byPaths(OpStat, word)
			gate, before := p.asks.find(nil, word), was.asks.find(nil, word)
			if (now.Access < old.Access || gate == nil && before != nil && now.Access < Ask) && now.Access < best {
				best, found.What, found.Witness, found.Before = now.Access, accessTexts[now.Access], word, old.Rule
				if gate != nil {
					found.What += " once you allow it"
				} else if before != nil {
					found.Before = before.text
				}
			}
			return best > most
		}
		// Most rules that are gone are gone for each of their paths.
		decided := Words(pathGrammar, c.among[:1], &steps, visit)
		if best > most && len(c.among) > 1 {
			decided = Words(pathGrammar, c.among, &steps, visit)
		}
		if best < Hide && !slices.ContainsFunc(all, func(e Excess) bool { return e.What == found.What && e.Before == found.Before }) {
			all = append(all, found)
		}
		undecided := Excess{Key: "view", What: c.text, Undecided: true} // one for all patterns of a list
		if best > most && (!decided || best == Hold && slices.ContainsFunc(p.spec.Protect, func(l Protect) bool { return l.Hold })) &&
			!slices.Contains(all, undecided) {
			all = append(all, undecided)
		}
	}
	if was.spec.Closed && !p.spec.Closed {
		all = append(all, Excess{Key: "view", What: "nothing is asked first", Before: "access: " + Ask.String()})
	}
	if p.spec.Hardlinks.Within(was.spec.Hardlinks) != p.spec.Hardlinks {
		all = append(all, Excess{Key: "view", What: "hardlinks: " + string(p.spec.Hardlinks), Before: "hardlinks: " + string(was.spec.Hardlinks)})
	}
	return append(all, p.spec.Git.excess(was.spec.Git)...)
}

var accessTexts = [...]string{
	Write: "paths can be read and changed", Hold: "paths can be read, and changes are held", Read: "paths can be read",
	Seal: "paths have attributes",
}

// candidate is a rule that only one of two policies has. Where they differ, they differ at one of its paths.
type candidate struct {
	text  string
	among []Expression // the rule, and those that may decide in its place
}

// candidates returns the rules that was has and p has not, and those that p alone has and that open what was closes by default.
func (p *Policy) candidates(was *Policy) (all []candidate) {
	mine, theirs := p.ruleList(), was.ruleList()
	has := func(list []listedRule) map[ruleKey]bool {
		keys := map[ruleKey]bool{}
		for _, r := range list {
			keys[r.ruleKey] = true
		}
		return keys
	}
	own, before := has(mine), has(theirs)
	add := func(r listedRule, over ...[]listedRule) {
		c := candidate{text: r.text, among: []Expression{r.expression(r.folded)}}
		for _, list := range over {
			for _, o := range list {
				if o.ruleKey != r.ruleKey {
					c.among = append(c.among, o.expression(o.folded))
				}
			}
		}
		all = append(all, c)
	}
	for _, r := range theirs {
		opens := func(o listedRule) bool { return o.access < r.access && !o.folded }
		if !own[r.ruleKey] && (p.spec.Access < r.access || slices.ContainsFunc(mine, opens)) {
			add(r, slices.DeleteFunc(slices.Clone(mine), func(o listedRule) bool { return o.folded && o.access < r.access && !o.git }))
		}
	}
	for _, r := range mine {
		if !before[r.ruleKey] && r.access < was.spec.Access && !r.folded {
			add(r, mine, theirs)
		}
	}
	if p.spec.Access < was.spec.Access {
		add(listedRule{rule: p.fallback}, mine, theirs)
	}
	return all
}

// listedRule is a rule of a policy.
type listedRule struct {
	*rule
	ruleKey
	git bool // its paths are git's, where no rule holds changes
}

// ruleKey is what makes two rules equal. A folded one is of a list of Protect.
type ruleKey struct {
	pattern string
	level   Access
	folded  bool
}

// ruleList returns the rules of the policy, without those that never decide.
func (p *Policy) ruleList() (all []listedRule) {
	add := func(r PathRule, folded, git bool) {
		rules, _ := parseRule(r) // Compile has parsed it
		for i := range rules {
			if p.spec.Access != Write || r.Access != Write {
				all = append(all, listedRule{&rules[i], ruleKey{r.Pattern, r.Access, folded}, git})
			}
		}
	}
	for _, r := range p.spec.Paths {
		add(r, false, false)
	}
	for _, list := range p.spec.Protect {
		for _, pattern := range list.Paths {
			add(PathRule{fold(pattern), list.access(), "protect " + list.Name}, true, false)
		}
	}
	if p.holds && p.spec.Git != nil {
		add(PathRule{"**/{*,}.git", Read, "git"}, true, true)
	}
	return all
}

// excess returns what rules for git allow and was do not. Nil allows everything.
func (g *GitRules) excess(was *GitRules) (all []Excess) {
	add := func(what string) { all = append(all, Excess{Key: "protect", What: what}) }
	var keys []string
	switch {
	case was == nil:
		return nil
	case g == nil:
		g = &GitRules{}
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
