package clients

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/tidwall/gjson"
	"github.com/tidwall/sjson"
)

// programs are the files of settings of each program. Which entries switch the program's
// own tools off was found by trying: integration/tools/clients_install_test.go.
var programs = map[string][]edit{
	// https://code.claude.com/docs/en/settings and /mcp
	"claude": {
		{".mcp.json", inJSON(func(j *document, s Server) {
			j.set("mcpServers.scopefs", map[string]any{"command": s.Command, "args": s.Args})
		})},
		{".claude/settings.json", inJSON(func(j *document, _ Server) {
			j.add("enabledMcpjsonServers", "scopefs")
			j.add("permissions.allow", "mcp__scopefs")
			j.add("permissions.deny", "Bash", "Read", "Edit", "Write", "NotebookEdit", "Glob", "Grep")
		})},
	},
	// https://developers.openai.com/codex/config-reference
	"codex": {{".codex/config.toml", inCodex}},
	// https://geminicli.com/docs/reference/configuration
	"gemini": {{".gemini/settings.json", inJSON(func(j *document, s Server) {
		j.set("mcpServers.scopefs", map[string]any{"command": s.Command, "args": s.Args, "trust": true})
		// An allow-list: a tool for files in a later version is not on it.
		j.set("tools.core", []string{"google_web_search", "web_fetch", "write_todos", "mcp_scopefs_*"})
	})}},
	// https://opencode.ai/docs/config and /permissions
	"opencode": {{"opencode.json", inJSON(func(j *document, s Server) {
		if !gjson.GetBytes(j.text, "$schema").Exists() {
			j.set("$schema", "https://opencode.ai/config.json") // opencode adds it otherwise
		}
		j.set("mcp.scopefs", map[string]any{"type": "local", "command": append([]string{s.Command}, s.Args...), "enabled": true})
		for _, tool := range []string{"bash", "read", "edit", "glob", "grep", "list"} {
			j.set("permission."+tool, "deny")
		}
	})}},
}

// document is a JSON file. Its other entries keep their order and form.
type document struct {
	text []byte
	err  error
}

// inJSON returns an edit of a JSON file.
func inJSON(change func(*document, Server)) func([]byte, Server) ([]byte, error) {
	return func(before []byte, s Server) ([]byte, error) {
		j := document{text: bytes.TrimSpace(before)}
		if len(j.text) == 0 {
			j.text = []byte("{}")
		}
		if !gjson.ValidBytes(j.text) || !gjson.ParseBytes(j.text).IsObject() {
			return nil, errors.New("is no JSON object: correct it, or remove its comments")
		}
		change(&j, s)
		if j.err != nil {
			return nil, j.err
		}
		if len(bytes.TrimSpace(before)) == 0 {
			var out bytes.Buffer
			if err := json.Indent(&out, j.text, "", "  "); err != nil {
				return nil, err
			}
			j.text = out.Bytes()
		}
		return append(j.text, '\n'), nil
	}
}

// set sets the value at a path.
func (j *document) set(path string, value any) {
	if j.err == nil && j.holders(path) {
		j.text, j.err = sjson.SetBytes(j.text, path, value)
	}
}

// add appends the values to the list at a path that it lacks.
func (j *document) add(path string, values ...string) {
	if j.err != nil || !j.holders(path) {
		return
	}
	list := gjson.GetBytes(j.text, path)
	if list.Exists() && !list.IsArray() {
		j.err = fmt.Errorf("%s is no list: correct it", path)
		return
	}
	have := map[string]bool{}
	for _, v := range list.Array() {
		have[v.String()] = true
	}
	for _, v := range values {
		if !have[v] && j.err == nil {
			j.text, j.err = sjson.SetBytes(j.text, path+".-1", v)
		}
	}
}

// holders reports whether what is at the path's parents, if anything, is an object. A
// value of another kind would be replaced.
func (j *document) holders(path string) bool {
	for at := range path {
		if path[at] != '.' {
			continue
		}
		if v := gjson.GetBytes(j.text, path[:at]); v.Exists() && !v.IsObject() {
			j.err = fmt.Errorf("%s is no object: correct it", path[:at])
		}
	}
	return j.err == nil
}

// inCodex edits the TOML settings of Codex: it appends tables, which is valid where the
// file has none of the same name.
func inCodex(before []byte, s Server) ([]byte, error) {
	for line := range strings.Lines(string(before)) {
		line = strings.TrimSpace(line)
		for _, taken := range []string{"[features]", "[mcp_servers.scopefs]", "sandbox_mode", "features."} {
			if strings.HasPrefix(line, taken) {
				return nil, fmt.Errorf("has %s already: add these settings by hand:\n%s", taken, codexSettings(s))
			}
		}
	}
	// A key without a table must stand before the first table.
	text := "sandbox_mode = \"read-only\" # of what Codex itself would run\n" + string(before)
	if len(before) > 0 && !strings.HasSuffix(text, "\n") {
		text += "\n"
	}
	return []byte(text + codexSettings(s)), nil
}

func codexSettings(s Server) string {
	args := make([]string, len(s.Args))
	for i, a := range s.Args {
		args[i] = tomlText(a)
	}
	return fmt.Sprintf(`
[mcp_servers.scopefs]
command = %s
args = [%s]
default_tools_approval_mode = "approve"

[features]
shell_tool = false
view_image = false
`, tomlText(s.Command), strings.Join(args, ", "))
}

// tomlText returns a basic string of TOML. Its escapes are those of Go, but for \a, \v
// and \x, which stand for control characters.
func tomlText(s string) string {
	var b strings.Builder
	for _, r := range s {
		if r < ' ' || r == 0x7f {
			fmt.Fprintf(&b, `\u%04X`, r)
			continue
		}
		if r == '"' || r == '\\' {
			b.WriteByte('\\')
		}
		b.WriteRune(r)
	}
	return `"` + b.String() + `"`
}
