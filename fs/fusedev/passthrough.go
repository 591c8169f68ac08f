package fusedev

import (
	"errors"
	"fmt"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// ErrNoPassthrough is the error of a kernel without FUSE passthrough: before Linux 6.9, or
// without CONFIG_FUSE_PASSTHROUGH.
var ErrNoPassthrough = errors.New("the kernel has no FUSE passthrough")

// TryPassthrough registers fd, a regular file, as a backing file of a mount that is not
// served yet; dev is its descriptor of /dev/fuse. It returns nil if reads and writes can
// bypass the server, an error that is ErrNoPassthrough, and EPERM without CAP_SYS_ADMIN of
// the host.
func TryPassthrough(dev, fd int) error {
	conn := NewConn(dev, fuse.NewProtocolServer(fuse.NewDefaultRawFileSystem(), &fuse.MountOptions{MaxWrite: MaxWrite}), Options{})
	settings, err := conn.Init()
	if err != nil {
		return err
	}
	if settings.Flags64()&fuse.CAP_PASSTHROUGH == 0 {
		return ErrNoPassthrough
	}
	id, errno := conn.RegisterBacking(fd)
	switch errno {
	case 0:
		conn.ReleaseBacking(id)
		return nil
	case unix.EOPNOTSUPP, unix.ENOTTY:
		return ErrNoPassthrough
	}
	return fmt.Errorf("register a backing file: %w", errno)
}
