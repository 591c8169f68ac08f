package fs

import (
	"cmp"
	"slices"
	"sync"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/beneath"
)

// stream is an open listing between two requests. Offsets are those of the directory below,
// so a request can start at any entry.
type stream struct {
	file beneath.File
	node *node
	buf  []byte // dirents of getdents64(2); nil while rest is empty
	rest []byte // the dirents of buf that were not returned yet
	off  uint64 // the offset of rest
	away bool   // the file's offset is not off

	union   []fuse.DirEntry // of a directory of two layers, instead of file's
	layered bool            // names in it may be of Hold.Upper

	plus int // entries returned with attributes
	edition
}

// streams holds the listings that readers may continue. The kernel does not report when a
// reader opens or closes a directory (OpenDir), so the view closes a stream when there are
// too many. Its reader continues by offset, and may miss names on file systems that move
// offsets when names are removed.
type streams struct {
	mu   sync.Mutex
	kept []*stream
	next int       // the slot that the next stream gets if none is free
	pool sync.Pool // of buffers
}

const (
	maxStreams = 32
	listSize   = 32 << 10 // bytes of a buffer
)

// streams returns the largest number of streams: maxStreams, or less if the process may have
// few descriptors (HandlesWithin).
func (l Limits) streams() int {
	if l.Handles > 0 {
		return max(1, min(maxStreams, l.Handles/16))
	}
	return maxStreams
}

// take returns the stream of a directory at an offset, or nil. The caller owns it.
func (t *streams) take(n *node, off uint64) *stream {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i, s := range t.kept {
		if s != nil && s.node == n && s.off == off {
			t.kept[i] = nil
			return s
		}
	}
	return nil
}

// keep stores a stream until its reader continues.
func (t *streams) keep(s *stream) {
	if len(s.rest) == 0 {
		t.give(s)
	}
	t.mu.Lock()
	at := slices.Index(t.kept, nil)
	if at < 0 {
		at = t.next
		t.next = (t.next + 1) % len(t.kept)
	}
	old := t.kept[at]
	t.kept[at] = s
	t.mu.Unlock()
	if old != nil {
		t.end(old)
	}
}

// idle frees the buffers: the view has nothing to do.
func (t *streams) idle() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, s := range t.kept {
		if s != nil && s.buf != nil {
			s.away = true
			t.give(s)
		}
	}
}

// drop ends the streams of a directory; nil ends all.
func (t *streams) drop(n *node) {
	var ended []*stream
	t.mu.Lock()
	for i, s := range t.kept {
		if s != nil && (n == nil || s.node == n) {
			t.kept[i] = nil
			ended = append(ended, s)
		}
	}
	t.mu.Unlock()
	for _, s := range ended { // without the lock: the last close(2) of a removed directory frees its blocks
		t.end(s)
	}
}

func (t *streams) end(s *stream) {
	t.give(s)
	s.file.Close()
}

// give returns the buffer of a stream to the pool.
func (t *streams) give(s *stream) {
	if s.buf != nil {
		t.pool.Put(s.buf) //nolint:staticcheck // SA6002: a slice header is 24 bytes beside a buffer of many KiB
		s.buf, s.rest = nil, nil
	}
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
		return f.Sync(in.FsyncFlags&1 != 0)
	}))
}

// ReadDir lists names.
func (v *View) ReadDir(_ <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	return status(v.list(in, func(_ *place, _ *stream, e fuse.DirEntry) bool { return out.AddDirEntry(e) }))
}

// ReadDirPlus lists names with attributes.
func (v *View) ReadDirPlus(_ <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	return status(v.list(in, func(p *place, s *stream, e fuse.DirEntry) bool {
		entry := out.AddDirLookupEntry(e)
		if entry == nil {
			return false
		}
		if e.Name == "." || e.Name == ".." || s.plus == maxPlus {
			return true
		}
		p.name = e.Name
		p.holds = s.layered && v.held(beneath.Join(p.base, e.Name))
		if v.entry(p, false, entry) == nil {
			out.FixMode(entry.Mode)
			s.plus++
		}
		return true
	}))
}

// list calls add with the entries from in.Offset on, until add reports false. It omits
// what the policy hides.
func (v *View) list(in *fuse.ReadIn, add func(*place, *stream, fuse.DirEntry) bool) error {
	return v.on(request{head: &in.InHeader, op: scope.OpReadDir, light: true}, func(p *place) error {
		if err := v.openDir(p); err != nil {
			return err
		}
		defer p.dir.Close()
		v.follow(p.node, p.dir)
		p.began = v.now()
		now := v.edition(p.node)
		var s *stream
		if in.Offset > 0 {
			s = v.streams.take(p.node, in.Offset)
		}
		if s == nil {
			f, err := v.openList(p)
			if err != nil {
				return err
			}
			s = &stream{file: f, node: p.node, edition: now, away: true}
		}
		if now != s.edition { // the kernel may cache what this returns
			s.edition, s.rest, s.away = now, nil, true
		}
		if s.away {
			var err error
			if s.union, err = v.union(p.base); err != nil {
				v.streams.end(s)
				return err
			}
			s.layered = s.union != nil
			s.away = s.layered || in.Offset > 0
		}
		if in.Offset == 0 {
			v.listed(p.node)
		}
		more, err := v.continued(p, s, in.Offset, add)
		if more && err == nil {
			v.streams.keep(s)
		} else {
			v.streams.end(s)
		}
		return err
	})
}

// continued calls add with the entries of a stream from an offset on. It reports false if
// there was none.
func (v *View) continued(p *place, s *stream, off uint64, add func(*place, *stream, fuse.DirEntry) bool) (more bool, err error) {
	policy := v.policy.Load()
	uniform := policy.Uniform()
	if err := s.seek(off); err != nil {
		return false, err
	}
	if s.buf == nil {
		if s.buf, _ = v.streams.pool.Get().([]byte); s.buf == nil {
			s.buf = make([]byte, listSize)
		}
	}
	for {
		var e fuse.DirEntry
		size, err := s.peek(&e)
		if err != nil || size == 0 {
			return more, err
		}
		dots := e.Name == "." || e.Name == ".."
		if e.Name == ".." && p.base == "" {
			e.Ino = p.node.ident.Ino // the inode above the root is the host's
		}
		hidden := !dots && !uniform && policy.File(scope.OpLookup, beneath.Join(p.base, e.Name)).Hidden
		if !hidden && !add(p, s, e) {
			return true, nil
		}
		more = more || !hidden
		s.rest, s.off = s.rest[min(size, len(s.rest)):], e.Off
	}
}

// seek moves to the offset of an entry.
func (s *stream) seek(off uint64) error {
	if off == s.off && !s.away {
		return nil
	}
	s.rest, s.off, s.away = nil, off, false
	if s.union != nil {
		return nil
	}
	_, err := s.file.Seek(int64(off), unix.SEEK_SET)
	return err
}

// peek reads the next entry and returns its size; 0 at the end.
func (s *stream) peek(e *fuse.DirEntry) (int, error) {
	if s.union != nil {
		i, _ := slices.BinarySearchFunc(s.union, s.off+1, func(e fuse.DirEntry, off uint64) int { return cmp.Compare(e.Off, off) })
		if i == len(s.union) {
			return 0, nil
		}
		*e = s.union[i]
		return 1, nil
	}
	if len(s.rest) == 0 {
		n, err := s.file.ReadDirent(s.buf)
		if err != nil {
			return 0, err
		}
		s.rest = s.buf[:n]
	}
	if len(s.rest) == 0 {
		return 0, nil
	}
	return e.Parse(s.rest), nil
}
