package tools

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/share"
)

const (
	maxMarks     = 64 // of one tool
	maxMarkDepth = 8  // parts of a path
)

// Marks say which strings of a JSON object name parts of a shared resource, and by which
// strategy. The zero value marks nothing.
type Marks struct{ root *mark }

// mark is a place in a JSON value. At most one of strategy, members and items is set.
type mark struct {
	strategy share.Strategy   // of a string
	whole    bool             // the string may be absent or "": the agent's whole part
	members  map[string]*mark // of an object
	items    *mark            // of each element of a list
}

// ParseMarks reads an object of paths and names of strategies. The parts of a path are
// names of members, with slashes between them; * stands for each element of a list. A
// question mark after a path says that the string may be absent, and then names the
// agent's whole part.
//
//	{"name": "keys", "prefix?": "keys", "entries/*/name": "keys"}
//
// The strategies are prefix, file, keys, buckets, subjects and none. A string of the
// strategy file is always the whole part.
func ParseMarks(text json.RawMessage) (Marks, error) {
	var all map[string]string
	if err := json.Unmarshal(text, &all); err != nil || all == nil {
		return Marks{}, errors.New("is no object of paths and strategies")
	}
	if len(all) > maxMarks {
		return Marks{}, fmt.Errorf("has %d paths, above %d", len(all), maxMarks)
	}
	m := Marks{&mark{}}
	for _, path := range slices.Sorted(maps.Keys(all)) {
		strategy := map[string]share.Strategy{
			"prefix": share.Prefix{}, "file": share.File{}, "keys": share.Keys, "buckets": share.Buckets,
			"subjects": share.Subjects{}, "none": share.None{},
		}[all[path]]
		if strategy == nil {
			return Marks{}, fmt.Errorf("%.80q: %.80q is no strategy: write prefix, file, keys, buckets, subjects or none", path, all[path])
		}
		name, whole := strings.CutSuffix(path, "?")
		if err := m.root.add(strings.Split(name, "/"), mark{strategy: strategy, whole: whole || all[path] == "file"}); err != nil {
			return Marks{}, fmt.Errorf("%.80q: %w", path, err)
		}
	}
	return m, nil
}

// add adds a leaf below m.
func (m *mark) add(path []string, leaf mark) error {
	if len(path) > maxMarkDepth {
		return fmt.Errorf("is longer than %d parts", maxMarkDepth)
	}
	at, list := m, false
	for i, part := range path {
		next := &mark{}
		switch list = part == "*"; {
		case part == "" || at.strategy != nil || list && (i == 0 || at.members != nil) || !list && at.items != nil:
			return errors.New("does not fit the other paths, or has an empty part")
		case list:
			if at.items == nil {
				at.items = next
			}
			at = at.items
		default:
			if at.members == nil {
				at.members = map[string]*mark{}
			}
			if at.members[part] == nil {
				at.members[part] = next
			}
			at = at.members[part]
		}
	}
	if at.strategy != nil || at.members != nil || at.items != nil || list && leaf.whole {
		return errors.New("does not fit the other paths, or an element of a list may be absent")
	}
	*at = leaf
	return nil
}

// names replaces the marked strings of arguments by their names in an agent's part. Each
// marked place must be there, and have its type: a program never gets an unmarked key in
// the place of a marked one. seen gets each key.
func (m *mark) names(v any, agent scope.ID, at string, seen func(key string)) (any, *Error) {
	switch {
	case m.strategy != nil:
		r := Resource{}
		var ok bool
		if r.key, ok = v.(string); !ok || r.key == "" && !m.whole {
			return nil, misplaced(at, "want a text that is not empty")
		}
		if err := applyTo(&r, m.strategy, agent); err != nil {
			return nil, err
		}
		seen(r.key)
		return r.name, nil
	case m.items != nil:
		list, ok := v.([]any)
		if !ok {
			return nil, misplaced(at, "want a list")
		}
		for i := range list {
			var err *Error
			if list[i], err = m.items.names(list[i], agent, fmt.Sprintf("%s/%d", at, i), seen); err != nil {
				return nil, err
			}
		}
		return list, nil
	case m.members == nil:
		return v, nil
	}
	object, ok := v.(map[string]any)
	if !ok {
		return nil, misplaced(at, "want an object")
	}
	for _, name := range slices.Sorted(maps.Keys(m.members)) {
		for other := range object { // encoding/json takes Name and NAME for name, and the last one of them holds
			if other != name && strings.EqualFold(other, name) {
				return nil, misplaced(at+"/"+name, "is here in other letters, too")
			}
		}
		value, here := object[name]
		if !here {
			if m.members[name].whole {
				value = ""
			} else {
				return nil, misplaced(at+"/"+name, "is missing")
			}
		}
		var err *Error
		if object[name], err = m.members[name].names(value, agent, at+"/"+name, seen); err != nil {
			return nil, err
		}
	}
	return object, nil
}

func misplaced(at, text string) *Error {
	return mismatch(fmt.Sprintf("%.200s: %s", at, text))
}

// errForeign is the cause of a result with a name of another agent.
var errForeign = errors.New("the result has a name that is not in the agent's part")

// keys replaces the marked names of a result by the agent's keys. A marked place may be
// absent or null.
func (m *mark) keys(v any, agent scope.ID) (any, error) {
	if v == nil {
		return nil, nil
	}
	switch {
	case m.strategy != nil:
		name, ok := v.(string)
		if !ok {
			return nil, errors.New("the result has something other than a text where it marks a name")
		}
		key, err := m.strategy.Enforce(agent, name)
		if err != nil {
			return nil, errForeign
		}
		return key, nil
	case m.items != nil:
		list, ok := v.([]any)
		if !ok {
			return nil, errors.New("the result has something other than a list where it marks one")
		}
		for i := range list {
			var err error
			if list[i], err = m.items.keys(list[i], agent); err != nil {
				return nil, err
			}
		}
		return list, nil
	case m.members == nil:
		return v, nil
	}
	object, ok := v.(map[string]any)
	if !ok {
		return nil, errors.New("the result has something other than an object where it marks one")
	}
	for name, below := range m.members {
		if value, here := object[name]; here {
			var err error
			if object[name], err = below.keys(value, agent); err != nil {
				return nil, err
			}
		}
	}
	return object, nil
}

// Divided returns a tool that a program outside this one declares and runs. resources
// marks the arguments that name parts of a shared resource: [Set.Call] applies their
// strategies before it decides about the call, and f gets names in the agent's part.
// results marks the names in the structured result of f, which become the agent's keys
// again; a name of another agent makes the call fail. With results, the agent gets the
// structured result alone. schema is advertised and validates nothing, as in [Dynamic].
func Divided(name, about string, hints Hints, schema *jsonschema.Schema, resources, results Marks, f func(context.Context, Env, json.RawMessage) (Result, error)) Tool {
	return Tool{Name: name, About: about, Hints: hints, Input: schema, in: reflect.TypeFor[json.RawMessage](),
		read: func(agent scope.ID, args json.RawMessage) decoded { return readDivided(resources, agent, args) },
		run: func(ctx context.Context, env Env, in any) (Result, error) {
			r, err := f(ctx, env, in.(json.RawMessage))
			if err != nil || results.root == nil {
				return r, err
			}
			return ownKeys(results, env.Agent, r)
		}}
}

func readDivided(m Marks, agent scope.ID, args json.RawMessage) (d decoded) {
	d.value = args
	if m.root == nil {
		return d
	}
	var keys []string
	v, err := exact(args)
	if err == nil {
		v, d.outside = m.root.names(v, agent, "", func(key string) { keys = append(keys, key) })
	}
	if err == nil && d.outside == nil {
		d.value, err = Marshal(v)
	}
	if len(keys) > 0 {
		d.target = keys[0]
	}
	d.err = err
	return d
}

func ownKeys(m Marks, agent scope.ID, r Result) (Result, error) {
	fail := func(cause error) (Result, error) {
		return Result{}, Errorf(Internal, "the store answered with something other than it declares").Because(cause)
	}
	if r.Structured == nil {
		return fail(errors.New("the result has no structured content"))
	}
	v, err := exact(r.Structured)
	if err == nil {
		v, err = m.root.keys(v, agent)
	}
	if err != nil {
		return fail(err)
	}
	text, err := Marshal(v)
	return Result{Structured: text, Content: []Content{{Text: string(text)}}}, err
}

// exact decodes JSON, with numbers as they are written.
func exact(text json.RawMessage) (v any, err error) {
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.UseNumber()
	err = dec.Decode(&v)
	return v, err
}

// Marshal is json.Marshal without the escapes of characters that HTML knows: what has the
// bytes of a caller, or is for a person.
func Marshal(v any) (json.RawMessage, error) {
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	err := enc.Encode(v)
	return bytes.TrimRight(out.Bytes(), "\n"), err
}

// late is a tool that a program declares after the set was made.
type late struct {
	now  func() *Tool // nil: it has not yet
	wait func(context.Context) (*Tool, error)
}

// Late returns a tool whose declaration is known when its program has started. now returns
// what the program has declared, nil before that, and does not wait; wait starts the
// program if need be. A declaration does not change. Until then the tool is not listed, and
// a call waits for it.
func Late(name string, now func() *Tool, wait func(context.Context) (*Tool, error)) Tool {
	t := Dynamic(name, "", Hints{Waits: true}, &jsonschema.Schema{Type: "object"}, func(context.Context, Env, json.RawMessage) (Result, error) {
		return Result{}, Errorf(Unavailable, "the tool is not there yet")
	})
	t.late = &late{now, wait}
	return t
}

// current returns the tool as it is declared now; of a program that has not declared it, t
// itself.
func (t *Tool) current() *Tool {
	if t.late != nil {
		if declared := t.late.now(); declared != nil {
			return declared
		}
	}
	return t
}
