package agents

import (
	"errors"
	"fmt"
	"regexp"
	"regexp/syntax"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/scopefs/scopefs/internal/fields"
	"github.com/scopefs/scopefs/scope"
	scoped "github.com/scopefs/scopefs/scope/context"
)

// Reach is the part of a definition about everything except files. A nil list
// means that the key is absent. An empty list allows nothing.
type Reach struct {
	Tools, Skills, MCPs, Members []string // patterns
	Widened                      []string // members that may do more than the agent
	Contexts                     Contexts
	Rules                        Rules
	Servers                      Servers // private to the agent
	Rates                        []scope.Rate
	Filters                      []scope.Filter
}

// Contexts are the scopes of its client's context that calls of an agent may see.
type Contexts struct {
	Names []string // patterns; nil: absent
	Fixed bool     // const: exactly these contexts are always passed
	Ask   []string // patterns of those for which a call needs an approval
	Set   []string // patterns of those that calls of context_set may fill
	Tools []ToolContexts
}

// ToolContexts are the scopes that calls of some tools may see.
type ToolContexts struct {
	Tool  string // a pattern
	Names []string
	Fixed bool // const: exactly these are always passed
}

// Rules are the key policy. They apply in addition to the lists.
type Rules struct {
	Allowed, Exclude, Ask          []string // tools
	AllowedServers, ExcludedServer []string
	Trusted                        []string // servers whose tools need no approval
}

// Ref is a pattern that must match an existing name.
type Ref struct {
	Line int
	Key  string // the key, such as "policy.tools.exclude"
	kind refKind
	Text string
}

type refKind uint8

const (
	ToolRef refKind = iota
	skillRef
	serverRef
	memberRef
	contextRef // not checked: contexts have no definition
	trustRef   // a server, without wildcards
	presetRef  // without wildcards
	protectRef // likewise; "*" is all
)

// reachFields returns the keys of d.Reach. They append to refs the patterns
// that must match.
func (d *Definition) reachFields(file string, refs *[]Ref) map[string]fields.Field {
	r := &d.Reach
	list := func(out *[]string, key string, kind refKind) fields.Field { return ListField(out, key, kind, refs) }
	return map[string]fields.Field{
		"tools":   list(&r.Tools, "tools", ToolRef),
		"skills":  list(&r.Skills, "skills", skillRef),
		"mcps":    list(&r.MCPs, "mcps", serverRef),
		"members": membersField(r, refs),
		"scopes":  contextsField(&r.Contexts, refs),
		"policy": policyField(map[string]fields.Field{
			"tools": fields.Mapping(map[string]fields.Field{
				"allowed": list(&r.Rules.Allowed, "policy.tools.allowed", ToolRef),
				"exclude": list(&r.Rules.Exclude, "policy.tools.exclude", ToolRef),
				"ask":     list(&r.Rules.Ask, "policy.tools.ask", ToolRef),
			}),
			"mcp": fields.Mapping(map[string]fields.Field{
				"allowed":     list(&r.Rules.AllowedServers, "policy.mcp.allowed", serverRef),
				"excluded":    list(&r.Rules.ExcludedServer, "policy.mcp.excluded", serverRef),
				"mcp_servers": trustField("policy.mcp.mcp_servers", &r.Rules.Trusted, refs),
			}),
			"mcp_servers": trustField("policy.mcp_servers", &r.Rules.Trusted, refs),
		}),
		"mcp_servers": func(n *yaml.Node) error {
			r.Servers = Servers{}
			return EachServer(n, func(name string, value *yaml.Node) error {
				server := Server{Private: true, Own: true, From: file}
				err := fields.Mapping(server.Fields(nil, refs))(value)
				r.Servers[name] = server
				return err
			})
		},
		"rate_limits":      ratesField(&r.Rates, refs),
		"argument_filters": filtersField(&r.Filters, refs),
	}
}

// ListField reads a list of names or patterns.
func ListField(out *[]string, key string, kind refKind, refs *[]Ref) fields.Field {
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
			same, err := checkEntry(s, kind)
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

// membersField reads a list of members, or a mapping from a member to {may:
// widen} or nothing.
func membersField(r *Reach, refs *[]Ref) fields.Field {
	list := ListField(&r.Members, "members", memberRef, refs)
	return func(n *yaml.Node) error {
		if n.Kind != yaml.MappingNode {
			return list(n)
		}
		r.Members = []string{}
		return fields.EachKey(n, func(name string, value *yaml.Node) error {
			if _, err := checkEntry(name, memberRef); err != nil {
				return fmt.Errorf("members: %q %w", name, err)
			}
			r.Members = append(r.Members, name)
			*refs = append(*refs, Ref{value.Line, "members", memberRef, name})
			var may string
			if value.Tag == "!!null" || value.Kind == yaml.MappingNode && len(value.Content) == 0 {
				return nil
			}
			if err := fields.Mapping(map[string]fields.Field{"may": fields.Text(&may)})(value); err != nil {
				return fields.AtLine(value.Line, fmt.Errorf("members: %s: %w", name, err))
			}
			switch {
			case may != "widen":
				return fields.AtLine(value.Line, fmt.Errorf("members: %s: may: %q is unknown: want widen, or leave it out", name, may))
			case strings.Contains(name, "*"):
				return fields.AtLine(value.Line, fmt.Errorf("members: %q may not widen for its wildcard: name each member", name))
			}
			r.Widened = append(r.Widened, name)
			return nil
		})
	}
}

// checkEntry checks the form of an entry. same is equal for two spellings of
// one entry.
func checkEntry(s string, kind refKind) (same string, err error) {
	if kind == ToolRef {
		p, err := parseToolPattern(s)
		return p.key(), err
	}
	name := s
	if kind == memberRef && strings.Trim(s, " ") == s { // a display name has spaces inside
		name = strings.ReplaceAll(s, " ", "")
	}
	if err = CheckName(name); err == nil && strings.Contains(s, ":") {
		err = errors.New("holds a colon: write the name alone")
	}
	return s, err
}

func contextsField(out *Contexts, refs *[]Ref) fields.Field {
	var enum, fixed, ask, set []string
	var none []Ref
	var tools []ToolContexts
	read := fields.Mapping(map[string]fields.Field{
		"enum":  ListField(&enum, "scopes.enum", contextRef, &none),
		"const": ListField(&fixed, "scopes.const", contextRef, &none),
		"ask":   ListField(&ask, "scopes.ask", contextRef, &none),
		"set":   ListField(&set, "scopes.set", contextRef, &none),
		"tools": func(n *yaml.Node) error {
			return eachTool(n, "scopes.tools", refs, func(pattern string, value *yaml.Node) error {
				t, err := toolContexts(pattern, value)
				tools = append(tools, t)
				return err
			})
		},
	})
	return func(n *yaml.Node) error {
		if err := read(n); err != nil {
			return err
		}
		if (enum == nil) == (fixed == nil) && (enum != nil || tools == nil) {
			return errors.New("wants one of enum and const: write {enum: [...]} for a choice, {const: [...]} for none")
		}
		for _, name := range slices.Concat(enum, fixed, ask, set) {
			if !scoped.IsName(strings.ReplaceAll("x"+name, "*", "x")) {
				return fmt.Errorf("%q is no name of a scope: write a letter, then letters, digits, _ and -", name)
			}
		}
		for _, name := range fixed {
			if strings.Contains(name, "*") {
				return fmt.Errorf("const: %q holds a wildcard: write the names, or use enum", name)
			}
			if !scoped.IsName(name) {
				return fmt.Errorf("const: %q is no name of a scope: write a letter, then letters, digits, _ and -", name)
			}
		}
		*out = Contexts{Names: enum, Fixed: fixed != nil, Ask: ask, Set: set, Tools: tools}
		if out.Fixed {
			out.Names = fixed
		}
		for _, t := range tools {
			for _, name := range t.Names {
				if out.Names != nil && !anyOf(out.Names, name) {
					return fmt.Errorf("tools: %q: %q is no scope of enum or const: add it there, or remove it here", t.Tool, name)
				}
			}
		}
		return nil
	}
}

// toolContexts reads {const: [NAME...]} or {enum: [NAME...]}.
func toolContexts(pattern string, n *yaml.Node) (ToolContexts, error) {
	var enum, fixed []string
	var none []Ref
	err := fields.Mapping(map[string]fields.Field{
		"enum":  ListField(&enum, "enum", contextRef, &none),
		"const": ListField(&fixed, "const", contextRef, &none),
	})(n)
	if err == nil && (enum == nil) == (fixed == nil) {
		err = errors.New("wants one of enum and const: write {enum: [...]} for a choice, {const: [...]} for none")
	}
	t := ToolContexts{Tool: pattern, Names: slices.Concat(enum, fixed), Fixed: fixed != nil}
	for _, name := range t.Names {
		if err == nil && !scoped.IsName(name) {
			err = fmt.Errorf("has %q, which is no name of a scope: write a letter, then letters, digits, _ and -", name)
		}
	}
	return t, err
}

// eachTool calls f for each key of n, which is a tool pattern.
func eachTool(n *yaml.Node, key string, refs *[]Ref, f func(pattern string, value *yaml.Node) error) error {
	lines := map[string]int{}
	return fields.EachKey(n, func(s string, value *yaml.Node) error {
		same, err := checkEntry(s, ToolRef)
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

func ratesField(out *[]scope.Rate, refs *[]Ref) fields.Field {
	return func(n *yaml.Node) error {
		return eachTool(n, "rate_limits", refs, func(pattern string, value *yaml.Node) error {
			s, err := fields.Scalar(value, "a rate such as 30/minute", "!!str")
			if err != nil {
				return err
			}
			count, unit, _ := strings.Cut(s, "/")
			r := scope.Rate{Pattern: pattern, Per: map[string]time.Duration{"second": time.Second, "minute": time.Minute, "hour": time.Hour}[unit]}
			if r.N, err = strconv.Atoi(count); err != nil || r.N <= 0 || r.N > maxRate || r.Per == 0 {
				return fmt.Errorf("is limited to %q, which is no rate: write a whole number from 1 to %d, then /second, /minute or /hour", s, maxRate)
			}
			*out = append(*out, r)
			return nil
		})
	}
}

func filtersField(out *[]scope.Filter, refs *[]Ref) fields.Field {
	return func(n *yaml.Node) error {
		return eachTool(n, "argument_filters", refs, func(pattern string, value *yaml.Node) error {
			f := scope.Filter{Pattern: pattern}
			lines := map[string]int{}
			err := fields.EachItem(value, func(item *yaml.Node) error {
				s, err := fields.Scalar(item, "a regular expression, in quotes where need be", "!!str")
				if err != nil {
					return fmt.Errorf("argument_filters: %q: an entry %w", pattern, err)
				}
				if first := lines[s]; first > 0 {
					return fmt.Errorf("argument_filters: %q: %q is here twice, first in line %d: remove one", pattern, s, first)
				}
				lines[s] = item.Line
				re, err := regexp.Compile(s)
				if err != nil || s == "" || len(s) > maxRegexp {
					return fmt.Errorf("argument_filters: %q: %q is no regular expression of 1 to %d bytes (%v): correct it", pattern, s, maxRegexp, reason(err))
				}
				f.Regexps = append(f.Regexps, re)
				return nil
			})
			*out = append(*out, f)
			return err
		})
	}
}

// reason returns why regexp rejects an expression.
func reason(err error) string {
	if err == nil {
		return "its length"
	}
	if e, ok := errors.AsType[*syntax.Error](err); ok {
		return fmt.Sprintf("%s: `%s`", e.Code, e.Expr)
	}
	return err.Error()
}

// maxRegexp limits a filter's regular expression, in bytes.
const maxRegexp = 1024

// maxRate limits the number of calls in a rate limit.
const maxRate = 1_000_000
