package agents

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"
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
	return append(names, McpName)
}

// listed returns the names of the tools that a computed list holds for one reason.
func (t Tools) listed(why Listed) (names []string) {
	for _, tool := range t {
		if tool.Listed == why {
			names = append(names, tool.Name)
		}
	}
	return names
}

// named returns the tool of a name; the zero Tool if there is none.
func (t Tools) named(name string) Tool {
	for _, tool := range t {
		if tool.Name == name {
			return tool
		}
	}
	return Tool{}
}

// resolve returns the name of the tool that an alias stands for, or name itself.
func (t Tools) resolve(name string) string {
	for _, tool := range t {
		if slices.Contains(tool.Aliases, name) {
			return tool.Name
		}
	}
	return name
}

// The names that rules know. McpName stands for all tools of all servers.
const (
	builtinPrefix = "builtin:"
	mcpPrefix     = "mcp:"
	McpName       = "mcp"
	everything    = "*"
)

// toolName is the name of a tool, in its parts.
type toolName struct {
	server string // "" for a tool of scopefs itself
	name   string
}

// parseName reads "read_file", "builtin:read_file" or "mcp:server:tool". A colon
// in a server's name of its tool separates nothing.
func (t Tools) parseName(s string) (toolName, bool) {
	if strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return toolName{}, false // it could not be shown
	}
	if rest, ok := strings.CutPrefix(s, mcpPrefix); ok {
		server, name, both := strings.Cut(rest, ":")
		return toolName{server, name}, both && name != "" && IsServerName(server)
	}
	if rest, ok := strings.CutPrefix(s, builtinPrefix); ok {
		s = t.resolve(rest)
	}
	return toolName{name: s}, s != "" && !strings.ContainsAny(s, ":*")
}

// toolPattern is a pattern of tool names. The zero value matches nothing.
type toolPattern struct {
	text   string // as it is written
	all    bool   // "*" alone: every tool there is
	server string // wild; "" for tools of scopefs itself
	name   string // wild
	prefix bool   // it was written with builtin:
	from   string // the file of the extension that has it; "" for the definition
}

// maxName bounds a name or pattern of a list, in bytes.
const maxName = 256

// parseToolPattern reads "read_*", "builtin:read_*" or "mcp:server:*". An
// asterisk stands for any bytes within its part, alone for everything.
func parseToolPattern(s string) (toolPattern, error) {
	p := toolPattern{text: s}
	if err := CheckName(s); err != nil {
		return p, err
	}
	if s == everything {
		p.all = true
		return p, nil
	}
	if rest, ok := strings.CutPrefix(s, mcpPrefix); ok {
		var both bool
		if p.server, p.name, both = strings.Cut(rest, ":"); !both || p.server == "" || p.name == "" {
			return p, errors.New("is not mcp:SERVER:TOOL: write it in three parts, * for any")
		}
		return p, nil
	}
	if p.name, p.prefix = strings.CutPrefix(s, builtinPrefix); p.name == "" || strings.Contains(p.name, ":") {
		return p, errors.New("is no name of a tool: write NAME, builtin:NAME or mcp:SERVER:TOOL")
	}
	return p, nil
}

// ParsePattern is parseToolPattern, with an alias resolved.
func (t Tools) ParsePattern(s string) (toolPattern, error) {
	p, err := parseToolPattern(s)
	if p.prefix {
		p.name = t.resolve(p.name)
	}
	return p, err
}

// key is the same for two spellings of one pattern.
func (p toolPattern) key() string {
	if p.server == "" && !p.all {
		return builtinPrefix + p.name
	}
	return p.text
}

func (p toolPattern) match(n toolName) bool {
	switch {
	case p.all:
		return true
	case n.server == "":
		return p.server == "" && p.name != "" && Wild(p.name, n.name)
	case p.server == "":
		return p.name == McpName
	default:
		return Wild(p.server, n.server) && Wild(p.name, n.name)
	}
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
	n, ok := t.parseName(name)
	return ok && p.match(n)
}

// Wild reports whether s is what pattern says, in which each asterisk stands
// for any bytes. It takes the earliest match after each asterisk: only the last
// one can need another try.
func Wild(pattern, s string) bool {
	again, from := -1, 0
	p, i := 0, 0
	for i < len(s) {
		switch {
		case p < len(pattern) && pattern[p] == '*':
			again, from = p+1, i
			p++
		case p < len(pattern) && pattern[p] == s[i]:
			p, i = p+1, i+1
		case again >= 0:
			from++
			p, i = again, from
		default:
			return false
		}
	}
	return strings.Trim(pattern[p:], "*") == ""
}

// anyWild reports whether one of names matches pattern.
func isWild(pattern string) bool { return strings.Contains(pattern, everything) }

func anyWild(pattern string, names []string) bool {
	return slices.ContainsFunc(names, func(name string) bool { return Wild(pattern, name) })
}

// checkTool refuses what cannot be the name or pattern of a server's tool.
func checkTool(s string) error {
	if s == "" || len(s) > maxName || strings.Contains(s, "**") || strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return fmt.Errorf("is no name of a tool: write 1 to %d characters, * for any", maxName)
	}
	return nil
}

// CheckName refuses what cannot be a name or pattern in a list, or would look
// like several where it is shown.
func CheckName(s string) error {
	switch {
	case s == "":
		return errors.New("is empty: remove it")
	case len(s) > maxName:
		return fmt.Errorf("is longer than %d bytes: shorten it", maxName)
	case strings.Contains(s, "**"):
		return errors.New("has two asterisks side by side: write one")
	case strings.ContainsFunc(s, func(r rune) bool {
		return unicode.IsSpace(r) || !unicode.IsPrint(r) || r == unicode.ReplacementChar || strings.ContainsRune(`,<>"'`, r)
	}):
		return errors.New("holds a space, comma, quote, bracket or control character: no name does, remove it")
	}
	return nil
}

// Collision returns an error for a tool of a store that has the name of another tool.
func (t Tools) Collision(more Tools) error {
	for i, one := range more {
		if t.named(t.resolve(one.Name)).Name != "" || more[:i].named(one.Name).Name != "" {
			return fmt.Errorf("%s is the name of another tool: give the tool another name", one.Name)
		}
	}
	return nil
}
