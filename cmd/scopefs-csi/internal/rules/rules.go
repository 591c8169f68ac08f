// Package rules decides which pods get the view of which agent. It reads the operator's rules and the definitions that pods may name,
// and no other files.
package rules

import (
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/scopefs/scopefs/internal/bounded"
	"github.com/scopefs/scopefs/internal/fields"
	"github.com/scopefs/scopefs/internal/frontmatter"
	"github.com/scopefs/scopefs/scope"
)

// Pod is who wants a view: what kubelet says of the pod.
type Pod struct{ Namespace, Name, UID, Account string }

// Rule gives pods of service accounts the views of agents. Namespace, Account and Agents are patterns of path.Match.
type Rule struct {
	Namespace string
	Account   string
	Agents    []string

	ReadOnly bool

	// A rule that has one of these makes the definitions of its agents; else the operator has them in agents.d.
	Prefix     string     // the agent's directory is the one of its id below this; "": its own below the base
	Definition *yaml.Node // the other keys, a mapping; nil: none

	// Definitions are patterns of names. A pod must name a definition that matches one of them; it narrows the definition that the
	// rule makes. Empty: a pod names no definition, and may narrow with a text of its own.
	Definitions []string
}

// Rules are the rules of a file. The first one that fits holds.
type Rules []Rule

// Load reads a file of rules. Its errors name the file and the line.
func Load(name string) (Rules, error) {
	text, err := bounded.File(name, frontmatter.MaxKeys)
	if err != nil {
		return nil, err
	}
	all, err := parse(text)
	if err != nil {
		return nil, fields.ErrorAt(name, 0, "", err)
	}
	return all, nil
}

func parse(text []byte) (all Rules, err error) {
	top, err := frontmatter.Parse(text)
	if err != nil {
		return nil, err
	}
	if top == nil {
		return nil, errors.New("has no rules: write some, or rules: [] for no pod at all")
	}
	err = fields.AtLine(top.Line, fields.Mapping(map[string]fields.Field{"rules": func(n *yaml.Node) error {
		return fields.EachItem(n, func(n *yaml.Node) error {
			r, err := readRule(n)
			all = append(all, r)
			return fields.AtLine(n.Line, err)
		})
	}})(top))
	return all, err
}

func readRule(n *yaml.Node) (Rule, error) {
	r, access := Rule{}, "write"
	err := fields.Mapping(map[string]fields.Field{
		"namespace":       fields.Text(&r.Namespace),
		"service_account": fields.Text(&r.Account),
		"agents":          fields.Texts(&r.Agents, "agents", checkPattern),
		"access":          fields.OneOf(&access, "read", "write"),
		"prefix":          fields.Text(&r.Prefix),
		"definition": func(n *yaml.Node) error {
			if n.Kind != yaml.MappingNode {
				return errors.New("want the keys of a definition: see docs/agents.md")
			}
			for _, key := range []string{"name", "dir"} {
				if frontmatter.Value(n, key) != nil {
					return fmt.Errorf("%s follows from the pod's agent and the prefix: remove it", key)
				}
			}
			r.Definition = n
			return nil
		},
		"definitions": fields.Texts(&r.Definitions, "definitions", checkPattern),
	})(n)
	r.ReadOnly = access == "read"
	if err != nil {
		return r, err
	}
	for _, of := range [][2]string{{"namespace", r.Namespace}, {"service_account", r.Account}} {
		if err := checkPattern(of[1]); err != nil {
			return r, fmt.Errorf("%s: %w", of[0], err)
		}
	}
	switch {
	case len(r.Agents) == 0:
		return r, errors.New("agents: names no agent: write patterns of ids")
	case r.Prefix != "" && (!filepath.IsAbs(r.Prefix) || filepath.Clean(r.Prefix) != r.Prefix || r.Prefix == "/"):
		return r, fmt.Errorf("prefix: %q: want an absolute path, without a slash at its end", r.Prefix)
	case len(r.Definitions) > 0 && !r.Makes():
		return r, errors.New("definitions: they narrow a definition that the rule makes: add definition or prefix")
	}
	return r, nil
}

func checkPattern(pattern string) error {
	if _, err := path.Match(pattern, ""); err != nil || pattern == "" {
		return fmt.Errorf("%q is no pattern: write a name, which may have *, ? and [a-z]", pattern)
	}
	return nil
}

// Refused is the error of a pod that no rule gives the agent.
type Refused struct {
	Pod        Pod
	Agent      string
	Definition string // that a rule gives others with the agent; "": no rule fits
}

func (e *Refused) Error() string {
	if e.Definition != "" {
		return fmt.Sprintf("the rule for the service account %q of the namespace %q and the agent %q has no definition %q: the operator can add it",
			e.Pod.Account, e.Pod.Namespace, e.Agent, e.Definition)
	}
	return fmt.Sprintf(
		"no rule gives the service account %q of the namespace %q the agent %q: the operator can add one",
		e.Pod.Account, e.Pod.Namespace, e.Agent)
}

// Find returns the rule that gives a pod an agent, or *Refused.
func (all Rules) Find(p Pod, agent scope.ID) (Rule, error) {
	for _, r := range all {
		if !fits(r.Namespace, p.Namespace) || !fits(r.Account, p.Account) {
			continue
		}
		if fitsOne(r.Agents, string(agent)) {
			return r, nil
		}
	}
	return Rule{}, &Refused{Pod: p, Agent: string(agent)}
}

func fits(pattern, name string) bool {
	ok, err := path.Match(pattern, name)
	return ok && err == nil
}

func fitsOne(patterns []string, name string) bool {
	return slices.ContainsFunc(patterns, func(pattern string) bool { return fits(pattern, name) })
}

// Makes reports whether the rule makes the definitions of its agents.
func (r Rule) Makes() bool { return r.Prefix != "" || r.Definition != nil }

// Narrowed reports whether pods get the agent only with one of the rule's definitions.
func (r Rule) Narrowed() bool { return len(r.Definitions) > 0 }

// Lets reports whether a pod may name the definition.
func (r Rule) Lets(definition string) bool { return fitsOne(r.Definitions, definition) }

// Text returns the text of the definition that the rule makes of an agent; "" if it makes none. from is the definition that
// narrows it, or "": it is in the text, so that pods of one agent name the same.
func (r Rule) Text(agent scope.ID, from string) (string, error) {
	if !r.Makes() {
		return "", nil
	}
	scalar := func(text string) *yaml.Node { return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: text} }
	top := &yaml.Node{Kind: yaml.MappingNode, Content: []*yaml.Node{scalar("name"), scalar(string(agent))}}
	if r.Prefix != "" {
		top.Content = append(top.Content, scalar("dir"), scalar(filepath.Join(r.Prefix, string(agent))))
	}
	if r.Definition != nil {
		top.Content = append(top.Content, r.Definition.Content...)
	}
	text, err := yaml.Marshal(top)
	head := "---\n# made by scopefs csi for pods: it is removed with the last of them\n"
	if from != "" {
		head += "# narrowed by the definition " + from + "\n"
	}
	return head + string(text) + "---\n", err
}

// narrowing are the keys by which a pod's author, and a definition that the pod names, may narrow the definition that a rule
// makes. A definition and such keys together allow what both allow.
var narrowing = []string{"view", "protect"}

// CheckNarrow returns an error if the text has other keys than those that narrow the view of files. The
// daemon checks their values.
func CheckNarrow(text string) error {
	top, err := frontmatter.Parse([]byte(text))
	if err != nil {
		return err
	}
	if top == nil || top.Kind != yaml.MappingNode {
		return fmt.Errorf("has no keys: want some of %s", strings.Join(narrowing, ", "))
	}
	return fields.Only(func(*yaml.Node) error { return nil }, "", "a pod", narrowing)(top)
}
