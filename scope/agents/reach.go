package agents

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/scopefs/scopefs/internal/fields"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/catalog"
	scoped "github.com/scopefs/scopefs/scope/context"
)

// Reach is the part of a definition about everything except files. A nil list
// means that the key is absent. An empty list allows nothing.
type Reach struct {
	Tools, Skills, MCPs, Members []string // patterns
	Widened                      []string // members that may do more than the agent
	Tasks                        Changes  // held: members work on a branch of the agent's directory; direct: in their own files
	Contexts                     Contexts
	Rules                        Rules
	Servers                      Servers // private to the agent
	Rates                        []scope.Rate
	Filters                      []scope.Filter
	Team                         []string // agents of the repository that its own members name: no entry of Members is about them
	Repository                   []string // keys that a trusted RepositoryFile sets, sorted
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
	Commit                         Commit   // of the agent's held changes
}

// Commit says whether an agent may commit its held changes by a tool.
type Commit string

// The values of policy.commit.
const (
	CommitNever Commit = "" // the default: the operator commits
	CommitAsk   Commit = "ask"
	CommitAllow Commit = "allow"
)

// reachFields returns the keys of d.Reach. They append to refs the patterns
// that must match.
func (d *Definition) reachFields(file string, refs *[]catalog.Ref) map[string]fields.Field {
	r := &d.Reach
	list := func(out *[]string, key string, kind catalog.RefKind) fields.Field {
		return catalog.List(out, key, kind, refs)
	}
	return map[string]fields.Field{
		"tools":    list(&r.Tools, "tools", catalog.ToolRef),
		"skills":   list(&r.Skills, "skills", catalog.SkillRef),
		"mcps":     list(&r.MCPs, "mcps", catalog.ServerRef),
		"members":  membersField(r, refs),
		"delegate": fields.Mapping(map[string]fields.Field{"changes": tasksField(&r.Tasks)}),
		"scopes":   contextsField(&r.Contexts, refs),
		"policy": policyField(map[string]fields.Field{
			"tools": fields.Mapping(map[string]fields.Field{
				"allowed": list(&r.Rules.Allowed, "policy.tools.allowed", catalog.ToolRef),
				"exclude": list(&r.Rules.Exclude, "policy.tools.exclude", catalog.ToolRef),
				"ask":     list(&r.Rules.Ask, "policy.tools.ask", catalog.ToolRef),
			}),
			"mcp": fields.Mapping(map[string]fields.Field{
				"allowed":     list(&r.Rules.AllowedServers, "policy.mcp.allowed", catalog.ServerRef),
				"excluded":    list(&r.Rules.ExcludedServer, "policy.mcp.excluded", catalog.ServerRef),
				"mcp_servers": trustField("policy.mcp.mcp_servers", &r.Rules.Trusted, refs),
			}),
			"mcp_servers": trustField("policy.mcp_servers", &r.Rules.Trusted, refs),
			"commit":      fields.OneOf(&r.Rules.Commit, CommitAsk, CommitAllow),
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

// membersField reads a list of members, or a mapping from a member to {may:
// widen} or nothing.
func membersField(r *Reach, refs *[]catalog.Ref) fields.Field {
	list := catalog.List(&r.Members, "members", catalog.MemberRef, refs)
	return func(n *yaml.Node) error {
		if n.Kind != yaml.MappingNode {
			return list(n)
		}
		r.Members = []string{}
		return fields.EachKey(n, func(name string, value *yaml.Node) error {
			if _, err := catalog.CheckEntry(name, catalog.MemberRef); err != nil {
				return fmt.Errorf("members: %q %w", name, err)
			}
			r.Members = append(r.Members, name)
			*refs = append(*refs, catalog.Ref{Line: value.Line, Key: "members", Kind: catalog.MemberRef, Text: name})
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

func contextsField(out *Contexts, refs *[]catalog.Ref) fields.Field {
	var enum, fixed, ask, set []string
	var none []catalog.Ref
	var tools []ToolContexts
	read := fields.Mapping(map[string]fields.Field{
		"enum":  catalog.List(&enum, "scopes.enum", catalog.ContextRef, &none),
		"const": catalog.List(&fixed, "scopes.const", catalog.ContextRef, &none),
		"ask":   catalog.List(&ask, "scopes.ask", catalog.ContextRef, &none),
		"set":   catalog.List(&set, "scopes.set", catalog.ContextRef, &none),
		"tools": func(n *yaml.Node) error {
			return catalog.EachTool(n, "scopes.tools", refs, func(pattern string, value *yaml.Node) error {
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
				if out.Names != nil && !catalog.AnyOf(out.Names, name) {
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
	var none []catalog.Ref
	err := fields.Mapping(map[string]fields.Field{
		"enum":  catalog.List(&enum, "enum", catalog.ContextRef, &none),
		"const": catalog.List(&fixed, "const", catalog.ContextRef, &none),
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

func ratesField(out *[]scope.Rate, refs *[]catalog.Ref) fields.Field {
	return func(n *yaml.Node) error {
		return catalog.EachTool(n, "rate_limits", refs, func(pattern string, value *yaml.Node) error {
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

func filtersField(out *[]scope.Filter, refs *[]catalog.Ref) fields.Field {
	return func(n *yaml.Node) error {
		left := maxFilters
		return catalog.EachTool(n, "argument_filters", refs, func(pattern string, value *yaml.Node) error {
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
				re, err := compileFilter(s, &left)
				if err != nil {
					return fmt.Errorf("argument_filters: %q: %q %w", pattern, s, err)
				}
				f.Regexps = append(f.Regexps, re)
				return nil
			})
			*out = append(*out, f)
			return err
		})
	}
}

// maxRate limits the number of calls in a rate limit.
const maxRate = 1_000_000
