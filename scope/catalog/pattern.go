package catalog

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"
)

// Pattern is a pattern of tool names. The zero value matches nothing.
type Pattern struct {
	Text   string // as it is written
	All    bool   // "*" alone: every tool there is
	Server string // wild; "" for tools of scopefs itself
	Name   string // wild
	prefix bool   // it was written with builtin:
	From   string // the file of the extension that has it; "" for the definition
}

// maxName bounds a name or pattern of a list, in bytes.
const maxName = 256

// ParsePattern reads "read_*", "builtin:read_*" or "mcp:server:*". An
// asterisk stands for any bytes within its part, alone for everything.
func ParsePattern(s string) (Pattern, error) {
	p := Pattern{Text: s}
	if err := CheckName(s); err != nil {
		return p, err
	}
	if s == Everything {
		p.All = true
		return p, nil
	}
	if rest, ok := strings.CutPrefix(s, MCPPrefix); ok {
		var both bool
		if p.Server, p.Name, both = strings.Cut(rest, ":"); !both || p.Server == "" || p.Name == "" {
			return p, errors.New("is not mcp:SERVER:TOOL: write it in three parts, * for any")
		}
		return p, nil
	}
	if p.Name, p.prefix = strings.CutPrefix(s, BuiltinPrefix); p.Name == "" || strings.Contains(p.Name, ":") {
		return p, errors.New("is no name of a tool: write NAME, builtin:NAME or mcp:SERVER:TOOL")
	}
	return p, nil
}

// ParsePattern is ParsePattern, with an alias resolved.
func (t Tools) ParsePattern(s string) (Pattern, error) {
	p, err := ParsePattern(s)
	if p.prefix {
		p.Name = t.Resolve(p.Name)
	}
	return p, err
}

// Patterns returns a list as patterns. It omits what is no pattern.
func (t Tools) Patterns(list []string) []Pattern {
	var all []Pattern
	for _, s := range list {
		if p, err := t.ParsePattern(s); err == nil { // cannot fail for a parsed definition
			all = append(all, p)
		}
	}
	return all
}

// Restricting is patterns for the lists exclude and ask. In a definition
// made in code an entry may be no pattern: it restricts every tool.
func (t Tools) Restricting(list []string) []Pattern {
	var all []Pattern
	for _, s := range list {
		p, err := t.ParsePattern(s)
		if err != nil {
			p = Pattern{Text: s, All: true}
		}
		all = append(all, p)
	}
	return all
}

// key is the same for two spellings of one pattern.
func (p Pattern) key() string {
	if p.Server == "" && !p.All {
		return BuiltinPrefix + p.Name
	}
	return p.Text
}

// Match reports whether a tool has a name that the pattern stands for.
func (p Pattern) Match(n ToolName) bool {
	switch {
	case p.All:
		return true
	case n.Server == "":
		return p.Server == "" && p.Name != "" && Wild(p.Name, n.Name)
	case p.Server == "":
		return p.Name == MCP
	default:
		return Wild(p.Server, n.Server) && Wild(p.Name, n.Name)
	}
}

// Reaches is match for a list that restricts. A pattern that matches the name "mcp"
// also restricts all tools that the name stands for.
// So does one of builtin:s* for builtin:shell.
func (p Pattern) Reaches(tools Tools, n ToolName) bool {
	if p.Match(n) || n.Server != "" && p.Match(ToolName{Name: MCP}) {
		return true
	}
	return p.prefix && n.Server == "" && slices.ContainsFunc(tools.Named(n.Name).Aliases, func(alias string) bool {
		return Wild(strings.TrimPrefix(p.Text, BuiltinPrefix), alias)
	})
}

// Listed returns where the pattern stands: key, or the key of an extension.
func (p Pattern) Listed(key string) string {
	if p.From != "" {
		return "excludeTools of " + p.From
	}
	return key
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

// IsWild reports whether pattern has a wildcard.
func IsWild(pattern string) bool { return strings.Contains(pattern, Everything) }

// AnyWild reports whether one of names matches pattern.
func AnyWild(pattern string, names []string) bool {
	return slices.ContainsFunc(names, func(name string) bool { return Wild(pattern, name) })
}

// AnyOf reports whether one of patterns matches name.
func AnyOf(patterns []string, name string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool { return Wild(p, name) })
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

// CheckTool refuses what cannot be the name or pattern of a server's tool.
func CheckTool(s string) error {
	if s == "" || len(s) > maxName || strings.Contains(s, "**") || strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return fmt.Errorf("is no name of a tool: write 1 to %d characters, * for any", maxName)
	}
	return nil
}
