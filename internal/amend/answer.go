package amend

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/scopefs/scopefs/internal/frontmatter"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/agents"
)

// Answer writes an access in place of ask into the rules that leave a path to the operator: of the agent's view, or of a root. With
// rel "." it is the root as a whole, which becomes one of the definition's if it was lent.
func (d *Draft) Answer(root, rel string, access scope.Access) error {
	asks := func(paths []scope.PathRule) (rules []int) {
		for i, r := range paths {
			policy, err := scope.Compile(scope.PolicySpec{Paths: []scope.PathRule{r}})
			if r.Access == scope.Ask && err == nil && policy.Strict(rel) == scope.Ask {
				rules = append(rules, i)
			}
		}
		return rules
	}
	if root == "" {
		var edits []frontmatter.Edit
		for _, i := range asks(d.agent.View.Paths) {
			edits = append(edits, frontmatter.Edit{Keys: []string{"view", "paths", d.agent.View.Paths[i].Pattern}, Set: access.String()})
		}
		return d.apply(edits...)
	}
	keys := []string{"view", "roots"}
	var edits []frontmatter.Edit
	r := agents.Root{Dir: root, Changes: agents.ChangesInherited}
	if i := slices.IndexFunc(d.agent.View.Roots, func(o agents.Root) bool { return o.Dir == root }); i >= 0 {
		r = d.agent.View.Roots[i]
		r.Paths = slices.Clone(r.Paths)
		edits = append(edits, frontmatter.Edit{Keys: keys, Index: i})
	}
	own := asks(r.Paths)
	switch {
	case rel == ".":
		r.Access = access
	case own == nil: // the agent's own rule, which holds in its roots
		return d.Answer("", rel, access)
	}
	for _, i := range own {
		r.Paths[i].Access = access
	}
	return d.apply(append(edits, frontmatter.Edit{Keys: keys, Add: rootText(r)})...)
}

// rootText returns a root as a definition has it.
func rootText(r agents.Root) string {
	text := fmt.Sprintf("{dir: %s, access: %s", frontmatter.Quote(r.Dir), r.Access)
	if len(r.Paths) > 0 {
		var paths []string
		for _, p := range r.Paths {
			paths = append(paths, fmt.Sprintf("%s: %s", frontmatter.Quote(p.Pattern), p.Access))
		}
		text += ", paths: {" + strings.Join(paths, ", ") + "}"
	}
	if r.Changes != agents.ChangesInherited {
		text += ", changes: " + cmp.Or(string(r.Changes), "direct")
	}
	return text + "}"
}
