package scoped

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
)

// Select returns what a call gets of an environment: the messages of the scopes
// that spec gives it or that its envelope chooses, without those of other
// instances. A call that names no instance gets the messages that have none. bound
// reports whether the agent may use a scope; nil: every one. What the environment
// has no message of is an empty list.
//
// A call that names scopes where spec offers none, or others than a fixed spec has,
// is [Invalid]. A scope that spec does not offer, or that bound refuses, is
// [Denied].
func Select(env *Environment, spec Spec, bound func(scope string) bool, e Envelope) (Scoped, *Error) {
	names, err := spec.names(e.Scopes)
	if err != nil {
		return Scoped{}, err.in("_scopes")
	}
	for i, name := range names {
		if bound == nil || bound(name) {
			continue
		}
		err := errorf(Denied, "the agent may not use the scope %s", name)
		if !spec.Fixed {
			err = err.at(i)
		}
		return Scoped{}, err.in("_scopes")
	}
	s := Scoped{names: slices.Sorted(slices.Values(names))}
	if e.Instance != nil {
		s.instance = *e.Instance
	}
	if env != nil && len(names) > 0 {
		s.messages = s.those(env.messages)
	}
	return s, nil
}

// names returns the scopes of a call that asked for some; nil: it said nothing.
func (s Spec) names(asked []string) ([]string, *Error) {
	switch {
	case s.Fixed:
		if asked != nil && !slices.Equal(slices.Sorted(slices.Values(asked)), s.Names) {
			return nil, errorf(Invalid, "each call of this tool gets exactly %q: leave _scopes out", s.Names)
		}
		return s.Names, nil
	case s.Any:
		return asked, nil
	case s.Names == nil && len(asked) > 0:
		return nil, errorf(Invalid, "this tool takes no context: leave _scopes out")
	}
	for i, name := range asked {
		if !slices.Contains(s.Names, name) {
			return nil, errorf(Denied, "this tool does not offer the scope %s: it offers %q", name, s.Names).at(i)
		}
	}
	return asked, nil
}

// Scoped is what a call sees of an environment. It is immutable.
type Scoped struct {
	names    []string // sorted
	instance string
	messages []message // in the order of the environment
}

// those returns the messages that s sees. There may be many that it does not.
func (s Scoped) those(messages []message) (seen []message) {
	for _, m := range messages {
		if m.instance != "" && m.instance != s.instance {
			continue
		}
		if _, ok := slices.BinarySearch(s.names, m.scope); ok {
			seen = append(seen, m)
		}
	}
	return seen
}

// Names returns the scopes, sorted. A scope may have no message.
func (s Scoped) Names() []string { return slices.Clone(s.names) }

// Instance returns the instance of the call; "": none.
func (s Scoped) Instance() string { return s.instance }

// Empty reports whether the call has no scope at all.
func (s Scoped) Empty() bool { return len(s.names) == 0 }

// Size returns the bytes of the messages.
func (s Scoped) Size() int { return size(s.messages) }

// Files returns the JSON array of the messages of each scope.
func (s Scoped) Files() map[string][]byte {
	by := map[string][]message{}
	for _, m := range s.messages {
		by[m.scope] = append(by[m.scope], m)
	}
	files := map[string][]byte{}
	for _, name := range s.names {
		files[name] = array(by[name])
	}
	return files
}

// JSON returns an object with the array of the messages of each scope.
func (s Scoped) JSON() []byte {
	files := s.Files()
	return s.object(func(name string) []byte { return files[name] })
}

// Merged returns an object with, for each scope, one object that has the members of all
// its messages, without type and _instance. A later message's member replaces an earlier one.
func (s Scoped) Merged() []byte { return s.object(s.merged) }

// object returns an object with a value for each scope.
func (s Scoped) object(value func(scope string) []byte) []byte {
	var members [][]byte
	for _, name := range s.names {
		members = append(members, slices.Concat([]byte(`"`+name+`":`), value(name)))
	}
	return joined('{', members, '}')
}

// merged returns the merged messages of a scope, with the members in the order of their
// first appearance.
func (s Scoped) merged(scope string) []byte {
	var order []string
	last := map[string][]byte{} // "name":value, by name: names may be escaped in different ways
	for _, m := range s.messages {
		if m.scope != scope {
			continue
		}
		w := &walker{text: m.text}
		_ = w.members(func(name string, quoted, value []byte) *Error { // returns what its function does
			if name == memberInstance || name == memberType {
				return nil
			}
			if last[name] == nil {
				order = append(order, name)
			}
			last[name] = slices.Concat(quoted, []byte{':'}, value)
			return nil
		})
	}
	var members [][]byte
	for _, name := range order {
		members = append(members, last[name])
	}
	return joined('{', members, '}')
}

// Narrow returns s with the scopes in names alone. The error is [Invalid]: a name
// is not one of s, or there twice.
func (s Scoped) Narrow(names []string) (Scoped, *Error) {
	narrow := Scoped{names: slices.Sorted(slices.Values(names)), instance: s.instance}
	for i, name := range narrow.names {
		switch {
		case !slices.Contains(s.names, name):
			return Scoped{}, errorf(Invalid, "the call has no scope %q: it has %q", name, s.names)
		case i > 0 && narrow.names[i-1] == name:
			return Scoped{}, errorf(Invalid, "the scope %s is there twice", name)
		}
	}
	narrow.messages = narrow.those(s.messages)
	return narrow, nil
}

// Environment returns the messages as an environment for the calls of whoever is
// given them. They lose their instances.
func (s Scoped) Environment() *Environment {
	env := &Environment{messages: slices.Clone(s.messages)}
	for i, m := range env.messages {
		if m.instance != "" {
			env.messages[i] = message{scope: m.scope, text: withoutInstance(m.text)}
		}
	}
	return env
}

// withoutInstance returns a message without its member _instance.
func withoutInstance(text []byte) []byte {
	var kept [][]byte
	w := &walker{text: text}
	_ = w.members(func(name string, quoted, value []byte) *Error { // returns what its function does
		if name != memberInstance {
			kept = append(kept, slices.Concat(quoted, []byte{':'}, value))
		}
		return nil
	})
	return joined('{', kept, '}')
}

// Handed returns what another agent is given: the messages have no instance.
func (s Scoped) Handed() Scoped {
	return Scoped{names: s.names, messages: s.Environment().messages}
}

// Part is what a log has of one scope: never content.
type Part struct {
	Name     string `json:"name"`
	Messages int    `json:"messages"`
	Bytes    int    `json:"bytes"`
	Hash     string `json:"hash"` // SHA-256 of the file, with the prefix "sha256:"
}

// Parts describes each scope.
func (s Scoped) Parts() []Part {
	files, parts := s.Files(), []Part{}
	for _, name := range s.names {
		p := Part{Name: name, Bytes: len(files[name])}
		for _, m := range s.messages {
			if m.scope == name {
				p.Messages++
			}
		}
		sum := sha256.Sum256(files[name])
		p.Hash = "sha256:" + hex.EncodeToString(sum[:])
		parts = append(parts, p)
	}
	return parts
}
