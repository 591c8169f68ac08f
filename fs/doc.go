// Package fs is a FUSE file system that shows one directory, decides every
// operation by a policy and records the decisions.
//
// A [View] implements fuse.RawFileSystem of go-fuse. Every operation takes the same
// four steps, in door.go: resolve the node beneath the root descriptor, decide with
// [scope.Policy], record, then act on the descriptor that was resolved. The view
// makes no system calls of its own: package beneath reaches the files, and package
// fusedev reaches /dev/fuse.
//
// # What a caller provides
//
//   - A root: the directory, as a [beneath.Root]. The view never leaves it, whatever
//     its clients and the host rename meanwhile. Neither New nor Serve closes it.
//   - A descriptor of /dev/fuse, as [fusemount.Mount] returns it, or another process
//     that mounted. Neither New nor Serve closes it.
//   - [Options.Policy]: which paths clients may list, read and write. A zero
//     [scope.PolicySpec] allows everything. [View.SetPolicy] replaces it at any time.
//   - [Options.Recorder]: where decisions go. [*audit.Log] implements it.
//
// Every other option has a useful zero value. New fails without a policy or a
// recorder: a view that cannot decide or record serves no client.
//
// The caller runs Serve in a goroutine and unmounts to end it. Serve returns after
// the last request, closes the files that clients left open and waits for the view's
// goroutines. Then the caller may close the root and the descriptor.
//
// # Caching
//
// The kernel caches dentries, negative dentries and attributes. These caches delay
// how soon a change by the host becomes visible. They never extend authority: open,
// create, unlink, rename and readlink always come back to the policy.
//
//   - Without [Options.Watch], entries and attributes are valid for [Options.Timeout]; 0 disables these caches.
//   - With a watch they are valid for a minute. The view watches each directory with
//     fanotify before it replies about a name in it, and sends the kernel an
//     invalidation within milliseconds of a change by another process. A directory
//     that cannot be watched falls back to Timeout.
//   - Attributes that may change unseen are valid for 20 ms: those of files with several links, of files that are open
//     for writing with passthrough, and of directories that are not watched yet.
//   - With a watch, and unless [Options.Record] is scope.RecordAll, the kernel opens directories without a request and
//     caches every listing, until a name in the directory, its mode, owner or ACL, or the policy changes. A client that
//     may not read a directory learns that when it reads, not when it opens. The listing of a directory that cannot be
//     watched is kept for Timeout.
//   - File data is not cached here. With [Options.Passthrough] the kernel reads and
//     writes the file itself and shares the page cache of the file below. With
//     [Options.Mediated] every read and write reaches the view, and the kernel
//     caches nothing. With neither the kernel caches pages until the file is opened
//     again. With [Options.Remote] close(2) does what it does to the file below.
//
// What clients write in place of a file whose content the policy judges ([scope.Decision.Judge]) is an object of its own
// until it is judged at close(2): staged.go. Such a name is looked up at each use meanwhile.
//
// A new policy invalidates dentries through the function that SetPolicy returns.
// Each operation is decided by the new policy in any case.
//
// # Parallelism
//
// Requests run in parallel, up to [fusedev.MaxRequests]. A View may be used from any
// goroutine. The Recorder, [Options.Groups] and the Logger are called in parallel, too. The
// Logger must not block: the view may call it under a lock. It calls the other two under
// none. While one of them blocks, its request blocks, and with it:
//
//   - requests for which the kernel needs a lock that the client holds meanwhile: that of
//     the directory in which the client creates, removes or renames a name, for example;
//   - every request, once [fusedev.MaxRequests] are blocked.
//
// Operations on different files share two short critical sections, the node table and the
// handle table. Renames are serialized. A rename waits for path walks, because a path is
// built from the node table before the kernel walks it, and later path walks wait for the
// rename. So every request waits for a rename or a path walk that blocks: on a slow file
// system below, or in flock(2) until another view has renamed.
//
// Several views may show one directory, also in different processes. Where the
// policy has path rules, they serialize mkdir, symlink and rename with flock(2) on the root
// directory: a view could otherwise move a directory to a place with other rules
// between another's decision and its action.
//
// # Deadlocks
//
//   - The process that serves a view must not use the mount. It would wait for its
//     own reply. This includes the Recorder: the log must not be in the view.
//   - [os/exec.Cmd] with a Dir or a Path in the mount uses it: the child changes its
//     directory, and executes the program, before the fork has returned. Until then the
//     goroutine that started it keeps its processor. With GOMAXPROCS=1 no goroutine
//     answers the child; with more, a garbage collection waits for the fork while it
//     stops the goroutines that would answer. Both processes hang, also after SIGKILL,
//     until the connection is aborted. A test that mounts a view meets this first.
//     Serve the view in another process, or let the child change its directory after
//     the exec: see the example of [View.Serve].
//   - The Recorder must not wait for a client of the view, since that client may wait
//     for the request being recorded.
//   - FUSE_NOTIFY_INVAL_ENTRY takes a lock that a client holds during its request. So
//     the function that SetPolicy returns must not run where the view waits for it, in
//     a Recorder for example. The view itself sends these notifications from goroutines
//     of their own, never from a reader.
//   - A client that holds a lock on a file of the root through the view and waits for
//     another client is outside of the view's control. [fusemount.Connection.Abort] ends
//     every request.
//
// # Locks
//
// POSIX locks and flock(2) stay in the kernel, which keeps them for the view's
// clients among themselves. They are not forwarded, so they do not exclude processes
// that use the directory below.
//
// # Errors
//
// A denied operation fails with EACCES, or ENOENT where the policy hides the path and the operation only looks. What no
// policy allows, such as changing file flags, fails with EPERM. An object that the host replaced after the kernel looked
// it up fails with ESTALE, and the kernel looks the name up again. While nothing can be recorded, mutations and denials
// fail with EIO. No error contains a path of the host.
//
// # Identity
//
// Operations run with the ids of the process, and the kernel admits the mount's user
// alone. With [Options.Groups] each operation runs with the caller's ids, which needs
// root. With [Options.Shared] the kernel checks modes and ACLs, for a mount with
// [fusemount.MountOptions.AllowOther].
package fs
