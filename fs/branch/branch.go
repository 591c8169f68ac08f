package branch

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/fs/history"
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
	StampName   = "stamp"
	takenName   = "taken"
	IntentName  = "intent" // a commit that is not finished
	stageName   = hold.StageName
	droppedName = "dropped" // see clearAt
)

// Stamp begins a branch with the file StampName: what changes in Base from then on is a change since the fork. It sets the change time of
// the file to now, and waits until the clock of the file system has advanced: a few milliseconds, at most forkTime.
func Stamp(f beneath.File) error {
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

// forkTime bounds Stamp: some file systems count seconds.
const forkTime = 5 * time.Second

// later reports whether a is after b.
func later(a, b unix.StatxTimestamp) bool { return a.Sec > b.Sec || a.Sec == b.Sec && a.Nsec > b.Nsec }

// Open opens a branch. Call Resume before anything else.
func Open(r Roots) (_ *Branch, err error) {
	b := &Branch{Roots: r, Merged: r.View()}
	if b.top, err = r.State.Dir(""); err != nil {
		return nil, err
	}
	st, err := b.top.Stat(StampName)
	if err == nil {
		b.lock, err = r.State.Open(StampName, unix.O_RDONLY, st.ID())
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
