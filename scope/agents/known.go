package agents

import (
	"cmp"
	"maps"
	"reflect"
	"slices"

	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/hosts"
	"github.com/scopefs/scopefs/scope/protect"
)

// known holds the names that a pattern can match.
type known struct {
	host    Host
	skills  []string                 // sorted
	presets map[string]*hosts.Preset // by name
	protect map[string]*protect.List // the operator's, by file
	lost    bool                     // protect has not all of them
	ids     []string                 // of agents with a file, sorted, whether they load or not
	brought map[string]string        // the agents of extensions, with those
	team    map[string]scope.ID      // the agents of repositories and their branches, with those of their directories; none is in ids
	hidden  map[string]audience      // the agents that only some agents see
	shown   map[string][]string      // ids by display name
}

func (k known) equal(other known) bool {
	a, b := k.host, other.host
	if len(a.Servers) == 0 && len(b.Servers) == 0 {
		a.Servers, b.Servers = nil, nil
	}
	if len(a.Flags) == 0 && len(b.Flags) == 0 {
		a.Flags, b.Flags = nil, nil
	}
	return k.lost == other.lost &&
		slices.Equal(k.ids, other.ids) &&
		maps.Equal(k.team, other.team) &&
		maps.Equal(k.brought, other.brought) &&
		slices.Equal(k.skills, other.skills) &&
		reflect.DeepEqual(a, b) &&
		reflect.DeepEqual(k.hidden, other.hidden) &&
		reflect.DeepEqual(k.shown, other.shown) &&
		reflect.DeepEqual(k.presets, other.presets) &&
		maps.EqualFunc(k.protect, other.protect, func(a, b *protect.List) bool { return reflect.DeepEqual(a, b) })
}

// flagsOf returns the flags that hold for a definition.
func (k known) flagsOf(def *Definition) Flags { return k.host.Flags[cmp.Or(def.Branch, def.Name)] }

// flagged returns a definition by the flags that hold for it.
func (k known) flagged(def *Definition) (*Definition, error) {
	if flags := k.flagsOf(def); flags != (Flags{}) {
		return flags.Of(def)
	}
	return def, nil
}

// agent reports whether the agent has a file.
func (k known) agent(name string) bool {
	_, ok := slices.BinarySearch(k.ids, name)
	return ok
}

func (k known) principal(id scope.ID) scope.Principal {
	if k.team[string(id)] != "" {
		return scope.Principal{ID: id}
	}
	if of := k.brought[string(id)]; of != "" {
		return scope.Principal{ID: id, Origin: scope.FromExtension, Extension: of}
	}
	return scope.Principal{ID: id, Origin: scope.FromOperator}
}

// teamOf returns the other agents of the repository that defines d or has rules for it, sorted.
func (k known) teamOf(d *Definition) (names []string) {
	for _, name := range slices.Sorted(maps.Keys(k.team)) {
		if name != string(d.Name) && k.team[name] == cmp.Or(d.TeamOf, d.Branch, d.Name) {
			names = append(names, name)
		}
	}
	return names
}

// with returns the names with more ids.
func (k known) with(more []string) known {
	if len(more) > 0 {
		k.ids = slices.Sorted(slices.Values(slices.Concat(k.ids, more)))
	}
	return k
}

// sees reports whether agent name has a file and agent self may see it. An
// empty self is the operator.
func (k known) sees(self scope.ID, name string) bool {
	if !k.agent(name) {
		return false
	}
	who, hidden := k.hidden[name]
	return !hidden || who.holds(k.principal(self))
}

// Named returns the ids of the agents that self may see and that have the name: an id, or
// else a display name.
func (k known) named(self scope.ID, name string) []string {
	if k.agent(name) {
		return []string{name}
	}
	return slices.DeleteFunc(slices.Clone(k.shown[name]), func(id string) bool { return !k.sees(self, id) })
}

// id returns the id of the one agent that has the name, and other names as they are.
func (k known) id(self scope.ID, name string) string {
	if ids := k.named(self, name); len(ids) == 1 {
		return ids[0]
	}
	return name
}

func (k known) idsOf(self scope.ID, names []string) []string {
	if names == nil {
		return nil
	}
	ids := make([]string, len(names))
	for i, name := range names {
		ids[i] = k.id(self, name)
	}
	return ids
}

// others returns the other agents that self may see, sorted.
func (k known) others(self scope.ID) []string {
	return slices.DeleteFunc(slices.Clone(k.ids), func(name string) bool { return name == string(self) || !k.sees(self, name) })
}
