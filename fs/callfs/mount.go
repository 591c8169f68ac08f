package callfs

import (
	"log/slog"
	"os"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/scopefs/scopefs/fs/fusedev"
)

// Options describes a mount.
type Options struct {
	// UID and GID own the mount. Only processes of this user may use it: others get
	// EACCES from the kernel, root included.
	UID, GID uint32

	// Owner returns the files of the call that a thread runs in; nil: none. tid is in
	// the pid namespace of Open's caller, and 0 for a thread outside of it. Owner runs on
	// several goroutines and must not wait for a client of the mount.
	Owner func(tid uint32) *Files

	// Refused is called when a thread uses a descriptor of another call, or of a call
	// that has ended; nil: nothing is called. It must not block.
	Refused func(tid uint32)

	// Close aborts the connection by Control. The zero Control aborts nothing.
	Control fusedev.Control

	Logger *slog.Logger // nil discards
}

func (o *Options) user() fuse.Owner { return fuse.Owner{Uid: o.UID, Gid: o.GID} }

// Mount is served until it is detached everywhere, or closed.
type Mount struct {
	// Root is the mount, for move_mount(2). The caller closes it. The server ends if the
	// mount is attached nowhere by then.
	Root *os.File

	conn fusedev.Connection // opened while the mount exists: the kernel reuses its number later
	done chan struct{}
}

// closeTime is how long Close waits for a server whose connection it cannot abort.
const closeTime = 2 * time.Second

// maxRead limits one READ, in bytes, and thus the memory of fusedev.MaxRequests READs.
const maxRead = 256 << 10

// Open creates a mount that is attached nowhere, and serves it. It needs CAP_SYS_ADMIN in
// its user namespace. The caller closes it.
func Open(opt Options) (*Mount, error) {
	dev, err := fusedev.Open(fusedev.MountOptions{Type: "scopefs-context", UID: opt.UID, GID: opt.GID, NoExec: true})
	if err != nil {
		return nil, err
	}
	server := &fileSystem{RawFileSystem: fuse.NewDefaultRawFileSystem(), opt: opt, calls: make(chan struct{}, maxOwner)}
	handler := fuse.NewProtocolServer(server, &fuse.MountOptions{
		DisableSplice: true, MaxWrite: maxRead,
		DisabledCapabilities: fuse.CAP_READDIRPLUS,
		ExtraCapabilities:    fuse.CAP_NO_EXPORT_SUPPORT, // no open_by_handle_at(2)
	})
	conn := fusedev.NewConn(dev.FD(), &throttle{Handler: handler}, fusedev.Options{Logger: opt.Logger})
	if _, err := conn.Init(); err != nil {
		dev.Close()
		return nil, err
	}
	m := &Mount{Root: dev.Mount(), conn: opt.Control.Connection(dev.Minor(), ""), done: make(chan struct{})}
	go func() {
		defer close(m.done)
		conn.Serve()
		dev.Close()
	}()
	return m, nil
}

// Close aborts the connection and waits until the server has ended. Clients get
// ENOTCONN. Without fusectl the server ends with the mount, and Close waits for two
// seconds at most.
func (m *Mount) Close() error {
	err := m.conn.Abort()
	m.conn.Close()
	m.Root.Close()
	select {
	case <-m.done:
	case <-time.After(closeTime):
	}
	return err
}
