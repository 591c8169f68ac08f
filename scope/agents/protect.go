package agents

import (
	"cmp"
	"maps"
	"slices"

	"go.yaml.in/yaml/v3"

	"github.com/scopefs/scopefs/internal/fields"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/catalog"
	"github.com/scopefs/scopefs/scope/hosts"
	"github.com/scopefs/scopefs/scope/protect"
)

// protectField reads a list of names of protections, or a mapping with the keys lists and answer; "*" is all, and the default
// of the mapping. It adds those of this package to the view, and appends the operator's to refs.
func protectField(view *ViewSpec, refs *[]catalog.Ref) fields.Field {
	return func(n *yaml.Node) error {
		read := catalog.List(&view.lists, "protect", catalog.ProtectRef, refs)
		if n.Kind == yaml.MappingNode {
			answer := answerRefuse
			view.lists = []string{catalog.Everything}
			defer func() {
				view.holds = answer == answerHold
				for i := range view.Protect {
					view.Protect[i].Hold = view.holds
				}
			}()
			read = fields.Mapping(map[string]fields.Field{
				"lists":  catalog.List(&view.lists, "protect", catalog.ProtectRef, refs),
				"answer": fields.OneOf(&answer, answerRefuse, answerHold),
			})
		}
		if err := read(n); err != nil {
			return err
		}
		for _, p := range protect.Builtin() {
			if view.wants(p.Name) {
				view.protect(p)
			}
		}
		return nil
	}
}

// The answers to a change of what protect names: refused, or held.
const (
	answerRefuse = "refuse"
	answerHold   = "hold"
)

// wants reports whether the key protect has a list, or all.
func (v *ViewSpec) wants(name string) bool {
	return slices.Contains(v.lists, name) || slices.Contains(v.lists, catalog.Everything)
}

// protectOwn returns a copy of the definition with the operator's lists that it wants. The copy
// has no names of lists, so that definitions with equal rules are equal.
func (d *Definition) protectOwn(own map[string]*protect.List) (*Definition, error) {
	if len(d.View.lists) == 0 {
		return d, nil
	}
	all, added := *d, false
	all.View.Protect = slices.Clone(d.View.Protect)
	for _, file := range slices.Sorted(maps.Keys(own)) {
		if all.View.wants(own[file].Name) {
			all.View.protect(own[file])
			added = true
		}
	}
	all.View.lists, all.View.holds = nil, false
	if !added { // the definition compiled when its file was read
		return &all, nil
	}
	_, err := scope.Compile(all.View.PolicySpec())
	return &all, err
}

// CheckLists returns an error for each preset and each list of protect that does not load: for settings without agents.
func CheckLists(base, user string) []error {
	_, errs := hosts.Presets(base, user)
	_, _, more := protect.Read(base, user, nil)
	return append(errs, more...)
}

// Source is where a list that a definition names is.
type Source struct {
	Key  string // such as presets.NAME or protect.NAME
	File string // relative to the base directory, absolute in a user's settings; "": of this program
}

// Sources returns where the presets and the lists of protect are that hold for the agent.
func (a *Agent) Sources() (all []Source) {
	for _, name := range a.Network.Presets {
		if p := a.Grants.known.presets[name]; p != nil {
			all = append(all, Source{"presets." + name, p.File})
		}
	}
	for _, p := range slices.Concat(protect.Builtin(), slices.Collect(maps.Values(a.Grants.known.protect))) {
		if slices.ContainsFunc(a.View.Protect, func(of scope.Protect) bool { return of.Name == p.Name }) {
			all = append(all, Source{"protect." + p.Name, p.File})
		}
	}
	slices.SortStableFunc(all, func(a, b Source) int { return cmp.Or(cmp.Compare(a.Key, b.Key), cmp.Compare(a.File, b.File)) })
	return all
}

func (v *ViewSpec) protect(p *protect.List) {
	for _, rules := range p.Rules() {
		rules.Hold = v.holds
		v.Protect = append(v.Protect, rules)
	}
	if p.Hooks || p.Config != nil {
		if v.Git == nil {
			v.Git = &scope.GitRules{}
		}
		v.Git.Hooks = v.Git.Hooks || p.Hooks
		v.Git.Config = append(v.Git.Config, p.Config...)
	}
}
