package history

import (
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
	log     *journal.Log
	usage   [2]quota.Usage
	code    journal.Coder // of the log
	pending []byte        // records of what has happened, not in the journal yet
	kept    uint32        // the last number
	bytes   int64         // of the kept files
	copies  []uint32      // since the last sync
	dirty   bool          // since the last sync
	retired bool          // it ends soon, and does not wait with records of what has happened
	ended   bool
	seen    map[beneath.FileID]seen          // what is kept of an object
	linked  map[string]beneath.FileID        // names that it has given to objects with others
	copying map[beneath.FileID]chan struct{} // closed when the copy is complete
}

// seen is what a generation keeps of an object, and how its clients have left that.
type seen struct {
	what uint8
	left stamp
}

// The bits of seen.what.
const (
	seenBorn = 1 << iota
	seenContent
	seenAttributes
	seenNames // Record.Flags Names
)

// write appends a record to the journal, after those that are pending.
func (g *generation) write(r *journal.Record) error {
	if len(r.Path)+len(r.To) > maxPaths {
		return &RefusedError{"the path is too long for a journal", unix.ENAMETOOLONG}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	before, code := len(g.pending), g.code
	g.pending = g.code.Append(g.pending, r)
	g.store.stir()
	err := g.flushLocked()
	if err != nil { // what the record says does not happen
		g.pending, g.code = g.pending[:before], code
	}
	return err
}

// maxPaths bounds the paths of a record, in bytes. Who moves directories into one another can make them longer than MaxPath.
const maxPaths = journal.MaxRecord / 4

// MaxPath bounds a path that gets a new name where changes are kept, in bytes.
const MaxPath = 16 << 10

// note appends a record of what has happened. It reaches the journal with the next one, or after flushTime.
func (g *generation) note(r *journal.Record) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.pending = g.code.Append(g.pending, r)
	g.store.stir()
	if g.retired {
		_ = g.flushLocked() // as in flush
	}
}

// retire is called when Store.open does not have the generation any more: see Store.settle. The caller holds Store.mu.
func (g *generation) retire() {
	g.store.ended.add(g.header.Label, g.began, g.store.last.Load())
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

// load reads the generation by its own descriptor.
func (g *generation) load() (loaded generationRecords, err error) {
	p := past{name: journal.OpenName(g.began), began: g.began}
	g.mu.Lock()
	if g.ended {
		g.mu.Unlock()
		return g.store.load(p)
	}
	_ = g.flushLocked() // as in flush
	f, err := g.log.Dup()
	g.mu.Unlock()
	if err != nil {
		return loaded, err
	}
	defer f.Close()
	loaded.past = p
	return loaded, loaded.read(f)
}

func (g *generation) flushLocked() error {
	if len(g.pending) > 0 {
		if err := g.log.AppendText(g.pending); err != nil {
			return err
		}
		g.pending, g.dirty = g.pending[:0], true
	}
	g.store.opt.Quota.Grown(g.log.File, &g.usage[0])
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
	f, err := g.log.Dup()
	g.mu.Unlock()
	for _, k := range copies {
		if f, _, err := g.store.dir.OpenAny(journal.OpenName(g.began)+"/"+keptName(k), unix.O_RDONLY); err == nil {
			_ = f.Sync(true) // else a power failure can leave less than the record says: Open finds that
			f.Close()
		}
	}
	if err == nil {
		_ = f.Sync(true) // the next one tries again
		f.Close()
	}
}

// end ends the generation, which Store.open does not have any more.
func (g *generation) end() {
	g.users.Wait()
	g.endBlocks(beneath.FileID{})
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
	g.log.Close()
	g.dir.Close()
	name := journal.EndedName(g.began, g.bytes+g.log.Size())
	if err := g.store.top.Rename(journal.OpenName(g.began), g.store.top, name, unix.RENAME_NOREPLACE); err != nil {
		g.store.opt.Logger.Error("history: end a generation", "err", err)
	}
}

// keptCost is what a kept file counts beside its content, in bytes: it takes an inode or a name. It bounds the number of kept files.
const keptCost = 4 << 10

// number returns the number of the next kept file.
func (g *generation) number() uint32 {
	defer g.keeps(keptCost)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.kept++
	return g.kept
}

// keeps counts what is kept.
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
	return g.seen[id].what&what != 0
}

// own reports whether the generation has made an object or keeps its content, and nobody else has changed it since: another
// generation or the host. What is not known is somebody else's.
func (g *generation) own(st *beneath.Stat, what uint8) bool {
	id := plain(st.ID())
	g.mu.Lock()
	s := g.seen[id]
	g.mu.Unlock()
	return s.what&what != 0 && (!st.IsRegular() || s.left == stampOf(st) || g.store.written(id))
}

// disown makes the generation keep an object anew before its next change.
func (g *generation) disown(id beneath.FileID) {
	g.update(id, func(s *seen) { s.what &^= seenBorn | seenContent })
}

// update changes what is known of an object that the generation has seen.
func (g *generation) update(id beneath.FileID, change func(*seen)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if s, ok := g.seen[id]; ok {
		change(&s)
		g.seen[id] = s
	}
}

// leave notes how the clients of a generation have left a file.
func (g *generation) leave(st *beneath.Stat) {
	g.update(plain(st.ID()), func(s *seen) { s.left = stampOf(st) })
}

// stamp tells one content of a file from another, as far as attributes do. The zero stamp is of none.
type stamp struct {
	size uint64
	sec  int64
	nsec uint32
}

func stampOf(st *beneath.Stat) stamp { return stamp{st.Size, st.Mtime.Sec, st.Mtime.Nsec} }

// mark notes that something of an object is kept. If that is of an object that the generation has made, others have changed the object.
func (g *generation) mark(id beneath.FileID, what uint8) {
	g.mu.Lock()
	defer g.mu.Unlock()
	s := g.seen[id]
	s.what = s.what&^seenBorn | what
	g.seen[id] = s
}

// link notes a name that the generation has given to an object.
func (g *generation) link(rel string, id beneath.FileID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.linked) < maxLinked {
		g.linked[rel] = plain(id)
	}
}

// maxLinked bounds generation.linked. Names beyond it are kept when they are removed.
const maxLinked = 100_000

// unlink reports whether the generation has given an object the name, and forgets it.
func (g *generation) unlink(rel string, id beneath.FileID) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	given, ok := g.linked[rel]
	delete(g.linked, rel)
	return ok && given == id
}

// relink forgets the names: a directory gets another path.
func (g *generation) relink() {
	g.mu.Lock()
	defer g.mu.Unlock()
	clear(g.linked)
}

// gone drops an object: the kernel may give its identity to another one.
func (g *generation) gone(id beneath.FileID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.seen, id)
}
