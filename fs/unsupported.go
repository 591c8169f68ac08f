package fs

import (
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/audit/event"
	"github.com/scopefs/scopefs/scope"
)

// What a view does not perform. ENOSYS makes the kernel perform it itself, or do without, and send no further request.

// GetLk is never sent: locks stay in the kernel, among the clients of the view. Servers that forward locks have deadlocked.
func (v *View) GetLk(<-chan struct{}, *fuse.LkIn, *fuse.LkOut) fuse.Status { return fuse.ENOSYS }

// SetLk is never sent; see GetLk.
func (v *View) SetLk(<-chan struct{}, *fuse.LkIn) fuse.Status { return fuse.ENOSYS }

// SetLkw is never sent; see GetLk.
func (v *View) SetLkw(<-chan struct{}, *fuse.LkIn) fuse.Status { return fuse.ENOSYS }

// The ioctls that set a file's flags: linux/fs.h.
const (
	fsIocSetXattr   = 0x401c5820
	fsIocSetFlags32 = 0x40046602
)

// Ioctl answers ENOTTY: an ioctl would run with the rights of the view's process. It records attempts to change flags.
func (v *View) Ioctl(_ <-chan struct{}, in *fuse.IoctlIn, _ []byte, _ *fuse.IoctlOut, _ []byte) fuse.Status {
	switch in.Cmd {
	case unix.FS_IOC_SETFLAGS, fsIocSetXattr, fsIocSetFlags32:
		return status(v.on(request{head: &in.InHeader, op: scope.OpIoctl}, func(p *place) error {
			if err := v.forbid(&in.InHeader, scope.OpIoctl, p.rel, ""); status(err) == fuse.EIO {
				return err
			}
			return syscall.ENOTTY
		}))
	}
	return fuse.Status(syscall.ENOTTY)
}

// forbid records an operation that no policy can allow, and returns EPERM.
func (v *View) forbid(head *fuse.InHeader, op scope.Op, rel, target string) error {
	a := request{head: head, op: op}
	return v.refuse(&a, event.Event{
		Path: rel, Target: target, Verdict: event.Deny, Rule: "view: not for agents", RuleKind: string(scope.KindView),
	}, syscall.EPERM)
}
