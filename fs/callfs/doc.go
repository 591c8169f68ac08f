// Package callfs is a read-only FUSE file system in which each process sees only the
// files of the call that it runs in. A daemon serves it; a sandbox mounts it.
//
// # Use
//
// [Open] creates a mount that is attached nowhere, and serves it. [Mount.Root] is its
// descriptor for move_mount(2). [New] creates the files of one call. [Options].Owner
// maps a thread to the files of its call. The file system makes no other decision.
//
// # Guarantees
//
//   - The root is one flat directory. A lookup or listing returns the files of the
//     requesting process; a process without files sees an empty directory.
//   - The server decides each request by the thread in its header. Requests by a
//     descriptor of another call, or of a call that has ended, fail with ESTALE.
//   - The kernel caches no dentries, no attributes of files and no data. Files are read
//     with direct I/O, and a READ for the page cache fails with EINVAL. So no file can be
//     mapped into memory: mmap(2) with MAP_SHARED fails with ENODEV, and a page of a
//     private mapping raises SIGBUS. sendfile(2), splice(2) and copy_file_range(2) fail
//     with EINVAL; programs then read(2).
//   - Each file of each call has an inode number of its own, which is not reused.
//   - The server keeps no state for a client. One thread waits for requests. Beside the
//     files, 256 concurrent READs take up to 64 MiB. A mount serves 4,000 requests a
//     second; the server delays further requests by up to 250 ms at a time.
//   - A request fails with EIO if Owner takes longer than a second, and with ENOTCONN
//     after the server has exited.
//
// inotify(7) on the root reports the names that other processes of the mount open.
package callfs
