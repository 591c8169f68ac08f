package history

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/fs/history/journal"
	"github.com/scopefs/scopefs/fs/quota"
	"github.com/scopefs/scopefs/scope/beneath"
)

// blockSize is the unit in which a large file is kept where the file system shares no data between files.
const blockSize = 64 << 10

// maxBlocks bounds what one change may make the history copy: a client waits for it.
const maxBlocks = 1 << 30

// blocks keeps one file block by block: each before it is replaced for the first time. Its kept file has them at their offsets, and
// behind them a byte for each block, not zero if it is there.
type blocks struct {
	mu   sync.Mutex
	from beneath.File // the file, to be read
	kept beneath.File
	size int64 // of the file when the record was written
	have []byte
}

// blocksEnd returns the offset of the bytes behind the blocks of a file.
func blocksEnd(size int64) int64 { return (size + blockSize - 1) / blockSize * blockSize }

// blocksSize returns the size of a kept file with the blocks of a file.
func blocksSize(size int64) int64 { return blocksEnd(size) + blocksEnd(size)/blockSize }

// newBlocks makes the kept file for the blocks of a file.
func newBlocks(from, kept beneath.File, size int64) (*blocks, error) {
	b := &blocks{size: size, have: make([]byte, blocksEnd(size)/blockSize)}
	err := kept.Truncate(blocksSize(size))
	if err == nil {
		b.from, err = from.Dup()
	}
	if err == nil {
		if b.kept, err = kept.Dup(); err != nil {
			b.from.Close()
		}
	}
	return b, err
}

func (b *blocks) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.from.Close()
	b.kept.Close()
	b.have = nil
}

// keep keeps the blocks of a part of the file that are not kept yet. It returns the bytes that it has copied.
func (b *blocks) keep(off, end int64, room *quota.Counter) (copied int64, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.have == nil { // the generation has ended: what follows is of others
		return 0, nil
	}
	end = min(end, b.size)
	first := off / blockSize
	missing := int64(0)
	for i := first; i*blockSize < end; i++ {
		if b.have[i] == 0 {
			missing += blockSize
		}
	}
	if missing > maxBlocks {
		return 0, &RefusedError{fmt.Sprintf("more than %d bytes would have to be copied at once: replace the file by a new one", maxBlocks), unix.EFBIG}
	}
	if err := room.Fits(missing); err != nil {
		return 0, err
	}
	if before, err := b.kept.Stat(); err == nil {
		defer room.Grew(b.kept, &before)
	}
	buffer := make([]byte, blockSize)
	for i := first; i*blockSize < end; i++ {
		if b.have[i] != 0 {
			continue
		}
		n, err := b.from.ReadAt(buffer[:min(blockSize, b.size-i*blockSize)], i*blockSize)
		if err == nil && n > 0 {
			err = b.kept.WriteAll(buffer[:n], i*blockSize)
		}
		if err == nil { // after a crash a block that is there counts
			err = b.kept.WriteAll([]byte{1}, blocksEnd(b.size)+i)
		}
		if err != nil {
			return copied, err
		}
		b.have[i] = 1
		copied += int64(n)
	}
	return copied, nil
}

// Blocks keeps what a change of a file replaces, from an offset up to another one, if it is kept by blocks. The caller has called
// Content, and nobody has the file open past the view.
func (w *Writer) Blocks(id beneath.FileID, off, end int64) error {
	if w == nil || w.nothing {
		return nil
	}
	id = plain(id)
	w.store.mu.Lock()
	all := slices.Clone(w.store.blocks[id])
	w.store.mu.Unlock()
	for _, one := range all { // each generation has what was there when it began
		copied, err := one.keep(off, end, w.store.opt.Quota)
		one.of.keeps(copied)
		if _, refused := errors.AsType[*RefusedError](err); err != nil && !refused {
			err = &RefusedError{err.Error(), errnoOf(err)}
		}
		if err != nil {
			w.store.crowded(err)
			return err
		}
	}
	return nil
}

// ByBlocks reports whether a file is kept by blocks: its changes must reach the view.
func (s *Store) ByBlocks(id beneath.FileID) bool {
	if s == nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.blocks[plain(id)]) > 0
}

// Large reports whether the content of a file of a size is kept by blocks.
func (s *Store) Large(size int64) bool { return s != nil && !s.shares && size > MaxCopy }

// blocksOf are the blocks of a file that a generation keeps.
type blocksOf struct {
	*blocks
	of *generation
}

// byBlocks begins to keep a file by blocks, for a record that follows.
func (g *generation) byBlocks(id beneath.FileID, from, kept beneath.File, size int64) error {
	b, err := newBlocks(from, kept, size)
	if err != nil {
		return err
	}
	g.store.mu.Lock()
	defer g.store.mu.Unlock()
	g.store.blocks[id] = append(g.store.blocks[id], blocksOf{b, g})
	return nil
}

// resumeBlocks is byBlocks for a record of a process that was killed. open opens the file for reading.
func (g *generation) resumeBlocks(r *journal.Record, open func() (beneath.File, error)) error {
	from, err := open()
	if err != nil {
		return err
	}
	defer from.Close()
	kept, _, err := g.store.dir.OpenAny(journal.OpenName(g.began)+"/"+keptName(r.Kept), unix.O_RDWR)
	if err != nil {
		return err
	}
	defer kept.Close()
	if err := g.byBlocks(plain(r.Object), from, kept, r.Attr.Size); err != nil {
		return err
	}
	g.store.mu.Lock()
	defer g.store.mu.Unlock()
	all := g.store.blocks[plain(r.Object)]
	have := all[len(all)-1].have
	n, err := kept.ReadAt(have, blocksEnd(r.Attr.Size))
	if err == nil && n < len(have) {
		err = journal.ErrTorn
	}
	return err
}

// endBlocks ends what a generation keeps by blocks, of one object or with the zero FileID of all.
func (g *generation) endBlocks(of beneath.FileID) {
	s := g.store
	var ended []*blocks
	s.mu.Lock()
	for id, list := range s.blocks {
		if of != (beneath.FileID{}) && id != of {
			continue
		}
		list = slices.DeleteFunc(slices.Clone(list), func(b blocksOf) bool {
			if b.of == g {
				ended = append(ended, b.blocks)
			}
			return b.of == g
		})
		if s.blocks[id] = list; len(list) == 0 {
			delete(s.blocks, id)
		}
	}
	s.mu.Unlock()
	for _, b := range ended { // it may wait for a copy
		b.close()
	}
}

// fillBlocks writes the blocks of a kept file back, and gives the file its old size.
func (u *undoing) fillBlocks(f, kept beneath.File, e *entry) error {
	id, size := plain(e.Object), e.Attr.Size
	now, err := f.Stat()
	if err != nil {
		return err
	}
	if int64(now.Size) > size {
		if err := u.w.Blocks(now.ID(), size, int64(now.Size)); err != nil {
			return err
		}
	}
	have := make([]byte, blocksEnd(size)/blockSize)
	if n, err := kept.ReadAt(have, blocksEnd(size)); err != nil || n < len(have) {
		return errors.Join(err, journal.ErrTorn)
	}
	buffer := make([]byte, blockSize)
	for i, there := range have {
		if there == 0 {
			continue
		}
		at := int64(i) * blockSize
		n, err := kept.ReadAt(buffer[:min(blockSize, size-at)], at)
		if err == nil {
			err = u.w.Blocks(id, at, at+int64(n))
		}
		if err == nil {
			err = f.WriteAll(buffer[:n], at)
		}
		if err != nil {
			return err
		}
	}
	return f.Truncate(size)
}

// probe finds out whether the file system shares data between files.
func (s *Store) probe() {
	const one, two = "probe.1", "probe.2"
	defer func() { _, _ = s.top.Unlink(one), s.top.Unlink(two) }()
	from, err := journal.OpenOrCreate(s.top, one)
	if err != nil {
		return
	}
	defer from.Close()
	to, err := journal.OpenOrCreate(s.top, two)
	if err != nil {
		return
	}
	defer to.Close()
	s.shares = from.WriteAll(make([]byte, 4096), 0) == nil && to.Clone(from) == nil
}
