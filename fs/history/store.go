package history

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/fs/history/journal"
	"github.com/scopefs/scopefs/fs/quota"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/beneath"
)

// Label identifies the session and the call of a generation.
type Label struct {
	Session string `json:"session,omitempty"` // the sandbox
	Parent  string `json:"parent,omitempty"`  // the session of the client that the sandbox works for
	Call    string `json:"call,omitempty"`    // the tool call; "" outside of calls
}

// Actor is the author of changes: a process of a view's client.
type Actor struct {
	Label
	Program string `json:"program,omitempty"` // the process's name; "" for a file tool
	Lasting bool   `json:"lasting,omitempty"` // the process has this label as long as it lives; a file tool's worker has others
}

// Options configures a Store. The zero value keeps everything as one generation, without bounds.
type Options struct {
	// Actor returns the session and the program of a process. The Store calls it under no lock of its own, and caches a lasting answer for
	// a second.
	Actor func(pid uint32) (Actor, error)

	Size    int64         // bytes that the history may use; 0: unlimited
	Percent float64       // the same, of the file system; 0: unlimited
	Age     time.Duration // of the oldest generation; 0: unlimited
	Exclude []string      // patterns of scope.PathRule
	Unkept  bool          // what cannot be kept changes all the same, and is listed; else the change is refused: see RefusedError

	Quota *quota.Counter // counts what the history takes; nil: nobody
	Layer Layer          // the tree is its upper directory; nil: it is a scope

	Within string // ".git/": the tree, or a layer's, is the directory of a repository itself

	// Dropped is called when generations were given up, with their number and the reason, and with 0 when the next ones are
	// about to be.
	Dropped func(count int, why string)
	Logger  *slog.Logger // nil discards
}

// Header is the first record of a generation.
type Header struct {
	Label
	Checkpoint string     `json:"checkpoint,omitempty"` // the name of a checkpoint, which is no generation of its own
	GivenUp    bool       `json:"given_up,omitempty"`   // the record of this number was given up, and all before it
	Undo       *Selection `json:"undo,omitempty"`       // what the generation takes back
	Redo       bool       `json:"redo,omitempty"`       // what it takes back was an undo
	Left       bool       `json:"left,omitempty"`       // it had conflicts: another redo goes on
}

// Store is the history of one scope. Its methods may be used from any goroutine. A nil *Store keeps
// nothing: its Writers change the tree and do nothing else.
//
// Lock order: turn, states, mu, generation.syncs, generation.mu, links.mu. The caller may hold View.moves, outside of all.
type Store struct {
	tree, dir *beneath.Root
	top       beneath.Dir
	exclude   func(rel string) bool // of Options.Exclude; nil: nothing
	lock      beneath.File
	points    points
	shares    bool // the file system shares data between files
	opt       Options
	last      atomic.Uint64 // the last Seq
	links     links
	reserve   reserve
	turn      sync.Mutex // held by an undo

	states  sync.Mutex                  // held from a look at the attributes of a file until they are in a record: the last one is right
	writing map[beneath.FileID]*writing // files that clients have open for writing, or are about to change

	mu      sync.Mutex
	open    map[Label]*generation
	ended   endings
	actors  map[uint32]Actor
	emptied time.Time // when actors was emptied
	since   int64     // bytes kept since the last prune
	often   int64     // how many lead to the next one
	lost    []loss    // changes that are not in a journal yet
	blocks  map[beneath.FileID][]blocksOf
	cramped atomic.Bool // a change was refused because the file system is full

	interrupted []interrupted // guarded by turn
	said        bool          // likewise: see says

	wake      chan struct{} // see stir
	ending    chan struct{}
	working   sync.WaitGroup
	finishing sync.WaitGroup // generations that end
}

// maxOpen bounds the generations that are open at a time. Each has two descriptors.
const maxOpen = 64

// flushTime bounds how long a record of what has happened stays in memory.
const flushTime = 50 * time.Millisecond

// Open opens the history dir of the scope tree. Both roots stay the caller's. It corrects what a process
// that was killed has left, and returns the number of journals that it corrected. It fails with
// ErrBusy if another process has the history open.
func Open(tree, dir *beneath.Root, opt Options) (s *Store, corrected int, err error) {
	if opt.Logger == nil {
		opt.Logger = slog.New(slog.DiscardHandler)
	}
	s = &Store{
		tree:    tree,
		dir:     dir,
		opt:     opt,
		open:    map[Label]*generation{},
		writing: map[beneath.FileID]*writing{},
		actors:  map[uint32]Actor{},
		blocks:  map[beneath.FileID][]blocksOf{},
		ending:  make(chan struct{}),
		wake:    make(chan struct{}, 1),
	}
	if len(opt.Exclude) > 0 {
		if s.exclude, err = scope.Covering(opt.Exclude); err != nil {
			return nil, 0, fmt.Errorf("history: %w", err)
		}
	}
	if s.top, err = dir.Dir(""); err != nil {
		return nil, 0, err
	}
	s.lock, err = journal.OpenOrCreate(s.top, "lock")
	if err != nil {
		s.top.Close()
		return nil, 0, fmt.Errorf("history: %w", err)
	}
	if err = s.lock.TryLock(); err == nil {
		s.links.quota = opt.Quota
		if err = s.links.open(s.top); err == nil {
			corrected, err = s.recover()
		}
		if err == nil {
			err = s.points.open(s)
		}
		if err == nil {
			err = s.openReserve()
		}
	} else if err == unix.EWOULDBLOCK {
		err = ErrBusy
	}
	if err != nil {
		s.lock.Close()
		s.top.Close()
		return nil, 0, fmt.Errorf("history: %w", err)
	}
	s.ended.since = s.next()
	_, err = s.top.Stat(saidName)
	s.said = err == nil
	s.probe()
	s.working.Go(s.work)
	return s, corrected, nil
}

// ErrBusy reports that another process has the history open.
var ErrBusy = errors.New("another process has it open")

// Close ends every generation and closes the history.
func (s *Store) Close() {
	if s == nil {
		return
	}
	close(s.ending)
	s.working.Wait()
	s.endAll(func(*generation) bool { return true })
	s.links.close()
	s.reserve.file.Close()
	s.points.log.Close()
	s.lock.Close()
	s.top.Close()
}

// work flushes journals and prunes the history, until Close.
func (s *Store) work() {
	age := time.NewTicker(time.Minute)
	defer age.Stop()
	s.prune(false)
	for synced := time.Now(); ; {
		select {
		case <-s.ending:
			return
		case <-age.C:
			s.prune(false)
			s.fill()
			continue
		case <-s.opt.Quota.Refusals(): // the history may be over its part of the limit
			s.prune(false)
			continue
		case <-s.wake:
		}
		select {
		case <-s.ending:
			return
		case <-time.After(flushTime):
		}
		s.mu.Lock()
		all := slices.Collect(maps.Values(s.open))
		due, lost := s.since > s.often, len(s.lost) > 0
		full := s.cramped.Swap(false) || slices.ContainsFunc(s.lost, func(l loss) bool { return l.why == whyFull })
		s.mu.Unlock()
		for _, g := range all {
			g.flush()
		}
		if time.Since(synced) < time.Second {
			s.stir()
		} else {
			for _, g := range all {
				g.sync()
			}
			synced = time.Now()
		}
		if due || full {
			s.prune(full)
			s.fill()
		}
		if lost {
			s.listLost()
		}
	}
}

// stir wakes work: a journal has to reach the disk, or a loss a journal.
func (s *Store) stir() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// next returns the number of the next record.
func (s *Store) next() uint64 {
	now := uint64(time.Now().UnixNano())
	for {
		last := s.last.Load()
		seq := max(now, last+1)
		if s.last.CompareAndSwap(last, seq) {
			return seq
		}
	}
}

// Writer returns the Writer for the changes of a process. It may call Options.Actor. A process that
// Options.Actor does not know has the zero Label.
func (s *Store) Writer(pid uint32) *Writer {
	if s == nil {
		return nil
	}
	a := s.actor(pid)
	return &Writer{store: s, label: a.Label, pid: pid, program: a.Program}
}

// actorTime is how long a lasting Actor is cached: the kernel may give its process id to another process.
const actorTime = time.Second

func (s *Store) actor(pid uint32) Actor {
	if s.opt.Actor == nil || pid == 0 { // a process that the view's pid namespace does not have
		return Actor{}
	}
	s.mu.Lock()
	if now := time.Now(); now.Sub(s.emptied) > actorTime {
		clear(s.actors)
		s.emptied = now
	}
	a, ok := s.actors[pid]
	s.mu.Unlock()
	if ok {
		return a
	}
	a, err := s.opt.Actor(pid)
	if err != nil {
		s.opt.Logger.Warn("history: the session of a process is not known", "pid", pid, "err", err)
		return Actor{}
	}
	if a.Lasting {
		s.mu.Lock()
		s.actors[pid] = a
		s.mu.Unlock()
	}
	return a
}

// generation returns the open generation of a label. It begins one if there is none. The caller calls users.Done.
func (s *Store) generation(label Label) (*generation, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if g := s.open[label]; g != nil {
		g.used = time.Now()
		g.users.Add(1)
		return g, nil
	}
	if len(s.open) >= maxOpen {
		all := slices.Collect(maps.Values(s.open))
		oldest := slices.MinFunc(all, func(a, b *generation) int { return a.used.Compare(b.used) })
		delete(s.open, oldest.header.Label)
		oldest.retire()
		s.finishing.Go(oldest.end)
	}
	g, err := s.begin(Header{Label: label})
	if err == nil {
		g.users.Add(1)
		s.open[label] = g
	}
	return g, err
}

func (s *Store) newGeneration(h Header) *generation {
	return &generation{store: s, header: h, used: time.Now(), seen: map[beneath.FileID]seen{}, linked: map[string]beneath.FileID{},
		copying: map[beneath.FileID]chan struct{}{}}
}

// begin begins a generation.
func (s *Store) begin(h Header) (*generation, error) {
	g := s.newGeneration(h)
	text, err := json.Marshal(h)
	if err != nil {
		return nil, err
	}
	g.began = s.next()
	name := journal.OpenName(g.began)
	if err := s.top.Mkdir(name, 0o700); err != nil {
		return nil, err
	}
	if g.dir, err = s.dir.Dir(name); err != nil {
		return nil, err
	}
	if g.log, err = journal.OpenLog(g.dir, journal.Name, journal.Frames, true, nil); err == nil {
		if err = g.write(&journal.Record{Seq: g.began, Kind: journal.Begins, Data: text}); err == nil {
			return g, nil
		}
		g.log.Close()
		_ = g.dir.Unlink(journal.Name) // recover removes it, too
	}
	g.dir.Close()
	_ = s.top.Rmdir(name) // likewise
	return nil, err
}

// endAll ends the open generations for which is holds, and waits for those that are ending.
func (s *Store) endAll(is func(*generation) bool) {
	s.mu.Lock()
	var ended []*generation
	for label, g := range s.open {
		if is(g) {
			delete(s.open, label)
			g.retire()
			ended = append(ended, g)
		}
	}
	s.mu.Unlock()
	for _, g := range ended {
		g.end()
	}
	s.finishing.Wait()
}

// settle writes what has happened to the journals of all generations but one, which does so itself. A reader of them sees
// all changes before the call. After a crash the tree shows whether the last records have happened, but not those before others.
func (s *Store) settle(but *generation) {
	s.mu.Lock()
	all := slices.Collect(maps.Values(s.open))
	s.mu.Unlock()
	for _, g := range all {
		if g != but {
			g.flush()
		}
	}
}

// excluded reports whether Options.Exclude matches a path.
func (s *Store) excluded(rel string) bool {
	return s.exclude != nil && s.exclude(rel)
}
