// Package beneath opens, creates and changes files below one directory. No path
// resolves outside that directory, whatever other processes change in the tree
// meanwhile.
//
// A [Root] holds the directory by descriptor. Each method of a Root resolves
// its path once, in the kernel, with openat2(2): RESOLVE_BENEATH,
// RESOLVE_NO_SYMLINKS, RESOLVE_NO_MAGICLINKS and RESOLVE_NO_XDEV. [Root.Stat]
// uses statx(2) in a mount that has these properties itself: [NewDetached]. A
// [Dir] is an open directory. Its methods take one name, not a path, and do not follow a
// symbolic link at that name. A [File] is an open object. Its methods act on
// the descriptor. To act on a path, open its parent with Root.Dir and call a
// method of Dir with the last component.
//
// A path that leads out of the root, by a link, by "..", or across a mount,
// returns a [*Violation], which matches [ErrEscape] and EACCES. If the object
// is no longer the expected one, the error is [ErrStale]. All other errors are
// errnos.
//
// Unlike [os.Root], a Root follows no symbolic link. [Root.Follow] and
// [Root.Resolve] resolve the text of a link and return the target, and the
// caller opens the target. The package also creates files as another user
// ([Caller]) and watches directories for changes by other processes ([Watch]).
//
// Descriptors are closed on exec. No call blocks on a FIFO, and [Root.Open]
// returns no FIFO, socket or device node. The package needs Linux 5.13.
package beneath
