package tools

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"sync"

	"github.com/google/jsonschema-go/jsonschema"
)

// maxString bounds strings in arguments, in characters, unless the field's tag has len.
const maxString = 4096

// schemaOf returns the JSON schema of T. The tag limit of a field holds words with commas
// between them: min=N and max=N (numbers), len=N (the longest string, in characters),
// items=N (the longest list), empty (a [Resource] may be ""), enum=a|b and default=JSON.
// On a list, all but items and default apply to its elements. A string without len has at
// most [maxString] characters, a list without items at most 100 elements.
func schemaOf[T any]() (*shared, error) {
	t := reflect.TypeFor[T]()
	once, _ := schemas.LoadOrStore(t, sync.OnceValues(func() (*shared, error) {
		s, err := jsonschema.For[T](&jsonschema.ForOptions{TypeSchemas: resourceSchema})
		if err != nil {
			return nil, err
		}
		if s.Type != "object" {
			return nil, fmt.Errorf("%v is no struct", t)
		}
		if err := bound(s, t); err != nil {
			return nil, err
		}
		made := &shared{schema: s, valid: validatorOf(s), affected: sync.OnceValue(func() *jsonschema.Schema { return affected(s) })}
		word(s)
		return made, nil
	}))
	return once.(func() (*shared, error))()
}

// shared is the schema of a type. All sessions use it and none changes it: a session that built its own took a megabyte.
type shared struct {
	schema   *jsonschema.Schema
	affected func() *jsonschema.Schema // of a result with effects
	valid    validator
}

// wordings are the JSON of a schema of ours.
type wordings struct{ full, brief func() ([]byte, error) }

// word keeps the JSON of a schema of ours, which is made once, for SchemaText and BriefText.
func word(s *jsonschema.Schema) {
	texts.Store(s, wordings{
		full:  sync.OnceValues(func() ([]byte, error) { return json.Marshal(s) }),
		brief: sync.OnceValues(func() ([]byte, error) { return json.Marshal(brief(s)) }),
	})
}

// schemas holds the schemas of types, as functions that make them once, and texts their JSON. The program's types bound them.
var schemas, texts sync.Map

// SchemaText returns the JSON of a schema. Do not change it: sessions share that of a type.
func SchemaText(s *jsonschema.Schema) (json.RawMessage, error) {
	if text, ok := texts.Load(s); ok {
		return text.(wordings).full()
	}
	return json.Marshal(s)
}

// BriefText is SchemaText without what a model needs for no call: the longest string and list, numbers from a million on, and that
// other members are refused. The door validates by the whole schema, and its error names the limit. The schema of a server's tool stays as it is.
func BriefText(s *jsonschema.Schema) (json.RawMessage, error) {
	if text, ok := texts.Load(s); ok {
		return text.(wordings).brief()
	}
	return json.Marshal(s)
}

func brief(s *jsonschema.Schema) *jsonschema.Schema {
	s = s.CloneSchemas()
	shorten(s)
	return s
}

func shorten(s *jsonschema.Schema) {
	s.MaxLength, s.MaxItems = nil, nil
	if s.Maximum != nil && *s.Maximum >= 1e6 {
		s.Maximum = nil
	}
	if s.Type == "object" && s.Properties != nil {
		s.AdditionalProperties = nil
	}
	for _, p := range s.Properties {
		shorten(p)
	}
	if s.Items != nil {
		shorten(s.Items)
	}
}

// bound adds the limits of t's fields to its schema.
func bound(s *jsonschema.Schema, t reflect.Type) error {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if len(s.Types) == 2 && s.Types[0] == "null" { // an optional field need not accept null
		s.Type, s.Types = s.Types[1], nil
	}
	switch t.Kind() {
	case reflect.Slice:
		if s.Items != nil {
			return bound(s.Items, t.Elem())
		}
	case reflect.Map:
		if s.AdditionalProperties != nil {
			return bound(s.AdditionalProperties, t.Elem())
		}
	case reflect.Struct:
		for _, f := range reflect.VisibleFields(t) {
			name, omit, _ := strings.Cut(f.Tag.Get("json"), ",")
			p := s.Properties[name]
			if p == nil {
				continue
			}
			if err := bound(p, f.Type); err != nil {
				return err
			}
			if has, err := hasResource(f.Type); err != nil {
				return err
			} else if has {
				nonEmpty(p)
			}
			if err := restrict(p, f.Tag.Get("limit")); err != nil {
				return fmt.Errorf("field %s: %w", f.Name, err)
			}
			if f.Type == resourceType && omit != "" && p.MinLength != nil { // an absent one would mean the whole part
				return fmt.Errorf("field %s: a Resource that may be absent may be empty: tag it limit:\"empty\"", f.Name)
			}
		}
	}
	return nil
}

// nonEmpty requires at least a character in a Resource, or in each of a list of them.
func nonEmpty(s *jsonschema.Schema) {
	if s.Items != nil {
		s = s.Items
	}
	if s.Type == "string" {
		s.MinLength = jsonschema.Ptr(1)
	}
}

// restrict adds the words of one tag to a schema.
func restrict(s *jsonschema.Schema, tag string) error {
	if tag != "" {
		for word := range strings.SplitSeq(tag, ",") {
			key, value, _ := strings.Cut(word, "=")
			if err := limitWord(s, key, value); err != nil {
				return err
			}
		}
	}
	if s.Type == "string" && s.MaxLength == nil && s.Enum == nil {
		s.MaxLength = jsonschema.Ptr(maxString)
	}
	if s.Type == "array" && s.MaxItems == nil {
		s.MaxItems = jsonschema.Ptr(100)
	}
	if s.Type == "array" && s.Items != nil {
		return restrict(s.Items, "")
	}
	return nil
}

func limitWord(s *jsonschema.Schema, key, value string) error {
	n, err := strconv.Atoi(value)
	if s.Type == "array" && s.Items != nil && key != "items" && key != "default" {
		s = s.Items
	}
	switch key {
	case "min":
		s.Minimum = jsonschema.Ptr(float64(n))
	case "max":
		s.Maximum = jsonschema.Ptr(float64(n))
	case "len":
		s.MaxLength = &n
	case "items":
		s.MaxItems = &n
	case "empty":
		s.MinLength, err = nil, nil
	case "enum":
		err = nil
		for v := range strings.SplitSeq(value, "|") {
			s.Enum = append(s.Enum, v)
		}
	case "default":
		s.Default, err = json.RawMessage(value), nil
	default:
		err = fmt.Errorf("unknown limit %q", key)
	}
	return err
}
