// Package fusedev serves a FUSE file system over /dev/fuse: it reads requests, sends
// notifications and registers backing files. It knows the protocol's framing; a
// [Handler], usually *fuse.ProtocolServer of go-fuse, implements the operations.
// Package fs is such a file system; package fusemount mounts and aborts it.
//
// # Use
//
// [fusemount.Mount] opens /dev/fuse and mounts. [NewConn] builds a connection over the
// descriptor, [Conn.Init] replies to the kernel's first request, and [Conn.Serve]
// replies to all others until somebody unmounts the file system. A program that wants
// no client to wait for its server calls [fusemount.Open] first, and
// [fusemount.Device.Attach] once the server is ready. The server may be another process:
// [fusemount.Device.File] hands over the descriptor.
//
// # Parallelism
//
// One reader goroutine, the leader, reads a request, performs it and reads the next,
// which costs no switch between threads. Followers help in two cases: four requests
// in a row were queued already, or a request takes longer than 1 ms; then a
// follower becomes the leader. So a Handler that blocks delays other requests by about
// 1 ms once, and does not stop them until [MaxRequests] are blocked. At most four
// followers stay idle.
//
// With [Options.Spin] the leader polls for up to 30 µs after a reply before it sleeps.
// A client that sends requests one after the other then finds it awake. This has no
// effect with one processor.
//
// # Deadlocks
//
//   - A Handler must not use the mount that it serves, and must not wait for a process
//     that does.
//   - The process must not start a program with [os/exec.Cmd] whose Dir or Path is in the
//     mount. The child uses the mount between fork and exec, while the parent's goroutine
//     keeps its processor: with GOMAXPROCS=1, or during a garbage collection, nobody
//     answers, and both hang until the connection is aborted. Start /bin/sh, which changes
//     its directory after the exec: "cd DIR && exec PROGRAM". Or serve in another process.
//   - [Conn.InvalidateEntry] takes the lock of a directory, which a client holds while
//     its request is in flight. A Handler must not call it, nor wait for a goroutine
//     that does.
//   - [Conn.InvalidateInode] with data waits for pages in flight. A Handler must not call
//     it for an inode whose READ or WRITE it performs.
//   - [Conn.InvalidateEntries] and [Conn.Prune] take no lock.
//   - A process that is killed while a thread of it waits in the kernel keeps /dev/fuse
//     open, and its clients wait. [fusemount.Connection.Abort], from another process, ends their
//     requests.
//
// # Ending
//
// Serve returns when the file system is unmounted or the connection is aborted: read(2)
// answers ENODEV. It waits for Handlers that run and for notifications that are being
// sent. Later notifications do nothing. Then the caller closes the Device.
package fusedev
