package mcp

import (
	"encoding/json"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// encoded is a result that becomes JSON in one go. By the SDK's own encoders,
// each of which has the text of those in it checked again, 4 KiB of text cost as
// much as the rest of the call.
type encoded struct {
	*mcp.CallToolResult
	complete bool // say that nothing more is needed, as protocols since 2026-07-28 do
}

// MarshalJSON encodes what we give: text is written here, the rest by the SDK.
func (e *encoded) MarshalJSON() ([]byte, error) {
	structured, ok := e.StructuredContent.(json.RawMessage)
	if !ok {
		return e.CallToolResult.MarshalJSON()
	}
	b := make([]byte, 0, 2*len(structured)+256)
	b = append(b, `{"content":[`...)
	for i, c := range e.Content {
		if i > 0 {
			b = append(b, ',')
		}
		t, ok := c.(*mcp.TextContent)
		if !ok || len(t.Meta) > 0 || t.Annotations != nil {
			return e.CallToolResult.MarshalJSON()
		}
		text, err := json.Marshal(t.Text)
		if err != nil {
			return nil, err
		}
		b = append(append(append(b, `{"type":"text","text":`...), text...), '}')
	}
	b = append(append(b, `],"structuredContent":`...), structured...)
	if len(e.Meta) > 0 {
		meta, err := json.Marshal(e.Meta)
		if err != nil {
			return nil, err
		}
		b = append(append(b, `,"_meta":`...), meta...)
	}
	if e.complete {
		b = append(b, `,"resultType":"complete"`...)
	}
	return append(b, '}'), nil
}
