package mcp

import (
	"context"
	"encoding/json"
	"io"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/scopefs/scopefs/tools"
)

// Client calls tools of a face; it is what the command line uses.
type Client struct{ session *mcp.ClientSession }

// Listed is a tool that a client may call.
type Listed struct {
	Name  string `json:"name"`
	About string `json:"description"`
	Input any    `json:"input_schema"`
}

// Result is what a call gave.
type Result struct {
	Failed     bool
	Text       string
	Structured json.RawMessage // nil: none
}

// Named reports whether rules or clients know the tool by a name.
func (t Listed) Named(name string) bool {
	return t.Name == wireName(strings.TrimPrefix(name, "builtin:"))
}

// Dial begins to speak on a connection. ask puts questions to the user; nil: there
// is none.
func Dial(ctx context.Context, conn io.ReadWriteCloser, version string, ask func(context.Context, tools.Question) (tools.Answer, error)) (*Client, error) {
	var opt mcp.ClientOptions
	if ask != nil {
		opt.ElicitationHandler = func(ctx context.Context, req *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
			return elicited(ctx, req.Params, ask)
		}
	}
	c := mcp.NewClient(&mcp.Implementation{Name: "scopefs-call", Version: version}, &opt)
	session, err := c.Connect(ctx, &mcp.IOTransport{Reader: conn, Writer: conn}, nil)
	if err != nil {
		return nil, err
	}
	return &Client{session}, nil
}

// elicited puts the question that [elicit] made to the user.
func elicited(ctx context.Context, p *mcp.ElicitParams, ask func(context.Context, tools.Question) (tools.Answer, error)) (*mcp.ElicitResult, error) {
	var form struct {
		Properties map[string]struct {
			Enum []string `json:"enum"`
		} `json:"properties"`
	}
	text, err := json.Marshal(p.RequestedSchema)
	if err == nil {
		err = json.Unmarshal(text, &form)
	}
	if err != nil {
		return nil, err
	}
	a, err := ask(ctx, tools.Question{Text: p.Message, Options: form.Properties[answerKey].Enum})
	switch {
	case err != nil:
		return nil, err
	case a.Declined:
		return &mcp.ElicitResult{Action: "decline"}, nil
	}
	return &mcp.ElicitResult{Action: "accept", Content: map[string]any{answerKey: a.Text}}, nil
}

// Close ends the connection.
func (c *Client) Close() error { return c.session.Close() }

// List lists the tools that may be called.
func (c *Client) List(ctx context.Context) (all []Listed, err error) {
	for t, err := range c.session.Tools(ctx, nil) {
		if err != nil {
			return nil, err
		}
		all = append(all, Listed{t.Name, t.Description, t.InputSchema})
	}
	return all, nil
}

// Call calls a tool. An error is one of the connection.
func (c *Client) Call(ctx context.Context, name string, args json.RawMessage) (Result, error) {
	res, err := c.session.CallTool(ctx, &mcp.CallToolParams{Name: name, Arguments: args})
	if err != nil {
		return Result{}, err
	}
	r := Result{Failed: res.IsError}
	var text []string
	for _, content := range res.Content {
		switch content := content.(type) {
		case *mcp.TextContent:
			text = append(text, content.Text)
		default:
			raw, err := content.MarshalJSON()
			if err != nil {
				return r, err
			}
			text = append(text, string(raw))
		}
	}
	r.Text = strings.Join(text, "\n")
	if res.StructuredContent != nil {
		r.Structured, err = json.Marshal(res.StructuredContent)
	}
	return r, err
}
