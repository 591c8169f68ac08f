package fs

import (
	"strings"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/fs/judge"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/beneath"
)

// GetXAttr reads an attribute. It returns its size; with ERANGE the size needed.
func (v *View) GetXAttr(_ <-chan struct{}, head *fuse.InHeader, attr string, dest []byte) (size uint32, code fuse.Status) {
	if !v.opt.XAttrs {
		return 0, fuse.ENOSYS // the kernel sends no further GETXATTR
	}
	if !judge.Attribute(attr) {
		return 0, fuse.ENODATA // without resolution: the kernel reads security.capability before writes
	}
	code = status(v.on(request{head: head, op: scope.OpGetXattr}, func(p *place) error {
		return v.xattr(p, func(f attributes) error {
			n, err := f.Getxattr(attr, dest)
			if err == syscall.EOPNOTSUPP && strings.HasPrefix(attr, beneath.ACLs) {
				err = syscall.ENODATA // the file has no ACL
			}
			if err == syscall.ERANGE {
				n, _ = f.Getxattr(attr, nil)
			}
			size = uint32(n)
			return err
		})
	}))
	return size, code
}

// ListXAttr lists the attributes of judge.Attribute.
func (v *View) ListXAttr(_ <-chan struct{}, head *fuse.InHeader, dest []byte) (size uint32, code fuse.Status) {
	if !v.opt.XAttrs {
		return 0, fuse.ENOSYS
	}
	code = status(v.on(request{head: head, op: scope.OpGetXattr}, func(p *place) error {
		return v.xattr(p, func(f attributes) error {
			all := make([]byte, 64<<10) // XATTR_LIST_MAX
			n, err := f.Listxattr(all)
			if err != nil {
				return err
			}
			var list []byte
			for attr := range strings.SplitAfterSeq(string(all[:n]), "\x00") {
				if judge.Attribute(strings.TrimSuffix(attr, "\x00")) {
					list = append(list, attr...)
				}
			}
			size = uint32(len(list))
			if len(dest) > 0 && len(list) > len(dest) {
				return syscall.ERANGE
			}
			copy(dest, list)
			return nil
		})
	}))
	return size, code
}

// SetXAttr sets an attribute.
func (v *View) SetXAttr(_ <-chan struct{}, in *fuse.SetXAttrIn, attr string, data []byte) fuse.Status {
	if !v.opt.XAttrs {
		return fuse.ENOSYS
	}
	return status(v.on(request{head: &in.InHeader, op: scope.OpSetXattr}, func(p *place) error {
		if !judge.Attribute(attr) {
			return v.forbid(&in.InHeader, scope.OpSetXattr, p.rel, attr)
		}
		if p.node == v.nodes.root && attr == beneath.AccessACL && !judge.OwnerEnters(data) {
			return v.forbid(&in.InHeader, scope.OpSetXattr, p.rel, rootMode)
		}
		if err := v.keepAttributes(p); err != nil {
			return err
		}
		err := v.xattr(p, func(f attributes) error { return f.Setxattr(attr, data, int(in.Flags)) })
		if err == nil && attr == beneath.AccessACL {
			v.permitted(p.node)
		}
		return err
	}))
}

// RemoveXAttr removes an attribute.
func (v *View) RemoveXAttr(_ <-chan struct{}, head *fuse.InHeader, attr string) fuse.Status {
	if !v.opt.XAttrs {
		return fuse.ENOSYS
	}
	return status(v.on(request{head: head, op: scope.OpSetXattr}, func(p *place) error {
		if !judge.Attribute(attr) {
			return v.forbid(head, scope.OpSetXattr, p.rel, attr)
		}
		if err := v.keepAttributes(p); err != nil {
			return err
		}
		err := v.xattr(p, func(f attributes) error { return f.Removexattr(attr) })
		if err == nil && attr == beneath.AccessACL {
			v.permitted(p.node)
		}
		return err
	}))
}

// attributes are the extended attributes of a beneath.File or beneath.Name.
type attributes interface {
	Getxattr(attr string, p []byte) (int, error)
	Setxattr(attr string, p []byte, flags int) error
	Listxattr(p []byte) (int, error)
	Removexattr(attr string) error
}

// xattr calls do with the object, opened by name and checked by identity. If the object
// cannot be opened, or must not be, as a FIFO, it calls do with the name.
func (v *View) xattr(p *place, do func(attributes) error) error {
	if err := do(p.obj); err != syscall.EBADF { // EBADF: an O_PATH descriptor; other results are of a file without a name
		return err
	}
	if p.stat.IsRegular() || p.stat.IsDir() {
		f, err := v.reopenAt(p, unix.O_RDONLY)
		if err == syscall.EACCES && p.stat.IsRegular() {
			f, err = v.reopenAt(p, unix.O_WRONLY)
		}
		if err == nil {
			defer f.Close()
			return do(f)
		}
		if err != syscall.EACCES {
			return err
		}
	}
	dir, base, err := v.named(p)
	if err != nil {
		return err
	}
	defer dir.Close()
	if base == "" {
		base = "."
	}
	return do(beneath.Name{Dir: dir, Base: base})
}
