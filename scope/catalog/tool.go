// Package catalog holds the names that the files of an operator use: the tools that
// definitions may name, patterns of names, and references, which must match a name.
//
// It knows no tool. The program that has the tools makes [Tools].
package catalog

import (
	"fmt"
	"slices"
	"strings"
	"unicode"

	"github.com/scopefs/scopefs/internal/fields"
	"github.com/scopefs/scopefs/internal/nearest"
)

// Tool is a tool that definitions may name.
type Tool struct {
	Name    string   // without a colon or an asterisk
	Aliases []string // names of it in other programs; a definition writes builtin:ALIAS
	Writes  bool     // changes files: an agent with access: read does not have it
	Listed  Listed   // when a computed list of tools holds it

	Delegates bool // its calls may name a member that does them
}

// Listed says when a computed list of tools holds a tool.
type Listed uint8

// When a computed list holds a tool.
const (
	ListedNever   Listed = iota
	ListedBase           // always, unless the operator's base_tools name others
	ListedMemory         // with memory: true in scopefs.yaml
	ListedSkills         // for an agent that names skills
	ListedMembers        // for an agent that names members
	ListedScopes         // for an agent that has scopes.set; no other agent has it at all
	ListedKept           // never; only an agent whose view keeps its changes has it at all
	ListedUndo           // never; only an agent whose view keeps or holds its changes has it at all
	ListedHeld           // with delegate: {changes: held}; no agent but such a one, or one whose changes are held, has it at all
	ListedCommit         // likewise; an agent whose own changes are held needs policy.commit
	ListedTask           // with delegate: {changes: held}; no other agent has it at all
)

// Tools are the tools that definitions may name, beside those of MCP servers.
// Whoever has the tools makes the list: see [Host].
type Tools []Tool

// Names returns the names of the tools, and "mcp" for those of servers.
func (t Tools) Names() []string {
	names := make([]string, 0, len(t)+1)
	for _, tool := range t {
		names = append(names, tool.Name)
	}
	return append(names, MCP)
}

// Listed returns the names of the tools that a computed list holds for one reason.
func (t Tools) Listed(why Listed) (names []string) {
	for _, tool := range t {
		if tool.Listed == why {
			names = append(names, tool.Name)
		}
	}
	return names
}

// Named returns the tool of a name; the zero Tool if there is none.
func (t Tools) Named(name string) Tool {
	for _, tool := range t {
		if tool.Name == name {
			return tool
		}
	}
	return Tool{}
}

// Resolve returns the name of the tool that an alias stands for, or name itself.
func (t Tools) Resolve(name string) string {
	for _, tool := range t {
		if slices.Contains(tool.Aliases, name) {
			return tool.Name
		}
	}
	return name
}

// Like returns the tool that a name means that is no tool, such as read_file for Read, or "".
func (t Tools) Like(name string) string { return nearest.Of(name, t.Names()) }

// NoTool returns the error of a name that is no tool.
func (t Tools) NoTool(name string) error {
	if like := t.Like(name); like != "" {
		return fmt.Errorf("%q is no tool: did you mean %s", name, like)
	}
	return fmt.Errorf("%q is no tool: write mcp:SERVER:TOOL or one of %s", name, strings.Join(t.Names(), ", "))
}

// Collision returns an error for a tool of a store that has the name of another tool.
func (t Tools) Collision(more Tools) error {
	for i, one := range more {
		if t.Named(t.Resolve(one.Name)).Name != "" || more[:i].Named(one.Name).Name != "" {
			return fmt.Errorf("%s is the name of another tool: give the tool another name", one.Name)
		}
	}
	return nil
}

// Match reports whether a pattern of a definition matches a tool:
//
//   - "*" matches every tool;
//   - "read_*" and "builtin:read_*" match tools of scopefs itself;
//   - "builtin:ALIAS" matches the tool that has the alias;
//   - "mcp:search:*" matches tools of servers;
//   - "mcp" matches the tool of that name, and every tool of every server.
//
// An asterisk matches any bytes of a part. What is no pattern or no name
// matches nothing.
func (t Tools) Match(pattern, name string) bool {
	p, err := t.ParsePattern(pattern)
	if err != nil {
		return false
	}
	n, ok := t.ParseName(name)
	return ok && p.Match(n)
}

// Known reports whether a pattern matches a tool there is, or may be: what
// tools a server has, only the server knows.
func (t Tools) Known(p Pattern, servers []string) bool {
	switch {
	case p.All:
		return true
	case p.Server == "":
		return AnyWild(p.Name, t.Names())
	default:
		return AnyWild(p.Server, servers)
	}
}

// The names that rules know. MCP stands for all tools of all servers.
const (
	BuiltinPrefix = "builtin:"
	MCPPrefix     = "mcp:"
	MCP           = "mcp"
	Everything    = "*"
)

// ToolName is the name of a tool, in its parts.
type ToolName struct {
	Server string // "" for a tool of scopefs itself
	Name   string
}

// IsServerName reports whether s is valid in mcp:SERVER:TOOL and in
// mcp__SERVER__TOOL, the form for clients. There, tool b__t of server a must
// not equal tool t of server a__b.
func IsServerName(s string) bool {
	return fields.IsPlainName(s, 64) && !strings.Contains(s, "__") && !strings.HasSuffix(s, "_")
}

// ParseName reads "read_file", "builtin:read_file" or "mcp:server:tool". A colon
// in a server's name of its tool separates nothing. A pattern is no name.
func (t Tools) ParseName(s string) (ToolName, bool) {
	if strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return ToolName{}, false // it could not be shown
	}
	if rest, ok := strings.CutPrefix(s, MCPPrefix); ok {
		server, name, both := strings.Cut(rest, ":")
		return ToolName{server, name}, both && name != "" && !IsWild(name) && IsServerName(server)
	}
	if rest, ok := strings.CutPrefix(s, BuiltinPrefix); ok {
		s = t.Resolve(rest)
	}
	return ToolName{Name: s}, s != "" && !strings.ContainsAny(s, ":*")
}
