package branch

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/fs/history"
	"github.com/scopefs/scopefs/fs/history/journal"
	"github.com/scopefs/scopefs/fs/hold"
	"github.com/scopefs/scopefs/fs/plan"
	"github.com/scopefs/scopefs/scope/beneath"
)

// Roots are the layers of a branch, and what judges a commit. They stay the caller's.
type Roots struct {
	*hold.Layers // no client changes it meanwhile, but by open files

	// Held reports whether a path is held by a rule, and not merely above one: attributes of others are not compared. nil: every path is.
	Held func(rel string) bool

	// Judged reports whether rules judge the content of a path as a whole: it is not merged. nil: none.
	Judged func(rel string) bool

	// Link returns why a commit does not take a symbolic link with a text. It is called with the text that is staged. nil: any.
	Link func(rel, text string) error
}

// Branch is a fork of a directory. One process at a time has it open. Its methods must not run at the same time.
type Branch struct {
	Roots
	Merged *beneath.Root // what clients see

	top   beneath.Dir // State
	lock  beneath.File
	stamp unix.StatxTimestamp // the fork, by the file system's clock
	taken taken
	bases beneath.File
}

// ErrBusy reports that another process has the branch open.
var ErrBusy = errors.New("another process has the branch open")

// The files of State.
const (
	stampName   = "stamp"
	takenName   = "taken"
	intentName  = "intent"
	stageName   = hold.StageName
	usedName    = "used"
	droppedName = "dropped" // see clearAt
)

// Fork begins a branch in State, where it makes what the branch needs but hold.UpperName: what changes in Base from then on is a change
// since the fork. It waits until the clock of the file system has advanced: a few milliseconds, at most forkTime.
func Fork(state *beneath.Root) error {
	top, err := state.Dir("")
	if err != nil {
		return err
	}
	defer top.Close()
	f, err := top.Create(stampName, unix.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("fork: %w", err)
	}
	defer f.Close()
	if err = stamp(f); err != nil {
		return fmt.Errorf("fork: %w", err)
	}
	if err = top.Mkdir(stageName, 0o700); err == nil {
		err = top.Sync()
	}
	return err
}

// stamp sets the change time of a file to now, and waits until the clock has advanced.
func stamp(f beneath.File) error {
	st, err := f.Stat()
	if err != nil {
		return err
	}
	mode := uint32(st.Mode) & 0o777
	now := func() (t unix.StatxTimestamp, err error) {
		mode ^= 0o200 // JuiceFS takes the mode that a file has for no change
		if err = f.Chmod(mode); err == nil {
			st, err = f.Stat()
		}
		return st.Ctime, err
	}
	first, err := now()
	for latest, end := first, time.Now().Add(forkTime); err == nil && !later(latest, first); latest, err = now() {
		if time.Now().After(end) {
			return fmt.Errorf("the clock of the file system does not advance within %v", forkTime)
		}
	}
	if err == nil {
		err = f.Sync(false)
	}
	return err
}

// forkTime bounds Fork: some file systems count seconds.
const forkTime = 5 * time.Second

// later reports whether a is after b.
func later(a, b unix.StatxTimestamp) bool { return a.Sec > b.Sec || a.Sec == b.Sec && a.Nsec > b.Nsec }

// Open opens a branch. Call Resume before anything else.
func Open(r Roots) (_ *Branch, err error) {
	b := &Branch{Roots: r, Merged: r.View()}
	if b.top, err = r.State.Dir(""); err != nil {
		return nil, err
	}
	st, err := b.top.Stat(stampName)
	if err == nil {
		b.lock, err = r.State.Open(stampName, unix.O_RDONLY, st.ID())
	}
	if err != nil {
		b.top.Close()
		return nil, fmt.Errorf("open branch: %w", err)
	}
	if err = b.lock.TryLock(); err == unix.EWOULDBLOCK {
		err = ErrBusy
	}
	if err == nil {
		b.bases, err = openBases(b.top)
	}
	if err == nil {
		err = b.refresh(false)
	}
	if err != nil {
		b.lock.Close()
		b.top.Close()
		return nil, fmt.Errorf("open branch: %w", err)
	}
	return b, nil
}

// refresh reads what a view may have written since. own says that no view changes the branch: this process may.
func (b *Branch) refresh(own bool) error {
	read := b.Read
	if own {
		read = b.Load
	}
	err := read()
	if err == nil {
		err = b.taken.open(b.top, own)
	}
	st, failed := b.lock.Stat()
	b.stamp = st.Ctime
	return errors.Join(err, failed)
}

// ErrUnfinished reports a commit that Resume has to finish: the stage has objects of Base.
var ErrUnfinished = errors.New("a commit is not finished")

// Use locks State for the view that has the layers, as long as the file is open. It returns ErrUsed if another process has it.
func Use(state *beneath.Root) (beneath.File, error) {
	top, err := state.Dir("")
	if err != nil {
		return beneath.File{}, err
	}
	defer top.Close()
	f, err := journal.OpenOrCreate(top, usedName)
	if err != nil {
		return f, err
	}
	if err = f.TryLock(); err == unix.EWOULDBLOCK {
		err = ErrUsed
	}
	if err != nil {
		f.Close()
	}
	return f, err
}

// ErrUsed reports that another process has the layers.
var ErrUsed = errors.New("another scopefs has the branch mounted: end it, run both by one daemon, or use another branch")

// killedTime bounds the wait for a lock: a process of a command that was killed has it until it ends.
const killedTime = 2 * time.Second

// WaitFor calls open until it returns another error than that of a lock, or one of busy: at most for killedTime.
func WaitFor[T any](open func() (T, error), busy ...error) (T, error) {
	busy = append(busy, ErrUsed, ErrBusy, history.ErrBusy)
	for end := time.Now().Add(killedTime); ; time.Sleep(killedTime / 200) {
		t, err := open()
		again := slices.ContainsFunc(busy, func(b error) bool { return errors.Is(err, b) })
		if !again || !time.Now().Before(end) {
			return t, err
		}
	}
}

// Idle returns ErrBusy if a process has the branch open, and ErrUnfinished. Without an error State can be removed.
func Idle(state *beneath.Root) error {
	if _, err := state.Stat(intentName); err == nil {
		return ErrUnfinished
	} else if !errors.Is(err, beneath.ErrStale) {
		return err
	}
	st, err := state.Stat(stampName)
	if errors.Is(err, beneath.ErrStale) {
		return nil
	}
	if err != nil {
		return err
	}
	f, err := state.Open(stampName, unix.O_RDONLY, st.ID())
	if err != nil {
		return err
	}
	defer f.Close()
	if err = f.TryLock(); err == unix.EWOULDBLOCK {
		return ErrBusy
	}
	return errors.Join(err, f.Unlock())
}

// Close closes the branch.
func (b *Branch) Close() {
	b.bases.Close()
	b.taken.log.Close()
	b.lock.Close()
	b.top.Close()
}

// ident identifies a version of an object of Base.
type ident = plan.Ident

// within reports whether rel is dir, or below it.
func within(rel, dir string) bool { return dir == "" || rel == dir || strings.HasPrefix(rel, dir+"/") }

// Forked returns the time of the fork.
func (b *Branch) Forked() time.Time { return time.Unix(b.stamp.Sec, int64(b.stamp.Nsec)) }
