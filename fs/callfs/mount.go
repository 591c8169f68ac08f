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
	// UID and GID are the only user whose processes may use the mount. The kernel
	// answers EACCES to others, root included.
	UID, GID uint32

	// Owner returns the files of the call that a thread works for; nil: none. The
	// number is in the pid namespace of the caller of Open, 0 for a thread of none below.
	// Owner runs on several goroutines and must not wait for a client of the mount.
	Owner func(tid uint32) *Files

	// Refused is called for a request for a file that is not one of the thread's, by a
	// descriptor: another call opened it, or one that has ended. Nil: nothing is called. It
	// must not block.
	Refused func(tid uint32)

	// Control is for Close to abort the connection. The zero Control aborts nothing.
	Control fusedev.Control

	Logger *slog.Logger // nil discards
}

func (o *Options) user() fuse.Owner { return fuse.Owner{Uid: o.UID, Gid: o.GID} }

// Mount is a mount that is served until it is attached nowhere any more, or closed.
type Mount struct {
	// Root is the mount, for move_mount(2). The caller closes it: if the mount is
	// attached nowhere by then, the server ends.
	Root *os.File

	conn fusedev.Connection // opened while the mount is there: its number is reused later
	done chan struct{}
}

// closeTime is how long Close waits for the server where the kernel offers no way to
// abort the connection.
const closeTime = 2 * time.Second

// maxRead bounds a READ, in bytes, and so the memory of fusedev.MaxRequests of them.
const maxRead = 256 << 10

// Open makes a mount that is attached nowhere, and serves it. It needs CAP_SYS_ADMIN in
// its user namespace. The caller closes it.
func Open(opt Options) (*Mount, error) {
	dev, err := fusedev.Open(fusedev.MountOptions{Type: "scopefs-context", UID: opt.UID, GID: opt.GID, NoExec: true})
	if err != nil {
		return nil, err
	}
	server := &fileSystem{RawFileSystem: fuse.NewDefaultRawFileSystem(), opt: opt, asking: make(chan struct{}, maxAsking)}
	handler := fuse.NewProtocolServer(server, &fuse.MountOptions{
		DisableSplice: true, MaxWrite: maxRead,
		DisabledCapabilities: fuse.CAP_READDIRPLUS,
		ExtraCapabilities:    fuse.CAP_NO_EXPORT_SUPPORT, // no open_by_handle_at(2)
	})
	conn := fusedev.NewConn(dev.FD(), &pace{Handler: handler}, fusedev.Options{Logger: opt.Logger})
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

// Close aborts the connection and waits until nothing serves it. Clients get
// ENOTCONN. Without fusectl the server ends with the mount, and Close waits for that
// for two seconds at most.
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
