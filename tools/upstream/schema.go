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
	maxSchema = 64 << 10 // bytes of one schema
	maxValues = 20_000   // of all schemas of a server: jsonschema-go keeps a kilobyte of each
	maxWeight = 4 << 20  // of all schemas of a server: bytes times depth, for it reads and writes them anew at each level
)

// budget is what the schemas of a server may still cost us.
type budget struct{ values, weight int }

func newBudget() *budget { return &budget{maxValues, maxWeight} }

// trim returns what is kept of a tool.
func trim(t *mcp.Tool, left *budget) *mcp.Tool {
	kept := &mcp.Tool{
		Name: tools.Clip(t.Name, maxTitle), Title: tools.Clip(tools.Clean(t.Title), maxTitle),
		Description: tools.Clip(tools.Clean(t.Description), maxAbout), Annotations: t.Annotations,
	}
	if a := t.Annotations; a != nil {
		a.Title = tools.Clip(tools.Clean(a.Title), maxTitle)
	}
	if s, err := shown(t.InputSchema, left); err == nil {
		kept.InputSchema = s
	}
	return kept
}

// inputSchema returns the input schema of a tool that trim returned, or one that
// any object fits where theirs cannot be shown.
func inputSchema(t *mcp.Tool) *jsonschema.Schema {
	if s, ok := t.InputSchema.(*jsonschema.Schema); ok {
		return s
	}
	return &jsonschema.Schema{Type: "object"}
}

// shown returns a schema for clients to read. Nothing is validated by it here,
// nor is any pattern compiled: the server validates, in its sandbox.
func shown(theirs any, left *budget) (*jsonschema.Schema, error) {
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
	_, err = json.Marshal(s) // what can be read cannot always be written
	*left = cost
	return s, err
}

// weigh takes what a schema costs from left. It removes what the SDK (1.8.0)
// reads of it: one x-mcp-header that it does not like ends the process.
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
				return fmt.Errorf("%s %.80q leads elsewhere", key, to) // a client might go there
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
