package tools

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/scopefs/scopefs/scope"
	scoped "github.com/scopefs/scopefs/scope/context"
)

// terms are the terms of a declared tool's schema for the envelope of its calls.
type terms struct {
	spec     scoped.Spec
	required bool                            // a call must say _scopes
	members  map[string]*jsonschema.Resolved // by name, without _scopes
	fixed    json.RawMessage                 // an envelope: the members that are const
	must     []string                        // members
}

// Declared returns a tool that an operator has declared by a JSON schema of type
// object. Properties whose names begin with an underscore are about the envelope
// of a call: _scopes says what context a call gets (see scoped.ParseSpec). A call may
// say _activity, _delegate and _module only if the schema has them; one that is
// const holds for every call. The other properties are the parameters, which f gets
// after they were validated.
func Declared(name, about string, hints Hints, schema json.RawMessage, f func(context.Context, Env, json.RawMessage) (Result, error)) (Tool, error) {
	t := Dynamic(name, about, hints, &jsonschema.Schema{}, f)
	if err := json.Unmarshal(schema, t.Input); err != nil {
		return Tool{}, fmt.Errorf("inputSchema: %w", err)
	}
	if t.Input.Type != "object" {
		return Tool{}, fmt.Errorf("inputSchema: type: want \"object\"")
	}
	var err error
	if t.terms, err = readTerms(schema, t.Input); err != nil {
		return Tool{}, err
	}
	params := *t.Input
	params.Properties, params.PropertyOrder = maps.Clone(t.Input.Properties), nil
	maps.DeleteFunc(params.Properties, func(name string, _ *jsonschema.Schema) bool { return strings.HasPrefix(name, "_") })
	params.Required = slices.DeleteFunc(slices.Clone(t.Input.Required), func(name string) bool { return strings.HasPrefix(name, "_") })
	t.input = validatorOf(&params)
	if _, err := t.input(); err != nil {
		return Tool{}, fmt.Errorf("inputSchema: %w", err)
	}
	return t, nil
}

// Takes returns an error for parameters that a declared tool does not accept: another one does its calls.
func (t Tool) Takes(params json.RawMessage) *Error {
	args := arguments{}
	if err := json.Unmarshal(params, &args.value); err != nil {
		return asError(err)
	}
	return validate(&t, &args)
}

// readTerms reads the properties of a schema that are about envelopes.
func readTerms(schema json.RawMessage, s *jsonschema.Schema) (*terms, error) {
	var texts struct {
		Properties map[string]json.RawMessage `json:"properties"`
	}
	if err := json.Unmarshal(schema, &texts); err != nil {
		return nil, fmt.Errorf("inputSchema: %w", err)
	}
	t := &terms{members: map[string]*jsonschema.Resolved{}}
	fixed := map[string]any{}
	for name, p := range s.Properties {
		switch {
		case !strings.HasPrefix(name, "_"):
		case name == "_scopes":
			var bad *scoped.Error
			if t.spec, bad = scoped.ParseSpec(texts.Properties[name]); bad != nil {
				return nil, fmt.Errorf("inputSchema: properties: _scopes: %w", bad)
			}
		default:
			var err error
			if t.members[name], err = p.Resolve(nil); err != nil {
				return nil, fmt.Errorf("inputSchema: properties: %s: %w", name, err)
			}
			if p.Const != nil {
				fixed[name] = *p.Const
			}
		}
	}
	for _, name := range s.Required {
		if name == "_scopes" {
			t.required = !t.spec.Fixed
		} else if _, ok := fixed[name]; !ok && strings.HasPrefix(name, "_") {
			t.must = append(t.must, name)
		}
	}
	var err error
	if t.fixed, err = json.Marshal(fixed); err != nil {
		return nil, fmt.Errorf("inputSchema: %w", err)
	}
	// A member that the protocol does not have, or of the wrong type.
	known := map[string]any{"_tool": "x", "_instance": "x", "_activity": "x", "_delegate": "x", "_module": true}
	for name := range t.members {
		if known[name] == nil {
			return nil, fmt.Errorf("inputSchema: properties: %s: names with an underscore are the protocol's, which has no such: rename it", name)
		}
	}
	if _, _, bad := scoped.Cut(t.fixed); bad != nil {
		return nil, fmt.Errorf("inputSchema: properties: const: %w", bad)
	}
	return t, nil
}

// check validates an envelope, after it has completed it by what is const.
func (t *terms) check(e *scoped.Envelope) *Error {
	fail := func(name, text string) *Error {
		return &Error{Code: Invalid, Message: text, Path: "/" + name, by: scope.Decision{Kind: scope.KindSchema, Rule: ruleSchema}}
	}
	fixed, _, bad := scoped.Cut(t.fixed)
	if bad == nil {
		*e, bad = e.Join(fixed)
	}
	if bad != nil {
		return fail(strings.TrimPrefix(bad.Path, "/"), "every call of this tool has another: leave it out")
	}
	said := map[string]any{}
	text, err := json.Marshal(e)
	if err == nil {
		err = json.Unmarshal(text, &said)
	}
	if err != nil {
		return asError(err)
	}
	for _, name := range slices.Sorted(maps.Keys(said)) {
		member := t.members[name]
		switch {
		case name == "_scopes":
		case member == nil && name != "_tool" && name != "_instance":
			return fail(name, "the schema of this tool has no such member")
		case member != nil && member.Validate(said[name]) != nil:
			return fail(name, "the schema of this tool does not allow this value")
		}
	}
	for _, name := range t.must {
		if _, ok := said[name]; !ok {
			return fail(name, "this tool needs it")
		}
	}
	if t.required && e.Scopes == nil {
		return fail("_scopes", "this tool needs it")
	}
	return nil
}
