package agents

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/scopefs/scopefs/scope"
)

// Flags hold for an agent and its branches in place of keys of its definition, while a command of the operator's runs that has them.
type Flags struct {
	Changes     Changes `json:"changes,omitempty"`      // as view: {changes} is written; "": the definition's. A branch's are held
	ShowSecrets bool    `json:"show_secrets,omitempty"` // the rules of view: {secrets: seal} do not hold
}

// Check returns an error for a value that the flag does not have.
func (f Flags) Check() error {
	if values := []Changes{"", direct, ChangesKept, ChangesHeld, ChangesAuto}; !slices.Contains(values, f.Changes) {
		return fmt.Errorf("--changes %s: give auto, direct, held or kept", f.Changes)
	}
	return nil
}

// String returns the flags as a command has them.
func (f Flags) String() string {
	var words []string
	if f.Changes != "" {
		words = append(words, "--changes "+string(f.Changes))
	}
	if f.ShowSecrets { // last: the log takes a word after it for a secret
		words = append(words, "--show-secrets")
	}
	return strings.Join(words, " ")
}

// Of returns a definition by the flags, which are checked as its keys are.
func (f Flags) Of(def *Definition) (*Definition, error) {
	changed := *def
	if f.Changes != "" && def.Branch == "" {
		changed.View.Changes = f.Changes
		if f.Changes == direct {
			changed.View.Changes = ChangesDirect
		}
	}
	if f.ShowSecrets {
		seals := scope.SecretRules(scope.Seal)
		secret := func(r scope.PathRule) bool {
			return slices.ContainsFunc(seals, func(s scope.PathRule) bool { return s.Pattern == r.Pattern })
		}
		sealed := func(r scope.PathRule) bool { return r.Access == scope.Seal && secret(r) }
		changed.View.Paths = slices.DeleteFunc(slices.Clone(def.View.Paths), sealed)
		for _, r := range changed.View.Paths {
			if secret(r) && r.Access == scope.Hide {
				at := cmp.Or(strings.TrimSuffix("view."+r.Name, "view."), "view.paths: "+r.Pattern)
				return nil, fmt.Errorf("--show-secrets: %s: %s stands in the way: remove it", at, r.Access)
			}
		}
	}
	if err := changed.checkChanges(); err != nil {
		return nil, fmt.Errorf("%s: %w", f, err)
	}
	return &changed, nil
}
