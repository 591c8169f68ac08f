package agent

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/scopefs/scopefs/tools"
	scoped "github.com/scopefs/scopefs/tools/context"
)

// maxContexts bounds the contexts of all clients of an agent, in bytes.
const maxContexts = 64 << 20

var errContexts = tools.Errorf(tools.RateLimited, "the contexts of the agent's clients have too many bytes: end one of them")

// holdContext reserves memory for the context of a session.
func (a *Agent) holdContext(size int) (release func(), ok bool) {
	return a.contexts.Hold(size, maxContexts)
}

// contextSchema is the schema of context_set. The messages are read by scoped.Parse.
const contextSchema = `{"type": "object", "additionalProperties": false, "required": ["messages"], "properties": {"messages": {
	"type": "array", "items": {"type": "object"}, "description": "each has a type, the name of its scope, and perhaps an _instance; they replace the earlier ones"}}}`

// contextSet returns the tool context_set, by which a client that cannot send _meta
// gives its session a context.
func contextSet() (tools.Tool, error) {
	return tools.Declared("context_set", "Replace the context from which later calls of this session select scopes.",
		tools.Hints{Title: "Set the context", Idempotent: true}, json.RawMessage(contextSchema), setContext)
}

func setContext(_ context.Context, env tools.Env, params json.RawMessage) (tools.Result, error) {
	var in struct{ Messages json.RawMessage }
	if err := json.Unmarshal(params, &in); err != nil {
		return tools.Result{}, tools.Errorf(tools.Invalid, "arguments: %v", err)
	}
	if env.Keep == nil {
		e := tools.Errorf(tools.Denied, "this client has no session")
		e.Hint = "send the context with each call, as scopefs/context in _meta"
		return tools.Result{}, e
	}
	next, bad := scoped.Parse(in.Messages)
	if bad != nil {
		return tools.Result{}, &tools.Error{Code: tools.Code(bad.Code), Message: bad.Message, Path: "/messages" + bad.Path}
	}
	if err := env.Keep(next); err != nil {
		return tools.Result{}, err
	}
	text := fmt.Sprintf(`{"messages":%d,"bytes":%d}`, next.Len(), next.Size())
	return tools.Result{Structured: json.RawMessage(text), Content: []tools.Content{{Text: text}}}, nil
}
