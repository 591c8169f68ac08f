package upstream

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/scopefs/scopefs/tools"
)

const (
	maxSchema = 64 << 10 // bytes per schema
	// maxValues limits the values in all schemas of a server: jsonschema-go uses a
	// kilobyte for each.
	maxValues = 20_000
	// maxWeight limits the bytes times depth of all schemas of a server:
	// jsonschema-go decodes and encodes the bytes again at each level.
	maxWeight = 4 << 20
)

// budget is the rest of maxValues and maxWeight for the schemas of a server.
type budget struct{ values, weight int }

func newBudget() *budget { return &budget{maxValues, maxWeight} }

// trim returns a tool with cleaned and clipped texts, its annotations and, if
// checkSchema accepts it, its input schema.
func trim(t *mcp.Tool, left *budget) *mcp.Tool {
	kept := &mcp.Tool{
		Name: tools.Clip(t.Name, maxTitle), Title: tools.Clip(tools.Clean(t.Title), maxTitle),
		Description: tools.Clip(tools.Clean(t.Description), maxAbout), Annotations: t.Annotations,
	}
	for name, value := range t.Meta {
		if strings.HasPrefix(name, metaPrefix) {
			if text, err := json.Marshal(value); err == nil && len(text) <= maxMeta {
				if kept.Meta == nil {
					kept.Meta = mcp.Meta{}
				}
				kept.Meta[name] = json.RawMessage(text)
			}
		}
	}
	if a := t.Annotations; a != nil {
		a.Title = tools.Clip(tools.Clean(a.Title), maxTitle)
	}
	if s, err := checkSchema(t.InputSchema, left); err == nil {
		kept.InputSchema = s
	}
	return kept
}

// inputSchema returns the input schema of a trimmed tool, or a schema for any
// object if trim dropped it.
func inputSchema(t *mcp.Tool) *jsonschema.Schema {
	if s, ok := t.InputSchema.(*jsonschema.Schema); ok {
		return s
	}
	return &jsonschema.Schema{Type: "object"}
}

// checkSchema returns a server's schema for clients, or an error if it is no
// schema of an object or exceeds a limit. The schema is only advertised. The server
// validates in its sandbox; no pattern is compiled here.
func checkSchema(theirs any, left *budget) (*jsonschema.Schema, error) {
	root, ok := theirs.(map[string]any)
	if !ok {
		return nil, errors.New("no object")
	}
	if root["type"] == nil {
		root["type"] = "object"
	}
	cost := *left
	if err := weigh(root, 1, &cost); err != nil {
		return nil, err
	}
	text, err := json.Marshal(root)
	if err != nil || len(text) > maxSchema {
		return nil, fmt.Errorf("more than %d bytes: %w", maxSchema, err)
	}
	s := new(jsonschema.Schema)
	if err := json.Unmarshal(text, s); err != nil {
		return nil, err
	}
	if s.Type != "object" {
		return nil, fmt.Errorf("schema of type %q", s.Type)
	}
	_, err = json.Marshal(s) // a schema that decodes may fail to encode
	*left = cost
	return s, err
}

// weigh subtracts the cost of a schema from left. It deletes x-mcp-header: the SDK
// (1.8.0) panics at an invalid one. It rejects a $ref that leaves the schema, which
// a client might fetch.
func weigh(v any, depth int, left *budget) error {
	left.values--
	left.weight -= depth * 8
	switch v := v.(type) {
	case string:
		left.weight -= depth * len(v)
	case []any:
		for _, item := range v {
			if err := weigh(item, depth+1, left); err != nil {
				return err
			}
		}
	case map[string]any:
		delete(v, "x-mcp-header")
		for key, item := range v {
			left.weight -= depth * len(key)
			if to, ok := item.(string); ok && strings.HasSuffix(strings.ToLower(key), "ref") && key[0] == '$' && !strings.HasPrefix(to, "#") {
				return fmt.Errorf("%s %.80q is outside the schema", key, to)
			}
			if err := weigh(item, depth+1, left); err != nil {
				return err
			}
		}
	}
	if left.values < 0 || left.weight < 0 {
		return fmt.Errorf("more than %d values, or %d bytes times depth", maxValues, maxWeight)
	}
	return nil
}
