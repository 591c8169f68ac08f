// Package worker is the daemon's end of the pipes to the process in the sandbox that does
// file work, scopefs-files. It knows no operation: package file defines them. Package tree
// is the other end.
//
// # Frames
//
// A [Worker] starts the process with the first request and starts it again after its
// death. Both exchange frames over the process's standard streams: a JSON header, a JSON
// value and raw bytes, at most 8 MiB together.
//
// # Trust
//
// The process has the agent's user, so its messages are the agent's word. Sizes are
// bounded. A reply to no request, an unknown field and a result of the wrong type kill
// the process. At most 16 requests are in flight; more wait in the daemon.
//
// # Time
//
// A process with requests in flight is pinged every second and killed after five
// seconds without a message. A cancelled request has five seconds to end; a process that
// takes longer is killed, so that nothing of a call happens after its end. A write of a
// frame takes at most ten seconds.
//
// # Whose operation it is
//
// One thread handles a request. Meanwhile its name is the id of the call (PR_SET_NAME;
// /proc/TID/comm, proc(5)). FUSE reports the thread to the view (fuse(4)), so that the
// log attributes a denial to its call.
package worker
