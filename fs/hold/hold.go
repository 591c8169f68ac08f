// Package hold shows, at paths that rules hold, the versions of a view's client above those of its scope.
//
// [Layers] are two directories. Upper is what an overlay (overlayfs) takes as its upper layer above Base, the scope: a whiteout
// is a removal. It has no extended attributes of overlayfs; a new directory has whiteouts for what Base's has. Only held
// paths are looked up in Upper: directories above them are there without meaning. A directory of both layers shows the
// names of both, has the attributes of Upper's and the identity of Base's, so that a copy of a directory does not
// change its node. A file that is copied to Upper is another object.
//
// An overlay mounted below a view that is in use would not do: it does not see names that appear below it later. With
// [Layers.Freeze] one can be mounted for package branch, which lists and takes over what Upper has.
package hold

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/scopefs/scopefs/fs/branch"
	"github.com/scopefs/scopefs/fs/quota"
	"github.com/scopefs/scopefs/scope/beneath"
)

// Layers are the scope and the versions above it, on one mount. The callers say which paths are held. Its methods may be
// called from any goroutine.
type Layers struct {
	Base  *beneath.Root
	Upper *beneath.Root
	State *beneath.Root  // of a branch.Branch; nobody has that open while Upper changes
	Stage *beneath.Root  // a directory for copies
	Quota *quota.Counter // counts copies; nil: nobody

	// gate is held for reading while a request changes Upper, and for writing while nobody may. mu guards the names of
	// Upper, for a few system calls. Lock order: gate, mu.
	gate, mu sync.RWMutex
	copies   atomic.Uint64 // names of Stage; a process that was killed has left others
}

// StateName is the directory of State in that of an agent's history.
const StateName = "hold"

const stageName = "stage" // in State

// Open returns Layers above base, on the mount of history: the directory of an agent's history.
func Open(base, history *beneath.Root) (*Layers, error) {
	var roots [3]*beneath.Root
	for i, name := range []string{StateName, StateName + "/" + branch.UpperName, StateName + "/" + stageName} {
		f, err := history.Object(name)
		if err != nil {
			return nil, fmt.Errorf("held changes: %w", err)
		}
		roots[i] = beneath.NewRoot(f.FD())
	}
	return New(base, roots[1], roots[0], roots[2]), nil
}

// New returns Layers. The roots stay the caller's.
func New(base, upper, state, stage *beneath.Root) *Layers {
	l := &Layers{Base: base, Upper: upper, State: state, Stage: stage}
	l.copies.Store(uint64(time.Now().UnixNano()))
	return l
}

// Name is a name in a directory of Upper.
type Name struct {
	Dir  beneath.Dir
	Rel  string // the directory's path
	Name string
}

// Path returns the path of the name.
func (n Name) Path() string { return beneath.Join(n.Rel, n.Name) }

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

// Freeze keeps requests from changing names of Upper, until thaw is called. Writes to open files go on.
func (l *Layers) Freeze() (thaw func()) {
	l.gate.Lock()
	return l.gate.Unlock
}

// Find returns the attributes of the object at a held path, and the layer that has it. It returns beneath.ErrStale if there is none.
func (l *Layers) Find(rel string) (st beneath.Stat, at *beneath.Root, err error) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.look(rel)
}

// look is find for a caller that holds mu.
func (l *Layers) look(rel string) (st beneath.Stat, at *beneath.Root, err error) {
	own, err := l.Upper.Stat(rel)
	switch {
	case err == nil && own.IsWhiteout():
		return own, nil, beneath.ErrStale
	case err == nil && !own.IsDir():
		return own, l.Upper, nil
	case err != nil && !errors.Is(err, beneath.ErrStale):
		return own, nil, err
	}
	lower, lowerErr := l.below(rel)
	if err != nil {
		return lower, l.Base, lowerErr
	}
	if lowerErr == nil && lower.IsDir() {
		own.Identify(&lower)
	}
	return own, l.Upper, nil
}

// below returns the attributes of the scope's object at a path whatever Upper has there, but not if Upper hides a directory
// above it.
func (l *Layers) below(rel string) (beneath.Stat, error) {
	for dir := parentOf(rel); dir != ""; dir = parentOf(dir) {
		st, err := l.Upper.Stat(dir)
		if err == nil && !st.IsDir() {
			return st, beneath.ErrStale
		}
		if err == nil {
			break
		}
	}
	return l.Base.Stat(rel)
}

// Missing returns ENOENT for a name that is not there.
func Missing(err error) error {
	if errors.Is(err, beneath.ErrStale) {
		return syscall.ENOENT
	}
	return err
}

// Both calls each for the directories of the layers that have one at a path, Upper's first.
func (l *Layers) Both(rel string, each func(root *beneath.Root) error) error {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if st, err := l.Upper.Stat(rel); err == nil && st.IsDir() {
		if err := each(l.Upper); err != nil {
			return err
		}
	}
	if st, err := l.below(rel); err == nil && st.IsDir() {
		return each(l.Base)
	}
	return nil
}
