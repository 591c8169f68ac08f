package imports

import (
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/scopefs/scopefs/internal/frontmatter"
)

// detect returns the format, by the file's directory or by keys and values that only one format has.
func detect(file string, doc *document) (f Format, because string, err error) {
	has := func(key string) bool { return frontmatter.Value(doc.top, key) != nil }
	if !doc.markdown {
		if has("agent_type") && has("modules") {
			return ScopedMCP, "it has agent_type and modules", nil
		}
		if has("name") && (has("mcpServers") || has("agents")) {
			return "", "", fmt.Errorf("is the manifest of an extension: import its directory, %s", filepath.Dir(file))
		}
		return "", "", errors.New("has an unknown format: name it with --from")
	}
	if i := slices.IndexFunc(ownKeys(), has); i >= 0 {
		return "", "", fmt.Errorf(
			"has %s, so it looks like a definition already: copy it, or say --from scopes if its empty lists mean unrestricted", ownKeys()[i])
	}
	dirs := strings.Split(filepath.ToSlash(filepath.Dir(file)), "/")
	for _, dir := range slices.Backward(dirs) {
		if f, ok := map[string]Format{".gemini": Gemini, ".claude": Claude}[dir]; ok {
			return f, "it is below " + dir, nil
		}
	}
	gemini, claude := sign(doc.top, Gemini), sign(doc.top, Claude)
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

// sign returns what shows that a file is of a format, "" for nothing.
func sign(top *yaml.Node, format Format) string {
	is := map[Format]struct {
		keys    []string
		kind    yaml.Kind // of mcpServers
		kindIs  string
		model   string // a regular expression
		prefix  string // of an MCP server's tool; mcp_ does not match mcp__
		aString bool   // tools may be one
	}{
		Gemini: {
			keys: []string{"kind", "max_turns", "timeout_mins", "temperature", "display_name", "agent_card_url", "mcp_servers"},
			kind: yaml.MappingNode, kindIs: "a mapping", model: "^gemini", prefix: "mcp_",
		},
		Claude: {
			keys: []string{"disallowedTools", "permissionMode", "color", "maxTurns", "skills", "hooks", "memory", "background",
				"isolation", "effort", "initialPrompt"},
			kind: yaml.SequenceNode, kindIs: "a list", model: "^(claude|(sonnet|opus|haiku)$)", prefix: "mcp__", aString: true,
		},
	}[format]
	for _, key := range is.keys {
		if frontmatter.Value(top, key) != nil {
			return "it has " + key
		}
	}
	if n := frontmatter.Value(top, "mcpServers"); n != nil && n.Kind == is.kind {
		return "mcpServers is " + is.kindIs
	}
	if n := frontmatter.Value(top, "model"); n != nil && regexp.MustCompile(is.model).MatchString(n.Value) {
		return "the model is " + n.Value
	}
	n := frontmatter.Value(top, "tools")
	if n == nil {
		return ""
	}
	if is.aString && n.Kind == yaml.ScalarNode && strings.Contains(n.Value, ",") {
		return "tools is one string"
	}
	words, _ := wordsOf(n)
	for _, w := range words {
		name, _ := cutArgument(w)
		w, known := toolNamed(nil, format, name)
		rest, ok := strings.CutPrefix(name, is.prefix)
		if known && w.from == format || ok && !strings.HasPrefix(rest, "_") {
			return "tools has " + name
		}
	}
	return ""
}
