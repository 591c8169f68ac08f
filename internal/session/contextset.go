package session

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/scopefs/scopefs/scope"
	scoped "github.com/scopefs/scopefs/scope/context"
	"github.com/scopefs/scopefs/tools"
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
	"type": "array", "items": {"type": "object"}, "description": "each has a type, the name of its scope, and perhaps an _instance; they replace those of an earlier call"}}}`

// contextSet returns the tool context_set, by which a client that cannot send _meta
// adds to the context of its session. The client's model calls it as well: it fills the
// scopes that the definition lists in scopes.set, and none that the client gave.
func (c *client) contextSet() (tools.Tool, error) {
	t, err := tools.Declared("context_set", "Fill scopes of the context from which later calls of this session select. What the client gave stays.",
		tools.Hints{Title: "Set the context", Writes: true, Acts: true, Idempotent: true}, json.RawMessage(contextSchema), c.setContext)
	return tools.Judged(t, err, c.judgeContext)
}

// contextOf returns the messages of a call of context_set.
func contextOf(params json.RawMessage) (*scoped.Environment, error) {
	var in struct{ Messages json.RawMessage }
	if err := json.Unmarshal(params, &in); err != nil {
		return nil, tools.Errorf(tools.Invalid, "arguments: %v", err)
	}
	next, bad := scoped.Parse(in.Messages)
	if bad != nil {
		return nil, &tools.Error{Code: tools.Code(bad.Code), Message: bad.Message, Path: "/messages" + bad.Path}
	}
	return next, nil
}

// judgeContext decides whether a call of context_set may fill the scopes of its messages.
func (c *client) judgeContext(env tools.Env, params json.RawMessage) error {
	if env.Keep == nil {
		d := scope.Decision{Kind: scope.KindNeed, Rule: "the client has no session"}
		e := tools.Refused(d, tools.Denied, "this client has no session")
		e.Hint = "send the context with each call, as scopefs/context in _meta"
		return e
	}
	next, err := contextOf(params)
	if err != nil {
		return err
	}
	given := c.context.Scopes()
	for _, name := range next.Scopes() {
		if slices.Contains(given, name) {
			d := scope.Decision{Kind: scope.KindContext, Rule: "the client gave " + name}
			return tools.Refused(d, tools.Denied, "the client gave the scope %s: no call changes it", name)
		}
		if d := c.rules().SetContext(name); !d.Allow {
			return tools.Refused(d, tools.Denied, "the agent may not set the scope %s", name)
		}
	}
	return nil
}

func (c *client) setContext(_ context.Context, env tools.Env, params json.RawMessage) (tools.Result, error) {
	next, err := contextOf(params)
	if err != nil {
		return tools.Result{}, err
	}
	all, bad := c.context.Append(next)
	if bad != nil {
		return tools.Result{}, &tools.Error{Code: tools.Code(bad.Code), Message: bad.Message, Path: "/messages"}
	}
	if err := env.Keep(all); err != nil {
		return tools.Result{}, err
	}
	text := fmt.Sprintf(`{"messages":%d,"bytes":%d}`, next.Len(), next.Size())
	return tools.Result{Structured: json.RawMessage(text), Content: []tools.Content{{Text: text}}}, nil
}
