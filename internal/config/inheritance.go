package config

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/scopefs/scopefs/internal/frontmatter"
	"github.com/scopefs/scopefs/scope"
)

// Lost returns the rules of the project above that do not hold for a new agent of p, as keys and values. It compares the texts:
// what its definition will not have is lost. It leaves out paths that are not in p.
func Lost(p Project) (lost []string, err error) {
	own, err := rules("", []byte(p.Text(true)), true)
	if err != nil {
		return nil, err
	}
	held := func(r rule) bool {
		same := func(o rule) bool { return slices.Equal(o.words, r.words) }
		return r.words[0] == "name" || r.words[0] == "dir" || slices.ContainsFunc(own, same) || outside(p, r)
	}
	above := p.Above
	for _, file := range []struct {
		name, label string
		front       bool
	}{{above.Definition(), "", true}, {above.Trusted(), "", false}, {filepath.Join(above.Base, "scopefs.yaml"), "scopefs.yaml: ", false}} {
		text, err := os.ReadFile(file.name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		var all []rule
		if err == nil {
			all, err = rules(file.label, text, file.front)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w: correct it, for its rules may not hold for a new agent", file.name, err)
		}
		for _, r := range slices.DeleteFunc(all, held) {
			lost = append(lost, r.String())
		}
	}
	return lost, nil
}

// outside reports whether a rule is about paths that are not in p.
func outside(p Project, r rule) bool {
	rel, err := filepath.Rel(p.Above.Dir, p.Dir)
	if len(r.words) != 4 || r.label != "" || r.words[0] != "view" || r.words[1] != "paths" || err != nil || !filepath.IsLocal(rel) {
		return false
	}
	path := scope.PathRule{Pattern: r.words[2]}
	return path.Check() == nil && !path.Reaches(rel)
}

// rule is a value of a file, after its keys.
type rule struct {
	label string
	words []string
}

func (r rule) String() string { return r.label + strings.Join(r.words, ": ") }

// rules returns the values of a definition, by front, or of a file of YAML: an item of a list each.
func rules(label string, text []byte, front bool) (all []rule, err error) {
	if front {
		if text, _, err = frontmatter.Cut(text); err != nil {
			return nil, err
		}
	}
	top, err := frontmatter.Parse(text)
	if err != nil || top == nil {
		return nil, err
	}
	var add func(n *yaml.Node, keys []string)
	add = func(n *yaml.Node, keys []string) {
		switch {
		case n.Kind == yaml.MappingNode && len(n.Content) > 0:
			for i := 0; i+1 < len(n.Content); i += 2 {
				add(n.Content[i+1], append(slices.Clip(keys), n.Content[i].Value))
			}
			return
		case n.Kind == yaml.SequenceNode && len(n.Content) > 0:
			for _, item := range n.Content {
				all = append(all, rule{label, append(slices.Clip(keys), valueOf(item))})
			}
			return
		}
		all = append(all, rule{label, append(slices.Clip(keys), valueOf(n))})
	}
	add(top, nil)
	return all, nil
}

// valueOf returns a value in one line, without comments.
func valueOf(n *yaml.Node) string {
	if n.Kind == yaml.ScalarNode {
		return n.Value
	}
	flow := *n
	flow.Style, flow.HeadComment, flow.LineComment, flow.FootComment = yaml.FlowStyle, "", "", ""
	text, err := yaml.Marshal(&flow)
	if err != nil {
		return n.Tag // cannot happen: it was read
	}
	return strings.TrimSpace(string(text))
}
