package agents

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"regexp"
	"slices"

	"go.yaml.in/yaml/v3"

	"github.com/scopefs/scopefs/scope/beneath"
)

// yamlOfJSON converts JSON to text that a YAML parser accepts, with the same
// lines. YAML allows no tabs between values and no surrogates.
func yamlOfJSON(text []byte) ([]byte, error) {
	var v any
	if err := json.Unmarshal(text, &v); err != nil {
		line := 1
		if at, ok := errors.AsType[*json.SyntaxError](err); ok {
			line += bytes.Count(text[:at.Offset], []byte("\n"))
		}
		return nil, &lineError{Line: line, Err: fmt.Errorf("is no JSON, %w: correct it", err)}
	}
	text = bytes.ReplaceAll(text, []byte("\t"), []byte(" ")) // JSON strings contain no literal tabs
	escape := regexp.MustCompile(`\\(u[dD][89abAB][0-9a-fA-F]{2}\\u[0-9a-fA-F]{4}|.)`)
	return escape.ReplaceAllFunc(text, func(s []byte) []byte {
		var pair string
		if len(s) == 12 && json.Unmarshal(slices.Concat([]byte(`"`), s, []byte(`"`)), &pair) == nil {
			return []byte(pair)
		}
		return s
	}), nil
}

// geminiIgnored returns the keys of a gemini-extension.json that do not affect
// what agents may do. excludeTools is not one of them.
func geminiIgnored() []string {
	return []string{"version", "contextFileName", "settings", "themes", "plan", "migratedTo", "author", "license",
		"homepage", "repository", "keywords", "displayName", "display_name", "commands", "$schema"}
}

// geminiFields returns fields that also accept gemini-cli's spelling and
// variables. They ignore trust: only the operator may set it, as in gemini-cli.
func (s *Server) geminiFields(base, rel string, refs *[]ref) map[string]field {
	dir := path.Join(base, extensionsDir, path.Dir(rel))
	if abs, err := filepath.Abs(dir); err == nil {
		dir = abs
	}
	all := s.fields(map[string]string{"extensionPath": dir, "workspacePath": beneath.Alias, "/": "/", "pathSeparator": "/"}, refs)
	all["includeTools"], all["excludeTools"] = all["include_tools"], all["exclude_tools"]
	all["timeout"] = func(n *yaml.Node) error {
		ms, err := scalarOf(n, "milliseconds", "!!int")
		if err == nil {
			s.Timeout, err = parseTimeout(ms + "ms")
		}
		if err == nil && s.Timeout <= 0 {
			err = fmt.Errorf("%q is not above zero: drop the key for the default", ms)
		}
		return err
	}
	all["trust"] = func(*yaml.Node) error { return nil }
	all["description"] = all["trust"]
	return all
}
