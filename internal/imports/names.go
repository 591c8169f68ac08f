package imports

import (
	"cmp"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/scopefs/scopefs/scope/catalog"
)

// toolWord maps tool names to scopefs tools. toolWords is the only translation of names.
type toolWord struct {
	from  Format   // the format of the names; "" is scopefs
	names string   // names with this meaning, separated by blanks
	ours  string   // the scopefs tool that does no more, or ""
	does  []string // further scopefs tools that do what it does
}

// toolWords returns the tool names of the formats and of scopefs.
func toolWords(ours catalog.Tools) []toolWord {
	changes := []string{"make_dir", "move", "copy", "delete_file", "delete"} // a denied write denies these too
	var all []toolWord
	for _, w := range catalog.GeminiTools() {
		all = append(all, toolWord{Gemini, w.Names, w.Ours, w.Does})
	}
	all = append(all, []toolWord{
		{Claude, "Read", "read_file", nil},
		{Claude, "Write", "write_file", changes},
		{Claude, "Edit MultiEdit", "edit_file", nil},
		{Claude, "Glob", "glob", nil},
		{Claude, "Grep", "grep", nil},
		{Claude, "LS", "list_dir", []string{"stat"}},
		{Claude, "Bash", "bash", nil},
		{Claude, "BashOutput TaskOutput", "process_read", nil},
		{Claude, "KillShell KillBash TaskStop", "process_stop", nil},
		{Claude, "Skill", "skill", nil},
		{Claude, "AskUserQuestion", "ask_user", nil},
		{Claude, "Task Agent", "delegate", nil},
		{Claude, "NotebookRead", "", []string{"read_file"}}, // scopefs tools work on any file
		{Claude, "NotebookEdit", "", []string{"edit_file"}},
		{Claude, "SlashCommand", "", []string{"skill"}},
		{Claude, "PowerShell Monitor", "", []string{"bash"}},
		{Claude,
			"WebFetch WebSearch TodoRead TodoWrite TaskCreate TaskUpdate TaskList TaskGet EnterPlanMode ExitPlanMode ToolSearch SendMessage ListMcpResourcesTool ReadMcpResourceTool LSP", "", nil},

		{"", "write_file", "write_file", changes},
	}...)
	for _, tool := range ours {
		for _, alias := range tool.Aliases {
			all = append(all, toolWord{"", alias, tool.Name, nil})
		}
	}
	for _, name := range ours.Names() {
		if name != "write_file" {
			all = append(all, toolWord{"", name, name, nil})
		}
	}
	return all
}

// toolNamed returns the meaning of a tool name of the format or of scopefs.
func toolNamed(ours catalog.Tools, format Format, name string) (w toolWord, known bool) {
	for _, w := range toolWords(ours) {
		if (w.from == format || w.from == "" && format == Gemini) && slices.Contains(strings.Fields(w.names), name) {
			return w, true
		}
	}
	return toolWord{}, false
}

// denied returns the scopefs patterns for a denied name or wildcard of any format. It rather denies too much than too
// little. known is false if the name could mean any tool.
func (d *draft) denied(name string) (patterns []string, known bool) {
	if name == "*" {
		return []string{"*"}, true
	}
	if patterns := d.deniedOfServer(name); patterns != nil {
		return patterns, true
	}
	name = strings.ToLower(strings.TrimPrefix(name, "builtin:"))
	for _, w := range toolWords(d.ours) {
		for word := range strings.FieldsSeq(w.names) {
			if ok, _ := path.Match(name, strings.ToLower(word)); !ok {
				continue
			}
			known = true
			if w.ours != "" {
				patterns = addTo(patterns, w.ours)
			}
			patterns = addTo(patterns, w.does...)
		}
	}
	return patterns, known
}

// deniedOfServer is denied for tools of MCP servers: mcp:SERVER:TOOL, mcp__SERVER__TOOL, mcp_SERVER_TOOL and
// SERVER__TOOL.
func (d *draft) deniedOfServer(name string) []string {
	if rest, ok := strings.CutPrefix(name, "mcp:"); ok {
		server, tool, _ := strings.Cut(rest, ":")
		return d.ofServer(server, tool)
	}
	if rest, ok := strings.CutPrefix(name, "mcp__"); ok {
		server, tool, _ := strings.Cut(rest, "__")
		return d.ofServer(server, loose(tool))
	}
	if rest, ok := strings.CutPrefix(name, "mcp_"); ok {
		return d.ofUnclear(rest)
	}
	if server, tool, ok := strings.Cut(name, "__"); ok {
		return d.ofServer(server, loose(tool))
	}
	return nil
}

// ofServer returns the patterns of a server's tool. If the tool cannot be named it returns the pattern of the server,
// and if the server cannot be named, that of all servers.
func (d *draft) ofServer(server, pattern string) (all []string) {
	for _, s := range d.named {
		if s == server || sanitised(s) == sanitised(server) {
			all = addTo(all, cover(s, pattern))
		}
	}
	if all == nil {
		all = []string{cover(server, pattern)}
	}
	return all
}

// cover returns a pattern for at least the tools of a server that match: one of mcp:SERVER:PATTERN, mcp:SERVER:* and mcp.
func cover(server, pattern string) string {
	return cmp.Or(mcpTool(server, pattern), mcpTool(server, "*"), "mcp")
}

// ofUnclear is ofServer for SERVER_TOOL, which can be split at any '_'.
func (d *draft) ofUnclear(rest string) (all []string) {
	var fits []string
	for _, s := range d.named {
		if strings.HasPrefix(rest, s+"_") || strings.HasPrefix(rest, sanitised(s)+"_") {
			fits = append(fits, s)
		}
	}
	switch {
	case len(fits) == 1 && !strings.Contains(strings.TrimPrefix(rest, fits[0]), "__"):
		return []string{cover(fits[0], loose(rest[min(len(rest), len(fits[0])+1):]))}
	case len(fits) > 0:
		for _, s := range fits {
			all = addTo(all, cover(s, "*"))
		}
		return all
	case strings.Count(rest, "_") == 1:
		server, tool, _ := strings.Cut(rest, "_")
		return []string{cover(server, loose(tool))}
	}
	return []string{"mcp"}
}

func sanitised(server string) string {
	return regexp.MustCompile(`[^A-Za-z0-9]`).ReplaceAllString(server, "_")
}

// loose returns a wildcard for a tool's name. Other programs replace characters other than letters and digits by '_',
// and truncate long names.
func loose(tool string) string {
	tool = regexp.MustCompile(`\.\.\.|[^A-Za-z0-9.-]`).ReplaceAllString(tool, "*")
	tool = regexp.MustCompile(`\*+`).ReplaceAllString(tool, "*")
	if tool == "" {
		return "*"
	}
	return tool
}

// harmless returns keys that do not affect what an agent may do.
func harmless() []string {
	return []string{"version", "icon", "color", "author", "license", "tags", "keywords", "category", "metadata",
		"homepage", "repository", "examples", "title", "argument-hint", "created", "updated"}
}

// unknown records the loss of an unknown key. The key may deny something, so calls that match the patterns need
// approval. Without patterns it is a key of tools that are left out.
func (d *draft) unknown(what, key string, patterns ...string) {
	if slices.Contains(harmless(), key) {
		d.lose(what, "it says nothing about what the agent may do", "left out")
		return
	}
	if len(patterns) == 0 {
		d.lose(what, "its tools are left out", "left out")
		return
	}
	d.ask = addTo(d.ask, patterns...)
	all := strings.Join(patterns, ", ")
	d.lose(what, "is not known here, and may restrict", "every call of "+all+" is asked about (policy.tools.ask)")
}
