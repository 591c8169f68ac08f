package agents

import (
	"encoding"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/scopefs/scopefs/internal/frontmatter"
)

// field reads the value of one key. Its errors have the form "what: remedy".
type field func(*yaml.Node) error

// lineError is an error at a line of the file.
type lineError = frontmatter.Error

// problems are the errors of a file. Each is a *lineError.
type problems []error

func (p problems) Error() string   { return errors.Join(p...).Error() }
func (p problems) Unwrap() []error { return p }

// add adds the errors in err, at the given line unless they have one. It drops
// text wrapped around an error that has a line.
func (p *problems) add(line int, err error) {
	if err == nil {
		return
	}
	if all := (problems)(nil); errors.As(err, &all) {
		*p = append(*p, all...)
		return
	}
	one := &lineError{Line: line, Err: err}
	_ = errors.As(err, &one)
	*p = append(*p, one)
}

// err returns nil if there are no problems.
func (p problems) err() error {
	switch len(p) {
	case 0:
		return nil
	case 1:
		return p[0]
	}
	return p
}

// atLine adds a line to err, unless it has one.
func atLine(line int, err error) error {
	if have := (*lineError)(nil); err == nil || errors.As(err, &have) {
		return err
	}
	return &lineError{Line: line, Err: err}
}

// parseYAML parses front, which is one mapping with these fields. It walks the
// nodes itself, because decoding into a struct accepts repeated keys of a map,
// aliases, and a number in place of a string.
func parseYAML(front []byte, fields map[string]field) error {
	top, err := frontmatter.Parse(front)
	if err != nil || top == nil {
		return err
	}
	return atLine(top.Line, mappingField(fields)(top))
}

// eachKey calls f for each key of n and its value, and returns all errors.
func eachKey(n *yaml.Node, f func(key string, value *yaml.Node) error) error {
	if n.Kind != yaml.MappingNode || n.ShortTag() != "!!map" {
		return fmt.Errorf("is %s: want keys with values", nodeKind(n))
	}
	var wrong problems
	lines := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		name, err := scalarOf(key, "a text, in quotes where need be", "!!str")
		switch first := lines[name]; {
		case err != nil:
			wrong.add(key.Line, fmt.Errorf("the key %w", err))
		case notExpanded(name) != nil:
			wrong.add(key.Line, fmt.Errorf("the key %q %w", name, notExpanded(name)))
		case first > 0:
			wrong.add(key.Line, fmt.Errorf("%q is here twice, first in line %d: remove one", name, first))
		default:
			lines[name] = key.Line
			wrong.add(key.Line, f(name, value))
		}
	}
	return wrong.err()
}

func mappingField(fields map[string]field) field {
	return func(n *yaml.Node) error {
		return eachKey(n, func(key string, value *yaml.Node) error {
			read, ok := fields[key]
			if !ok {
				known := slices.Sorted(maps.Keys(fields))
				return fmt.Errorf("unknown key %q: want one of %s", key, strings.Join(known, ", "))
			}
			if err := read(value); err != nil {
				return atLine(value.Line, fmt.Errorf("%s: %w", key, err))
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
	default:
		return tag
	}
}

// scalarOf returns the literal value of n if its tag is one of tags.
func scalarOf(n *yaml.Node, want string, tags ...string) (string, error) {
	if n.Kind != yaml.ScalarNode || !slices.Contains(tags, n.ShortTag()) {
		return "", fmt.Errorf("is %s: want %s", nodeKind(n), want)
	}
	return n.Value, nil
}

// textField reads a text that is a value of its own: ${VAR} in it is an error, see
// expandedField.
func textField(out *string) field {
	return func(n *yaml.Node) error {
		if err := proseField(out)(n); err != nil {
			return err
		}
		return notExpanded(*out)
	}
}

// proseField reads a text for people or models.
func proseField(out *string) field {
	return func(n *yaml.Node) (err error) {
		*out, err = scalarOf(n, "a text, in quotes where need be", "!!str")
		return err
	}
}

// namedField reads a value with UnmarshalText.
func namedField(out encoding.TextUnmarshaler) field {
	return func(n *yaml.Node) error {
		var s string
		if err := textField(&s)(n); err != nil {
			return err
		}
		return out.UnmarshalText([]byte(s))
	}
}

func oneOfField[T ~string](out *T, allowed ...T) field {
	return func(n *yaml.Node) error {
		var s string
		if err := textField(&s)(n); err != nil {
			return err
		}
		if !slices.Contains(allowed, T(s)) {
			return fmt.Errorf("unknown %q: want one of %v", s, allowed)
		}
		*out = T(s)
		return nil
	}
}
