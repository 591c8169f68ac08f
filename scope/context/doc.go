// Package scoped selects what a call may see of its client's context. It is a leaf:
// it does no I/O and knows no agent, no tool and no log. Package tools decides by it.
//
// An [Environment] is a list of messages. Each has a type, which is the name of its
// scope, and perhaps an instance. A call has an [Envelope]: the members of its
// arguments that begin with an underscore. A [Spec] says what the tool's schema
// offers. [Select] returns what the call gets: a [Scoped].
//
//	env, err := scoped.Parse([]byte(`[{"type":"state","user":"Alice"},{"type":"input","user":"Bob"}]`))
//	call, params, err := scoped.Cut(args) // {"_scopes":["input"],"text":"hello"}
//	given, err := scoped.Select(env, spec, nil, call)
//	given.Files() // {"input": `[{"type":"input","user":"Bob"}]`}
//
// A scope's name begins with an ASCII letter, continues with ASCII letters, digits,
// '_' and '-', and has at most 64 bytes: it becomes the name of a file. An instance
// is any text of 1 to 128 bytes without control characters. A call has at most 32
// scopes.
//
// The package's name differs from its directory's because the standard library has
// a package context, which every user of this package imports, too.
package scoped
