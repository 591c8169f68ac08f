// Package file provides the tools that work on files. They run in a process inside the
// sandbox, through the view, like all programs of the agent: the daemon opens no path of
// a view.
//
// # Use
//
// [New] returns a [Files] over a [worker.Worker], the daemon's end of that process.
// [Files.Tools] returns the tools for a set. [Files.Call] does the same operations for
// other tools, and [Files.Object] returns what an approval is bound to.
//
// # Two ends
//
// Each operation has an argument type and a result type, as JSON: package message. This
// package sends the arguments and checks that the result is of its type. Package worker
// is its end of the pipes. The process is the program scopefs-files, package tree, which
// imports nothing of this end. Package profile offers the tools under other programs'
// names.
//
// # Paths
//
// A path is relative to the view, absolute below [sandbox.Workspace], or leads to a
// further directory of the agent: see [message.Dirs]. It is cleaned lexically. Reading a path that leads outside returns the error of a path that does not
// exist; writing to it returns one error, whatever exists there. JSON cannot hold names
// that are not UTF-8, so tools cannot reach them.
package file
