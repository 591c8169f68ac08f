package tools

import (
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/scope"
	scoped "github.com/scopefs/scopefs/scope/context"
	"github.com/scopefs/scopefs/tools/approvals"
)

// ContextRules is implemented by [Rules] that bound the context of calls. Other rules
// bound nothing, and give no context to tools with [Hints].Context.
type ContextRules interface {
	// Context decides whether a call may see a scope. Ask: the call needs an approval.
	Context(scope string) scope.Decision

	// Contexts returns the scopes that calls of tools with [Hints].Context may choose:
	// names and patterns. Nil means none. With fixed each of these calls gets all.
	Contexts() (names []string, fixed bool)

	// ContextsOf returns the scopes that calls of one tool may choose or, with fixed, all
	// get. ok is false if the rules name no scopes for the tool.
	ContextsOf(tool string) (names []string, fixed, ok bool)
}

// given is the selection that a call makes of its context, and the context that it gets.
type given struct {
	env      *scoped.Environment
	envelope scoped.Envelope
	context  scoped.Scoped
	narrowed []string // the scopes that the call selected, if the operator granted fewer
}

// cut separates the arguments of a call from the call's envelope. A part of the envelope
// may be in Call.Beside. The arguments of an MCP server's tool hold no envelope. In a task the context may only narrow.
func (c Call) cut(name string, task bool) (given, json.RawMessage, *Error) {
	args := c.Args
	e, env, err := scoped.Beside(c.Beside)
	switch {
	case env == nil:
		env = c.Context
	case err == nil && task:
		if err := env.Within(c.Context); err != nil {
			bad := ofContext(err, "the context of the task")
			bad.Path = "/_context"
			return given{}, nil, bad
		}
	}
	if err == nil && !strings.HasPrefix(name, serverPrefix) && len(args) <= maxArguments { // parse refuses longer ones
		var own scoped.Envelope
		if own, args, err = scoped.Cut(args); err == nil {
			e, err = e.Join(own)
		}
	}
	if err != nil {
		return given{}, nil, ofContext(err, ruleSchema)
	}
	if e.Tool != nil && *e.Tool != c.Tool && *e.Tool != name {
		return given{}, nil, &Error{Code: Invalid, Message: "the call is of another tool", Path: "/_tool",
			by: scope.Decision{Kind: scope.KindSchema, Rule: ruleSchema}}
	}
	return given{env: env, envelope: e}, args, nil
}

// ofContext returns the error of a call for an error of package scoped. The log has the
// message of a denial, which holds names of scopes. It does not have that of an invalid
// context, which may hold content.
func ofContext(err *scoped.Error, rule string) *Error {
	e := &Error{Code: Code(err.Code), Message: err.Message, Path: err.Path, by: scope.Decision{Kind: scope.KindContext, Rule: rule}}
	if err.Code == scoped.Denied {
		e.cause = errors.New(err.Message)
	}
	return e
}

// said returns the texts beside the arguments that a call can pass on, for filters.
func (r *invocation) said() (all []any) {
	for _, s := range []*string{r.envelope.Instance, r.envelope.Activity, r.envelope.Delegate} {
		if s != nil {
			all = append(all, *s)
		}
	}
	return append(all, r.trace.State)
}

// choose selects the context of a call. ask is the decision that requires an approval.
func (r *invocation) choose(rules Rules) (ask scope.Decision, err *Error) {
	bounds, _ := rules.(ContextRules)
	spec, err := r.tool.takes(&r.envelope, bounds)
	if err != nil {
		return ask, err
	}
	rule := ruleSchema
	own, _, some := contextsOf(bounds, r.name)
	if some && r.tool.terms == nil {
		rule = ruleScopes
	}
	may := func(name string) bool {
		if bounds == nil {
			return true
		}
		if some && !slices.Contains(own, name) {
			rule, r.target = ruleScopes, name
			return false
		}
		d := bounds.Context(name)
		if d.Ask {
			ask = d
		}
		if !d.Allow && !d.Ask {
			rule, r.target = d.Rule, name
		}
		return d.Allow || d.Ask
	}
	var bad *scoped.Error
	if r.context, bad = scoped.Select(r.env, spec, may, r.envelope); bad != nil {
		return ask, ofContext(bad, rule)
	}
	return ask, nil
}

// ruleScopes is the rule about the scopes of one tool.
const ruleScopes = "scopes.tools"

func contextsOf(bounds ContextRules, tool string) (names []string, fixed, ok bool) {
	if bounds == nil {
		return nil, false, false
	}
	return bounds.ContextsOf(tool)
}

// doer returns the name of the other tool that does the call, by _activity; "" for none.
// The filters and rates of that tool hold for the call as well.
func (r *invocation) doer() string {
	if r.envelope.Activity == nil || *r.envelope.Activity == r.name {
		return ""
	}
	return *r.envelope.Activity
}

// rates returns the limits that count the call. A rate that matches both tools counts the
// call once.
func (r *invocation) rates(rules Rules) []scope.Rate {
	limits := rules.RatesOf(r.name)
	if by := r.doer(); by != "" {
		for _, rate := range rules.RatesOf(by) {
			if !slices.Contains(limits, rate) {
				limits = append(slices.Clip(limits), rate)
			}
		}
	}
	return limits
}

// versionOf returns the version of a tool; "" for none.
func (s *Set) versionOf(name string) string {
	if t := s.native(name); t != nil {
		return t.Version
	}
	return ""
}

// takes returns the scopes that a tool offers to a call, and adds the tool's constants to
// the call's envelope.
func (t *Tool) takes(e *scoped.Envelope, bounds ContextRules) (scoped.Spec, *Error) {
	if t.terms != nil {
		return t.terms.spec, t.terms.check(e)
	}
	extra := map[string]bool{"/_activity": e.Activity != nil, "/_delegate": e.Delegate != nil, "/_module": e.Module != nil}
	names, fixed, own := contextsOf(bounds, t.Name)
	if !t.Hints.Context && !own {
		extra["/_scopes"], extra["/_instance"] = e.Scopes != nil, e.Instance != nil
	}
	for _, path := range slices.Sorted(maps.Keys(extra)) {
		if extra[path] {
			err := Errorf(Invalid, "calls of %s have no %s", t.Name, strings.TrimPrefix(path, "/"))
			err.Path, err.by = path, scope.Decision{Kind: scope.KindSchema, Rule: ruleSchema}
			return scoped.Spec{}, err
		}
	}
	if bounds == nil || !t.Hints.Context && !own {
		return scoped.Spec{}, nil
	}
	if !own {
		names, fixed = bounds.Contexts()
	}
	if fixed || own {
		return scoped.Spec{Names: slices.Sorted(slices.Values(names)), Fixed: fixed}, nil
	}
	return scoped.Spec{Any: names != nil}, nil
}

// offer adds to a tool the scopes that the rules offer to its calls: to the schema of its
// arguments, or to Scopes.
func (t *Tool) offer(rules Rules) {
	bounds, ok := rules.(ContextRules)
	if !ok || t.Input == nil || t.terms != nil {
		return
	}
	names, fixed, own := bounds.ContextsOf(t.Name)
	if !own && t.Hints.Context {
		names, fixed = bounds.Contexts()
	}
	if names == nil {
		return
	}
	scopes := &jsonschema.Schema{Type: "array", Items: &jsonschema.Schema{Type: "string"},
		Description: "what the call sees of the context, at /context/SCOPE.json"}
	var list []any
	for _, name := range names {
		list = append(list, name)
	}
	switch {
	case fixed:
		scopes = &jsonschema.Schema{Const: jsonschema.Ptr(any(list)), Description: scopes.Description}
	case !slices.ContainsFunc(names, func(name string) bool { return strings.Contains(name, "*") }):
		scopes.Items.Enum = list
	}
	if strings.HasPrefix(t.Name, serverPrefix) {
		t.Scopes = scopes
		return
	}
	offered := *t.Input
	if offered.Properties = maps.Clone(t.Input.Properties); offered.Properties == nil {
		offered.Properties = map[string]*jsonschema.Schema{}
	}
	offered.Properties["_scopes"] = scopes
	offered.Properties["_instance"] = &jsonschema.Schema{Type: "string",
		Description: "the instance whose messages the call sees, beside those of none"}
	t.Input = &offered
}

// mayStill reports whether rules still allow the call the scopes that it got.
func (r *invocation) mayStill(rules Rules) bool {
	bounds, ok := rules.(ContextRules)
	own, _, some := contextsOf(bounds, r.name)
	return !ok || !slices.ContainsFunc(r.context.Names(), func(name string) bool {
		return !bounds.Context(name).Allow || some && !slices.Contains(own, name)
	})
}

// describe adds the scopes that the call sees to an event, without content.
func (g given) describe(e *audit.Event) {
	if g.context.Empty() {
		return
	}
	e.Instance = g.context.Instance()
	for _, p := range g.context.Parts() {
		e.Context = append(e.Context, audit.Scope{Name: p.Name, Messages: p.Messages, Bytes: p.Bytes, Hash: p.Hash})
	}
	if g.narrowed != nil {
		e.Detail += ", narrowed from " + strings.Join(g.narrowed, " ")
	}
}

// about adds the envelope and the scopes of the call to an approval.
func (g given) about(p *approvals.Approval) (err error) {
	said := g.envelope
	said.Tool = nil // the approval names it
	if p.Envelope, err = json.Marshal(said); string(p.Envelope) == "{}" {
		p.Envelope = nil
	}
	p.SetContext(g.context)
	return err
}

// narrow removes the scopes that the operator has not granted from the call. Nil grants all.
func (g *given) narrow(granted []string) *Error {
	if granted == nil {
		return nil
	}
	narrow, err := g.context.Narrow(granted)
	if err != nil {
		return ofContext(err, "the approval")
	}
	g.context, g.narrowed = narrow, g.context.Names()
	return nil
}

// show makes the context of a call visible to the processes that the call starts.
func (s *Set) show(r *invocation) (hide func(), err error) {
	if s.gate.Show == nil || r.context.Empty() && !r.told.Resumed { // processes of a resumed call may wait
		return func() {}, nil
	}
	return s.gate.Show(r.id, r.context)
}
