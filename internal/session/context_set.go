package session

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/agents"
	scoped "github.com/scopefs/scopefs/scope/context"
	"github.com/scopefs/scopefs/tools"
)

// contextSetter is a client of an agent's tools. Its model calls context_set as well: the tool fills the scopes that the definition
// lists in scopes.set, and none that the client gave.
type contextSetter struct {
	Given *scoped.Environment // by the client
	Rules func() *agents.Grants
}

const contextSetName = "context_set"

// contextSetSchema is the schema of context_set. The messages are read by scoped.Parse.
const contextSetSchema = `{"type": "object", "additionalProperties": false, "required": ["messages"], "properties": {"messages": {
	"type": "array", "items": {"type": "object"}, "description": "each has a type, the name of its scope, and perhaps an _instance; they replace those of an earlier call"}}}`

// tool returns context_set.
func (c contextSetter) tool() (tools.Tool, error) {
	t, err := tools.Declared(contextSetName,
		"Fill scopes of the context from which later calls of this session select. What the client gave stays.",
		tools.Hints{Title: "Set the context", Writes: true, Acts: true, Idempotent: true}, json.RawMessage(contextSetSchema), setContext)
	return tools.Judged(t, err, c.judge)
}

// again returns the messages of a call that an earlier daemon has handled. It returns an error if the rules of now deny the call.
func (c contextSetter) again(messages []byte) (*scoped.Environment, error) {
	if d := c.Rules().Call(contextSetName, true); !d.Allow && !d.Ask {
		return nil, tools.Refused(d, tools.Denied, "the agent may not set its context")
	}
	env, bad := scoped.Parse(messages)
	if bad != nil {
		return nil, bad
	}
	return env, c.may(env)
}

// contextOf returns the messages of a call.
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

// judge decides whether a call may fill the scopes of its messages.
func (c contextSetter) judge(env tools.Env, params json.RawMessage) error {
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
	return c.may(next)
}

// may decides about the scopes of messages.
func (c contextSetter) may(next *scoped.Environment) error {
	given := c.Given.Scopes()
	for _, name := range next.Scopes() {
		if slices.Contains(given, name) {
			d := scope.Decision{Kind: scope.KindContext, Rule: "the client gave " + name}
			return tools.Refused(d, tools.Denied, "the client gave the scope %s: no call changes it", name)
		}
		if d := c.Rules().SetContext(name); !d.Allow {
			return tools.Refused(d, tools.Denied, "the agent may not set the scope %s", name)
		}
	}
	return nil
}

func setContext(_ context.Context, env tools.Env, params json.RawMessage) (tools.Result, error) {
	next, err := contextOf(params)
	if err != nil {
		return tools.Result{}, err
	}
	if err := env.Keep(next); err != nil {
		return tools.Result{}, err
	}
	text := fmt.Sprintf(`{"messages":%d,"bytes":%d}`, next.Len(), next.Size())
	return tools.Result{Structured: json.RawMessage(text), Content: []tools.Content{{Text: text}}}, nil
}
