package imports

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/scopefs/scopefs/scope/catalog"
)

// builtins returns the scopefs tools except mcp and delegate, which lead to other programs.
func builtins() []string {
	return []string{
		"read_file", "write_file", "edit_file", "list_dir", "stat", "glob", "grep", "make_dir", "move", "copy",
		"delete_file", "delete", "bash", "process_read", "process_stop", "scope_info", "ask_user", "skill",
	}
}

// fileWriters returns the tools that can change files, except bash.
func fileWriters() []string {
	return []string{"write_file", "edit_file", "make_dir", "move", "copy", "delete_file", "delete"}
}

// wordsOf reads a list of tools, or a string with commas.
func wordsOf(n *yaml.Node) ([]string, error) {
	if n.Kind != yaml.ScalarNode {
		return listOf(n)
	}
	words, depth, start := []string{}, 0, 0
	add := func(s string) {
		if s = strings.TrimSpace(s); s != "" {
			words = append(words, s)
		}
	}
	if isNull(n) {
		return words, nil
	}
	for i, c := range n.Value {
		switch {
		case c == '(':
			depth++
		case c == ')':
			depth--
		case c == ',' && depth <= 0:
			add(n.Value[start:i])
			start = i + 1
		}
	}
	add(n.Value[start:])
	return words, nil
}

// cutArgument splits Bash(git:*) into Bash and git:*.
func cutArgument(word string) (name, argument string) {
	name, argument, ok := strings.Cut(word, "(")
	if !ok {
		return strings.TrimSpace(word), ""
	}
	return strings.TrimSpace(name), strings.TrimSuffix(strings.TrimSpace(argument), ")")
}

// mcpTool returns the name of a server's tool, or "" if it would not be a valid pattern.
func mcpTool(server, tool string) string {
	if !catalog.IsServerName(server) || !regexp.MustCompile(`^[\w.*-]{1,128}$`).MatchString(tool) || strings.Contains(tool, "**") {
		return ""
	}
	return "mcp:" + server + ":" + tool
}

// grant is the meaning of a word in a list of tools.
type grant struct {
	tool     string // the scopefs tool, or ""
	argument string // a restriction of the arguments, which a definition cannot express
	why      string // why there is no tool
}

// allowTools is allow for the key tools, whose words are nil if it is absent.
func (d *draft) allowTools(words []string, read func(word string) grant) {
	if words == nil {
		return
	}
	if len(words) == 0 {
		d.lose("tools", "is empty", "tools: [], which is none")
	}
	d.allow("tools", words, read)
}

// allow adds the tools that the words of a key grant. A tool that is granted only for some arguments needs approval.
func (d *draft) allow(key string, words []string, read func(word string) grant) {
	if d.tools == nil {
		d.tools = []string{}
	}
	free := map[string]bool{}
	for _, w := range words {
		g := read(w)
		if g.tool == "" {
			d.lose(key+": "+w, g.why, "left out")
			continue
		}
		d.tools = addTo(d.tools, g.tool)
		free[g.tool] = free[g.tool] || g.argument == ""
	}
	for _, w := range words {
		if g := read(w); g.tool != "" && !free[g.tool] {
			d.ask = addTo(d.ask, g.tool)
			d.lose(key+": "+w, "a tool cannot be restricted to some arguments",
				fmt.Sprintf("every call of %s is asked about (policy.tools.ask)", g.tool))
		}
	}
}

// deny excludes the tools that the words of a key deny. A tool that is denied only for some arguments needs approval.
// For an unknown word, every call needs approval.
func (d *draft) deny(key string, words []string) {
	for _, w := range words {
		name, argument := cutArgument(w)
		patterns, known := d.denied(name)
		switch {
		case !known:
			d.ask = addTo(d.ask, "*")
			d.lose(key+": "+w, "scopefs has no such tool", "every call is asked about (policy.tools.ask)")
		case argument != "" && len(patterns) > 0:
			d.ask = addTo(d.ask, patterns...)
			d.lose(key+": "+w, "a tool cannot be denied for some arguments",
				fmt.Sprintf("every call of %s is asked about (policy.tools.ask)", strings.Join(patterns, ", ")))
		default:
			d.exclude = addTo(d.exclude, patterns...)
		}
	}
}

// requireApproval requires approval for those of the tools that the agent may use.
func (d *draft) requireApproval(tools ...string) {
	for _, t := range tools {
		switch {
		case d.tools == nil || slices.Contains(d.tools, "*") || slices.Contains(d.tools, t):
			d.ask = addTo(d.ask, t)
		case t == "mcp":
			for _, have := range d.tools {
				if strings.HasPrefix(have, "mcp:") {
					d.ask = addTo(d.ask, have)
				}
			}
		}
	}
}

// addTo appends the strings that list does not contain.
func addTo(list []string, more ...string) []string {
	for _, s := range more {
		if !slices.Contains(list, s) {
			list = append(list, s)
		}
	}
	return list
}
