package mcp

import (
	"encoding/json"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/scopefs/scopefs/tools"
)

// plainResult is a result of text, and perhaps a value, without a MarshalJSON:
// encoding/json checks what a MarshalJSON returns byte by byte once more, which
// for 4 KiB of text takes as long as the tool.
type plainResult struct {
	mcp.Result `json:"-"` // an interface without MarshalJSON

	Content    []plainText `json:"content"`
	Structured any         `json:"structuredContent,omitempty"`
	Meta       plainMeta   `json:"_meta,omitzero"`
	ResultType string      `json:"resultType,omitempty"`
}

type plainText struct {
	Type string `json:"type"`
	Text string `json:"text"`
}

// largeResult is one that is encoded when there is room: the encoders make some
// copies of it, and all calls may end at once.
type largeResult struct{ *mcp.CallToolResult }

const large = 1 << 20 // bytes of text

var encoders = make(chan struct{}, 4)

func (r *largeResult) MarshalJSON() ([]byte, error) {
	encoders <- struct{}{}
	defer func() { <-encoders }()
	text, err := r.CallToolResult.MarshalJSON()
	r.Content, r.StructuredContent = nil, nil // as JSON it may wait long to be read
	return text, err
}

// plainMeta is what the SDK adds to a result before it is encoded.
type plainMeta struct{ of *mcp.CallToolResult }

func (m plainMeta) IsZero() bool                 { return len(m.of.Meta) == 0 }
func (m plainMeta) MarshalJSON() ([]byte, error) { return json.Marshal(m.of.Meta) }

// resultOf is a result as clients get it. A stateless protocol's says that
// nothing more is needed.
func resultOf(r tools.Result, stateless bool) mcp.Result {
	res := &mcp.CallToolResult{Content: contents(r.Content), StructuredContent: r.Value()}
	plain := &plainResult{Result: res, Content: []plainText{}, Structured: res.StructuredContent, Meta: plainMeta{res}}
	size := 0
	for _, c := range r.Content {
		if size += len(c.Text); c.MIME != "" || size > large {
			return &largeResult{res}
		}
		plain.Content = append(plain.Content, plainText{"text", c.Text})
	}
	if stateless {
		plain.ResultType = "complete"
	}
	return plain
}
