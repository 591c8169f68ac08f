// Package caller is an MCP client of an agent's tools, for the command line: it initializes a session, lists tools and calls them, and
// answers what a tool asks the user. It knows what the daemon's end of the connection needs, and no more of the protocol.
package caller

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/scopefs/scopefs/internal/rpc"
	"github.com/scopefs/scopefs/tools/mcp/names"
	"github.com/scopefs/scopefs/tools/questions"
)

// protocol is the version of MCP that the client speaks.
const protocol = "2025-11-25"

// Ask asks the user.
type Ask func(context.Context, questions.Question) (questions.Answer, error)

// Client is an MCP client. Its methods may be called at the same time.
type Client struct {
	// Meta is sent with each call, such as the span in which calls are made. It must not change during a call.
	Meta map[string]any

	conn io.ReadWriteCloser
	ask  Ask

	writing sync.Mutex // held while a line is written

	mu      sync.Mutex
	last    int
	waiting map[string]chan<- rpc.Head // by the id of the request
	ended   error                      // why no more answers come
}

// Listed is a tool in a list. Name is its MCP name.
type Listed struct {
	Name  string          `json:"name"`
	About string          `json:"description"`
	Input json.RawMessage `json:"input_schema"`
}

// Named reports whether name is the tool's name in definitions or in MCP.
func (t Listed) Named(name string) bool {
	return t.Name == names.OfTool(strings.TrimPrefix(name, "builtin:"))
}

// Result is the result of a call. Failed reports an error of the tool.
type Result struct {
	Failed     bool
	Text       string          // all content, one item per line; what is not text as JSON
	Effects    string          // but this: what the call has changed
	Structured json.RawMessage // as it was sent; nil: none
}

// Background returns the process id of a result of bash whose command is running; "" for other results.
func (r Result) Background() string {
	var said struct {
		Running   bool   `json:"running"`
		ProcessID string `json:"process_id"`
	}
	if json.Unmarshal(r.Structured, &said) != nil || !said.Running {
		return ""
	}
	return said.ProcessID
}

// Dial initializes a session on conn. ask answers the server's questions; nil
// means that the client has no user. The caller must close the Client.
func Dial(ctx context.Context, conn io.ReadWriteCloser, version string, ask Ask) (*Client, error) {
	c := &Client{conn: conn, ask: ask, waiting: map[string]chan<- rpc.Head{}}
	go c.read(ctx)
	can := map[string]any{}
	if ask != nil {
		can["elicitation"] = map[string]any{"form": struct{}{}}
	}
	err := c.request(ctx, "initialize", map[string]any{
		"protocolVersion": protocol, "capabilities": can, "clientInfo": map[string]string{"name": "scopefs-call", "version": version},
	}, &struct{}{})
	if err == nil {
		err = c.send(message{Method: "notifications/initialized", Params: struct{}{}})
	}
	if err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// Close closes the connection.
func (c *Client) Close() error { return c.conn.Close() }

// message is a message that the client sends.
type message struct {
	Version string          `json:"jsonrpc"`
	ID      json.RawMessage `json:"id,omitempty"`
	Method  string          `json:"method,omitempty"`
	Params  any             `json:"params,omitempty"`
	Result  any             `json:"result,omitempty"`
	Error   *failure        `json:"error,omitempty"`
}

// failure is an error of JSON-RPC.
type failure struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
}

func (f *failure) Error() string { return f.Message }

func (c *Client) send(m message) error {
	m.Version = "2.0"
	text, err := json.Marshal(m)
	if err != nil {
		return err
	}
	c.writing.Lock()
	defer c.writing.Unlock()
	_, err = c.conn.Write(append(text, '\n'))
	return err
}

// request sends a request and decodes its result.
func (c *Client) request(ctx context.Context, method string, params, result any) error {
	answers := make(chan rpc.Head, 1)
	c.mu.Lock()
	c.last++
	id := strconv.Itoa(c.last)
	err := c.ended
	c.waiting[id] = answers
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		delete(c.waiting, id)
		c.mu.Unlock()
	}()
	if err == nil {
		err = c.send(message{ID: json.RawMessage(id), Method: method, Params: params})
	}
	if err != nil {
		return fmt.Errorf("calling %q: %w", method, err)
	}
	select {
	case head, ok := <-answers:
		switch {
		case !ok:
			c.mu.Lock()
			defer c.mu.Unlock()
			return fmt.Errorf("calling %q: %w", method, c.ended)
		case head.Error != nil:
			f := &failure{}
			if err := json.Unmarshal(head.Error, f); err != nil {
				return err
			}
			return fmt.Errorf("calling %q: %w", method, f)
		}
		return json.Unmarshal(head.Result, result)
	case <-ctx.Done():
		_ = c.send(message{Method: "notifications/cancelled", Params: map[string]any{"requestId": json.RawMessage(id)}})
		return ctx.Err()
	}
}

// read reads messages until the connection ends.
func (c *Client) read(ctx context.Context) {
	in := bufio.NewReaderSize(c.conn, 64<<10)
	var err error
	for err == nil {
		var line []byte
		if line, err = rpc.ReadLine(in, nil, math.MaxInt); err != nil && (!errors.Is(err, io.EOF) || len(line) == 0) {
			break
		}
		head, bad := rpc.Parse(line)
		if bad != nil {
			err = bad
			break
		}
		switch head.Kind {
		case rpc.Response:
			c.mu.Lock()
			answers := c.waiting[string(head.ID)]
			delete(c.waiting, string(head.ID))
			c.mu.Unlock()
			if answers != nil {
				answers <- head
			}
		case rpc.Request:
			go c.answer(ctx, head)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = err
	for id, answers := range c.waiting {
		delete(c.waiting, id)
		close(answers)
	}
}

// answer answers a request of the server.
func (c *Client) answer(ctx context.Context, head rpc.Head) {
	reply := message{ID: head.ID}
	switch {
	case head.Method == "ping":
		reply.Result = struct{}{}
	case head.Method == "elicitation/create" && c.ask != nil:
		result, err := c.elicited(ctx, head.Params)
		if reply.Result = result; err != nil {
			reply.Result, reply.Error = nil, &failure{-32603, err.Error()}
		}
	default:
		reply.Error = &failure{-32601, "there is no method " + head.Method}
	}
	_ = c.send(reply) // who does not read it has ended
}

// elicited asks the user a question of a tool.
func (c *Client) elicited(ctx context.Context, params []byte) (any, error) {
	var p struct {
		Message         string `json:"message"`
		RequestedSchema struct {
			Properties map[string]struct {
				Enum []string `json:"enum"`
			} `json:"properties"`
		} `json:"requestedSchema"`
	}
	if err := json.Unmarshal(params, &p); err != nil {
		return nil, err
	}
	a, err := c.ask(ctx, questions.Question{Text: p.Message, Options: p.RequestedSchema.Properties[names.Answer].Enum})
	switch {
	case err != nil:
		return nil, err
	case a.Declined:
		return map[string]any{"action": "decline"}, nil
	}
	return map[string]any{"action": "accept", "content": map[string]string{names.Answer: a.Text}}, nil
}

// List returns the tools that the agent may call, and the names of servers that are still
// starting, whose tools it lacks.
func (c *Client) List(ctx context.Context) (all []Listed, starting []string, err error) {
	params := map[string]string{}
	for {
		var page struct {
			Tools []struct {
				Name        string          `json:"name"`
				Description string          `json:"description"`
				InputSchema json.RawMessage `json:"inputSchema"`
			} `json:"tools"`
			NextCursor string                     `json:"nextCursor"`
			Meta       map[string]json.RawMessage `json:"_meta"`
		}
		if err := c.request(ctx, "tools/list", params, &page); err != nil {
			return nil, nil, err
		}
		for _, t := range page.Tools {
			all = append(all, Listed{t.Name, t.Description, t.InputSchema})
		}
		var waits []string
		_ = json.Unmarshal(page.Meta[names.Meta+"starting"], &waits) // what is no list of names says nothing
		for _, name := range waits {
			if !slices.Contains(starting, name) {
				starting = append(starting, name)
			}
		}
		if page.NextCursor == "" {
			return all, starting, nil
		}
		params = map[string]string{"cursor": page.NextCursor}
	}
}

// Call calls a tool by its MCP name. The error reports a failure of the connection
// or the protocol; an error of the tool sets Result.Failed.
// The arguments of a server's tool have no envelope: their members _scopes and _instance are
// sent beside them.
func (c *Client) Call(ctx context.Context, name string, args json.RawMessage) (Result, error) {
	meta, arguments := maps.Clone(c.Meta), any(args)
	var members map[string]json.RawMessage
	if strings.HasPrefix(names.Tool(name), "mcp:") && json.Unmarshal(args, &members) == nil {
		for _, member := range []string{"scopes", "instance"} {
			if value, ok := members["_"+member]; ok {
				if meta == nil {
					meta = map[string]any{}
				}
				meta[names.Meta+member] = value
				delete(members, "_"+member)
				arguments = members
			}
		}
	}
	params := map[string]any{"name": name, "arguments": arguments}
	if len(meta) > 0 {
		params["_meta"] = meta
	}
	var res struct {
		IsError           bool              `json:"isError"`
		Content           []json.RawMessage `json:"content"`
		StructuredContent json.RawMessage   `json:"structuredContent"`
	}
	if err := c.request(ctx, "tools/call", params, &res); err != nil {
		return Result{}, err
	}
	r := Result{Failed: res.IsError, Structured: res.StructuredContent}
	var text []string
	for _, content := range res.Content {
		var item struct {
			Type string                     `json:"type"`
			Text string                     `json:"text"`
			Meta map[string]json.RawMessage `json:"_meta"`
		}
		if err := json.Unmarshal(content, &item); err != nil {
			return Result{}, err
		}
		if item.Type != "text" {
			item.Text = string(content)
		}
		if item.Meta[names.Effects] != nil {
			r.Effects = item.Text
		} else {
			text = append(text, item.Text)
		}
	}
	r.Text = strings.Join(text, "\n")
	return r, nil
}
