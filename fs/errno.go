package fs

import (
	"errors"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/beneath"
)

// answer is the errno of a decision that is recorded.
type answer syscall.Errno

func (a answer) Error() string { return syscall.Errno(a).Error() }

// status maps an error to the errno of a reply. It is the only place that does. It
// never returns ENOSYS: the kernel would stop sending that operation.
func status(err error) fuse.Status {
	if err == nil {
		return fuse.OK
	}
	if a, ok := errors.AsType[answer](err); ok {
		return fuse.Status(a)
	}
	errno, known := errors.AsType[syscall.Errno](err)
	switch {
	case errors.Is(err, beneath.ErrEscape), errors.Is(err, scope.ErrDenied):
		return fuse.EACCES
	case errors.Is(err, beneath.ErrStale): // before its errno: the kernel looks the name up again
		return fuse.Status(syscall.ESTALE)
	case known && errno != 0 && errno != syscall.ENOSYS:
		return fuse.Status(errno)
	}
	return fuse.EIO
}
