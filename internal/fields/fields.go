// Package fields reads YAML files of the operator as mappings of keys.
//
// A file is a map from its keys to a [Field] for each. [Parse] refuses unknown and repeated keys, aliases and values of
// another type, and returns all errors of the file, each with its line. [ErrorAt] adds the name of the file.
package fields

import (
	"encoding"
	"fmt"
	"maps"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/scopefs/scopefs/internal/frontmatter"
	"github.com/scopefs/scopefs/internal/nearest"
)

// Field reads the value of one key. Its errors have the form "what: remedy".
type Field func(*yaml.Node) error

// Parse parses front, which is one mapping with these fields. It walks the
// nodes itself, because decoding into a struct accepts repeated keys of a map,
// aliases, and a number in place of a string.
func Parse(front []byte, fields map[string]Field) error {
	top, err := frontmatter.Parse(front)
	if err != nil || top == nil {
		return err
	}
	return AtLine(top.Line, Mapping(fields)(top))
}

// EachKey calls f for each key of n and its value, and returns all errors.
func EachKey(n *yaml.Node, f func(key string, value *yaml.Node) error) error {
	if n.Kind != yaml.MappingNode || n.ShortTag() != "!!map" {
		return fmt.Errorf("is %s: want keys with values, {} for none", nodeKind(n))
	}
	var wrong Problems
	lines := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		name, err := Scalar(key, "a text, in quotes where need be", "!!str")
		switch first := lines[name]; {
		case err != nil:
			wrong.Add(key.Line, fmt.Errorf("the key %w", err))
		case NotExpanded(name) != nil:
			wrong.Add(key.Line, fmt.Errorf("the key %q %w", name, NotExpanded(name)))
		case first > 0:
			wrong.Add(key.Line, fmt.Errorf("%q is here twice, first in line %d: remove one", name, first))
		default:
			lines[name] = key.Line
			wrong.Add(key.Line, f(name, value))
		}
	}
	return wrong.Err()
}

// EachItem calls f for each item of a list, and returns all errors.
func EachItem(n *yaml.Node, f func(*yaml.Node) error) error {
	if n.Kind != yaml.SequenceNode || n.ShortTag() != "!!seq" {
		if n.Kind == yaml.ScalarNode && n.ShortTag() == "!!str" {
			return fmt.Errorf("is %s: want a list, [] for none: write [%s]", nodeKind(n), frontmatter.Quote(n.Value))
		}
		return fmt.Errorf("is %s: want a list, [] for none", nodeKind(n))
	}
	var wrong Problems
	for _, item := range n.Content {
		wrong.Add(item.Line, f(item))
	}
	return wrong.Err()
}

// Mapping reads a mapping that has no other keys than those of fields.
func Mapping(fields map[string]Field) Field {
	return func(n *yaml.Node) error {
		return EachKey(n, func(key string, value *yaml.Node) error {
			read, ok := fields[key]
			if !ok {
				known := slices.Sorted(maps.Keys(fields))
				if like := nearest.Of(key, known); like != "" {
					return fmt.Errorf("unknown key %q: did you mean %s", key, like)
				}
				return fmt.Errorf("unknown key %q: want one of %s", key, strings.Join(known, ", "))
			}
			if err := read(value); err != nil {
				return AtLine(value.Line, fmt.Errorf("%s: %w", key, err))
			}
			return nil
		})
	}
}

// nodeKind describes the kind of n, for an error.
func nodeKind(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	}
	switch tag := n.ShortTag(); tag {
	case "!!str":
		return "a text"
	case "!!null":
		return "empty"
	case "!!int", "!!float":
		return "a number"
	case "!!bool":
		return n.Value
	case "!!timestamp":
		return "a date"
	default:
		return tag
	}
}

// Scalar returns the literal value of n if its tag is one of tags.
func Scalar(n *yaml.Node, want string, tags ...string) (string, error) {
	if n.Kind != yaml.ScalarNode || !slices.Contains(tags, n.ShortTag()) {
		return "", fmt.Errorf("is %s: want %s", nodeKind(n), want)
	}
	return n.Value, nil
}

// Text reads a text that is a value of its own: ${VAR} in it is an error, see
// Expanded.
func Text(out *string) Field {
	return func(n *yaml.Node) error {
		if err := Prose(out)(n); err != nil {
			return err
		}
		return NotExpanded(*out)
	}
}

// Prose reads a text for people or models.
func Prose(out *string) Field {
	return func(n *yaml.Node) (err error) {
		*out, err = Scalar(n, "a text, in quotes where need be", "!!str")
		return err
	}
}

// Named reads a value with UnmarshalText.
func Named(out encoding.TextUnmarshaler) Field {
	return func(n *yaml.Node) error {
		var s string
		if err := Text(&s)(n); err != nil {
			return err
		}
		return out.UnmarshalText([]byte(s))
	}
}

// OneOf reads one of some texts.
func OneOf[T ~string](out *T, allowed ...T) Field {
	return func(n *yaml.Node) error {
		var s string
		if err := Text(&s)(n); err != nil {
			return err
		}
		if !slices.Contains(allowed, T(s)) {
			return fmt.Errorf("unknown %q: want one of %v", s, allowed)
		}
		*out = T(s)
		return nil
	}
}
