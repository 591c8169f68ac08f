package tools

import (
	"context"
	"encoding/json"

	scoped "github.com/scopefs/scopefs/scope/context"
)

// Activity returns a declared tool (see Declared) whose calls run a function of this
// program. f gets the call, an object with _tool, the parameters and perhaps _instance,
// and the context that the call sees. Its result becomes JSON: an object is a structured
// result, any other value text. f must return when ctx ends.
func Activity(name, about string, hints Hints, schema json.RawMessage, f func(ctx context.Context, call json.RawMessage, given scoped.Scoped) (any, error)) (Tool, error) {
	return Declared(name, about, hints, schema, func(ctx context.Context, env Env, params json.RawMessage) (Result, error) {
		call, err := scoped.Envelope{Tool: &name, Instance: env.Envelope.Instance}.With(params)
		if err != nil {
			return Result{}, err
		}
		out, err := f(ctx, call, env.Context)
		if err != nil {
			return Result{}, err
		}
		r, err := newResult(out)
		if err == nil && (len(r.Structured) == 0 || r.Structured[0] != '{') {
			r.Structured, r.value = nil, nil
		}
		return r, err
	})
}
