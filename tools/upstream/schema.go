package upstream

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/scopefs/scopefs/tools"
)

const (
	maxSchema   = 64 << 10 // bytes
	maxSchemas  = 4 << 20  // bytes of all of a server
	maxExpanded = 10_000   // values of a schema, each $ref followed
)

// known are the versions of JSON schema that jsonschema-go validates by.
var known = []any{
	"http://json-schema.org/draft-07/schema#", "https://json-schema.org/draft-07/schema#",
	"https://json-schema.org/draft/2020-12/schema",
}

// trim returns what is kept of a tool. Schemas are kept as they are, unless they
// are too large or budget, in bytes, has come to its end.
func trim(t *mcp.Tool, budget *int) *mcp.Tool {
	kept := &mcp.Tool{
		Name: tools.Clip(t.Name, maxTitle), Title: tools.Clip(tools.Clean(t.Title), maxTitle),
		Description: tools.Clip(tools.Clean(t.Description), maxAbout), Annotations: t.Annotations,
	}
	if a := t.Annotations; a != nil {
		a.Title = tools.Clip(tools.Clean(a.Title), maxTitle)
	}
	text, err := json.Marshal(t.InputSchema)
	if err == nil && len(text) <= min(maxSchema, *budget) {
		kept.InputSchema = json.RawMessage(text)
		*budget -= len(text)
	}
	return kept
}

// inputSchema returns the input schema of a tool, or one that any object fits
// when we cannot validate by it. The server validates in any case.
func inputSchema(t *mcp.Tool) *jsonschema.Schema {
	if text, ok := t.InputSchema.(json.RawMessage); ok {
		if s, err := resolvable(text); err == nil {
			return s
		}
	}
	return &jsonschema.Schema{Type: "object"}
}

func resolvable(text json.RawMessage) (*jsonschema.Schema, error) {
	var root map[string]any
	if err := json.Unmarshal(text, &root); err != nil {
		return nil, err
	}
	if root == nil {
		return nil, errors.New("null")
	}
	if !slices.Contains(known, root["$schema"]) {
		delete(root, "$schema") // it is refused at each call otherwise
	}
	delete(root, "$id")
	if root["type"] == nil {
		root["type"] = "object"
	}
	budget := maxExpanded
	if err := expand(root, root, &budget); err != nil {
		return nil, err
	}
	text, err := json.Marshal(root)
	if err != nil {
		return nil, err
	}
	s := new(jsonschema.Schema)
	if err := json.Unmarshal(text, s); err != nil {
		return nil, err
	}
	if s.Type != "object" {
		return nil, fmt.Errorf("schema of type %q", s.Type)
	}
	_, err = s.Resolve(nil)
	return s, err
}

// expand counts what validation may come across. jsonschema-go follows a $ref
// without a bound: one that leads back to itself overflows the stack, which
// ends the process, and a few that each lead to the next twice take for ever.
// It also drops the patterns that Go's regexp does not understand.
func expand(v any, root map[string]any, budget *int) error {
	if *budget--; *budget < 0 {
		return fmt.Errorf("more than %d values, or endless", maxExpanded)
	}
	switch v := v.(type) {
	case []any:
		for _, item := range v {
			if err := expand(item, root, budget); err != nil {
				return err
			}
		}
	case map[string]any:
		if text, ok := v["pattern"].(string); ok {
			if _, err := regexp.Compile(text); err != nil {
				delete(v, "pattern")
			}
		}
		for key, item := range v {
			switch key {
			case "$id", "$anchor", "$dynamicRef", "$dynamicAnchor", "$recursiveRef":
				return fmt.Errorf("%s", key) // they lead elsewhere than a pointer does
			case "$ref":
				target, err := lookup(root, item)
				if err != nil {
					return err
				}
				item = target
			}
			if err := expand(item, root, budget); err != nil {
				return err
			}
		}
	}
	return nil
}

// lookup returns what a JSON pointer (RFC 6901) in a $ref leads to.
func lookup(root map[string]any, ref any) (any, error) {
	text, _ := ref.(string)
	if text == "#" {
		return root, nil
	}
	pointer, ok := strings.CutPrefix(text, "#/")
	if !ok || strings.Contains(text, "%") {
		return nil, fmt.Errorf("$ref %.80q", text)
	}
	var at any = root
	for part := range strings.SplitSeq(pointer, "/") {
		m, ok := at.(map[string]any)
		if !ok {
			return nil, fmt.Errorf("$ref %.80q", text)
		}
		if at, ok = m[strings.NewReplacer("~1", "/", "~0", "~").Replace(part)]; !ok {
			return nil, fmt.Errorf("$ref %.80q", text)
		}
	}
	return at, nil
}
