package fields

import (
	"fmt"

	"go.yaml.in/yaml/v3"
)

// HasKey reports whether n is a mapping with the key.
func HasKey(n *yaml.Node, key string) bool { return Value(n, key) != nil }

// Value returns the value of a key of a mapping, or nil.
func Value(n *yaml.Node, key string) *yaml.Node {
	for i := 0; n.Kind == yaml.MappingNode && i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == key {
			return n.Content[i+1]
		}
	}
	return nil
}

// EachItem calls f for each item of a list, and returns all errors.
func EachItem(n *yaml.Node, f func(*yaml.Node) error) error {
	if n.Kind != yaml.SequenceNode || n.ShortTag() != "!!seq" {
		return fmt.Errorf("is %s: want a list, [] for none", nodeKind(n))
	}
	var wrong Problems
	for _, item := range n.Content {
		wrong.Add(item.Line, f(item))
	}
	return wrong.Err()
}
