// Package hold shows the versions of a view's client above those of its scope, as long as an operator has not taken them over.
//
// [Layers] are two directories. Upper has what clients have made and copied; an object of Upper hides what Base, the scope, has at
// the path. Directories of both show the names of both, with the attributes of Upper's and the identity of Base's, so that a copy of
// a directory does not change its node. A file that is copied to Upper is another object. Clients that read the file of Base go on with that.
//
// What Base has at a path of the view follows from the path, but for removals and moves. These are records of a journal, which Layers
// has in memory: a path shows nothing of Base, or the object of Base at another path, and so does everything below it. A record is
// written before Upper changes, so that a process that is killed leaves the state before the change or after it: a rename in Upper that
// a record has announced is done when the journal is read.
//
// Only paths that Held reports are looked up in Upper.
package hold

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/fs/history/journal"
	"github.com/scopefs/scopefs/fs/quota"
	"github.com/scopefs/scopefs/scope/beneath"
)

// The directories and the journal of State.
const (
	UpperName   = "upper"
	StageName   = "stage"
	JournalName = "layer"
	KeptName    = "kept" // the history of the layer
	StateName   = "hold" // State itself, in an agent's history, of what rules hold
)

// Keeper notes what the layers show at a path before they change.
type Keeper interface {
	// Read reads the object of Base at a path that the layers show at rel. note is called right before the
	// object is changed, replaced or, with removal, removed, with what the layers show then. Read may take long, and note may not.
	Read(rel, at string, st *beneath.Stat, removal bool) (note func(at string, st *beneath.Stat))
	// Moved is called before a directory moves, or is exchanged with another object.
	Moved(paths ...string)
}

// Layers are the scope and the versions above it, on one mount. Its methods may be called from any goroutine.
type Layers struct {
	Base  *beneath.Root
	Upper *beneath.Root
	Stage *beneath.Root // a directory for copies
	State *beneath.Root

	Held  func(rel string) bool // nil: every path
	Keep  Keeper                // nil: nobody
	Quota *quota.Counter        // counts copies; nil: nobody

	// gate is held for reading while a request changes Upper, and for writing while nobody may. mu guards what follows, and the names
	// of Upper, for a few system calls. Lock order: gate, mu.
	gate, mu  sync.RWMutex
	log       *journal.Log
	copied    map[uint64]copied // by the inode number in Upper
	compactAt int64             // the size of the journal at which it is written anew
	records   *record           // of the root
	last      uint64            // the largest line.Seq
	announced bool              // the last line of the journal announces a change of Upper: see finish
	dirty     atomic.Bool       // the journal has what is not on the disk
	copies    atomic.Uint64     // names of Stage; a process that was killed has left others
}

var _ beneath.Layer = (*Layers)(nil)

// Open returns Layers above base with the directories of state, on one mount. The roots stay the caller's. own says that no other
// process has them: else call Load before a change.
func Open(base, state *beneath.Root, own bool) (*Layers, error) {
	l := &Layers{Base: base, State: state}
	for name, root := range map[string]**beneath.Root{UpperName: &l.Upper, StageName: &l.Stage} {
		sub, err := state.Sub(name)
		if err != nil {
			return nil, fmt.Errorf("held changes: %s: %w", name, err)
		}
		*root = sub
	}
	l.copies.Store(uint64(time.Now().UnixNano()))
	if err := l.load(own); err != nil {
		return nil, fmt.Errorf("held changes: %w", err)
	}
	return l, nil
}

// View returns the layers as one tree.
func (l *Layers) View() *beneath.Root {
	root := *l.Base
	root.Layer = l
	return &root
}

// gateTime bounds how long a request waits for the gate: a view answers within two seconds.
const gateTime = 1500 * time.Millisecond

// Enter begins a change of Upper, which Leave ends. It fails with EBUSY while changes are being taken over.
func (l *Layers) Enter() error {
	for end := time.Now().Add(gateTime); !l.gate.TryRLock(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			return syscall.EBUSY
		}
	}
	return nil
}

// Leave ends a change of Upper.
func (l *Layers) Leave() { l.gate.RUnlock() }

// Freeze keeps requests from changing names of Upper, until thaw is called: another process may change them, and the records.
// Writes to open files go on.
func (l *Layers) Freeze() (thaw func() error) {
	l.gate.Lock()
	return func() error {
		defer l.gate.Unlock()
		return l.Load()
	}
}

// Still is Freeze for this process, which may change names of Upper by itself until end is called: the records stay its own.
func (l *Layers) Still() (end func(), err error) {
	l.gate.Lock()
	l.mu.Lock()
	err = l.begin()
	l.mu.Unlock()
	if err != nil {
		l.gate.Unlock()
		return nil, err
	}
	return l.gate.Unlock, nil
}

// Find implements beneath.Layer.
func (l *Layers) Find(rel string) (beneath.Found, error) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.look(rel)
}

// look is Find for a caller that holds mu.
func (l *Layers) look(rel string) (beneath.Found, error) {
	if l.Held != nil && !l.Held(rel) {
		return found(l.Base, rel)
	}
	own, err := found(l.Upper, rel)
	if err != nil && !errors.Is(err, beneath.ErrStale) || err == nil && !own.Stat.IsDir() {
		return own, err
	}
	base, lowerErr := l.below(rel)
	switch {
	case err != nil:
		return base, lowerErr
	case lowerErr == nil && base.Stat.IsDir():
		own.Stat.Identify(&base.Stat)
	}
	return own, nil
}

func found(root *beneath.Root, rel string) (beneath.Found, error) {
	st, err := root.Stat(rel)
	return beneath.Found{Root: root, Rel: rel, Stat: st, Own: st.ID()}, err
}

// below finds the object of Base that a path shows, or would show without Upper.
func (l *Layers) below(rel string) (beneath.Found, error) {
	base, there := l.records.resolve(rel)
	if !there {
		return beneath.Found{}, beneath.ErrStale
	}
	return found(l.Base, base)
}

// Below implements history.Layer, and history.Shows.
func (l *Layers) Below(rel string) (beneath.Found, error) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.below(rel)
}

// Names implements beneath.Layer.
func (l *Layers) Names(rel string) ([]string, error) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.names(rel)
}

// names is Names for a caller that holds mu.
func (l *Layers) names(rel string) (all []string, err error) {
	if st, err := l.Upper.Stat(rel); err == nil && st.IsDir() {
		if all, err = l.Upper.Names(rel); err != nil {
			return nil, err
		}
		all = slices.DeleteFunc(all, func(name string) bool { return l.Held != nil && !l.Held(beneath.Join(rel, name)) })
	}
	kids := l.records.at(rel).kidsOf()
	if base, err := l.below(rel); err == nil && base.Stat.IsDir() {
		below, err := l.Base.Names(base.Rel)
		if err != nil {
			return nil, err
		}
		for _, name := range below {
			if kid := kids[name]; kid == nil || !kid.set {
				all = append(all, name)
			}
		}
	}
	for name, kid := range kids {
		if kid.set && kid.there {
			if _, err := l.Base.Stat(kid.base); err == nil {
				all = append(all, name)
			}
		}
	}
	slices.Sort(all)
	return slices.Compact(all), nil
}

// Both calls read for the directories that the layers have at a path, Upper's first, and then record for the names that records hide,
// with the attributes of what comes to the name; nil: nothing does.
func (l *Layers) Both(rel string, read func(root *beneath.Root, at string) error, record func(name string, moved *beneath.Stat)) error {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if st, err := l.Upper.Stat(rel); err == nil && st.IsDir() {
		if err := read(l.Upper, rel); err != nil {
			return err
		}
	}
	if at, err := l.below(rel); err == nil && at.Stat.IsDir() {
		if err := read(l.Base, at.Rel); err != nil {
			return err
		}
	}
	for name, kid := range l.records.at(rel).kidsOf() {
		if !kid.set {
			continue
		}
		if st, err := l.Base.Stat(kid.base); kid.there && err == nil {
			record(name, &st)
		} else {
			record(name, nil)
		}
	}
	return nil
}

// Shown is what a record says of a path: it shows nothing of Base, or the object at another path.
type Shown struct {
	There bool
	Base  string
}

// Records returns what records say of the names in a directory.
func (l *Layers) Records(rel string) map[string]Shown {
	l.mu.RLock()
	defer l.mu.RUnlock()
	all := map[string]Shown{}
	for name, kid := range l.records.at(rel).kidsOf() {
		if kid.set {
			all[name] = Shown{kid.there, kid.base}
		}
	}
	return all
}

// Moved returns the paths of the objects of Base that records bring to other paths.
func (l *Layers) Moved() map[string]bool {
	l.mu.RLock()
	defer l.mu.RUnlock()
	all := map[string]bool{}
	l.records.each("", func(_ string, r *record) {
		if r.there {
			all[r.base] = true
		}
	})
	return all
}

// copied is a file of Upper that was copied from Base.
type copied struct {
	birth int64
	ino   uint64 // of the file of Base
}

// Number returns the inode number that clients see of an object: of a copy that of the file of Base. born is its birth time; 0: any.
func (l *Layers) Number(ino uint64, born int64) uint64 {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if c, ok := l.copied[ino]; ok && (born == 0 || c.birth == born) {
		return c.ino
	}
	return ino
}

// Missing returns ENOENT for a name that is not there.
func Missing(err error) error {
	if errors.Is(err, beneath.ErrStale) {
		return syscall.ENOENT
	}
	return err
}

// Sync writes the records to the disk.
func (l *Layers) Sync() error {
	if !l.dirty.Swap(false) {
		return nil
	}
	l.mu.RLock()
	f, err := l.log.Dup()
	l.mu.RUnlock()
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync(true)
}

// touch sets the modification time of a directory of Upper in which a name has changed by a record alone.
func touch(dir beneath.Dir) {
	now := unix.Timespec{Nsec: unix.UTIME_NOW}
	_ = dir.Self().Utimes(unix.Timespec{Nsec: unix.UTIME_OMIT}, now)
}

// Name is a name in a directory of Upper.
type Name struct {
	Dir  beneath.Dir
	Rel  string // the directory's path
	Name string
}

// Path returns the path of the name.
func (n Name) Path() string { return beneath.Join(n.Rel, n.Name) }

// here begins a change. It returns ErrStale if the directory of a name is not at its path any more. The caller holds mu.
func (l *Layers) here(names ...Name) error {
	if err := l.begin(); err != nil {
		return err
	}
	var now beneath.Stat
	for i, n := range names {
		st, err := n.Dir.Self().Stat()
		if err == nil && (i == 0 || n.Rel != names[0].Rel) {
			now, err = l.Upper.Stat(n.Rel)
		}
		if err != nil {
			return err
		}
		if now.ID() != st.ID() {
			return beneath.ErrStale
		}
	}
	return nil
}
