package scoped

import (
	"bytes"
	"cmp"
	"encoding/json"
	"slices"
)

// Envelope is what a call says beside its parameters. A nil member was not said.
type Envelope struct {
	Tool     *string  `json:"_tool,omitempty"`
	Scopes   []string `json:"_scopes,omitzero"`
	Instance *string  `json:"_instance,omitempty"`
	Activity *string  `json:"_activity,omitempty"`
	Delegate *string  `json:"_delegate,omitempty"`
	Module   *Module  `json:"_module,omitempty"`
}

// Module says that the member that does a call has no prompt of its own: true beside
// _delegate, or the member's name alone.
type Module struct {
	On   bool
	Name string // "" for true and false
}

// MarshalJSON returns the name, or true or false.
func (m Module) MarshalJSON() ([]byte, error) {
	if m.Name != "" {
		return json.Marshal(m.Name)
	}
	return json.Marshal(m.On)
}

// Member returns the member that does the call, "" for none, and whether it has no prompt
// of its own. It is an error if _delegate and _module name two.
func (e Envelope) Member() (name string, module bool, err *Error) {
	if e.Delegate != nil {
		name = *e.Delegate
	}
	if e.Module == nil {
		return name, false, nil
	}
	if e.Module.Name != "" && name != "" && name != e.Module.Name {
		return "", false, errorf(Invalid, "the call names another member in _delegate").in("_module")
	}
	return cmp.Or(name, e.Module.Name), e.Module.On, nil
}

// Cut divides the arguments of a call, a JSON object, into the envelope and the
// parameters: members whose names begin with an underscore, and the others. A member of the envelope that the protocol does not know, or that is there
// twice, is an error. Members of parameters are never looked at. Arguments that
// begin no name with an underscore are returned as they are.
func Cut(args json.RawMessage) (e Envelope, params json.RawMessage, err *Error) {
	if !bytes.Contains(args, []byte(`"_`)) && !bytes.Contains(args, []byte(`"\u005`)) {
		return e, args, nil
	}
	text, err := compact(args)
	if err != nil || text[0] != '{' {
		return e, args, err
	}
	w := &walker{text: text}
	params = append(params, '{')
	err = w.members(func(name string, quoted, value []byte) *Error {
		if name == "" || name[0] != '_' {
			if len(params) > 1 {
				params = append(params, ',')
			}
			params = append(append(append(params, quoted...), ':'), value...)
			return nil
		}
		return e.set(name, value)
	})
	return e, append(params, '}'), err
}

// memberContext is an environment beside the arguments of a call.
const memberContext = "_context"

// Beside reads what a client says of a call beside its arguments: a JSON object with
// members of the envelope and perhaps a member _context, an environment for this
// call alone. No text says nothing.
func Beside(text json.RawMessage) (e Envelope, env *Environment, err *Error) {
	if len(text) == 0 {
		return e, nil, nil
	}
	if text, err = compact(text); err != nil {
		return e, nil, err
	}
	if text[0] != '{' {
		return e, nil, errorf(Invalid, "want an object")
	}
	w := &walker{text: text}
	return e, env, w.members(func(name string, _, value []byte) (err *Error) {
		switch {
		case name != memberContext:
			return e.set(name, value)
		case env != nil:
			return errorf(Invalid, "the name is there twice")
		}
		env, err = Parse(value)
		return err
	})
}

// members calls member for each member of the object at w.
func (w *walker) members(member func(name string, quoted, value []byte) *Error) *Error {
	w.at++ // {
	for w.text[w.at] != '}' {
		quoted := w.string()
		w.at++ // :
		name, from := unquote(quoted), w.at
		w.skip()
		if err := member(name, quoted, w.text[from:w.at]); err != nil {
			return err.in(name)
		}
		w.comma()
	}
	return nil
}

// skip reads a value without a look at what is in it.
func (w *walker) skip() {
	for level := 0; ; {
		switch w.text[w.at] {
		case '"':
			w.string()
		case '{', '[':
			level++
			w.at++
		case '}', ']':
			level--
			w.at++
		default:
			w.at++
		}
		if level == 0 && bytes.IndexByte([]byte(",}]"), w.text[w.at]) >= 0 {
			return
		}
	}
}

// set sets the member of a name. The value is compact JSON.
func (e *Envelope) set(name string, value json.RawMessage) (err *Error) {
	switch name {
	case "_tool":
		return once(&e.Tool, value, text)
	case "_activity":
		return once(&e.Activity, value, text)
	case "_delegate":
		return once(&e.Delegate, value, text)
	case memberInstance:
		return once(&e.Instance, value, instanceName)
	case "_module":
		return once(&e.Module, value, moduleOf)
	case "_scopes":
		if e.Scopes != nil {
			return errorf(Invalid, "the name is there twice")
		}
		e.Scopes, err = scopeNames(value)
		return err
	}
	return errorf(Invalid, "the protocol has no such member: it has _tool, _scopes, _instance, _activity, _delegate and _module")
}

func once[T any](to **T, value json.RawMessage, read func(json.RawMessage) (T, *Error)) *Error {
	if *to != nil {
		return errorf(Invalid, "the name is there twice")
	}
	v, err := read(value)
	*to = &v
	return err
}

func moduleOf(value json.RawMessage) (Module, *Error) {
	switch string(value) {
	case "true":
		return Module{On: true}, nil
	case "false":
		return Module{}, nil
	}
	name, err := text(value)
	if err != nil || name == "" {
		return Module{}, errorf(Invalid, "want the name of a member, true or false")
	}
	return Module{On: true, Name: name}, nil
}

// maxScopes bounds the scopes of a call: the log has a hash of each.
const maxScopes = 32

// scopeNames reads a list of names, none twice. It is not nil without an error.
func scopeNames(value json.RawMessage) ([]string, *Error) {
	if value[0] != '[' {
		return nil, errorf(Invalid, "want an array of names")
	}
	names, seen, w := []string{}, map[string]bool{}, &walker{text: value}
	return names, w.array(0, func(int) *Error {
		if len(names) == maxScopes {
			return errorf(TooLarge, "more than %d scopes", maxScopes)
		}
		element, err := w.raw(1)
		if err != nil {
			return err
		}
		name, err := scopeName(element)
		switch {
		case err != nil:
			return err
		case seen[name]:
			return errorf(Invalid, "%s is there twice", name)
		}
		names, seen[name] = append(names, name), true
		return nil
	})
}

// Join returns the envelope of a call that has two, such as one in its arguments
// and one beside them. It is an error if both say something different.
func (e Envelope) Join(other Envelope) (Envelope, *Error) {
	differs := ""
	join(&differs, "_tool", &e.Tool, other.Tool)
	join(&differs, "_activity", &e.Activity, other.Activity)
	join(&differs, "_delegate", &e.Delegate, other.Delegate)
	join(&differs, memberInstance, &e.Instance, other.Instance)
	join(&differs, "_module", &e.Module, other.Module)
	if e.Scopes == nil {
		e.Scopes = other.Scopes
	}
	if other.Scopes != nil && !slices.Equal(e.Scopes, other.Scopes) {
		differs = "_scopes"
	}
	if differs != "" {
		return e, errorf(Invalid, "the call says it twice, and differently").in(differs)
	}
	return e, nil
}

// join sets *to by other, or *differs to name.
func join[T comparable](differs *string, name string, to **T, other *T) {
	if *to == nil {
		*to = other
	}
	if other != nil && **to != *other {
		*differs = name
	}
}

// With returns the arguments of a call that says e, as Cut divides them. params is a
// JSON object.
func (e Envelope) With(params json.RawMessage) (json.RawMessage, error) {
	text, err := json.Marshal(e)
	if err != nil {
		return nil, err
	}
	rest := bytes.TrimSpace(bytes.TrimSpace(params)[1:])
	if len(text) > 2 && rest[0] != '}' {
		text = append(text[:len(text)-1], ',')
	} else {
		text = text[:len(text)-1]
	}
	return append(text, rest...), nil
}
