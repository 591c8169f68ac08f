package imports

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// detect returns the format, by the file's directory or by keys and values that only one format has.
func detect(file string, doc *document) (f Format, because string, err error) {
	has := func(key string) bool { return child(doc.top, key) != nil }
	if !doc.markdown {
		if has("agent_type") && has("modules") {
			return ScopedMCP, "it has agent_type and modules", nil
		}
		return "", "", errors.New("has an unknown format: name it with --from")
	}
	if i := slices.IndexFunc(ownKeys(), has); i >= 0 {
		return "", "", fmt.Errorf("has %s, so it looks like a definition already: copy it, or say --from scopes if its empty lists mean unrestricted", ownKeys()[i])
	}
	dirs := strings.Split(filepath.ToSlash(filepath.Dir(file)), "/")
	for _, dir := range slices.Backward(dirs) {
		if f, ok := map[string]Format{".gemini": Gemini, ".claude": Claude}[dir]; ok {
			return f, "it is below " + dir, nil
		}
	}
	gemini, claude := geminiSign(doc.top), claudeSign(doc.top)
	switch {
	case gemini != "" && claude != "":
		return "", "", fmt.Errorf("could be gemini (%s) or claude (%s): name the format with --from", gemini, claude)
	case gemini != "":
		return Gemini, gemini, nil
	case claude != "":
		return Claude, claude, nil
	}
	return "", "", errors.New("could be gemini or claude: name the format with --from")
}

// ownKeys returns keys that only scopefs definitions have.
func ownKeys() []string {
	return []string{"view", "members", "mcps", "limits", "network", "rate_limits", "argument_filters"}
}

func geminiSign(top *yaml.Node) string {
	for _, key := range []string{"kind", "max_turns", "timeout_mins", "temperature", "display_name", "agent_card_url", "mcp_servers"} {
		if child(top, key) != nil {
			return "it has " + key
		}
	}
	if n := child(top, "mcpServers"); n != nil && n.Kind == yaml.MappingNode {
		return "mcpServers is a mapping"
	}
	if n := child(top, "model"); n != nil && strings.HasPrefix(n.Value, "gemini") {
		return "the model is " + n.Value
	}
	return toolSign(top, Gemini, "mcp_")
}

func claudeSign(top *yaml.Node) string {
	for _, key := range []string{"disallowedTools", "permissionMode", "color", "maxTurns", "skills", "hooks", "memory", "background", "isolation", "effort", "initialPrompt"} {
		if child(top, key) != nil {
			return "it has " + key
		}
	}
	if n := child(top, "mcpServers"); n != nil && n.Kind == yaml.SequenceNode {
		return "mcpServers is a list"
	}
	if n := child(top, "model"); n != nil && (slices.Contains([]string{"sonnet", "opus", "haiku"}, n.Value) || strings.HasPrefix(n.Value, "claude")) {
		return "the model is " + n.Value
	}
	if n := child(top, "tools"); n != nil && n.Kind == yaml.ScalarNode && strings.Contains(n.Value, ",") {
		return "tools is one string"
	}
	return toolSign(top, Claude, "mcp__")
}

// toolSign returns the first tool with a name of the format or with the prefix. The prefix mcp_ does not match mcp__.
func toolSign(top *yaml.Node, format Format, prefix string) string {
	n := child(top, "tools")
	if n == nil {
		return ""
	}
	words, err := wordsOf(n)
	if err != nil {
		return ""
	}
	for _, w := range words {
		name, _ := cutArgument(w)
		w, known := toolNamed(nil, format, name)
		known = known && w.from == format
		if rest, ok := strings.CutPrefix(name, prefix); known || ok && !strings.HasPrefix(rest, "_") {
			return "tools has " + name
		}
	}
	return ""
}
