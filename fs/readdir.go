package fs

import (
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/fs/listing"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/beneath"
)

const maxStreams = 32

// streams returns the largest number of streams: maxStreams, or less if the process may have
// few descriptors (fusedev.HandlesWithin).
func (l Limits) streams() int {
	if l.Handles > 0 {
		return max(1, min(maxStreams, l.Handles/16))
	}
	return maxStreams
}

// maxPlus limits the READDIRPLUS entries of one listing that are returned with attributes:
// each costs the view a node and the kernel an inode.
const maxPlus = 2048

// OpenDir opens a directory for listing. After ENOSYS the kernel opens directories without
// a request, and caches every listing (linux fs/fuse/file.c, fuse_file_open). The view
// answers so if it can tell the kernel when a listing changes, and if the policy does not
// record each listing: cachesListings.
func (v *View) OpenDir(_ <-chan struct{}, in *fuse.OpenIn, _ *fuse.OpenOut) fuse.Status {
	if v.cachesListings() {
		return fuse.ENOSYS
	}
	return status(v.on(request{head: &in.InHeader, op: scope.OpReadDir, light: true}, func(p *place) error {
		f, err := v.openList(p)
		if err == nil {
			f.Close() // ReadDir opens it again
		}
		return err
	}))
}

func (v *View) openList(p *place) (beneath.File, error) {
	return v.reopenAt(p, unix.O_RDONLY|unix.O_DIRECTORY)
}

// ReleaseDir does nothing: OpenDir keeps nothing open.
func (v *View) ReleaseDir(*fuse.ReleaseIn) {}

// FsyncDir flushes a directory to the disk.
func (v *View) FsyncDir(_ <-chan struct{}, in *fuse.FsyncIn) fuse.Status {
	return status(v.on(request{head: &in.InHeader, op: scope.OpRead, light: true}, func(p *place) error {
		f, err := v.openList(p)
		if err != nil {
			return err
		}
		defer f.Close()
		if err := f.Sync(in.FsyncFlags&1 != 0); err != nil || v.hold == nil {
			return err
		}
		return v.hold.Sync()
	}))
}

// ReadDir lists names.
func (v *View) ReadDir(_ <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	return status(v.list(in, func(_ *place, _ *listing.Stream, e fuse.DirEntry) bool { return out.AddDirEntry(e) }))
}

// ReadDirPlus lists names with attributes.
func (v *View) ReadDirPlus(_ <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	return status(v.list(in, func(p *place, s *listing.Stream, e fuse.DirEntry) bool {
		entry := out.AddDirLookupEntry(e)
		if entry == nil {
			return false
		}
		if e.Name == "." || e.Name == ".." || s.Plus == maxPlus {
			return true
		}
		p.name = e.Name
		p.holds = s.Layered && v.held(beneath.Join(p.base, e.Name))
		if v.entry(p, false, entry) == nil {
			out.FixMode(entry.Mode)
			s.Plus++
		}
		return true
	}))
}

// list calls add with the entries from in.Offset on, until add reports false. It omits
// what the policy hides.
func (v *View) list(in *fuse.ReadIn, add func(*place, *listing.Stream, fuse.DirEntry) bool) error {
	return v.on(request{head: &in.InHeader, op: scope.OpReadDir, light: true}, func(p *place) error {
		if err := v.openDir(p); err != nil {
			return err
		}
		defer p.dir.Close()
		v.follow(p.node, p.dir)
		p.began = v.now()
		now := v.edition(p.node)
		var s *listing.Stream
		if in.Offset > 0 {
			s = v.streams.Take(p.node.id, in.Offset)
		}
		if s == nil {
			f, err := v.openList(p)
			if err != nil {
				return err
			}
			s = listing.Open(f, p.node.id)
		}
		if s.Stale(now) { // the kernel may cache what this returns
			entries, err := v.union(p.base)
			if err != nil {
				v.streams.End(s)
				return err
			}
			s.Renew(now, entries, in.Offset)
		}
		if in.Offset == 0 {
			v.listed(p.node)
		}
		more, err := v.continued(p, s, in.Offset, add)
		if more && err == nil {
			v.streams.Keep(s)
		} else {
			v.streams.End(s)
		}
		return err
	})
}

// continued calls add with the entries of a stream from an offset on. It reports false if
// there was none.
func (v *View) continued(p *place, s *listing.Stream, off uint64, add func(*place, *listing.Stream, fuse.DirEntry) bool) (more bool, err error) {
	policy := v.policy.Load()
	uniform := policy.Uniform()
	if err := v.streams.Seek(s, off); err != nil {
		return false, err
	}
	for {
		var e fuse.DirEntry
		size, err := s.Peek(&e)
		if err != nil || size == 0 {
			return more, err
		}
		dots := e.Name == "." || e.Name == ".."
		if e.Name == ".." && p.base == "" {
			e.Ino = p.node.ident().Ino // the inode above the root is the host's
		}
		hidden := !dots && !uniform && policy.File(scope.OpLookup, beneath.Join(p.base, e.Name)).Access >= scope.Seal
		if !hidden && !add(p, s, e) {
			return true, nil
		}
		more = more || !hidden
		s.Advance(size, e.Off)
	}
}
