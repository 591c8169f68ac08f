package view

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/fs/branch"
	"github.com/scopefs/scopefs/fs/history/journal"
	"github.com/scopefs/scopefs/fs/hold"
	"github.com/scopefs/scopefs/internal/view/wire"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/beneath"
	"github.com/scopefs/scopefs/scope/beneath/mounts"
)

// RemoveBranch removes the directory of a branch, with the changes that it holds. It waits until no process has the branch
// open, for removeTime at most, and unmounts what a daemon has left that was killed. A commit that is not finished is an
// error: the directory has objects of the agent's.
func RemoveBranch(name string) error {
	state, err := beneath.OpenDir(name)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer state.Close()
	st, err := state.Stat("")
	if err != nil {
		return err
	}
	if os.Geteuid() == 0 && st.Mode&0o077 != 0 {
		return fmt.Errorf("%q is open to others than user %d: look at what is in it, and remove it", name, st.Uid)
	}
	for end := time.Now().Add(removeTime); ; time.Sleep(removeTime / 100) {
		err := idle(state)
		if err == nil {
			var used beneath.File
			if used, err = use(state); err == nil {
				defer used.Close()
			}
		}
		switch {
		case err == errUnfinished:
			return fmt.Errorf("%w: scopefs diff finishes it", err)
		case err == nil:
			if err = mounts.Unmount(state, formerMerged); err != nil && !errors.Is(err, os.ErrNotExist) {
				return err
			}
			if err := branch.Remove(state); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			return os.Remove(name)
		case err != branch.ErrBusy && err != branch.ErrUsed || time.Now().After(end):
			return err
		}
	}
}

const removeTime = 10 * time.Second // the process that answers the last request ends earlier

// LockBranch locks the directory of a branch for one daemon. It returns EWOULDBLOCK if another one has the lock.
func LockBranch(name string) (*os.File, error) {
	dir, err := os.OpenFile(name, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		dir.Close()
		return nil, err
	}
	return dir, nil
}

// Left reports whether an agent has had a branch by changes: held, and whether that holds changes. history is the directory of its
// history.
func Left(history string) (branched, holds bool) {
	dir, err := os.Open(filepath.Join(history, hold.UpperName)) // which stays
	if err != nil {
		return false, false
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(1)
	records, err := os.Lstat(filepath.Join(history, hold.JournalName))
	return true, len(names) > 0 || err == nil && records.Size() > 0
}

// Kept reports whether a history has changes: those of a view that nobody has changed anything in has none. history is its directory.
func Kept(history string) bool {
	dir, err := os.Open(history)
	if err != nil {
		return false
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1)
	return slices.ContainsFunc(names, func(name string) bool { _, _, _, ok := journal.ParseName(name); return ok })
}

// Upper returns the directory that has what a held branch has changed, opened with O_PATH. The caller closes it.
func (o *Offline) Upper() (*os.File, error) {
	if o.dir == nil {
		return nil, wire.ErrNoHistory
	}
	f, err := o.dir.Object(hold.UpperName)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(f.FD()), hold.UpperName), nil
}

// partiesName has the caller and the member of a task, in the directory of its branch.
const partiesName = "task"

// Parties are the agents of a task that has a branch: the content of partiesName.
type Parties struct{ Caller, Member scope.ID }

// maxParties bounds partiesName, in bytes.
const maxParties = 512

// Write makes partiesName in a directory of the caller's user, which may hold another object of that name.
func (p Parties) Write(state *beneath.Root) error {
	text, err := json.Marshal(p)
	if err != nil {
		return err
	}
	top, err := state.Dir("")
	if err != nil {
		return err
	}
	defer top.Close()
	f, err := top.Create(partiesName, unix.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	n, err := f.WriteAt(text, 0, false)
	if err == nil && n < len(text) {
		err = unix.ENOSPC
	}
	return errors.Join(err, f.Close())
}

// ReadParties reads the file of Write. It returns an error for a file of another user than this process's.
func ReadParties(place string) (p Parties, err error) {
	state, err := beneath.OpenDir(place)
	if err != nil {
		return p, err
	}
	defer state.Close()
	st, err := state.Stat(partiesName)
	if err != nil {
		return p, err
	}
	if int(st.Uid) != os.Geteuid() || st.Nlink != 1 || st.Size > maxParties {
		return p, fmt.Errorf("%s: %w", partiesName, beneath.ErrStale)
	}
	f, err := state.Open(partiesName, unix.O_RDONLY, st.ID()) // a regular file
	if err != nil {
		return p, err
	}
	defer f.Close()
	text := make([]byte, maxParties)
	n, err := f.ReadAt(text, 0)
	if err != nil {
		return p, err
	}
	return p, json.Unmarshal(text[:n], &p)
}
