// Package callfs is a read-only FUSE file system in which each process sees the files
// of the call that it works for, and no others. A sandbox shows it. What serves it knows no
// call: package internal/contextfs is the process that serves it, and its daemon.
//
// # Use
//
// [Serve] serves a mount that was made with [MountOptions]. [New] makes the files of one
// call. [Options].Owner maps a thread to the files of its call: the one decision of the
// file system.
//
// # What holds
//
//   - The root is one flat directory. Lookups and listings return the files of the
//     process that asks; a process without files sees an empty directory.
//   - Every request is decided on its own, by the thread in the request's header. A
//     descriptor that another process received, or that outlived its call, answers
//     ESTALE.
//   - The kernel caches neither names, attributes of files nor data. Files are read with
//     direct I/O, and a READ for the page cache fails with EINVAL. So a file cannot be
//     mapped into memory: mmap(2) with MAP_SHARED fails with ENODEV, and a page of a
//     private mapping raises SIGBUS. sendfile(2), splice(2) and copy_file_range(2) fail
//     with EINVAL; programs then read(2).
//   - Each file of each call has an inode number of its own, which is not reused.
//   - The server keeps no state for a client. It uses one thread that waits for
//     requests, and, beside the files, up to 64 MiB while 256 of them are read at the same
//     time. A mount serves 4,000 requests a second; more wait, for 250 ms each time.
//   - When Owner or Refused fails, the request fails with EIO. When the process that serves exits, the
//     kernel answers ENOTCONN.
//
// inotify(7) on the root reports the names that other processes of the mount open.
package callfs
