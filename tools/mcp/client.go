package mcp

import (
	"context"
	"encoding/json"
	"io"
	"slices"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/scopefs/scopefs/audit/trace"
	"github.com/scopefs/scopefs/internal/rpc"
	"github.com/scopefs/scopefs/tools"
)

// Client is an MCP client of a Face, for the command line.
type Client struct {
	// Trace is the span in which calls are made. It must not change during a call.
	Trace trace.Context

	session *mcp.ClientSession
}

// Listed is a tool in a list. Name is its MCP name.
type Listed struct {
	Name  string `json:"name"`
	About string `json:"description"`
	Input any    `json:"input_schema"`
}

// Result is the result of a call. Failed reports an error of the tool.
type Result struct {
	Failed     bool
	Text       string          // all content, one item per line; what is not text as JSON
	Structured json.RawMessage // nil: none
}

// Named reports whether name is the tool's name in definitions or in MCP.
func (t Listed) Named(name string) bool {
	return t.Name == mcpName(strings.TrimPrefix(name, "builtin:"))
}

// Dial initializes an MCP session on conn. ask answers the server's questions; nil
// means that the client has no user. The caller must close the Client.
func Dial(ctx context.Context, conn io.ReadWriteCloser, version string, ask func(context.Context, tools.Question) (tools.Answer, error)) (*Client, error) {
	var opt mcp.ClientOptions
	if ask != nil {
		opt.ElicitationHandler = func(ctx context.Context, req *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
			return elicited(ctx, req.Params, ask)
		}
	}
	c := mcp.NewClient(&mcp.Implementation{Name: "scopefs-call", Version: version}, &opt)
	session, err := c.Connect(ctx, exact{&mcp.IOTransport{Reader: conn, Writer: conn}}, nil)
	if err != nil {
		return nil, err
	}
	return &Client{session: session}, nil
}

// elicited answers a request that [elicit] created.
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

// Close closes the connection.
func (c *Client) Close() error { return c.session.Close() }

// List returns the tools that the agent may call, and the names of servers that are still
// starting, whose tools it lacks.
func (c *Client) List(ctx context.Context) (all []Listed, starting []string, err error) {
	params := &mcp.ListToolsParams{}
	for {
		page, err := c.session.ListTools(ctx, params)
		if err != nil {
			return nil, nil, err
		}
		for _, t := range page.Tools {
			all = append(all, Listed{t.Name, t.Description, t.InputSchema})
		}
		names, _ := page.Meta[metaPrefix+"starting"].([]any)
		for _, name := range names {
			if name, ok := name.(string); ok && !slices.Contains(starting, name) {
				starting = append(starting, name)
			}
		}
		if params.Cursor = page.NextCursor; params.Cursor == "" {
			return all, starting, nil
		}
	}
}

// Call calls a tool by its MCP name. The error reports a failure of the connection
// or the protocol; an error of the tool sets Result.Failed.
// The arguments of a server's tool have no envelope: their members _scopes and _instance are
// sent beside them.
func (c *Client) Call(ctx context.Context, name string, args json.RawMessage) (Result, error) {
	params := &mcp.CallToolParams{Meta: c.Trace.Meta(), Name: name, Arguments: args}
	var members map[string]json.RawMessage
	if strings.HasPrefix(toolName(name), "mcp:") && json.Unmarshal(args, &members) == nil {
		given := false
		for _, member := range []string{"scopes", "instance"} {
			if value, ok := members["_"+member]; ok {
				params.Meta[metaPrefix+member] = value
				delete(members, "_"+member)
				given = true
			}
		}
		if given {
			params.Arguments = members
		}
	}
	res, err := c.session.CallTool(ctx, params)
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
	if text, ok := res.StructuredContent.(string); ok {
		r.Structured = json.RawMessage(text) // see exact
	}
	return r, nil
}

// exact is a transport that replaces the structured content of a result by a string
// that holds its JSON. The SDK decodes it into values: that would change numbers, which
// a caller may put into a context.
type exact struct{ mcp.Transport }

func (t exact) Connect(ctx context.Context) (mcp.Connection, error) {
	conn, err := t.Transport.Connect(ctx)
	return exactConnection{conn}, err
}

type exactConnection struct{ mcp.Connection }

func (c exactConnection) Read(ctx context.Context) (jsonrpc.Message, error) {
	m, err := c.Connection.Read(ctx)
	if r, ok := m.(*jsonrpc.Response); ok {
		r.Result = rpc.Replace(r.Result, "structuredContent", func(old []byte) []byte { return quoted(string(old)) })
	}
	return m, err
}
