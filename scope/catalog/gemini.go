package catalog

import (
	"slices"
	"strings"
)

// GeminiTool is the meaning of gemini-cli's names of a tool.
type GeminiTool struct {
	Names string   // separated by blanks
	Ours  string   // the scopefs tool that does no more, or ""
	Does  []string // further scopefs tools that do what it does
}

// GeminiTools returns the tools of gemini-cli.
func GeminiTools() []GeminiTool {
	return []GeminiTool{
		{"read_file read_many_files", "read_file", nil},
		{"list_directory", "list_dir", []string{"stat"}},
		{"glob", "glob", nil},
		{"search_file_content grep_search", "grep", nil},
		{"write_file", "write_file", []string{"make_dir", "move", "copy", "delete_file", "delete"}}, // a denied write denies these too
		{"replace", "edit_file", nil},
		{"run_shell_command", "bash", nil},
		{"activate_skill", "skill", nil},
		{"ask_user", "ask_user", nil},
		{"read_background_output", "process_read", nil},
		{"list_background_processes", "", []string{"process_read"}},
		{"save_memory", "", []string{"remember", "memory", "forget"}},
		{"invoke_agent codebase_investigator cli_help generalist browser_agent", "", []string{"delegate"}},
		{"web_fetch google_web_search write_todos get_internal_docs enter_plan_mode exit_plan_mode update_topic complete_task read_mcp_resource list_mcp_resources", "", nil},
	}
}

// GeminiHint returns what a definition writes in place of gemini-cli's name of a tool; "" for no such name.
func GeminiHint(name string) string {
	name = strings.TrimPrefix(name, BuiltinPrefix)
	for _, t := range GeminiTools() {
		switch {
		case !slices.Contains(strings.Fields(t.Names), name):
		case t.Ours != "":
			return "write " + t.Ours
		case t.Does != nil:
			return "there is no such tool, and " + strings.Join(t.Does, ", ") + " do what it does: write these, or remove it"
		default:
			return "there is no such tool: remove it"
		}
	}
	if rest, ok := strings.CutPrefix(name, "mcp_"); ok && strings.Contains(rest, "_") {
		return "write mcp:SERVER:TOOL"
	}
	return ""
}
