package history

import (
	"errors"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/fs/history/journal"
	"github.com/scopefs/scopefs/fs/quota"
	"github.com/scopefs/scopefs/scope/beneath"
)

// generation is a generation that is being written.
type generation struct {
	store  *Store
	header Header
	began  uint64
	used   time.Time      // guarded by Store.mu
	users  sync.WaitGroup // changes of the scope that are in the generation: end waits for them

	syncs   sync.Mutex // held by sync
	mu      sync.Mutex // held to write the journal, never while a file is copied
	dir     beneath.Dir
	journal beneath.File
	size    int64 // of the journal
	usage   [2]quota.Usage
	pending []byte   // records of what has happened, not in the journal yet
	kept    uint32   // the last number
	bytes   int64    // of the kept files
	copies  []uint32 // since the last sync
	dirty   bool     // since the last sync
	retired bool     // it ends soon, and does not wait with records of what has happened
	ended   bool
	seen    map[beneath.FileID]uint8         // what is kept of an object
	copying map[beneath.FileID]chan struct{} // closed when the copy is complete
}

// The values of generation.seen.
const (
	seenBorn = 1 << iota
	seenContent
	seenAttributes
	seenNames // Record.Flags Names
)

// write appends a record to the journal, after those that are pending.
func (g *generation) write(r *journal.Record) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(r.Path)+len(r.To) > maxPaths {
		return errLongPath
	}
	g.pending = journal.Append(g.pending, r)
	g.store.stir()
	return g.flushLocked()
}

// errLongPath is the error of a record with a path beyond maxPaths: the change is made, and not kept.
var errLongPath = errors.New("the path is too long for a journal")

// maxPaths bounds the paths of a record, in bytes.
const maxPaths = journal.MaxRecord / 4

// note appends a record of what has happened. It reaches the journal with the next one, or after flushTime.
func (g *generation) note(r *journal.Record) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.pending = journal.Append(g.pending, r)
	g.store.stir()
	if g.retired {
		_ = g.flushLocked() // as in flush
	}
}

// retire is called when Store.open does not have the generation any more: see Store.settle.
func (g *generation) retire() {
	g.mu.Lock()
	g.retired = true
	g.mu.Unlock()
	g.flush()
}

func (g *generation) flush() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.ended {
		_ = g.flushLocked() // it stays pending
	}
}

func (g *generation) flushLocked() error {
	for len(g.pending) > 0 {
		n, err := g.journal.WriteAt(g.pending, g.size, false)
		if err != nil {
			return err
		}
		g.size += int64(n)
		g.pending = g.pending[:copy(g.pending, g.pending[n:])]
		g.dirty = true
	}
	g.store.opt.Quota.Grown(g.journal, &g.usage[0])
	g.store.opt.Quota.Grown(g.dir.Self(), &g.usage[1])
	return nil
}

// sync writes the journal to the disk, after the copies that it names.
func (g *generation) sync() {
	g.syncs.Lock()
	defer g.syncs.Unlock()
	g.mu.Lock()
	if !g.dirty || g.ended {
		g.mu.Unlock()
		return
	}
	g.dirty = false
	copies := g.copies
	g.copies = nil
	f, err := g.journal.Dup()
	g.mu.Unlock()
	for _, k := range copies {
		g.store.syncCopy(journal.OpenName(g.began) + "/" + keptName(k))
	}
	if err == nil {
		_ = f.Sync(true) // the next one tries again
		f.Close()
	}
}

// syncCopy writes a kept file to the disk. Without it a power failure can leave less than the record says: Open finds that.
func (s *Store) syncCopy(rel string) {
	st, err := s.dir.Stat(rel)
	if err != nil {
		return
	}
	if f, err := s.dir.Open(rel, unix.O_RDONLY, st.ID()); err == nil {
		_ = f.Sync(true)
		f.Close()
	}
}

// end ends the generation, which Store.open does not have any more.
func (g *generation) end() {
	g.users.Wait()
	g.sync()
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ended {
		return
	}
	if err := g.flushLocked(); err != nil {
		g.store.opt.Logger.Error("history: journal", "err", err)
	}
	g.ended = true
	g.journal.Close()
	g.dir.Close()
	if err := g.store.top.Rename(journal.OpenName(g.began), g.store.top, journal.EndedName(g.began, g.bytes+g.size), unix.RENAME_NOREPLACE); err != nil {
		g.store.opt.Logger.Error("history: end a generation", "err", err)
	}
}

// number returns the number of the next kept file.
func (g *generation) number() uint32 {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.kept++
	return g.kept
}

// keeps counts a kept file.
func (g *generation) keeps(bytes int64) {
	g.mu.Lock()
	g.bytes += bytes
	g.mu.Unlock()
	s := g.store
	s.mu.Lock()
	s.since += bytes
	s.mu.Unlock()
}

// has reports whether something of an object is kept.
func (g *generation) has(id beneath.FileID, what uint8) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.seen[id]&what != 0
}

// mark notes that something of an object is kept.
func (g *generation) mark(id beneath.FileID, what uint8) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.seen[id] |= what
}

// gone drops an object: the kernel may give its identity to another one.
func (g *generation) gone(id beneath.FileID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.seen, id)
}
