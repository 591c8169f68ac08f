package fs

import (
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/beneath"
)

// listing is the read position of an open directory. Offsets are those of the directory
// below, so that seekdir(3) works without state in the view.
type listing struct {
	mu   sync.Mutex
	buf  []byte // dirents as getdents64(2) returns them; most listings have none between two requests
	rest []byte // the part of buf that was not returned yet
	off  uint64 // the offset of rest
	away bool   // the file is at another offset than off

	whole  bool   // entries are returned with attributes, not only those of directories
	plus   int    // entries returned with attributes since the last lookup in the directory
	looked uint32 // node.looked when plus was reset
	edition
}

// listings is a pool of buffers: a client that opens thousands of directories does not
// make the view allocate one for each.
type listings struct {
	pool sync.Pool
	kept atomic.Int32 // buffers that listings keep between requests
}

const (
	listSize = 32 << 10 // bytes of a buffer
	maxKept  = 64       // buffers
)

func (s *listings) take(l *listing) {
	if l.buf != nil {
		s.kept.Add(-1)
		return
	}
	l.buf, _ = s.pool.Get().([]byte)
	if l.buf == nil {
		l.buf = make([]byte, listSize)
	}
}

// give returns the buffer to the pool. Up to maxKept listings with a rest keep theirs.
func (s *listings) give(l *listing) {
	if len(l.rest) > 0 && s.kept.Add(1) <= maxKept {
		return
	}
	if len(l.rest) > 0 {
		s.kept.Add(-1)
		l.rest, l.away = nil, true
	}
	s.pool.Put(l.buf) //nolint:staticcheck // SA6002: a slice header is 24 bytes beside a buffer of many KiB
	l.buf = nil
}

// end returns the buffer of a listing whose directory is closed.
func (s *listings) end(l *listing) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.buf != nil {
		s.kept.Add(-1)
		s.pool.Put(l.buf) //nolint:staticcheck // SA6002, as in give
		l.buf, l.rest = nil, nil
	}
}

// maxPlus limits READDIRPLUS entries returned with attributes until the reader looks one
// up. A client that only lists a large directory does not pay for attributes.
const maxPlus = 2048

// wantsPlus reports whether the next entry is returned with attributes. A client that
// walks a tree looks up each directory, so these always are.
func (l *listing) wantsPlus(dir *node, kind uint32) bool {
	if !l.whole && kind != syscall.S_IFDIR {
		return false
	}
	if looked := dir.looked.Load(); looked != l.looked {
		l.plus, l.looked = 0, looked
	}
	l.plus++
	return l.plus <= maxPlus
}

// OpenDir opens a directory for listing.
func (v *View) OpenDir(_ <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	return status(v.on(ask{head: &in.InHeader, op: scope.OpReadDir, light: true}, func(p *place) error {
		if err := v.files.reserve(); err != nil {
			return err
		}
		f, err := v.root.Open(p.rel, unix.O_RDONLY|unix.O_DIRECTORY, p.node.ident)
		if err != nil {
			v.files.release()
			return err
		}
		l := &listing{whole: v.listers.wantsPlus(in.Pid, p.node), edition: v.edition(p.node)}
		h := &handle{file: f, node: p.node, listing: l}
		h.policy.Store(v.policy.Load())
		out.OpenFlags |= v.cacheListing(p.node, l)
		out.Fh = v.files.add(h)
		return nil
	}))
}

// ReadDir lists names.
func (v *View) ReadDir(_ <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	return status(v.list(in, func(_ *place, _ *listing, e fuse.DirEntry) bool { return out.AddDirEntry(e) }))
}

// ReadDirPlus lists names with attributes.
func (v *View) ReadDirPlus(_ <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	return status(v.list(in, func(p *place, l *listing, e fuse.DirEntry) bool {
		entry := out.AddDirLookupEntry(e)
		if entry == nil {
			return false
		}
		if e.Name != "." && e.Name != ".." && l.wantsPlus(p.node, e.Mode) && v.entry(p, e.Name, false, entry) == nil {
			out.FixMode(entry.Mode)
		}
		return true
	}))
}

// list calls add with the entries from in.Offset on, until add reports false. It omits
// what the policy hides.
func (v *View) list(in *fuse.ReadIn, add func(*place, *listing, fuse.DirEntry) bool) error {
	return v.by(&in.InHeader, scope.OpReadDir, in.Fh, func(h *handle) error {
		if h.listing == nil {
			return syscall.EBADF
		}
		// The host may have moved the directory out of the scope since it was opened.
		p := &place{began: v.now(), node: h.node}
		if err := v.openDir(p); err != nil {
			return err
		}
		defer v.kept.give(p.kept)
		v.follow(p.node, p.dir)
		policy := v.policy.Load()
		uniform := policy.Uniform()
		l := h.listing
		l.mu.Lock()
		defer l.mu.Unlock()
		v.listings.take(l)
		defer v.listings.give(l)
		if now := v.edition(p.node); now != l.edition { // the kernel may cache what this returns
			l.edition, l.rest, l.away = now, nil, true
		}
		if err := l.seek(h.file, in.Offset); err != nil {
			return err
		}
		for {
			var e fuse.DirEntry
			size, err := l.peek(h.file, &e)
			if err != nil || size == 0 {
				return err
			}
			dots := e.Name == "." || e.Name == ".."
			if e.Name == ".." && p.base == "" {
				e.Ino = h.node.ident.Ino // the inode above the root is the host's
			}
			hidden := !dots && !uniform && policy.File(scope.OpLookup, beneath.Join(p.base, e.Name)).Hidden
			if !hidden && !add(p, l, e) {
				return nil
			}
			l.rest, l.off = l.rest[size:], e.Off
		}
	})
}

// seek moves to the offset of an entry.
func (l *listing) seek(f beneath.File, off uint64) error {
	if off == l.off && !l.away {
		return nil
	}
	l.rest, l.off, l.away = nil, off, false
	_, err := f.Seek(int64(off), unix.SEEK_SET)
	return err
}

// peek reads the next entry and returns its size; 0 at the end.
func (l *listing) peek(f beneath.File, e *fuse.DirEntry) (int, error) {
	if len(l.rest) == 0 {
		n, err := f.ReadDirent(l.buf)
		if err != nil {
			return 0, err
		}
		l.rest = l.buf[:n]
	}
	if len(l.rest) == 0 {
		return 0, nil
	}
	return e.Parse(l.rest), nil
}
