package tools

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/scopefs/scopefs/internal/nearest"
	"github.com/scopefs/scopefs/scope"
)

// ruleSchema is the rule of a refusal of arguments that a tool does not accept.
const ruleSchema = "the tool's schema"

// validator returns what validates arguments with a schema.
type validator func() (*jsonschema.Resolved, error)

// validatorOf resolves a schema once, when it is first needed: a session calls few of its tools. Nobody changes the schema.
func validatorOf(s *jsonschema.Schema) validator {
	return sync.OnceValues(func() (*jsonschema.Resolved, error) { return s.Resolve(nil) })
}

// validate validates arguments with a tool's schema.
func validate(t *Tool, args *arguments) *Error {
	if t.input == nil {
		return nil
	}
	if err := unknown(t.Input, args.value); err != nil {
		return err
	}
	schema, err := t.input()
	if err != nil {
		return Errorf(Internal, "the tool's schema cannot be used").Because(err)
	}
	if err = schema.Validate(args.value); err == nil {
		return nil
	}
	text := err.Error()
	// The schemas from the outermost on: the last one has the cause.
	for {
		_, inner, ok := strings.Cut(text, ": ")
		if !ok || !strings.HasPrefix(inner, "validating ") {
			break
		}
		text = inner
	}
	return mismatch(middle(strings.TrimPrefix(strings.TrimPrefix(text, "validating "), "root: ")))
}

func mismatch(text string) *Error {
	e := Errorf(Invalid, "arguments: %s", text)
	e.by = scope.Decision{Kind: scope.KindSchema, Rule: ruleSchema}
	return e
}

// unknown returns the error of a property that a schema does not have. It names the
// schema's properties.
func unknown(s *jsonschema.Schema, value any) *Error {
	switch v := value.(type) {
	case []any:
		for i := range v {
			if s.Items == nil {
				break
			}
			if err := unknown(s.Items, v[i]); err != nil {
				return err
			}
		}
	case map[string]any:
		for _, name := range slices.Sorted(maps.Keys(v)) {
			if p := s.Properties[name]; p != nil {
				if err := unknown(p, v[name]); err != nil {
					return err
				}
			} else if s.AdditionalProperties != nil && s.AdditionalProperties.Not != nil { // false
				e := mismatch(fmt.Sprintf("%s is no property: there are %s", middle(fmt.Sprintf("%q", name)), some(s)))
				if near := nearest.Of(name, slices.Sorted(maps.Keys(s.Properties))); near != "" {
					e.Hint = fmt.Sprintf("did you mean %s?", near)
				}
				return e
			}
		}
	}
	return nil
}

// some returns names of a schema's properties.
func some(s *jsonschema.Schema) string {
	names := slices.Sorted(maps.Keys(s.Properties))
	if len(names) == 0 {
		return "none"
	}
	return Clip(strings.Join(names, ", "), 1<<10)
}

// middle removes the middle of s if it has more than 200 characters: s begins with the
// name and ends with the limit, with a value between them.
func middle(s string) string {
	const most = 200
	if len(s) <= most {
		return s
	}
	r := []rune(s)
	if len(r) <= most {
		return s
	}
	return string(r[:most/2]) + "…" + string(r[len(r)-(most-most/2-1):])
}
