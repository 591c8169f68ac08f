// Package file is the tools that work on files. They run in a process of their
// own inside the sandbox, through the view, as whatever else the agent runs: the
// daemon opens no path of a view. A [Worker] is the daemon's end of that process,
// [Work] its main function.
//
// # The two ends
//
// They speak over the process's standard streams, in frames (wire.go). What the
// worker says is the agent's word, for both have one user: sizes are bounded, an
// answer that nobody asked for ends the worker, and a result must be of its type.
//
// # Whose operation it is
//
// A request is handled on one thread, whose name meanwhile is the id of the call
// (PR_SET_NAME; /proc/TID/comm, proc(5)). The view is told the thread by
// the kernel (fuse(4)), so that a denial can be traced to the call it happened in.
//
// # Paths
//
// A path is relative to the view, or absolute below [sandbox.Workspace]; it is
// cleaned lexically. What is outside reads like what does not exist, and what
// would be written there is refused with one text, whatever is there. Names that
// are not UTF-8 cannot be said in JSON, and so cannot be reached.
package file
