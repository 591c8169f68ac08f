package config

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/scopefs/scopefs/internal/frontmatter"
	"github.com/scopefs/scopefs/internal/paths"
	"github.com/scopefs/scopefs/scope/protect"
)

// Make makes a project, see [paths.Project.Make]. One whose directory was made anew begins with what the rules of the directory before
// take away, and with nothing that they allow.
func Make(p Project, hide bool) error {
	if p.Before == nil || p.Exists() {
		return p.Make(hide)
	}
	text, err := os.ReadFile(p.Before.Definition())
	if err != nil {
		return fmt.Errorf("--dir: the rules of %s would hold: %w: correct this", p.Before.ID, err)
	}
	trusted, err := os.ReadFile(p.Before.Trusted())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if text, trusted, err = renewed(text, trusted, []byte(p.Text(true))); err != nil {
		return fmt.Errorf("--dir: the rules of %s would hold: %s: %w: correct it", p.Before.ID, p.Before.Definition(), err)
	}
	lists := os.DirFS(filepath.Join(p.Before.Base, protect.Dir))
	if _, err = fs.Stat(lists, "."); err == nil {
		err = os.CopyFS(filepath.Join(p.Base, protect.Dir), lists)
	}
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrExist) { // none, or of a command that was killed
		err = nil
	}
	if err == nil && trusted != nil {
		if err = os.MkdirAll(filepath.Dir(p.Trusted()), 0o700); err == nil {
			err = paths.Replace(p.Trusted(), string(trusted))
		}
	}
	if err != nil {
		return err
	}
	return p.MakeAs(string(text))
}

// takesAway are the keys of definitions that never allow what the definition of a new project does not: a list is one of what is allowed.
var takesAway = []string{
	"description", "display_name",
	"view.access", "view.paths", "view.secrets", "view.hardlinks", "view.data", "view.record", "view.cache", "view.changes",
	"limits", "network.deny", "network.limit", "sandbox.home",
	"tools", "mcps", "policy.tools", "policy.mcp.allowed", "policy.mcp.excluded", "rate_limits", "argument_filters",
}

// renewed returns the definition fresh of a new project with what an old one takes away, and the same of the old trusted text; nil: nothing.
// A rule about a server of the old texts ends with the server, and a list of skills with the skills.
func renewed(old, trusted, fresh []byte) (text, trust []byte, err error) {
	front, body, err := frontmatter.Cut(old)
	if err != nil {
		return nil, nil, err
	}
	made, _, _ := frontmatter.Cut(fresh)
	var tops [3]*yaml.Node
	for i, text := range [][]byte{front, trusted, made} {
		if tops[i], err = frontmatter.Parse(text); err != nil {
			return nil, nil, err
		}
		if tops[i] == nil {
			tops[i] = &yaml.Node{Kind: yaml.MappingNode}
		}
	}
	was, proposed, top := tops[0], tops[1], tops[2]
	var servers []string
	for _, n := range []*yaml.Node{was, proposed} {
		if all := frontmatter.Value(n, "mcp_servers"); all != nil && all.Kind == yaml.MappingNode {
			for i := 0; i < len(all.Content); i += 2 {
				servers = append(servers, all.Content[i].Value)
			}
		}
	}
	take(top, was, takesAway, servers)
	only := &yaml.Node{Kind: yaml.MappingNode}
	take(only, proposed, append([]string{"protect"}, takesAway[2:]...), servers)
	if len(only.Content) > 0 {
		if trust, err = encode(only); err != nil {
			return nil, nil, err
		}
	}
	if text, err = encode(top); err != nil {
		return nil, nil, err
	}
	return slices.Concat([]byte("---\n"), text, []byte("---\n"), body), trust, nil
}

// take copies the values of keys, a dot between them, from one mapping to another one.
func take(to, from *yaml.Node, keys, servers []string) {
	for _, key := range keys {
		value, words := from, strings.Split(key, ".")
		for _, word := range words {
			if value != nil {
				value = frontmatter.Value(value, word)
			}
		}
		if value == nil {
			continue
		}
		without(value, servers)
		at := to
		for i, word := range words {
			next := frontmatter.Value(at, word)
			if next == nil {
				next = &yaml.Node{Kind: yaml.MappingNode}
				at.Content = append(at.Content, &yaml.Node{Kind: yaml.ScalarNode, Value: word}, next)
			}
			if i == len(words)-1 {
				*next = *value
			}
			at = next
		}
	}
	if frontmatter.Value(from, "skills") != nil {
		to.Content = append(to.Content, &yaml.Node{Kind: yaml.ScalarNode, Value: "skills"},
			&yaml.Node{Kind: yaml.SequenceNode, Style: yaml.FlowStyle})
	}
}

// without removes the items of lists, and the keys, that name a server or a tool of one.
func without(n *yaml.Node, servers []string) {
	step := 1
	if n.Kind == yaml.MappingNode {
		step = 2
	}
	for i := len(n.Content) - step; i >= 0; i -= step {
		name := strings.TrimPrefix(n.Content[i].Value, "mcp:")
		server, _, _ := strings.Cut(name, ":")
		if n.Content[i].Kind == yaml.ScalarNode && slices.Contains(servers, server) {
			n.Content = slices.Delete(n.Content, i, i+step)
			continue
		}
		without(n.Content[i+step-1], servers)
	}
}

func encode(n *yaml.Node) ([]byte, error) {
	var text bytes.Buffer
	to := yaml.NewEncoder(&text)
	to.SetIndent(2)
	err := to.Encode(n)
	return text.Bytes(), err
}
