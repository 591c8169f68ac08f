package tools

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/share"
)

// A Resource is an input that names a part of a shared resource: a key, a
// subject, a bucket. In JSON it is a string, the agent's key. [Set.Call] applies
// the tool's strategy to it before it decides about the call, so that a tool gets
// only names in the agent's own part.
//
// A field of type Resource must not be empty, unless its tag limit has the word
// empty; then "" stands for the agent's whole part. A tool with such fields is
// made by [NewScoped].
type Resource struct {
	key, name string
	strategy  share.Strategy
	agent     scope.ID
}

// Key returns the key that the agent wrote.
func (r Resource) Key() string { return r.key }

// Name returns the name in the shared resource. It panics if the Resource did not pass
// through Set.Call.
func (r Resource) Name() string {
	if r.strategy == nil {
		panic("tools: a Resource that no strategy was applied to")
	}
	return r.name
}

// Part returns the name of the agent's whole part.
func (r Resource) Part() (string, error) { return r.strategy.Apply(r.agent, "") }

// KeyOf returns the agent's key of a name from the shared resource, such as one of a
// list. The error wraps [share.ErrOutside] for a name of another agent.
func (r Resource) KeyOf(name string) (string, error) { return r.strategy.Enforce(r.agent, name) }

// MarshalJSON writes the key.
func (r Resource) MarshalJSON() ([]byte, error) { return json.Marshal(r.key) }

// UnmarshalJSON reads the key.
func (r *Resource) UnmarshalJSON(text []byte) error { return json.Unmarshal(text, &r.key) }

var resourceType = reflect.TypeFor[Resource]()

// resourceSchema is the schema of a Resource in a tool's input.
var resourceSchema = map[reflect.Type]*jsonschema.Schema{resourceType: {Type: "string"}}

// hasResource reports whether values of type t hold a Resource. It returns an error for a
// type whose Resources apply would not find.
func hasResource(t reflect.Type) (bool, error) { return holdsResource(t, map[reflect.Type]bool{}) }

func holdsResource(t reflect.Type, seen map[reflect.Type]bool) (bool, error) {
	if t == resourceType {
		return true, nil
	}
	if seen[t] { // a recursive type
		return false, nil
	}
	seen[t] = true
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Array:
		return holdsResource(t.Elem(), seen)
	case reflect.Map:
		has, err := holdsResource(t.Elem(), seen)
		if has && err == nil {
			err = fmt.Errorf("%v: a Resource cannot be in a map: use a list", t)
		}
		return has, err
	case reflect.Struct:
		any := false
		for i := range t.NumField() {
			if f := t.Field(i); decodes(f) {
				has, err := holdsResource(f.Type, seen)
				if err != nil {
					return has, err
				}
				any = any || has
			}
		}
		return any, nil
	}
	return false, nil
}

// decodes reports whether encoding/json writes to a field: also to the exported fields
// of an embedded struct whose own name is not exported.
func decodes(f reflect.StructField) bool { return f.IsExported() || f.Anonymous }

// apply applies a strategy to each Resource in v, which is addressable. A name that the
// strategy's own Enforce refuses is an error.
func apply(v reflect.Value, s share.Strategy, agent scope.ID) *Error {
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() {
			return nil
		}
		return apply(v.Elem(), s, agent)
	case reflect.Slice, reflect.Array:
		for i := range v.Len() {
			if err := apply(v.Index(i), s, agent); err != nil {
				return err
			}
		}
	case reflect.Struct:
		if v.Type() == resourceType {
			return applyTo(v.Addr().Interface().(*Resource), s, agent)
		}
		for i := range v.NumField() {
			if !decodes(v.Type().Field(i)) {
				continue
			}
			if err := apply(v.Field(i), s, agent); err != nil {
				return err
			}
		}
	}
	return nil
}

func applyTo(r *Resource, s share.Strategy, agent scope.ID) *Error {
	name, err := s.Apply(agent, r.key)
	if err == nil {
		var key string
		if key, err = s.Enforce(agent, name); err == nil && key != r.key {
			err = fmt.Errorf("%w: the strategy %T has one name for two keys", share.ErrOutside, s)
		}
	}
	switch {
	case errors.Is(err, share.ErrOutside):
		e := &Error{Code: OutsideScope, Message: fmt.Sprintf("%.100q is outside the scope", r.key), cause: err}
		return e.Violates("strategy: outside the agent's part")
	case err != nil:
		return &Error{Code: Invalid, Message: err.Error()}
	}
	r.name, r.strategy, r.agent = name, s, agent
	return nil
}
