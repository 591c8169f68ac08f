// Package beneath opens, creates and changes files below one directory. It
// follows no path out of that directory, whatever happens to the tree meanwhile.
//
// A [Root] holds the directory by descriptor. Each call of a Root's method walks
// its path once, in the kernel, with openat2(2): RESOLVE_BENEATH,
// RESOLVE_NO_SYMLINKS, RESOLVE_NO_MAGICLINKS and RESOLVE_NO_XDEV. A [Dir] is an
// open directory; its methods take one name, no path, and do not follow a link
// at that name. A [File] is an open object; its methods act on the descriptor.
// An operation on a path is therefore: Root.Dir for the parent, then a method of
// Dir with the last component.
//
// A path that leads out of the root, by a link, by "..", or across a mount,
// fails with a [*Violation], which is [ErrEscape] and EACCES. An object that is
// no longer the one meant fails with [ErrStale]. All other errors are errnos.
//
// Unlike [os.Root], a Root follows no link by itself: [Root.Follow] and
// [Root.Resolve] walk the text of a link and return where it leads, and the
// caller opens that. A Root also creates files as another user ([Caller]),
// watches directories for changes by others ([Watch]) and finds the path of an
// open directory ([Root.Find]).
//
// Descriptors are closed on exec. Nothing here opens a FIFO so that it blocks,
// or a device node. The package needs Linux 5.13.
package beneath
