package agents

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"
)

// Builtins returns the names of the tools that scopefs has itself.
func Builtins() []string {
	return []string{
		"read_file", "write_file", "edit_file", "list_dir", "stat", "glob", "grep",
		"make_dir", "move", "copy", "delete_file", "delete",
		"bash", "process_read", "process_stop", "scope_info", "ask_user",
		"skill", "mcp", "delegate", "remember", "recall", "memory", "forget",
	}
}

// Writes reports whether a tool of scopefs itself changes files: a view with
// access: read has none of these. What else would change one, the view refuses.
func Writes(name string) bool {
	return slices.Contains([]string{"write_file", "edit_file", "make_dir", "move", "copy", "delete_file", "delete", "remember", "forget"}, name)
}

// The names that rules know. mcpName stands for all tools of all servers.
const (
	builtinPrefix = "builtin:"
	mcpPrefix     = "mcp:"
	mcpName       = "mcp"
	everything    = "*"
)

// aliases are names of other programs that definitions may use, after builtin:.
func aliases() map[string]string {
	return map[string]string{"shell": "bash", "run_shell_command": "bash"}
}

// toolName is the name of a tool, in its parts.
type toolName struct {
	server string // "" for a tool of scopefs itself
	name   string
}

// parseToolName reads "read_file", "builtin:read_file" or "mcp:server:tool".
// What a server calls its tools is its affair: a colon in there is no part.
func parseToolName(s string) (toolName, bool) {
	if strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return toolName{}, false // it could not be shown
	}
	if rest, ok := strings.CutPrefix(s, mcpPrefix); ok {
		server, name, both := strings.Cut(rest, ":")
		return toolName{server, name}, both && name != "" && isServerName(server)
	}
	s = plainName(s)
	return toolName{name: s}, s != "" && !strings.ContainsAny(s, ":*")
}

// plainName returns the name of a tool of scopefs itself: bash for builtin:bash
// and builtin:shell.
func plainName(s string) string {
	rest, ok := strings.CutPrefix(s, builtinPrefix)
	if name, is := aliases()[rest]; ok && is {
		return name
	}
	return rest
}

// toolPattern is a pattern of tool names. The zero value matches nothing.
type toolPattern struct {
	text   string // as it is written
	all    bool   // "*" alone: every tool there is
	server string // wild; "" for tools of scopefs itself
	name   string // wild
}

// maxName bounds a name or pattern of a list, in bytes.
const maxName = 256

// parseToolPattern reads "read_*", "builtin:read_*" or "mcp:server:*". An
// asterisk stands for any bytes within its part, alone for everything.
func parseToolPattern(s string) (toolPattern, error) {
	p := toolPattern{text: s}
	if err := checkName(s); err != nil {
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
	if p.name = plainName(s); p.name == "" || strings.Contains(p.name, ":") {
		return p, errors.New("is no name of a tool: write NAME, builtin:NAME or mcp:SERVER:TOOL")
	}
	return p, nil
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
		return p.server == "" && p.name != "" && wild(p.name, n.name)
	case p.server == "":
		return p.name == mcpName
	default:
		return wild(p.server, n.server) && wild(p.name, n.name)
	}
}

// MatchTool reports whether a pattern of a definition matches a tool:
//
//   - "*" matches every tool;
//   - "read_*" and "builtin:read_*" match tools of scopefs itself;
//   - "builtin:shell" and "builtin:run_shell_command" match bash;
//   - "mcp:search:*" matches tools of servers;
//   - "mcp" matches the tool of that name, and every tool of every server.
//
// An asterisk matches any bytes of a part. What is no pattern or no name
// matches nothing.
func MatchTool(pattern, name string) bool {
	p, err := parseToolPattern(pattern)
	if err != nil {
		return false
	}
	n, ok := parseToolName(name)
	return ok && p.match(n)
}

// wild reports whether s is what pattern says, in which each asterisk stands
// for any bytes. It takes the earliest match after each asterisk: only the last
// one can need another try.
func wild(pattern, s string) bool {
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
	return slices.ContainsFunc(names, func(name string) bool { return wild(pattern, name) })
}

// checkTool refuses what cannot be the name or pattern of a server's tool.
func checkTool(s string) error {
	if s == "" || len(s) > maxName || strings.Contains(s, "**") || strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return fmt.Errorf("is no name of a tool: write 1 to %d characters, * for any", maxName)
	}
	return nil
}

// checkName refuses what cannot be a name or pattern in a list, or would look
// like several where it is shown.
func checkName(s string) error {
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
