package fs

import (
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/scope"
)

// What a view does not do. ENOSYS here means "do not ask again": the kernel
// then does without, which for these is what is wanted.

// Flush would cost a round trip at every close; nothing is held back here.
func (v *View) Flush(<-chan struct{}, *fuse.FlushIn) fuse.Status { return fuse.ENOSYS }

// GetLk is never asked: locks stay in the kernel. They hold among those who
// use the view. Forwarding them was seen to dead-lock other servers.
func (v *View) GetLk(<-chan struct{}, *fuse.LkIn, *fuse.LkOut) fuse.Status { return fuse.ENOSYS }

// SetLk is never asked; see GetLk.
func (v *View) SetLk(<-chan struct{}, *fuse.LkIn) fuse.Status { return fuse.ENOSYS }

// SetLkw is never asked; see GetLk.
func (v *View) SetLkw(<-chan struct{}, *fuse.LkIn) fuse.Status { return fuse.ENOSYS }

// The ioctls that set a file's flags; linux/fs.h.
const (
	fsIocSetFlags   = 0x40086602
	fsIocSetXattr   = 0x401c5820
	fsIocSetFlags32 = 0x40046602
)

// Ioctl is refused: it would run with the server's rights. What would change
// flags is recorded.
func (v *View) Ioctl(_ <-chan struct{}, in *fuse.IoctlIn, _ []byte, _ *fuse.IoctlOut, _ []byte) fuse.Status {
	switch in.Cmd {
	case fsIocSetFlags, fsIocSetXattr, fsIocSetFlags32:
		return status(v.on(ask{head: &in.InHeader, op: scope.OpIoctl}, func(p *place) error {
			if err := v.forbid(&in.InHeader, scope.OpIoctl, p.rel, ""); status(err) == fuse.EIO {
				return err
			}
			return syscall.ENOTTY
		}))
	}
	return fuse.Status(syscall.ENOTTY)
}

// forbid records what no policy can allow; the answer is EPERM.
func (v *View) forbid(head *fuse.InHeader, op scope.Op, rel, target string) error {
	a := ask{head: head, op: op}
	return v.refuse(&a, audit.Event{Path: rel, Target: target, Verdict: audit.Deny, Rule: "view: not for agents", RuleKind: string(scope.KindView)}, syscall.EPERM)
}
