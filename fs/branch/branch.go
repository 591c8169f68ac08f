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
	"github.com/scopefs/scopefs/fs/plan"
	"github.com/scopefs/scopefs/scope/beneath"
)

// Roots are the directories of a branch. They stay the caller's.
type Roots struct {
	Merged *beneath.Root // the overlay
	Base   *beneath.Root // its lower layer: the directory that was forked
	Upper  *beneath.Root // its upper layer
	State  *beneath.Root // the branch's directory, in the same mount as Base

	// Origin reports whether the object at a path of Upper was copied up from Base, by its attribute trusted.overlay.origin.
	// Without it an object that the branch has changed, and the host removed, counts as added. If Base has hard links, an object that the branch has moved
	// can seem removed by the host: a conflict that is none.
	Origin func(rel string) bool

	// Held reports whether a path is held by a rule. It is set for an upper layer that a view has written, for those paths alone:
	// its directories above them have the modes of Base, as they were. Call Drop, not Discard.
	Held func(rel string) bool

	// Judged reports whether rules judge the content of a path as a whole: it is not merged. nil: none.
	Judged func(rel string) bool

	// Link returns why a commit does not take a symbolic link with a text. It is called with the text that is staged. nil: any.
	Link func(rel, text string) error
}

// Branch is a fork of a directory. One process at a time has it open. Its methods must not run at the same time.
type Branch struct {
	Roots
	top   beneath.Dir // State
	lock  beneath.File
	stamp unix.StatxTimestamp // the fork, by the file system's clock
	taken taken
	bases *beneath.File // nil: there is no journal of them
}

// ErrBusy reports that another process has the branch open.
var ErrBusy = errors.New("another process has the branch open")

// The files of State.
const (
	stampName  = "stamp"
	takenName  = "taken"
	intentName = "intent"
	stageName  = "stage"
	usedName   = "used"

	droppedName = "dropped" // see clearAt
)

// The directories of State for Roots.Upper and Roots.Merged, which who mounts the overlay makes.
const (
	UpperName  = "upper"
	MergedName = "merged"
)

// Fork begins a branch in State. Call it before the overlay is mounted, once: what changes in Base from then on is a change
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
	first, err := f.Stat()
	mode := uint32(0o600)
	for latest, end := first, time.Now().Add(forkTime); err == nil && !later(latest.Ctime, first.Ctime); {
		if time.Now().After(end) {
			return fmt.Errorf("fork: the clock of the file system does not advance within %v", forkTime)
		}
		mode ^= 0o200 // JuiceFS takes the mode that a file has for no change
		if err = f.Chmod(mode); err == nil {
			latest, err = f.Stat()
		}
	}
	if err == nil {
		err = f.Sync(false)
	}
	if err == nil {
		err = top.Mkdir(stageName, 0o700)
	}
	if err == nil {
		err = syncDir(state, "")
	}
	return err
}

// forkTime bounds Fork: some file systems count seconds.
const forkTime = 5 * time.Second

// later reports whether a is after b.
func later(a, b unix.StatxTimestamp) bool { return a.Sec > b.Sec || a.Sec == b.Sec && a.Nsec > b.Nsec }

// Open opens a branch. Call Resume before anything else.
func Open(r Roots) (_ *Branch, err error) {
	b := &Branch{Roots: r}
	if b.top, err = r.State.Dir(""); err != nil {
		return nil, err
	}
	st, err := b.top.Stat(stampName)
	if err == nil {
		b.stamp = st.Ctime
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
		err = b.taken.open(b.top)
	}
	if err == nil {
		if f, failed := openBases(r.State, b.top); failed == nil {
			b.bases = &f
		}
	}
	if err != nil {
		b.lock.Close()
		b.top.Close()
		return nil, fmt.Errorf("open branch: %w", err)
	}
	return b, nil
}

// ErrUnfinished reports a commit that Resume has to finish: the stage has objects of Base.
var ErrUnfinished = errors.New("a commit is not finished")

// Use locks State for whoever mounts the overlay, as long as the file is open: the kernel does not define what two overlays of
// one upper layer do. It returns ErrUsed if another process has it.
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

// ErrUsed reports that another process has the overlay mounted.
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
	if b.bases != nil {
		b.bases.Close()
	}
	b.taken.log.Close()
	b.lock.Close()
	b.top.Close()
}

// ident identifies a version of an object of Base.
type ident = plan.Ident

func identOf(st *beneath.Stat) ident { return plan.IdentOf(st) }

func plainTime(t unix.StatxTimestamp) unix.StatxTimestamp { return plan.PlainTime(t) }

// UpperID identifies an object of Upper.
type UpperID struct {
	Ino   uint64 `json:"i"`
	Birth int64  `json:"b,omitempty"`
}

func upperID(st *beneath.Stat) UpperID { return UpperID{st.Ino, st.ID().Birth} }

func parentOf(rel string) string { return rel[:max(strings.LastIndexByte(rel, '/'), 0)] }
func baseOf(rel string) string   { return rel[strings.LastIndexByte(rel, '/')+1:] }

// within reports whether rel is dir, or below it.
func within(rel, dir string) bool { return dir == "" || rel == dir || strings.HasPrefix(rel, dir+"/") }

// syncDir writes a directory to the disk.
func syncDir(root *beneath.Root, rel string) error {
	return openDir(root, rel, func(f beneath.File) error { return f.Sync(false) })
}

// openDir opens a directory for reading, for a moment.
func openDir(root *beneath.Root, rel string, do func(beneath.File) error) error {
	st, err := root.Stat(rel)
	if err != nil {
		return err
	}
	f, err := root.Open(rel, unix.O_RDONLY|unix.O_DIRECTORY, st.ID())
	if err != nil {
		return err
	}
	defer f.Close()
	return do(f)
}

// Forked returns the time of the fork.
func (b *Branch) Forked() time.Time { return time.Unix(b.stamp.Sec, int64(b.stamp.Nsec)) }
