package catalog

import (
	"errors"
	"fmt"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/scopefs/scopefs/internal/fields"
)

// Ref is a pattern that must match an existing name.
type Ref struct {
	Line int
	Key  string // the key, such as "policy.tools.exclude"
	Kind RefKind
	Text string
}

// RefKind says what a reference names.
type RefKind uint8

// What a reference names.
const (
	ToolRef RefKind = iota
	SkillRef
	ServerRef
	MemberRef
	ContextRef // not checked: contexts have no definition
	TrustRef   // a server, without wildcards
	PresetRef  // without wildcards
	ProtectRef // likewise; "*" is all
)

// List reads a list of names or patterns.
func List(out *[]string, key string, kind RefKind, refs *[]Ref) fields.Field {
	return func(n *yaml.Node) error {
		*out = []string{}
		lines := map[string]int{}
		return fields.EachItem(n, func(item *yaml.Node) error {
			s, err := fields.Scalar(item, "a name, in quotes where need be", "!!str")
			if err == nil {
				err = fields.NotExpanded(s)
			}
			if err != nil {
				return fmt.Errorf("%s: an entry %w", key, err)
			}
			same, err := CheckEntry(s, kind)
			if err != nil {
				return fmt.Errorf("%s: %q %w", key, s, err)
			}
			if first := lines[same]; first > 0 {
				return fmt.Errorf("%s: %q is here twice, first in line %d: remove one", key, s, first)
			}
			lines[same] = item.Line
			*out = append(*out, s)
			*refs = append(*refs, Ref{item.Line, key, kind, s})
			return nil
		})
	}
}

// CheckEntry checks the form of an entry. same is equal for two spellings of
// one entry.
func CheckEntry(s string, kind RefKind) (same string, err error) {
	if kind == ToolRef {
		p, err := ParsePattern(s)
		return p.key(), err
	}
	name := s
	if kind == MemberRef && strings.Trim(s, " ") == s { // a display name has spaces inside
		name = strings.ReplaceAll(s, " ", "")
	}
	if err = CheckName(name); err == nil && strings.Contains(s, ":") {
		err = errors.New("holds a colon: write the name alone")
	}
	return s, err
}

// EachTool calls f for each key of n, which is a tool pattern.
func EachTool(n *yaml.Node, key string, refs *[]Ref, f func(pattern string, value *yaml.Node) error) error {
	lines := map[string]int{}
	return fields.EachKey(n, func(s string, value *yaml.Node) error {
		same, err := CheckEntry(s, ToolRef)
		if err != nil {
			return fmt.Errorf("%s: %q %w", key, s, err)
		}
		if first := lines[same]; first > 0 {
			return fmt.Errorf("%s: %q is here twice, first in line %d: remove one", key, s, first)
		}
		lines[same] = value.Line
		*refs = append(*refs, Ref{value.Line, key, ToolRef, s})
		if err := f(s, value); err != nil {
			return fields.AtLine(value.Line, fmt.Errorf("%s: %q %w", key, s, err))
		}
		return nil
	})
}

// Twice returns an error for each tool that a list names by its name and by an
// alias. Equal spellings were refused when the list was read.
func (t Tools) Twice(refs []Ref) (wrong fields.Problems) {
	lines := map[string]int{}
	for _, r := range refs {
		p, err := t.ParsePattern(r.Text)
		if r.Kind != ToolRef || err != nil {
			continue
		}
		if first := lines[r.Key+" "+p.key()]; first > 0 {
			wrong.Add(r.Line, fmt.Errorf("%s: %q is here twice, first in line %d: remove one", r.Key, r.Text, first))
			continue
		}
		lines[r.Key+" "+p.key()] = r.Line
	}
	return wrong
}

// Nothing returns an error that a pattern matches nothing of a kind. It lists
// the existing names.
func (r Ref) Nothing(kind string, there []string, remedy string) error {
	list := "there is none"
	if len(there) > 0 {
		list = "there is " + strings.Join(there, ", ")
	}
	if strings.Contains(r.Text, "*") {
		remedy = "remove it"
	}
	return fmt.Errorf("%s: %q matches no %s (%s): correct it, or %s", r.Key, r.Text, kind, list, remedy)
}

// LineOf returns the line of the first entry under a key, or 1.
func LineOf(refs []Ref, key string) int {
	for _, r := range refs {
		if r.Key == key {
			return r.Line
		}
	}
	return 1
}
