// Package listing reads directories for readers that continue by an offset, and merges the entries of two layers.
package listing

import (
	"cmp"
	"slices"
	"sync"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/scope/beneath"
)

// Edition identifies what a directory lists. It changes with the names in the directory
// and with the policy.
type Edition struct{ All, Own uint32 }

// Stream is an open listing between two requests. Offsets are those of the directory below,
// so a request can start at any entry.
type Stream struct {
	Plus    int  // entries returned with attributes
	Layered bool // the directory is of two layers: names in it may be of the upper one

	dir     uint64 // the node
	edition Edition
	file    beneath.File
	buf     []byte          // dirents of getdents64(2); nil while rest is empty
	rest    []byte          // the dirents of buf that were not returned yet
	off     uint64          // the offset of rest
	away    bool            // the file's offset is not off
	union   []fuse.DirEntry // of a directory of two layers, instead of file's
}

// Open returns a stream of a directory, which owns the file. It is stale.
func Open(file beneath.File, dir uint64) *Stream { return &Stream{file: file, dir: dir, away: true} }

// Stale reports whether the entries must be read again.
func (s *Stream) Stale(now Edition) bool { return s.away || now != s.edition }

// Renew makes the stream read again from an offset on. union has the entries of a directory of two layers; nil: it is not one.
func (s *Stream) Renew(now Edition, union []fuse.DirEntry, off uint64) {
	s.edition, s.rest, s.union, s.Layered = now, nil, union, union != nil
	s.away = s.Layered || off > 0
}

// Streams holds the listings that readers may continue. The kernel does not report when a
// reader opens or closes a directory (see fs.View.OpenDir), so Streams closes one when there are
// too many. Its reader continues by offset, and may miss names on file systems that move
// offsets when names are removed.
type Streams struct {
	mu   sync.Mutex
	kept []*Stream
	next int       // the slot that the next stream gets if none is free
	pool sync.Pool // of buffers
}

// NewStreams returns a set of at most so many streams.
func NewStreams(most int) *Streams { return &Streams{kept: make([]*Stream, most)} }

const bufferSize = 32 << 10 // bytes

// Take returns the stream of a directory at an offset, or nil. The caller owns it.
func (t *Streams) Take(dir, off uint64) *Stream {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i, s := range t.kept {
		if s != nil && s.dir == dir && s.off == off {
			t.kept[i] = nil
			return s
		}
	}
	return nil
}

// Keep stores a stream until its reader continues.
func (t *Streams) Keep(s *Stream) {
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
		t.End(old)
	}
}

// Idle frees the buffers, while there is nothing to do.
func (t *Streams) Idle() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, s := range t.kept {
		if s != nil && s.buf != nil {
			s.away = true
			t.give(s)
		}
	}
}

// Drop ends the streams of a directory; 0 ends all.
func (t *Streams) Drop(dir uint64) {
	var ended []*Stream
	t.mu.Lock()
	for i, s := range t.kept {
		if s != nil && (dir == 0 || s.dir == dir) {
			t.kept[i] = nil
			ended = append(ended, s)
		}
	}
	t.mu.Unlock()
	for _, s := range ended { // without the lock: the last close(2) of a removed directory frees its blocks
		t.End(s)
	}
}

// End closes a stream.
func (t *Streams) End(s *Stream) {
	t.give(s)
	s.file.Close()
}

// give returns the buffer of a stream to the pool.
func (t *Streams) give(s *Stream) {
	if s.buf != nil {
		t.pool.Put(s.buf) //nolint:staticcheck // SA6002: a slice header is 24 bytes beside a buffer of many KiB
		s.buf, s.rest = nil, nil
	}
}

// Seek moves a stream to the offset of an entry.
func (t *Streams) Seek(s *Stream, off uint64) error {
	if err := s.seek(off); err != nil {
		return err
	}
	if s.buf == nil {
		if s.buf, _ = t.pool.Get().([]byte); s.buf == nil {
			s.buf = make([]byte, bufferSize)
		}
	}
	return nil
}

func (s *Stream) seek(off uint64) error {
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

// Peek reads the next entry and returns its size; 0 at the end.
func (s *Stream) Peek(e *fuse.DirEntry) (int, error) {
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

// Advance moves past the entry that Peek has returned, which has a size, to the offset of the next.
func (s *Stream) Advance(size int, next uint64) {
	s.rest, s.off = s.rest[min(size, len(s.rest)):], next
}
