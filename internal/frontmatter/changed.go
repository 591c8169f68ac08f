package frontmatter

import (
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Changed returns the values in which the front matters of two texts differ, a line each: - or +, its keys and the value. Of two lists with
// a common item these are items. A text that does not load has none.
func Changed(before, after []byte) (lines []string) {
	was, now := mappingOf(before), mappingOf(after)
	if was == nil || now == nil {
		return nil
	}
	differ(nil, was, now, func(sign string, keys []string, n *yaml.Node) {
		var names []string
		for _, key := range keys {
			names = append(names, Quote(key))
		}
		lines = append(lines, sign+strings.Join(names, ".")+": "+flowText(n))
	})
	return lines
}

func mappingOf(text []byte) *yaml.Node {
	front, _, err := Cut(text)
	if err != nil {
		return nil
	}
	top, err := Parse(front)
	if err != nil || top == nil || top.Kind != yaml.MappingNode {
		return nil
	}
	return top
}

// differ calls say for each value below some keys that only one of two nodes has.
func differ(keys []string, was, now *yaml.Node, say func(sign string, keys []string, n *yaml.Node)) {
	switch {
	case same(was, now):
	case was.Kind == yaml.MappingNode && now.Kind == yaml.MappingNode:
		for i := 0; i < len(was.Content); i += 2 {
			key := was.Content[i].Value
			at := append(slices.Clone(keys), key)
			if other := Value(now, key); other != nil {
				differ(at, was.Content[i+1], other, say)
			} else {
				say("-", at, was.Content[i+1])
			}
		}
		for i := 0; i < len(now.Content); i += 2 {
			if key := now.Content[i].Value; Value(was, key) == nil {
				say("+", append(slices.Clone(keys), key), now.Content[i+1])
			}
		}
	case was.Kind == yaml.SequenceNode && now.Kind == yaml.SequenceNode && slices.ContainsFunc(was.Content, func(n *yaml.Node) bool {
		return slices.ContainsFunc(now.Content, func(other *yaml.Node) bool { return same(n, other) })
	}):
		differItems(keys, was.Content, now.Content, say)
	default:
		say("-", keys, was)
		say("+", keys, now)
	}
}

// differItems is differ of two lists: of the items between those with which both begin and end.
func differItems(keys []string, was, now []*yaml.Node, say func(sign string, keys []string, n *yaml.Node)) {
	for len(was) > 0 && len(now) > 0 && same(was[0], now[0]) {
		was, now = was[1:], now[1:]
	}
	for len(was) > 0 && len(now) > 0 && same(was[len(was)-1], now[len(now)-1]) {
		was, now = was[:len(was)-1], now[:len(now)-1]
	}
	for _, n := range was {
		say("-", keys, n)
	}
	for _, n := range now {
		say("+", keys, n)
	}
}

// same reports whether two nodes have the same value.
func same(a, b *yaml.Node) bool {
	return a.Kind == b.Kind && a.ShortTag() == b.ShortTag() && a.Value == b.Value && a.Alias == b.Alias &&
		slices.EqualFunc(a.Content, b.Content, same)
}

// flowText returns a value in YAML's flow style, in one line.
func flowText(n *yaml.Node) string {
	text, err := yaml.Marshal(inFlow(n))
	if err != nil {
		return n.Value
	}
	return strings.TrimSpace(string(text))
}

// inFlow returns a copy of a node in flow style, without comments.
func inFlow(n *yaml.Node) *yaml.Node {
	flow := &yaml.Node{Kind: n.Kind, Tag: n.Tag, Value: n.Value, Alias: n.Alias, Anchor: n.Anchor, Style: n.Style}
	if n.Kind == yaml.MappingNode || n.Kind == yaml.SequenceNode {
		flow.Style = yaml.FlowStyle
	}
	if n.Style&(yaml.LiteralStyle|yaml.FoldedStyle) != 0 {
		flow.Style = yaml.DoubleQuotedStyle
	}
	for _, c := range n.Content {
		flow.Content = append(flow.Content, inFlow(c))
	}
	return flow
}
