package mcp

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"strings"
	"sync/atomic"
	"time"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/scopefs/scopefs/audit/trace"
	"github.com/scopefs/scopefs/tools"
	"github.com/scopefs/scopefs/tools/mcp/names"
)

// progressTime is the interval of progress notifications. progressPause is the least between two, however many reports a server
// sends.
const (
	progressTime  = time.Second
	progressPause = 50 * time.Millisecond
)

// describe returns the MCP form of a tool. Most clients put it whole into each request to the model, so that it is brief unless
// full: see [Options].FullSchemas. It sets every hint that means something for the tool, so that no client applies its own
// default. It encodes the schemas once; otherwise the SDK would encode them for each listing.
func describe(t tools.Tool, full bool) *mcp.Tool {
	acts, open := t.Hints.Writes || t.Hints.Acts, t.Hints.OpenWorld
	d := &mcp.Tool{
		Name: names.OfTool(t.Name), Title: t.Hints.Title, Description: t.About,
		Annotations: &mcp.ToolAnnotations{ReadOnlyHint: !acts, IdempotentHint: t.Hints.Idempotent, OpenWorldHint: &open},
	}
	if acts { // the specification gives the hint no meaning for a tool that only reads
		d.Annotations.DestructiveHint = &t.Hints.Destructive
	}
	if t.Scopes != nil {
		d.Meta = mcp.Meta{names.Meta + "scopes": text(tools.SchemaText(t.Scopes))}
	}
	if !full {
		d.InputSchema = text(tools.BriefText(t.Input))
		return d
	}
	d.InputSchema = text(tools.SchemaText(t.Input))
	if t.Output != nil {
		d.OutputSchema = text(tools.SchemaText(t.Output))
	}
	return d
}

// text returns a schema's JSON. It panics if there is none, which cannot happen:
// the schemas of tools have been resolved.
func text(b json.RawMessage, err error) json.RawMessage {
	if err != nil {
		panic(err)
	}
	return b
}

// fingerprint returns a text that changes with anything that clients see of a tool.
func fingerprint(t tools.Tool, full bool) string {
	text, err := json.Marshal(describe(t, full))
	if err != nil {
		return err.Error()
	}
	sum := sha256.Sum256(text)
	return string(sum[:])
}

// call passes a client's call to Set.Call. It returns a result, or the question
// that the client must answer first, or the error of a request that is no call.
func (f *Face) call(ctx context.Context, req *mcp.CallToolRequest) (mcp.Result, *tools.Asked, error) {
	doing, stop := progress(ctx, req)
	defer stop()
	holds := func(approval string) {
		if approval == "" {
			doing("is running")
		} else {
			doing("waits for the operator to decide about approval " + approval)
		}
	}
	var reports func(string) // of the tool
	if req.Params.GetProgressToken() != nil {
		reports = func(text string) { doing("is running: " + text) }
	}
	said, err := beside(req.Params.Meta)
	if err != nil {
		return failed(tools.Errorf(tools.Invalid, "_meta: %v", err)), nil, nil
	}
	env, keep := f.contextOf(ctx, req)
	c := tools.Call{Trace: trace.OfMeta(req.Params.Meta), Tool: names.Tool(req.Params.Name), Args: req.Params.Arguments,
		Ask: asker(req), Holds: holds, Progress: reports, Context: env, Keep: keep, Beside: said}
	src, over := sourceOf(req), streamOf(req)
	var cost time.Duration // to parse the message
	switch {
	case src != nil:
		cost = src.cost
		src.read() // the door bounds what follows
		end, err := f.opt.Inbox.call(src.bytes, len(c.Args), src.size)
		if err != nil {
			return failed(err), nil, nil
		}
		defer end()
		if c.Resume = src.resume; f.opt.Returns != nil && f.opt.Returns() {
			c.Kept = src.kept
		}
	case over != nil:
		cost, over.body.called = over.body.cost, true
		over.body.turn()
		end, err := f.opt.Inbox.call(over.body.size, len(c.Args), over.body.free)
		if err != nil {
			return failed(err), nil, nil
		}
		defer end()
		var stop context.CancelFunc
		ctx, stop = context.WithCancel(ctx)
		defer stop()
		over.begin(stop)
		if c.Resume = over.resume; over.keeps() {
			c.Kept = over.kept
		}
	}
	result, err := f.set.Call(ctx, c)
	if bad, ok := errors.AsType[*tools.Error](err); ok && bad.Code == tools.Invalid { // the door does not parse what is too large
		f.opt.Inbox.refused(cost)
	}
	if asked, ok := errors.AsType[*tools.Asked](err); ok {
		return nil, asked, nil
	}
	switch {
	case errors.Is(err, tools.ErrLost):
		return nil, nil, lost(tools.ErrLost.Error())
	case errors.Is(err, tools.ErrLeft): // the client gets the result of the next daemon
		if over != nil {
			over.leave()
		} else {
			src.lines.Close()
		}
		return failed(err), nil, nil
	case err != nil:
		return failed(err), nil, nil
	}
	return resultOf(result, req.ProtocolVersion() >= statelessProtocol, f.opt.Encoders), nil, nil
}

// statelessProtocol is the first protocol version without a handshake; SEP-2575.
const statelessProtocol = "2026-07-28"

type askedKey struct{}

// handleQuestion is the SDK's handler of every tool. Face.answer handles all calls
// but those with a question, which reach this method twice: first to put the
// question, then with the answer.
func (f *Face) handleQuestion(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	asked, ok := ctx.Value(askedKey{}).(*tools.Asked)
	if ok && len(req.Params.InputResponses) == 0 {
		return &mcp.CallToolResult{InputRequests: mcp.InputRequestMap{names.Answer: elicit(asked.Question)}}, nil
	}
	res, asked, err := f.call(ctx, req)
	streamOf(req).answer()
	if err != nil {
		return nil, err
	}
	if asked != nil {
		return failed(tools.Errorf(tools.Invalid, "the client sent no answer to the question")), nil
	}
	switch r := res.(type) {
	case *plainResult:
		return r.Result.(*mcp.CallToolResult), nil
	case *largeResult:
		return r.Result.(*mcp.CallToolResult), nil
	}
	return res.(*mcp.CallToolResult), nil
}

// failed returns an error result. Its text is {"code": ..., "message": ...}, for the
// model. Structured content would have to match the tool's output schema.
func failed(err error) *mcp.CallToolResult {
	text, merr := tools.Marshal(err) // a person reads it, too
	if merr != nil || string(text) == "{}" {
		text = []byte(err.Error())
	}
	return &mcp.CallToolResult{IsError: true, Content: []mcp.Content{&mcp.TextContent{Text: string(tools.PlainJSON(text))}}}
}

func contents(list []tools.Content) []mcp.Content {
	all := []mcp.Content{}
	for _, c := range list {
		switch {
		case c.MIME == "":
			all = append(all, &mcp.TextContent{Text: c.Text, Meta: metaOf(c)})
		case strings.HasPrefix(c.MIME, "audio/"):
			all = append(all, &mcp.AudioContent{Data: c.Data, MIMEType: c.MIME})
		case strings.HasPrefix(c.MIME, "image/"):
			all = append(all, &mcp.ImageContent{Data: c.Data, MIMEType: c.MIME})
		default:
			all = append(all, &mcp.EmbeddedResource{Resource: &mcp.ResourceContents{URI: "scopefs:data", MIMEType: c.MIME, Blob: c.Data}})
		}
	}
	return all
}

// progress notifies a client that sent a progress token every progressTime, and at
// once when the call does something else. The progress is the running time of the call
// in seconds. stop ends the notifications.
func progress(ctx context.Context, req *mcp.CallToolRequest) (doing func(what string), stop func()) {
	token := req.Params.GetProgressToken()
	if token == nil {
		return func(string) {}, func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	ended, began := make(chan struct{}), time.Now()
	var now atomic.Value
	now.Store("is running")
	changed := make(chan struct{}, 1)
	go func() {
		defer close(ended)
		tick := time.NewTicker(progressTime)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-changed:
			case <-tick.C:
			}
			_ = req.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{
				ProgressToken: token, Progress: time.Since(began).Seconds(), Message: req.Params.Name + " " + now.Load().(string)})
			select {
			case <-ctx.Done():
			case <-time.After(progressPause):
			}
		}
	}()
	doing = func(what string) {
		now.Store(what)
		select {
		case changed <- struct{}{}:
		default: // a client that does not read must not block the call
		}
	}
	return doing, func() { cancel(); <-ended } // so that no notification follows the result
}

// asker returns the function that puts a question to the client's user, or nil if
// the client supports no form elicitation. The question is part of the result, and
// the client repeats the call with the answer (multi round-trip requests). For
// older clients the SDK sends an elicitation request and repeats the call itself.
func asker(req *mcp.CallToolRequest) func(context.Context, tools.Question) (tools.Answer, error) {
	caps := req.ClientCapabilities()
	if caps == nil || caps.Elicitation == nil || caps.Elicitation.Form == nil && caps.Elicitation.URL != nil {
		return nil
	}
	return func(_ context.Context, q tools.Question) (tools.Answer, error) {
		response, ok := req.Params.InputResponses[names.Answer].(*mcp.ElicitResult)
		if !ok {
			return tools.Answer{}, &tools.Asked{Question: q}
		}
		text, _ := response.Content[names.Answer].(string)
		return tools.Answer{Text: text, Declined: response.Action != "accept"}, nil
	}
}

func elicit(q tools.Question) *mcp.ElicitParams {
	answer := &jsonschema.Schema{Type: "string"}
	for _, o := range q.Options {
		answer.Enum = append(answer.Enum, o)
	}
	return &mcp.ElicitParams{Message: q.Text, RequestedSchema: &jsonschema.Schema{
		Type: "object", Properties: map[string]*jsonschema.Schema{names.Answer: answer}, Required: []string{names.Answer},
	}}
}
