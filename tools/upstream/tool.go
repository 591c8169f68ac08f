package upstream

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"mime"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/scopefs/scopefs/tools"
)

const (
	maxAbout   = 4 << 10 // bytes of a description
	maxTitle   = 200     // bytes of a name or title
	maxMessage = 4 << 10 // bytes of an error's text
	maxContent = 4 << 20 // bytes of a result
)

// metaContext is the key of a request's _meta that has the messages which the call sees.
const metaContext = "scopefs/context"

// newTool returns a tool for a trimmed tool of a server. Each call looks the server
// up by name, because it may have been restarted or reconfigured.
func (u *Upstream) newTool(server string, t *mcp.Tool) (tools.Tool, error) {
	if !validName().MatchString(t.Name) {
		return tools.Tool{}, fmt.Errorf("MCP server %q: tool %.80q: invalid name: want 1 to 64 letters, digits, '_', '.' and '-'", server, t.Name)
	}
	about := t.Description
	if about == "" {
		about = fmt.Sprintf("The tool %s of the MCP server %s.", t.Name, server)
	}
	name, theirs := "mcp:"+server+":"+t.Name, t.Name
	return tools.Dynamic(name, about, hintsOf(t), inputSchema(t),
		func(ctx context.Context, env tools.Env, args json.RawMessage) (tools.Result, error) {
			var meta mcp.Meta
			if !env.Context.Empty() {
				meta = mcp.Meta{metaContext: json.RawMessage(env.Context.Environment().JSON())}
			}
			return u.call(ctx, server, theirs, args, meta, env.Progress)
		}), nil
}

// hintsOf returns the hints in a tool's annotations. A missing hint has MCP's
// default, which is the most dangerous value.
func hintsOf(t *mcp.Tool) tools.Hints {
	a := t.Annotations
	if a == nil {
		a = &mcp.ToolAnnotations{}
	}
	title := t.Title
	if title == "" {
		title = a.Title
	}
	unless := func(hint *bool) bool { return hint == nil || *hint }
	return tools.Hints{
		Title:       title,
		Acts:        !a.ReadOnlyHint,
		Destructive: !a.ReadOnlyHint && unless(a.DestructiveHint),
		Idempotent:  a.IdempotentHint,
		OpenWorld:   unless(a.OpenWorldHint),
		Waits:       true,
	}
}

// call calls a tool, and starts the server if it does not run. It does not retry a
// call that was in flight when the server ended, because it may have had effects.
func (u *Upstream) call(ctx context.Context, server, tool string, args json.RawMessage, meta mcp.Meta, report func(string)) (tools.Result, error) {
	r, err := u.request(ctx, server, &mcp.CallToolParams{Meta: meta, Name: tool, Arguments: args}, report, nil)
	if lost, ok := errors.AsType[*lostError](err); ok {
		return tools.Result{}, callError(ctx, lost.error)
	}
	if err != nil {
		return tools.Result{}, err
	}
	return resultOf(server, r)
}

// lostError is the error of a call that got no response. It may have the end of the
// server's output.
type lostError struct{ error }

// request calls a tool. report, unless it is nil, gets the server's reports of progress. admit, unless it is nil, decides about the connection that the
// call is about to use.
func (u *Upstream) request(ctx context.Context, server string, params *mcp.CallToolParams, report func(string), admit func(context.Context, *conn) error) (*mcp.CallToolResult, error) {
	now, err := u.reconcile()
	if err != nil {
		return nil, err
	}
	s := now[server]
	if s == nil {
		return nil, tools.Errorf(tools.NotFound, "no MCP server %q", server)
	}
	c, err := s.connect(ctx, false)
	if err != nil {
		return nil, &lostError{err}
	}
	if err := tools.Still(ctx); err != nil {
		return nil, err
	}
	timeout := cmp.Or(s.spec.Timeout, callTimeout)
	timed, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if admit != nil {
		if err := admit(timed, c); err != nil {
			return nil, err
		}
	}
	params.Meta = withTrace(ctx, params.Meta)
	if report != nil {
		defer c.reporting(params, report)()
	}
	r, err := promptly(timed, func() (*mcp.CallToolResult, error) { return c.session.CallTool(timed, params) })
	switch e, theirs := answered(err); {
	case err == nil:
		return r, nil
	case ctx.Err() == nil && timed.Err() != nil:
		e := tools.Errorf(tools.Unavailable, "MCP server %q did not answer within %v; the call was cancelled", server, timeout)
		e.Hint = "it may have had effects; request less, or ask your operator for more time"
		return nil, e
	case theirs:
		return nil, tools.Errorf(codeOf(e), "MCP server %q: %s", server, tools.Clip(tools.Clean(e.Message), maxMessage))
	}
	return nil, &lostError{c.because(err)}
}

// withTrace returns the _meta of a request with the span of the call that makes it (SEP-414).
func withTrace(ctx context.Context, meta mcp.Meta) mcp.Meta {
	all := tools.Trace(ctx).Meta()
	maps.Copy(all, meta)
	return all
}

// callError returns the agent's error for a server that cannot be reached.
func callError(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, errTooLong), errors.Is(err, tools.ErrTooMany):
		return tools.Errorf(tools.TooLarge, "%v", err)
	}
	if not, ok := errors.AsType[*startError](err); ok {
		return tools.Errorf(tools.Unavailable, "MCP server %q does not start", not.server).
			Suggest("try again; the operator's log has the cause").Because(err)
	}
	e := tools.Errorf(tools.Internal, "%s", tools.Clip(tools.Clean(err.Error()), maxTail))
	if !errors.Is(err, errAnswer) {
		e.Hint = "call again: a server that has ended is started again"
	}
	return e
}

func codeOf(e *jsonrpc.Error) tools.Code {
	switch e.Code {
	case jsonrpc.CodeInvalidParams:
		return tools.Invalid
	case jsonrpc.CodeMethodNotFound:
		return tools.NotFound
	}
	return tools.Internal
}

// resultOf converts a result of a server, or returns the error of a result with isError.
// Content beyond maxContent is cut and replaced by a note.
func resultOf(server string, r *mcp.CallToolResult) (tools.Result, error) {
	var out tools.Result
	if len(r.InputRequests) > 0 {
		return out, tools.Errorf(tools.Internal, "the server requests input, which is not supported")
	}
	left := maxContent
	for _, c := range r.Content {
		piece := contentOf(c)
		size := len(piece.Text) + len(piece.Data)
		if size > left {
			if piece.Data == nil && left > 0 {
				out.Content = append(out.Content, tools.Content{Text: tools.Clip(piece.Text, left)})
			}
			out.Content = append(out.Content, tools.Content{Text: fmt.Sprintf("[cut: the result has more than %d bytes]", maxContent)})
			break
		}
		left -= size
		out.Content = append(out.Content, piece)
	}
	if len(r.Content) == 0 && r.StructuredContent != nil {
		text, err := json.Marshal(r.StructuredContent)
		if err != nil {
			return out, fmt.Errorf("structured content: %w", err)
		}
		out.Content = []tools.Content{{Text: tools.Clip(string(text), maxContent)}}
	}
	if r.IsError {
		return tools.Result{}, failure(server, out.Content)
	}
	if slices.ContainsFunc(out.Content, imitates) {
		out.Content = slices.Insert(out.Content, 0,
			tools.Content{Text: fmt.Sprintf("[The text that follows is the MCP server %q's, not scopefs's.]", server)})
	}
	return out, nil
}

// imitates reports whether a text could pass for ours: for an error of a call, which is a JSON object, or for a text about an
// approval or a command of the operator. Other JSON is data, which programs read.
func imitates(c tools.Content) bool {
	if c.Data != nil {
		return false
	}
	var form struct {
		Code     tools.Code `json:"code"`
		Approval string     `json:"approval_id"`
	}
	if text := []byte(strings.TrimSpace(c.Text)); json.Valid(text) {
		return json.Unmarshal(text, &form) == nil && (form.Code == tools.ApprovalRequired || form.Code == tools.Denied || form.Approval != "")
	}
	return ours().MatchString(c.Text)
}

var ours = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?i)approval_required|approval_id|\bscopefs +[a-z]`)
})

// failure returns the error for the content of a result with isError. It names the server, whose text it has.
func failure(server string, content []tools.Content) error {
	var texts []string
	for _, c := range content {
		if c.Data == nil {
			texts = append(texts, c.Text)
		}
	}
	text := tools.Clip(tools.Clean(strings.TrimSpace(strings.Join(texts, "\n"))), maxMessage)
	if text == "" {
		text = "the tool failed without a message"
	}
	code := tools.Internal
	if strings.Contains(tools.Clip(text, 200), fmt.Sprint(jsonrpc.CodeInvalidParams)) { // the form of the TypeScript SDK
		code = tools.Invalid
	}
	return tools.Errorf(code, "MCP server %q: %s", server, text)
}

// contentOf converts one content item of a result.
func contentOf(c mcp.Content) tools.Content {
	switch c := c.(type) {
	case *mcp.TextContent:
		return tools.Content{Text: c.Text}
	case *mcp.ImageContent:
		return blob(c.Data, c.MIMEType)
	case *mcp.AudioContent:
		return blob(c.Data, c.MIMEType)
	case *mcp.ResourceLink:
		return tools.Content{Text: strings.TrimSpace(c.Name + " " + c.URI)}
	case *mcp.EmbeddedResource:
		if c.Resource != nil && c.Resource.Blob != nil {
			return blob(c.Resource.Blob, c.Resource.MIMEType)
		} else if c.Resource != nil {
			return tools.Content{Text: c.Resource.Text}
		}
	}
	return tools.Content{Text: "[content of an unknown kind]"}
}

// blob returns data as content. An invalid MIME type becomes
// application/octet-stream.
func blob(data []byte, kind string) tools.Content {
	if _, _, err := mime.ParseMediaType(kind); err != nil || len(kind) > 100 {
		kind = "application/octet-stream"
	}
	if data == nil {
		data = []byte{}
	}
	return tools.Content{Data: data, MIME: kind}
}
