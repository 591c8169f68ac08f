package scoped

import (
	"encoding/json"
	"slices"
)

// Spec is what a tool's schema offers to its calls. The zero Spec offers nothing.
type Spec struct {
	Names []string // sorted
	Fixed bool     // every call gets all of Names; otherwise it chooses among them
	Any   bool     // a call chooses among all scopes
}

// ParseSpec reads the property _scopes of a tool's schema. It is {"const": [NAME...]}
// for calls that get exactly these scopes, or {"type": "array", "items": {"enum":
// [NAME...]}} for calls that choose among them. title, description and, of an array,
// uniqueItems may be there, too. No text is the zero Spec.
func ParseSpec(schema json.RawMessage) (Spec, *Error) {
	if len(schema) == 0 {
		return Spec{}, nil
	}
	schema, err := compact(schema)
	if err != nil {
		return Spec{}, err
	}
	if schema[0] != '{' {
		return Spec{}, errorf(Invalid, "want an object")
	}
	var s Spec
	var enum []string
	w := &walker{text: schema}
	err = w.object(0, func(name string, value json.RawMessage) (err *Error) {
		switch name {
		case "const":
			s.Names, err = scopeNames(value)
		case "items":
			enum, err = itemsEnum(value)
		case "type":
			if string(value) != `"array"` {
				return errorf(Invalid, `want "array"`)
			}
		case "title", "description", "uniqueItems":
		default:
			return errorf(Invalid, `unknown: want {"const": [...]}, or {"type": "array", "items": {"enum": [...]}}`)
		}
		return err
	})
	switch {
	case err != nil:
		return Spec{}, err
	case (s.Names == nil) == (enum == nil):
		return Spec{}, errorf(Invalid, `want one of {"const": [...]} and {"type": "array", "items": {"enum": [...]}}`)
	}
	s.Fixed = enum == nil
	s.Names = append(s.Names, enum...)
	slices.Sort(s.Names)
	return s, nil
}

// itemsEnum reads the names of {"enum": [NAME...]}.
func itemsEnum(value json.RawMessage) (enum []string, err *Error) {
	if value[0] != '{' {
		return nil, errorf(Invalid, "want an object")
	}
	w := &walker{text: value}
	err = w.object(1, func(name string, value json.RawMessage) (err *Error) {
		switch name {
		case "enum":
			enum, err = scopeNames(value)
		case "type":
			if string(value) != `"string"` {
				return errorf(Invalid, `want "string"`)
			}
		default:
			return errorf(Invalid, `unknown: want {"enum": [...]}`)
		}
		return err
	})
	if err == nil && enum == nil {
		err = errorf(Invalid, "want a list of names").in("enum")
	}
	return enum, err
}
