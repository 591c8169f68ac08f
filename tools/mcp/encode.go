package mcp

import (
	"context"
	"encoding/json"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/scopefs/scopefs/tools"
	"github.com/scopefs/scopefs/tools/limit"
	"github.com/scopefs/scopefs/tools/mcp/names"
)

// plainResult is a result with only text and an optional value. It has no
// MarshalJSON, because encoding/json validates the output of MarshalJSON byte by
// byte: for 4 KiB of text that takes as long as the tool.
type plainResult struct {
	mcp.Result `json:"-"` // an interface without MarshalJSON

	Content    []plainText `json:"content"`
	Structured any         `json:"structuredContent,omitempty"`
	Meta       plainMeta   `json:"_meta,omitzero"`
	ResultType string      `json:"resultType,omitempty"`
}

type plainText struct {
	Type string   `json:"type"`
	Text string   `json:"text"`
	Meta mcp.Meta `json:"_meta,omitempty"`
}

// metaOf marks the text about what a call has changed. Other content has nothing.
func metaOf(c tools.Content) mcp.Meta {
	if !c.Effects {
		return nil
	}
	return mcp.Meta{names.Effects: true}
}

// largeResult limits how many large results are encoded at once: each encoding
// makes several copies.
type largeResult struct {
	mcp.Result
	free     func() // frees the content: a slow client may read the JSON late
	encoders *limit.Slots
}

const large = 1 << 20 // bytes of text above which a result is a largeResult

// MaxEncoders is how many large results a daemon encodes at the same time.
const MaxEncoders = 4

func (r *largeResult) MarshalJSON() ([]byte, error) {
	done, err := r.encoders.Take(context.Background()) // encoding ends
	if err != nil {
		return nil, err
	}
	defer done()
	defer r.free()
	return r.Result.(json.Marshaler).MarshalJSON()
}

// plainMeta is the _meta of a result, which the SDK sets before it encodes.
type plainMeta struct{ of *mcp.CallToolResult }

func (m plainMeta) IsZero() bool                 { return len(m.of.Meta) == 0 }
func (m plainMeta) MarshalJSON() ([]byte, error) { return json.Marshal(m.of.Meta) }

// resultOf converts a result of a tool. In the stateless protocol a text result
// has resultType "complete": the client need not call again.
func resultOf(r tools.Result, stateless bool, encoders *limit.Slots) mcp.Result {
	res := &mcp.CallToolResult{Content: contents(r.Content), StructuredContent: r.Value()}
	plain := &plainResult{Result: res, Content: []plainText{}, Structured: res.StructuredContent, Meta: plainMeta{res}}
	if e := r.Effects(); e != nil {
		res.Meta = mcp.Meta{names.Effects: e}
	}
	size := 0
	for _, c := range r.Content {
		if size += len(c.Text); c.MIME != "" || size > large {
			return &largeResult{res, func() { res.Content, res.StructuredContent = nil, nil }, encoders}
		}
		plain.Content = append(plain.Content, plainText{"text", c.Text, metaOf(c)})
	}
	if stateless {
		plain.ResultType = "complete"
	}
	return plain
}
