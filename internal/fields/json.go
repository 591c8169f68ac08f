package fields

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
)

// YAMLOfJSON converts JSON to text that a YAML parser accepts, with the same
// lines. YAML allows no tabs between values and no surrogates.
func YAMLOfJSON(text []byte) ([]byte, error) {
	var v any
	if err := json.Unmarshal(text, &v); err != nil {
		line := 1
		if at, ok := errors.AsType[*json.SyntaxError](err); ok {
			line += bytes.Count(text[:at.Offset], []byte("\n"))
		}
		return nil, &LineError{Line: line, Err: fmt.Errorf("is no JSON, %w: correct it", err)}
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
