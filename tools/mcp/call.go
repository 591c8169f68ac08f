package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"time"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/scopefs/scopefs/tools"
)

// progressTime is how often a client that wants to know hears that a call runs.
const progressTime = time.Second

// describe is a tool as clients see it. No hint is left to a client's default.
// Schemas are JSON already: the SDK would make it of them at every listing.
func describe(t tools.Tool) *mcp.Tool {
	acts := t.Hints.Writes || t.Hints.Acts
	destructive, open := acts && t.Hints.Destructive, t.Hints.OpenWorld
	d := &mcp.Tool{
		Name: wireName(t.Name), Title: t.Hints.Title, Description: t.About, InputSchema: text(t.Input),
		Annotations: &mcp.ToolAnnotations{
			Title: t.Hints.Title, ReadOnlyHint: !acts, DestructiveHint: &destructive,
			IdempotentHint: t.Hints.Idempotent, OpenWorldHint: &open,
		},
	}
	if t.Output != nil {
		d.OutputSchema = text(t.Output)
	}
	return d
}

// text is a schema's JSON. Those of tools have been resolved, so that they have one.
func text(s *jsonschema.Schema) json.RawMessage {
	b, err := json.Marshal(s)
	if err != nil {
		panic(err)
	}
	return b
}

// seen is all that a client sees of a tool, to tell whether it has changed.
func seen(t tools.Tool) string {
	text, err := json.Marshal(describe(t))
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// call takes a client's call to the door. It may end with a question.
func (f *Face) call(ctx context.Context, req *mcp.CallToolRequest) (mcp.Result, *tools.Asked) {
	stop := progress(ctx, req)
	defer stop()
	result, err := f.set.Call(ctx, tools.Call{Tool: toolName(req.Params.Name), Args: req.Params.Arguments, Ask: asker(req)})
	if asked, ok := errors.AsType[*tools.Asked](err); ok {
		return nil, asked
	}
	if err != nil {
		return failed(err), nil
	}
	return resultOf(result, req.ProtocolVersion() >= statelessProtocol), nil
}

// statelessProtocol is the first without a handshake; SEP-2575.
const statelessProtocol = "2026-07-28"

type askedKey struct{}

// ask is what the SDK takes for the handler of all tools: it is reached by calls
// that have a question, first with it, then with the answer.
func (f *Face) ask(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	asked, ok := ctx.Value(askedKey{}).(*tools.Asked)
	if ok && len(req.Params.InputResponses) == 0 {
		return &mcp.CallToolResult{InputRequests: mcp.InputRequestMap{answerKey: elicit(asked.Question)}}, nil
	}
	res, asked := f.call(ctx, req)
	if asked != nil {
		return failed(tools.Errorf(tools.Invalid, "the answer has not come")), nil
	}
	switch r := res.(type) {
	case *plainResult:
		return r.Result.(*mcp.CallToolResult), nil
	case *largeResult:
		return r.CallToolResult, nil
	}
	return res.(*mcp.CallToolResult), nil
}

// failed is an error for a model to read: {"code": ..., "message": ...}. It is
// no structured content, which would have to fit the tool's output schema.
func failed(err error) *mcp.CallToolResult {
	text, merr := json.Marshal(err)
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
			all = append(all, &mcp.TextContent{Text: c.Text})
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

// progress tells a client that gave a token how long its call has been running,
// in seconds, until it is stopped.
func progress(ctx context.Context, req *mcp.CallToolRequest) (stop func()) {
	token := req.Params.GetProgressToken()
	if token == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(progressTime)
		defer tick.Stop()
		for n := 1; ; n++ {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				_ = req.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{
					ProgressToken: token, Progress: float64(n) * progressTime.Seconds(), Message: req.Params.Name + " is running"})
			}
		}
	}()
	return func() { cancel(); <-ended } // none comes after the result
}

// answerKey labels the one question of a call.
const answerKey = "answer"

// asker puts questions to the client's user: by elicitation, as part of the
// result, after which the client calls again with the answer (multi round-trip
// requests; for older clients the SDK does both).
func asker(req *mcp.CallToolRequest) func(context.Context, tools.Question) (tools.Answer, error) {
	caps := req.ClientCapabilities()
	if caps == nil || caps.Elicitation == nil || caps.Elicitation.Form == nil && caps.Elicitation.URL != nil {
		return nil
	}
	return func(_ context.Context, q tools.Question) (tools.Answer, error) {
		said, ok := req.Params.InputResponses[answerKey].(*mcp.ElicitResult)
		if !ok {
			return tools.Answer{}, &tools.Asked{Question: q}
		}
		text, _ := said.Content[answerKey].(string)
		return tools.Answer{Text: text, Declined: said.Action != "accept"}, nil
	}
}

func elicit(q tools.Question) *mcp.ElicitParams {
	answer := &jsonschema.Schema{Type: "string"}
	for _, o := range q.Options {
		answer.Enum = append(answer.Enum, o)
	}
	return &mcp.ElicitParams{Message: q.Text, RequestedSchema: &jsonschema.Schema{
		Type: "object", Properties: map[string]*jsonschema.Schema{answerKey: answer}, Required: []string{answerKey},
	}}
}
