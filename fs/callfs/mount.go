package callfs

import (
	"log/slog"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/scopefs/scopefs/fs/fusedev"
	"github.com/scopefs/scopefs/fs/fusemount"
)

// Options describes a file system.
type Options struct {
	UID, GID uint32 // own the files

	// Owner returns the files of the call that a thread works for; nil: none. The request fails with EIO on an error.
	// The number is in the pid namespace of the process that made the mount, 0 for a thread of none below.
	// Owner runs on several goroutines and must not wait for a client of the mount.
	Owner func(tid uint32) (*Files, error)

	// Refused is called for a request for a file that is not one of the thread's, by a
	// descriptor: another call opened it, or one that has ended. Nil: nothing is called. The
	// thread waits until it returns. The request fails with EIO on an error.
	Refused func(tid uint32) error

	Logger *slog.Logger // nil discards
}

func (o *Options) user() fuse.Owner { return fuse.Owner{Uid: o.UID, Gid: o.GID} }

// MountOptions returns the options of a mount for [Serve]. Only processes of the user may use the mount: the kernel
// answers EACCES to others, root included.
func MountOptions(uid, gid uint32) fusemount.MountOptions {
	return fusemount.MountOptions{Type: "scopefs-context", UID: uid, GID: gid, NoExec: true}
}

// maxRead bounds a READ, in bytes, and so the memory of fusedev.MaxRequests of them.
const maxRead = 256 << 10

// Serve serves a mount until it is attached nowhere any more, or its connection is aborted. fd is its /dev/fuse, which
// stays the caller's.
func Serve(fd int, opt Options) error {
	server := &fileSystem{RawFileSystem: fuse.NewDefaultRawFileSystem(), opt: opt}
	handler := fuse.NewProtocolServer(server, &fuse.MountOptions{
		DisableSplice: true, MaxWrite: maxRead,
		DisabledCapabilities: fuse.CAP_READDIRPLUS,
		ExtraCapabilities:    fuse.CAP_NO_EXPORT_SUPPORT, // no open_by_handle_at(2)
	})
	conn := fusedev.NewConn(fd, &throttle{Handler: handler}, fusedev.Options{Logger: opt.Logger})
	if _, err := conn.Init(); err != nil {
		return err
	}
	conn.Serve()
	return nil
}
