package imports

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"go.yaml.in/yaml/v3"

	"github.com/scopefs/scopefs/internal/frontmatter"
	"github.com/scopefs/scopefs/scope/catalog"
)

// keptKeys returns the keys of a scopes file that are copied unchanged, in the order of a definition.
func keptKeys() []string {
	return []string{"display_name", "kind", "model", "temperature", "max_turns", "timeout", "user", "view", "policy",
		"mcp_servers", "limits", "network", "rate_limits", "argument_filters"}
}

// scopesDrafts converts agents in whose lists (tools, members, skills, mcps) empty means unrestricted. An empty list
// becomes absent, or "*" where absent would mean the computed list. Empty members become none. The source is one
// mapping, a list of mappings, or a mapping with the key agents, whose value is a list or a mapping from names.
func scopesDrafts(doc *document) (all []*draft, err error) {
	add := func(name string, n *yaml.Node) error {
		d, err := scopesDraft(doc.ours, n, name, "")
		all = append(all, d)
		return err
	}
	top := cmp.Or(frontmatter.Value(doc.top, "agents"), doc.top)
	switch {
	case top != doc.top && len(doc.top.Content) > 2:
		return nil, errors.New("has keys beside agents: keep agents alone")
	case top != doc.top && top.Kind == yaml.MappingNode:
		err = eachKey(top, add)
	case top.Kind == yaml.SequenceNode:
		for i, n := range top.Content {
			err := add("", n)
			if err == nil && all[i].name == "" {
				err = errors.New("name is missing")
			}
			if err != nil {
				return nil, fmt.Errorf("agent %d: %w", i+1, err)
			}
		}
	default:
		d, err := scopesDraft(doc.ours, top, "", doc.body)
		return []*draft{d}, err
	}
	if err == nil && len(all) == 0 {
		err = errors.New("has no agents")
	}
	return all, err
}

func scopesDraft(ours catalog.Tools, n *yaml.Node, name, body string) (*draft, error) {
	d := &draft{ours: ours, name: name, prompt: body}
	var members []string
	every := false // tools is present and empty
	list := func(out *[]string) func(*yaml.Node) error {
		return func(n *yaml.Node) error {
			if isNull(n) {
				return nil
			}
			all, err := listOf(n)
			*out = addTo(nil, all...)
			return err
		}
	}
	f := fields{
		"name":        textField(&d.name),
		"description": textField(&d.description),
		"tools": func(n *yaml.Node) error {
			every = !isNull(n) && len(n.Content) == 0
			return list(&d.tools)(n)
		},
		"skills": list(&d.skills),
		"mcps":   list(&d.mcps),
		"members": func(n *yaml.Node) error {
			d.members = []string{}
			return list(&members)(n)
		},
	}
	for _, key := range []string{"prompt", "system_prompt"} {
		f[key] = func(n *yaml.Node) error {
			if d.prompt != "" {
				return fmt.Errorf("line %d: there is a body already: keep one", n.Line)
			}
			return textField(&d.prompt)(n)
		}
	}
	for _, key := range keptKeys() {
		f[key] = func(n *yaml.Node) error { d.keep(key, n); return nil }
	}
	if err := f.read(d, "", n); err != nil {
		return nil, err
	}
	d.addMembers(members)
	d.named = serverNames(n)
	// Empty tools beside a list that names something are computed, in the source as in a definition. Without such a
	// list they mean all tools. In a definition, absent tools beside members do not.
	if every && d.skills == nil && d.mcps == nil && len(members) == 0 && d.members != nil {
		d.tools = []string{"*"}
	}
	if !every && d.members != nil && len(members) == 0 {
		d.computed()
	}
	if len(d.tools) > 0 && len(d.skills) > 0 {
		d.tools = addTo(d.tools, "skill") // the source reads the skills of the list with any tools
	}
	d.loseUndefined()
	d.askInPolicy()
	return d, nil
}

// askInPolicy adds d.ask to the copied policy. It removes trust, because calls of trusted servers need no approval.
func (d *draft) askInPolicy() {
	policy := d.kept["policy"]
	if len(d.ask) == 0 || policy == nil || policy.Kind != yaml.MappingNode {
		return // without a policy render writes the draft's
	}
	drop := func(n *yaml.Node, key string) {
		for i := 0; n != nil && n.Kind == yaml.MappingNode && i+1 < len(n.Content); i += 2 {
			if n.Content[i].Value == key {
				n.Content = slices.Delete(n.Content, i, i+2)
				return
			}
		}
	}
	drop(policy, "mcp_servers")
	drop(frontmatter.Value(policy, "mcp"), "mcp_servers")
	tools := frontmatter.Value(policy, "tools")
	if tools == nil || tools.Kind != yaml.MappingNode {
		drop(policy, "tools")
		tools = &yaml.Node{Kind: yaml.MappingNode}
		put(policy, "tools", tools)
	}
	ask := addTo(slices.Clone(d.ask), scalars(frontmatter.Value(tools, "ask"))...)
	drop(tools, "ask")
	put(tools, "ask", list(ask))
	d.ask = nil
}

func (d *draft) addMembers(members []string) {
	for _, m := range members {
		id, err := toID(m)
		switch {
		case m == "*":
			d.members = addTo(d.members, m)
		case err != nil:
			d.lose("members: "+m, "it is not a valid id", "left out")
		default:
			if string(id) != m {
				d.lose("members: "+m, "it is not a valid id", string(id))
			}
			d.members = addTo(d.members, string(id))
		}
	}
}

func serverNames(n *yaml.Node) (names []string) { return namesIn(n, "mcp_servers") }

// namesIn returns the keys of the mapping that a key has, sorted.
func namesIn(n *yaml.Node, key string) (names []string) {
	if servers := frontmatter.Value(n, key); servers != nil && servers.Kind == yaml.MappingNode {
		for i := 0; i+1 < len(servers.Content); i += 2 {
			names = append(names, servers.Content[i].Value)
		}
	}
	slices.Sort(names)
	return names
}
