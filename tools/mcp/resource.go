package mcp

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"net/url"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/tools"
	"github.com/scopefs/scopefs/tools/mcp/names"
)

// Resources are the files of the agent's view and the log of its session. A listing, a read and a completion are calls of
// file tools: the door decides, bounds and records them. There are no subscriptions, because the daemon watches no view.

// A client knows of which server a URI is, so that the URIs need not name the agent: they stay what they are in a team's texts.
const (
	filesURI     = "scopefs:///files/"
	logURI       = "scopefs:///log"
	pathTemplate = filesURI + "{+path}" // RFC 6570: slashes stay
	textType     = "text/plain"
	dirType      = "inode/directory"
	logType      = "application/jsonl"
	maxListed    = 500 // files of a page
	maxValues    = 100 // of a completion, by the specification
)

// addResources offers the session's log, and any path of the view.
func (f *Face) addResources() {
	if f.opt.Log != nil {
		f.server.AddResource(&mcp.Resource{Name: "log", Title: "Log of this session", URI: logURI, MIMEType: logType,
			Description: "The last calls of this session and how they ended, one JSON object a line."}, f.readLog)
	}
	f.server.AddResourceTemplate(&mcp.ResourceTemplate{Name: "file", Title: "File of the workspace", URITemplate: pathTemplate,
		Description: "A file, as read_file returns it, or the listing of a directory."}, f.readFile)
}

// resources lists the files of the view's root, and refuses URIs that the SDK would not match, or could not repeat in an error.
func (f *Face) resources(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		switch r := req.(type) {
		case *mcp.ListResourcesRequest:
			res, err := f.listFiles(ctx, r)
			if err != nil { // res is a nil pointer
				return nil, err
			}
			return res, nil
		case *mcp.ReadResourceRequest:
			if strings.ContainsFunc(r.Params.URI, func(c rune) bool { return c <= ' ' || c >= utf8.RuneSelf || c == '"' || c == '\\' || c == 0x7f }) {
				return nil, notFound(r.Params.URI)
			}
			res, err := next(ctx, method, req)
			if read, ok := res.(*mcp.ReadResourceResult); ok && err == nil && sizeOf(read) > large {
				return &largeResult{read, func() { read.Contents = nil }, f.opt.Encoders}, nil
			}
			return res, err
		}
		return next(ctx, method, req)
	}
}

func sizeOf(r *mcp.ReadResourceResult) (n int) {
	for _, c := range r.Contents {
		n += len(c.Text) + len(c.Blob)
	}
	return n
}

// listFiles returns a page of the names in the view's root, after the log. An agent whose rules do not simply allow list_dir and
// read_file has no files in its list: clients list resources unasked, and that should neither be denied nor wait for an approval.
func (f *Face) listFiles(ctx context.Context, req *mcp.ListResourcesRequest) (*mcp.ListResourcesResult, error) {
	cursor := ""
	if req.Params != nil {
		cursor = req.Params.Cursor
	}
	res := &mcp.ListResourcesResult{Resources: []*mcp.Resource{}, Cacheable: mcp.Cacheable{CacheScope: "private"}}
	if cursor == "" && f.opt.Log != nil {
		res.Resources = append(res.Resources, &mcp.Resource{Name: "log", Title: "Log of this session", URI: logURI, MIMEType: logType})
	}
	if !f.set.Allows("list_dir") || !f.set.Allows("read_file") {
		return res, nil
	}
	var page struct {
		Entries []struct {
			Path string `json:"path"`
			Type string `json:"type"`
			Size int64  `json:"size"`
		} `json:"entries"`
		Next string `json:"next_cursor"`
	}
	if err := f.ask(ctx, "list_dir", map[string]any{"cursor": cursor, "limit": maxListed}, &page); err != nil {
		return nil, resourceError("", err)
	}
	for _, e := range page.Entries {
		r := &mcp.Resource{Name: e.Path, URI: filesURI + (&url.URL{Path: e.Path}).EscapedPath(), Size: e.Size}
		switch e.Type {
		case "file":
		case "directory":
			r.MIMEType, r.Size = dirType, 0
		default: // reading it fails, unless it is a link to a file
			r.Size = 0
		}
		res.Resources = append(res.Resources, r)
	}
	res.NextCursor = page.Next
	return res, nil
}

// readFile reads a file or lists a directory, as read_file does.
func (f *Face) readFile(ctx context.Context, req *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
	uri := req.Params.URI
	escaped, ours := strings.CutPrefix(uri, filesURI)
	path, err := url.PathUnescape(escaped) // once: what is escaped twice is a name with a percent sign
	if !ours || err != nil || !utf8.ValidString(path) {
		return nil, notFound(uri)
	}
	r, err := f.native(ctx, "read_file", map[string]any{"path": cmp.Or(path, "."), "limit": 100_000, "media": true, "list": true})
	if err != nil {
		return nil, resourceError(uri, err)
	}
	c := &mcp.ResourceContents{URI: uri, MIMEType: textType}
	var first tools.Content
	if len(r.Content) > 0 {
		first = r.Content[0]
	}
	switch {
	case first.MIME != "":
		c.MIMEType, c.Blob = first.MIME, first.Data
	case first.Text == "":
		c.Blob = []byte{} // an empty text has no member in the SDK's JSON
	default:
		c.Text = first.Text
	}
	if len(r.Content) > 1 { // there is more
		c.Meta = mcp.Meta{names.Meta + "truncated": r.Content[1].Text}
	}
	return &mcp.ReadResourceResult{Contents: []*mcp.ResourceContents{c}}, nil
}

func (f *Face) readLog(_ context.Context, req *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
	return &mcp.ReadResourceResult{Contents: []*mcp.ResourceContents{{URI: req.Params.URI, MIMEType: logType, Text: f.opt.Log.text()}}}, nil
}

// complete completes a path in the template of files. Prompts have no arguments.
func (f *Face) complete(ctx context.Context, req *mcp.CompleteRequest) (*mcp.CompleteResult, error) {
	res := &mcp.CompleteResult{Completion: mcp.CompletionResultDetails{Values: []string{}}}
	if req.Params.Ref.URI != pathTemplate || req.Params.Argument.Name != "path" || !f.set.Allows("glob") {
		return res, nil
	}
	var found struct {
		Matches []struct {
			Path string `json:"path"`
			Type string `json:"type"`
		} `json:"matches"`
		Truncated bool `json:"truncated"`
	}
	pattern := scope.QuotePattern(req.Params.Argument.Value) + "*"
	if err := f.ask(ctx, "glob", map[string]any{"pattern": pattern, "limit": maxValues}, &found); err != nil {
		return res, nil // a suggestion less
	}
	for _, m := range found.Matches {
		if m.Type == "directory" {
			m.Path += "/"
		}
		res.Completion.Values = append(res.Completion.Values, m.Path)
	}
	slices.Sort(res.Completion.Values)
	res.Completion.HasMore = found.Truncated
	return res, nil
}

// native calls a tool by its own name, which a profile may hide.
func (f *Face) native(ctx context.Context, tool string, args map[string]any) (tools.Result, error) {
	text, err := tools.Marshal(args)
	if err != nil {
		return tools.Result{}, err
	}
	return f.set.Call(ctx, tools.Call{Tool: tool, Args: text, Native: true})
}

// ask is native for a result with a structure.
func (f *Face) ask(ctx context.Context, tool string, args map[string]any, result any) error {
	r, err := f.native(ctx, tool, args)
	if err != nil {
		return err
	}
	text, err := tools.Marshal(r.Value())
	if err != nil {
		return err
	}
	return json.Unmarshal(text, result)
}

// notFound is the error of a URI that names nothing. The SDK's own is no JSON for some URIs.
func notFound(uri string) error {
	data, _ := json.Marshal(map[string]string{"uri": tools.Clip(uri, 1000)})
	return &jsonrpc.Error{Code: mcp.CodeResourceNotFound, Message: "Resource not found", Data: data}
}

// resourceError returns the JSON-RPC error for an error of a call.
func resourceError(uri string, err error) error {
	e, ok := errors.AsType[*tools.Error](err)
	if !ok {
		return err
	}
	code := int64(jsonrpc.CodeInternalError)
	switch e.Code {
	case tools.NotFound, tools.OutsideScope:
		return notFound(uri)
	case tools.Invalid:
		code = jsonrpc.CodeInvalidParams
	}
	data, _ := tools.Marshal(e)
	return &jsonrpc.Error{Code: code, Message: e.Error(), Data: data}
}
