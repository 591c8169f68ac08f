package session

import (
	"fmt"

	"github.com/scopefs/scopefs/internal/printable"
	"github.com/scopefs/scopefs/scope"
)

// refused returns what an agent reads of the rule by which its view refused a call at a path, and what the agent can do. It returns
// "" if no rule refused it, and for a hidden path: its rule says that the path may be there.
func (a *Agent) refused(call, rel string) (message, hint string) {
	e, ok := a.refusals.Of(call, rel)
	def, err := a.Definition()
	if !ok || err != nil {
		return "", ""
	}
	words, files := []string{"scopefs", "allow"}, "your files"
	root, at := a.rootAt(e.Path)
	if root != nil {
		def = root
		words, files = append(words, "--root", def.Dir), "files in "+def.Dir
	}
	policy, err := scope.Compile(def.View.PolicySpec())
	if err != nil || policy.File(scope.OpLookup, at).Hidden {
		return "", ""
	}
	ask := "ask your operator"
	if allow := printable.Command(append(words, scope.QuotePattern(at))...); allow != "" {
		ask += ": " + allow
	}
	switch scope.Kind(e.RuleKind) {
	case scope.KindProtect:
		return e.Path + " is protected: files that the host executes",
			fmt.Sprintf("it is the rule %q: use another file, or %s", e.Rule, ask)
	case scope.KindPath, scope.KindBelow:
		return fmt.Sprintf("a rule of the operator denies it: %q", e.Rule), "use another file, or " + ask
	case scope.KindAccess:
		return fmt.Sprintf("a rule of the operator denies it: %q", e.Rule), "all " + files + " are so: answer without a change, or ask your operator"
	case scope.KindHardlinks, scope.KindHistory, scope.KindView, scope.KindRoot:
		return fmt.Sprintf("a rule denies it: %q", e.Rule), "do it in another way"
	}
	return "", ""
}
