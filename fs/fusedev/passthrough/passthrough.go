// Package passthrough tries whether a kernel reads and writes the files of a mount itself.
package passthrough

import (
	"errors"
	"fmt"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/fs/fusedev"
)

// ErrNone is the error of a kernel without FUSE passthrough: before Linux 6.9, or
// without CONFIG_FUSE_PASSTHROUGH.
var ErrNone = errors.New("the kernel has no FUSE passthrough")

// Try registers fd, a regular file, as a backing file of a mount that is not
// served yet; dev is its descriptor of /dev/fuse. It returns nil if reads and writes can
// bypass the server, an error that is ErrNone, and EPERM without CAP_SYS_ADMIN of
// the host.
func Try(dev, fd int) error {
	server := fuse.NewProtocolServer(fuse.NewDefaultRawFileSystem(), &fuse.MountOptions{MaxWrite: fusedev.MaxWrite})
	conn := fusedev.NewConn(dev, server, fusedev.Options{})
	settings, err := conn.Init()
	if err != nil {
		return err
	}
	if settings.Flags64()&fuse.CAP_PASSTHROUGH == 0 {
		return ErrNone
	}
	id, errno := conn.RegisterBacking(fd)
	switch errno {
	case 0:
		conn.ReleaseBacking(id)
		return nil
	case unix.EOPNOTSUPP, unix.ENOTTY:
		return ErrNone
	}
	return fmt.Errorf("register a backing file: %w", errno)
}
