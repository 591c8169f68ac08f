package fields

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// Only is a field of a mapping of a file that has no other keys than these. where begins the errors.
func Only(field Field, where, file string, keys []string) Field {
	return func(n *yaml.Node) error {
		var wrong Problems
		for i := 0; n.Kind == yaml.MappingNode && i+1 < len(n.Content); i += 2 {
			if key := n.Content[i]; !slices.Contains(keys, key.Value) {
				wrong.Add(key.Line,
					fmt.Errorf("%s%q is no key of %s: want one of %s; others only your own definition sets", where,
						key.Value, file, strings.Join(keys, ", ")))
			}
		}
		if wrong != nil {
			return wrong.Err()
		}
		return field(n)
	}
}

// Checked is a field whose value check may refuse.
func Checked(field Field, check func() error) Field {
	return func(n *yaml.Node) error {
		if err := field(n); err != nil {
			return err
		}
		return check()
	}
}

// NoVariables returns an error for ${VAR}: a file of a repository does not read the daemon's environment.
func NoVariables(n *yaml.Node) error {
	var wrong Problems
	if n.Kind == yaml.ScalarNode && NotExpanded(n.Value) != nil {
		wrong.Add(n.Line, fmt.Errorf("%q has a variable, and the environment only your own definition reads: write the value itself", n.Value))
	}
	for _, c := range n.Content {
		wrong.Add(c.Line, NoVariables(c))
	}
	return wrong.Err()
}

// Lower returns the lower of two limits, of which zero is none.
func Lower[T int | int64 | float64 | time.Duration](a, b T) T {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// NotYours returns an error if a file that is not the user's sets a key for what is listed.
func NotYours(key string, list []string) error {
	if len(list) > 0 {
		return fmt.Errorf("%s for %s only your own definition sets: remove it", key, strings.Join(list, ", "))
	}
	return nil
}
