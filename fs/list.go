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

// listing is where a reader of a directory stands. Offsets are those of the
// directory below, so that seekdir(3) works and nothing is kept in between.
type listing struct {
	mu   sync.Mutex
	buf  []byte // entries read, in the kernel's form; nil between two requests, but of a few listings
	rest []byte // those of buf that were not handed out
	off  uint64 // the offset that rest starts at
	away bool   // the file stands elsewhere than at off

	plus   int    // entries told with what they are, since anybody looked one up
	looked uint32 // node.looked at that time
}

// listings shares the buffers of listings: a client that opens thousands of directories
// takes none for each.
type listings struct {
	pool sync.Pool
	kept atomic.Int32 // by listings, for their next request
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

// give keeps the buffer of a listing that stands amid entries, if few do.
func (s *listings) give(l *listing) {
	if len(l.rest) > 0 && s.kept.Add(1) <= maxKept {
		return
	}
	if len(l.rest) > 0 {
		s.kept.Add(-1)
		l.rest, l.away = nil, true
	}
	s.pool.Put(l.buf)
	l.buf = nil
}

// end is for a listing whose directory is closed.
func (s *listings) end(l *listing) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.buf != nil {
		s.kept.Add(-1)
		s.pool.Put(l.buf)
		l.buf, l.rest = nil, nil
	}
}

// maxPlus is how many entries are told with what they are to one who has looked
// none of them up. Of those he then wants the kernel asks for one by one, until
// it is clear that he does: who only lists a large directory does not pay for it.
const maxPlus = 2048

// wantsPlus tells whether the next entry is to be told with what it is.
func (l *listing) wantsPlus(dir *node) bool {
	if looked := dir.looked.Load(); looked != l.looked {
		l.plus, l.looked = 0, looked
	}
	l.plus++
	return l.plus <= maxPlus
}

// OpenDir opens a directory for listing.
func (v *View) OpenDir(_ <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	return status(v.on(ask{head: &in.InHeader, op: scope.OpReadDir}, func(p *place) error {
		if err := v.files.reserve(); err != nil {
			return err
		}
		f, err := v.root.Open(p.rel, unix.O_RDONLY|unix.O_DIRECTORY, p.node.ident)
		if err != nil {
			v.files.release()
			return err
		}
		h := &handle{file: f, node: p.node, listing: &listing{}}
		h.policy.Store(v.policy.Load())
		out.Fh = v.files.add(h)
		return nil
	}))
}

// ReadDir lists names.
func (v *View) ReadDir(_ <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	return status(v.list(in, func(_ *place, _ *listing, e fuse.DirEntry) bool { return out.AddDirEntry(e) }))
}

// ReadDirPlus lists names and what they are.
func (v *View) ReadDirPlus(_ <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	return status(v.list(in, func(p *place, l *listing, e fuse.DirEntry) bool {
		entry := out.AddDirLookupEntry(e)
		if entry == nil {
			return false
		}
		if e.Name != "." && e.Name != ".." && l.wantsPlus(p.node) && v.entry(p, e.Name, false, entry) == nil {
			out.FixMode(entry.Mode)
		}
		return true
	}))
}

// list hands the entries from in.Offset on to add, until it has no room. What
// the policy hides is not listed.
func (v *View) list(in *fuse.ReadIn, add func(*place, *listing, fuse.DirEntry) bool) error {
	return v.by(&in.InHeader, scope.OpReadDir, in.Fh, func(h *handle) error {
		if h.listing == nil {
			return syscall.EBADF
		}
		// Resolved anew, since the host may have moved it out of the scope.
		p := &place{began: v.now(), node: h.node}
		if err := v.openDir(p); err != nil {
			return err
		}
		defer p.dir.Close()
		v.follow(p.node, p.dir)
		policy := v.policy.Load()
		uniform := policy.Uniform()
		l := h.listing
		l.mu.Lock()
		defer l.mu.Unlock()
		v.listings.take(l)
		defer v.listings.give(l)
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
				e.Ino = h.node.ident.Ino // what is above the root is not ours to tell
			}
			hidden := !dots && !uniform && policy.File(scope.OpLookup, beneath.Join(p.base, e.Name)).Hidden
			if !hidden && !add(p, l, e) {
				return nil
			}
			l.rest, l.off = l.rest[size:], e.Off
		}
	})
}

// seek goes to an offset that an entry had.
func (l *listing) seek(f beneath.File, off uint64) error {
	if off == l.off && !l.away {
		return nil
	}
	l.rest, l.off, l.away = nil, off, false
	_, err := f.Seek(int64(off), unix.SEEK_SET)
	return err
}

// peek returns the next entry and its size, 0 at the end.
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
